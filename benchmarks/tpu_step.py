r"""Our step and transformers' BERT in Flax, compiled for a TPU slice: cycles, memory, ratio.

    benchmarks/setup_peer.sh DIR
    python benchmarks/tpu_step.py --peer_python=DIR/bin/python [--topology=v5e:2x2] \
        [--batch_size=256] [--length=128] [--size=base|large] [--layers=N] [--only=ours|theirs] \
        [--save_hlo=DIR [--reuse]] [--set=model.remat=dots] [--compiler_option=NAME=VALUE] [--json]

No TPU is needed: libtpu (extra `plan`) compiles for devices that are not there, and nothing is run.
All figures are the compiler's estimates, for one device and one update, of the program it would
give to the slice: sequences of the same number and length, dropout 0.1, bfloat16 products on
float32 parameters, AdamW, data-parallel, the state donated. Ours has the default options; theirs
has the tanh form of gelu, which costs it less than its exact one, computes the vocabulary logits of
every position, as its training example does, and does not clip gradients.

What carries no estimate (custom calls, all-reduces, random bits) is in the cycles of neither side
and listed; the seconds of a step add it as `bertjax.plan` does, bytes over the rates of memory and
links. transformers draws its random bits with threefry, ordinary arithmetic that is in the cycles,
ours come from `rbg` (on TPU), which is not; `random_bytes` says how much each side draws so.
--set=prng_impl=threefry2x32 counts both. One compilation takes
minutes. `--reuse` takes theirs from an earlier run's --save_hlo, for trying out changes of ours;
--set changes an option of our config, --compiler_option one of XLA's, for ours alone.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tpu_peer
import train_step

OURS, THEIRS = "bertjax", tpu_peer.NAME
PACKAGES = ("bertjax", "jax", "jaxlib", "flax", "optax", "libtpu")
# Name in the results -> how it is written.
SHOWN = {
    "cycles": lambda value: f"{value / 1e6:.2f} M",
    "peak_bytes": lambda value: f"{value / 2**20:,.0f} MiB",
    "allocated_bytes": lambda value: f"{value / 2**20:,.0f} MiB",
    "bytes_accessed": lambda value: f"{value / 2**20:,.0f} MiB",
    "collective_bytes": lambda value: f"{value / 2**20:,.0f} MiB",
    "random_bytes": lambda value: f"{value / 2**20:,.0f} MiB",
    **dict.fromkeys(
        ("compute_seconds", "memory_seconds", "collective_seconds", "step_seconds"),
        lambda value: f"{value * 1e3:.2f} ms",
    ),
}
RANDOM_BITS = re.compile(r"= \(?u(?P<bits>\d+)\[(?P<sizes>[\d,]*)\].* rng-bit-generator\(")


def lower_ours(shape: tpu_peer.Shape, settings: Mapping[str, str]) -> Any:
    """Returns our training step lowered for the slice, as `bertjax.train` would compile it there.

    Raises:
      ValueError: if a setting is not an option, or the config or the slice does not fit.
    """
    import jax
    import numpy as np

    from bertjax import jobs
    from bertjax.devices import sharding
    from bertjax.plan import topologies
    from bertjax.training import config_faults, program

    case = train_step.Case(shape.batch_size, shape.length)
    config = train_step.step_config(train_step.job_of_size(shape.size, case, layers=shape.layers))
    train_step.set_options(config, settings)
    config_faults.validate(config)
    devices = topologies.devices(topologies.parse(shape.topology))
    mesh = sharding.make_mesh(devices, data=config.mesh.data, tensor=config.mesh.tensor)
    job = jobs.JOBS[config.task].open(program.resolve(config, "tpu", devices[0].device_kind))
    built = program.build(job, mesh)
    batch = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    rows = sharding.batch_sharding(mesh)
    inputs = {
        name: jax.ShapeDtypeStruct(np.shape(value), value.dtype, sharding=rows)
        for name, value in batch.items()
        if name != "record_positions"  # stay on the host
    }
    with jax.set_mesh(mesh):
        return built.train_step.lower(built.abstract_state, inputs, built.abstract_step_inputs)


def compile_ours(
    shape: tpu_peer.Shape, directory: pathlib.Path, options: argparse.Namespace
) -> None:
    """Compiles our step in this process; saves as `tpu_peer.save`."""
    tpu_peer.prepare_process()
    lowered = lower_ours(shape, options.set)
    tpu_peer.save(
        OURS,
        shape,
        lowered,
        directory,
        packages=PACKAGES,
        compiler_options=options.compiler_option,
    )


def compile_theirs(shape: tpu_peer.Shape, directory: pathlib.Path, python: str) -> None:
    """Compiles transformers' step in its own environment; saves as `tpu_peer.save`.

    Raises:
      RuntimeError: with the end of its error output, if it fails.
    """
    command = [python, str(pathlib.Path(tpu_peer.__file__)), f"--directory={directory}"]
    command += [f"--{name}={value}" for name, value in vars(shape).items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} stopped with code {done.returncode}:\n{done.stderr[-3000:]}"
        )


def read(name: str, shape: tpu_peer.Shape, directory: pathlib.Path) -> dict[str, Any]:
    """Returns what was saved of a compiled step, with the cycles counted from its program.

    Raises:
      FileNotFoundError: if nothing was saved.
      ValueError: if what was saved has another shape.
    """
    from bertjax.plan import estimates, hlo, topologies

    path = directory / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; make it first: without --reuse")
    facts = json.loads(path.read_text())
    if facts["shape"] != vars(shape):
        raise ValueError(
            f"{path} is of {facts['shape']}, asked is {vars(shape)}: leave out --reuse, or give "
            "every shape a directory of its own"
        )
    program = (directory / f"{name}.hlo.txt").read_text()
    found = hlo.analyze(program)
    tpu = topologies.parse(shape.topology)
    target = estimates.Target(tpu.name, "tpu", tpu.device_kind, tpu.num_devices, tpu)
    parts = {name: part.value for name, part in estimates.step_parts(target, found).items()}
    allocated = sum(facts[kind] for kind in ("argument_bytes", "output_bytes", "temporary_bytes"))
    return facts | {
        "cycles": found.cycles,
        "allocated_bytes": allocated - facts["aliased_bytes"] + facts["code_bytes"],
        "collective_bytes": sum(collective.bytes for collective in found.collectives),
        "random_bytes": random_bytes(program),
        "uncounted": dict(found.uncounted),
        **parts,
        "step_seconds": sum(parts.values()),
    }


def random_bytes(program: str) -> int:
    """Returns the bytes that a program's `rng-bit-generator`s write; those in a loop count once."""
    return sum(
        math.prod(int(size) for size in match["sizes"].split(",") if size) * int(match["bits"]) // 8
        for match in RANDOM_BITS.finditer(program)
    )


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line per figure: each side's, and ours over theirs where both are there."""
    lines = [" " * 20 + "".join(f"{name:>16}" for name in results)]
    for figure, written in SHOWN.items():
        values = [result.get(figure, 0) for result in results.values()]
        line = f"  {figure:18}" + "".join(f"{written(value):>16}" for value in values)
        if len(values) == 2:
            line += f"{values[0] / values[1]:>9.3f}" if values[1] else ""
        lines.append(line)
    for name, result in results.items():
        uncounted = ", ".join(f"{target} x{count}" for target, count in result["uncounted"].items())
        versions = ", ".join(f"{package} {v}" for package, v in result["versions"].items())
        lines.append(f"  {name}: compiled in {result['compile_seconds']:.0f} s; {versions}")
        lines.append(f"  {name}: without an estimate: {uncounted or 'nothing'}")
    return lines


def measure(
    shape: tpu_peer.Shape, options: argparse.Namespace, directory: pathlib.Path
) -> dict[str, dict[str, Any]]:
    """Returns the results by name; theirs comes first and leaves libtpu before ours takes it."""
    results = {}
    if options.only != "ours":
        if not options.reuse:
            compile_theirs(shape, directory, options.peer_python)
        results[THEIRS] = read(THEIRS, shape, directory)
    if options.only != "theirs":
        compile_ours(shape, directory, options)
        results[OURS] = read(OURS, shape, directory)
    return {name: results[name] for name in (OURS, THEIRS) if name in results}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options, --set and --compiler_option as dicts."""
    parser = argparse.ArgumentParser(description="Our TPU step beside transformers' BERT in Flax.")
    tpu_peer.add_arguments(parser)
    parser.add_argument("--peer_python", help="python of setup_peer.sh's environment")
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--save_hlo", type=pathlib.Path, help="directory that keeps the programs")
    parser.add_argument("--reuse", action="store_true", help="theirs from --save_hlo, if there")
    train_step.add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
    train_step.add_settings(
        parser, "--compiler_option", "NAME=VALUE of XLA, for ours; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.only != "ours" and not (options.peer_python or options.reuse):
        parser.error("--peer_python is missing: make the environment with benchmarks/setup_peer.sh")
    if options.reuse and not options.save_hlo:
        parser.error("--reuse needs --save_hlo=DIR, where an earlier run kept theirs")
    options.set, options.compiler_option = dict(options.set), dict(options.compiler_option)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles what is asked and prints."""
    from bertjax.plan import topologies

    options = parse(argv)
    options.topology = topologies.parse(options.topology).topology
    shape = tpu_peer.shape_of(options)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.save_hlo or pathlib.Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        results = measure(shape, options, directory)
    if options.json:
        print(json.dumps({"shape": vars(shape), "set": options.set, **results}, indent=2))
        return 0
    print(
        f"{shape.topology}, BERT-{shape.size} with {shape.layers} layers, one global batch of "
        f"{shape.batch_size}x{shape.length}; the compiler's estimates, per device and step"
    )
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
