r"""Our step compiled for a TPU slice: cycles and memory, and transformers' or BERT-base's.

    benchmarks/setup_peer.sh DIR
    python benchmarks/tpu_step.py --peer_python=DIR/bin/python [--topology=v5e:2x2] \
        [--batch_size=256] [--length=128] [--size=base|large] [--layers=N] [--only=ours|theirs] \
        [--save_hlo=DIR [--reuse]] [--set=model.remat=dots]
    python benchmarks/tpu_step.py --recipes=all|bert_base,electra:base [--vocab_size=30522] \
        [--topology=v5e:2x2] [--batch_size=256] [--length=128] [--set=model.attention=xla]

No TPU is needed: libtpu (extra `plan`) compiles for devices that are not there, and nothing is run.
All figures are the compiler's estimates, for one device and one update, of the program it would
give to the slice: sequences of the same number and length, dropout 0.1, bfloat16 products on
float32 parameters, AdamW, data-parallel, the state donated. Ours has the default options; theirs,
FlaxBertForPreTraining, has the tanh form of gelu, which costs it less than its exact one, computes
the vocabulary logits of every position, as its training example does, and does not clip gradients.

What carries no estimate (custom calls, all-reduces, random bits) is in the cycles of neither side
and listed; the seconds of a step add it as `bertjax.plan` does, bytes over the rates of memory and
links. transformers draws its random bits with threefry, ordinary arithmetic that is in the cycles,
ours come from `rbg` (on TPU), which is not; `random_bytes` says how much each side draws so.
--set=prng_impl=threefry2x32 counts both. One compilation takes minutes. `--reuse` takes theirs from
an earlier run's --save_hlo, for trying out changes of ours; --set changes an option of our config.

With --recipes each recipe keeps its vocabulary (unless --vocab_size), objective, optimizer and
precision; the batch, its length and the mesh are the same for all. Cycles are those of `python -m
bertjax.plan`; FLOPs are counted from the shapes. Compiled steps are cached.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import peer
import peer_step
import report
import train_step

OURS, THEIRS = "bertjax", "transformers"


# Name in the results -> how it is written.
SHOWN = {
    "cycles": lambda value: f"{value / 1e6:.2f} M",
    **dict.fromkeys(
        ("peak_bytes", "bytes_accessed", "collective_bytes", "random_bytes"),
        lambda value: f"{value / 2**20:,.0f} MiB",
    ),
    **dict.fromkeys(
        ("compute_seconds", "memory_seconds", "collective_seconds", "step_seconds"),
        lambda value: f"{value * 1e3:.2f} ms",
    ),
}
RANDOM_BITS = re.compile(r"= \(?u(?P<bits>\d+)\[(?P<sizes>[\d,]*)\].* rng-bit-generator\(")
BASE = "bert_base"
RECIPES = (
    *(BASE, "roberta:base", "spanbert:base", "albert:base", "electra:base"),
    "distilbert_base",  # the student's step: no teacher is at hand
    *("left_to_right_base", "modernbert:base", "deberta_v3:base"),
)


def lower_ours(job: peer_step.Job, topology: str, settings: Mapping[str, str]) -> Any:
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

    config = train_step.step_config(job)
    train_step.set_options(config, settings)
    config_faults.validate(config)
    devices = topologies.devices(topologies.parse(topology))
    mesh = sharding.make_mesh(devices, data=config.mesh.data, tensor=config.mesh.tensor)
    opened = jobs.JOBS[config.task].open(program.resolve(config, "tpu", devices[0].device_kind))
    built = program.build(opened, mesh)
    batch = next(opened.data.train_batches(opened.phases[0], start_step=0, rows=None))
    rows = sharding.batch_sharding(mesh)
    inputs = {
        name: jax.ShapeDtypeStruct(np.shape(value), value.dtype, sharding=rows)
        for name, value in batch.items()
        if name != "record_positions"  # stay on the host
    }
    with jax.set_mesh(mesh):
        return built.train_step.lower(built.abstract_state, inputs, built.abstract_step_inputs)


def read(path: pathlib.Path, job: peer_step.Job, topology: str) -> dict[str, Any]:
    """Returns what was saved of a compiled step, with the cycles counted from its program.

    Raises:
      FileNotFoundError: if nothing was saved.
      ValueError: if what was saved has another shape.
    """
    from bertjax.plan import estimates, hlo, topologies

    saved, shape = path.with_name(f"{path.name}.json"), peer_step.shape(job, topology)
    if not saved.exists():
        raise FileNotFoundError(f"{saved} is missing; make it first: without --reuse")
    facts = json.loads(saved.read_text())
    if facts["shape"] != shape:
        raise ValueError(
            f"{saved} is of {facts['shape']}, asked is {shape}: leave out --reuse, or give every "
            "shape a directory of its own"
        )
    program = path.with_name(f"{path.name}.hlo.txt").read_text()
    found = hlo.analyze(program)
    tpu = topologies.parse(topology)
    target = estimates.Target(tpu.name, "tpu", tpu.device_kind, tpu.num_devices, tpu)
    parts = {name: part.value for name, part in estimates.step_parts(target, found).items()}
    return facts | {
        "cycles": found.cycles,
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


def lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line per figure: each side's, and ours over theirs where both are there."""
    found = [" " * 20 + "".join(f"{name:>16}" for name in results)]
    for figure, written in SHOWN.items():
        values = [result.get(figure, 0) for result in results.values()]
        line = f"  {figure:18}" + "".join(f"{written(value):>16}" for value in values)
        if len(values) == 2:
            line += f"{values[0] / values[1]:>9.3f}" if values[1] else ""
        found.append(line)
    for name, it in results.items():
        uncounted = ", ".join(f"{target} x{count}" for target, count in it["uncounted"].items())
        versions = report.named(it["versions"])
        found.append(f"  {name}: compiled in {it['compile_seconds']:.0f} s; {versions}")
        found.append(f"  {name}: without an estimate: {uncounted or 'nothing'}")
    return found


def measure(
    job: peer_step.Job, options: argparse.Namespace, directory: pathlib.Path
) -> dict[str, dict[str, Any]]:
    """Returns the results by name; theirs comes first and leaves libtpu before ours takes it."""
    results, topology = {}, options.topology
    if options.only != "ours":
        if not options.reuse:
            flags = [*job.flags, f"--topology={topology}", f"--directory={directory}"]
            list(peer.answers(train_step.command(options.peer_python, "flax", flags)))
        results[THEIRS] = read(directory / THEIRS, job, topology)
    if options.only != "theirs":
        peer_step.prepare_process()
        lowered, path = lower_ours(job, topology, dict(options.set)), directory / OURS
        peer_step.save(path, peer_step.shape(job, topology), lowered, OURS)
        results[OURS] = read(path, job, topology)
    return {name: results[name] for name in (OURS, THEIRS) if name in results}


def beside_transformers(options: argparse.Namespace) -> None:
    """Compiles what is asked of both sides, and prints."""
    case = train_step.Case(options.batch_size, options.length)
    job = train_step.job_of_size(options.size, case, layers=options.layers)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.save_hlo or pathlib.Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        results = measure(job, options, directory)
    print(
        f"{options.topology}, BERT-{options.size} with {job.num_layers} layers, one global batch of"
        f" {case}; the compiler's estimates, per device and step"
    )
    print("\n".join(lines(results)))


def config_of(recipe: str, options: argparse.Namespace) -> Any:
    """Returns the recipe with one phase of this batch, on all devices; a size of 0 is its own."""
    from bertjax import recipes

    config = recipes.load(recipe)
    with config.phases.unlocked():
        for name in set(config.phases) - {"phase1"}:
            del config.phases[name]
    config.phases.phase1.update(max_seq_length=options.length, num_epochs=0.0, num_steps=1_000_000)
    config.phases.phase1.update(num_tokens=0, ramp_from=0, ramp_tokens=0)
    config.phases.phase1.global_batch_size = options.batch_size
    config.gradient_accumulation_steps = 1
    config.mesh.data = -1
    if config.pretraining.masking != "none":
        predictions = math.ceil(config.pretraining.masked_lm_prob * options.length)
        config.pretraining.max_predictions_per_seq = predictions
    config.model.vocab_size = options.vocab_size or config.model.vocab_size
    train_step.set_options(config, dict(options.set))
    return config


def compile_recipe(recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles a recipe's step, or finds it in the cache; returns its figures per device.

    Raises:
      ValueError: if the step does not fit, with what the compiler says.
    """
    from bertjax.plan import cache, planner, targets

    config = config_of(recipe, options)
    target = targets.make_target(options.topology, config)
    made = planner.plan(config, targets.make_planner(target, cache.default_directory()))
    (phase,) = made.phases
    if phase.refusal:
        raise ValueError(
            f"{recipe} does not fit on {options.topology}: {phase.refusal}; give a smaller "
            "--batch_size or --set=gradient_accumulation_steps=2"
        )
    return {
        "vocab_size": made.vocab_size,
        "cycles": phase.speed["cycles"].value,
        "flops": phase.model_flops.value,  # of the model, forward and backward
        "memory_bytes": phase.memory["total"].value,
    }


def family(options: argparse.Namespace) -> None:
    """Compiles the recipes and prints the table; ratios are to BERT-base, where it is there."""
    import jax
    from absl import logging

    jax.config.update("jax_platforms", "cpu")
    logging.set_verbosity(logging.INFO)  # a line per compilation
    steps = {name: compile_recipe(name, options) for name in options.recipes}
    base = steps.get(BASE)
    rows = [
        (
            f"`{name}`",
            f"{it['vocab_size']:,}",
            f"{it['cycles'] / 1e6:.2f}",
            *(f"{it[kind] / base[kind]:.3f}" if base else "" for kind in ("cycles", "flops")),
            f"{it['memory_bytes'] / 2**30:.2f}",
        )
        for name, it in steps.items()
    ]
    head = ("recipe", "vocabulary", "M cycles", "of BERT-base", "FLOPs, of BERT-base")
    print(report.table((*head, "GiB per device"), rows))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description="Our TPU step beside transformers' BERT in Flax.")
    parser.add_argument("--topology", default="v5e:2x2", help="a slice, as bertjax.plan has it")
    parser.add_argument("--batch_size", type=int, default=256, help="sequences, of all devices")
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--layers", type=int, default=0, help="instead of the size's own number")
    parser.add_argument("--size", choices=tuple(peer_step.SIZES), default="base")
    parser.add_argument("--peer_python", help="python of setup_peer.sh's environment")
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--save_hlo", type=pathlib.Path, help="directory that keeps the programs")
    parser.add_argument("--reuse", action="store_true", help="theirs from --save_hlo, if there")
    train_step.add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
    parser.add_argument("--recipes", help="compares these with BERT-base; all: every Base")
    parser.add_argument("--vocab_size", type=int, default=0, help="of --recipes; 0: each its own")
    options = parser.parse_args(argv)
    if options.recipes:
        options.recipes = RECIPES if options.recipes == "all" else options.recipes.split(",")
        if unknown := set(options.recipes) - set(RECIPES):
            parser.error(f"--recipes: {', '.join(sorted(unknown))}; known are {', '.join(RECIPES)}")
    elif options.only != "ours" and not (options.peer_python or options.reuse):
        parser.error("--peer_python is missing: make the environment with benchmarks/setup_peer.sh")
    if options.reuse and not options.save_hlo:
        parser.error("--reuse needs --save_hlo=DIR, where an earlier run kept theirs")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles what is asked and prints."""
    from bertjax.plan import topologies

    options = parse(argv)
    if not options.recipes:
        options.topology = topologies.parse(options.topology).topology
        beside_transformers(options)
        return 0
    try:
        family(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
