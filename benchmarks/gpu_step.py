r"""Our training step and transformers' BERT in torch on a GPU: tokens per second and the ratio.

    python benchmarks/gpu_step.py --peer_python=DIR/bin/python [--sizes=base,large] \
        [--shapes=256x128,64x512] [--turns=3] [--rounds=5] [--steps_per_round=10] \
        [--torch_compile=default] [--set=model.remat=dots] [--only=bertjax|torch] [--json]
    python benchmarks/gpu_step.py --device=cpu --sizes=tiny --shapes=4x32     # tries the script

--peer_python is a python with torch and transformers, by default the one that runs this. Both get
the same batch, sizes, dropout and clipping. Theirs is what torch's users run: bfloat16 autocast
over float32 weights, sdpa attention, `torch.compile`, fused AdamW, the library's own losses over
all positions. Each runs in a process of its own, one at a time, so that none holds the other's
memory; they take turns, and every turn times some rounds after its warm-up.

Counted is the update with a batch that is on the device already; compilation is not. Utilization
is the model's FLOPs, the same number for both (masked positions alone reach the vocabulary), over
the device's dense bfloat16 peak; a device whose peak is not known, such as a CPU, has none.
"""

# pyright: reportMissingImports=false
# torch and transformers may live in the peer's environment alone.

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import peer_step
import tpu_peer
import train_step

OURS, TORCH = "bertjax", "torch"
SIZES = tpu_peer.SIZES
RESULT = "RESULT "  # begins the line in which a child answers


@dataclasses.dataclass(frozen=True)
class Timing:
    """How a child measures, and on what: `device` is "gpu" or "cpu"."""

    device: str = "gpu"
    rounds: int = 5
    steps_per_round: int = 10


def device_of(framework: str) -> tuple[str, str, int | None]:
    """Returns "gpu" or "cpu", the device's name, and its peak memory in bytes if that is known."""
    if framework == TORCH:
        import torch

        if not torch.cuda.is_available():
            return "cpu", f"cpu, {torch.get_num_threads()} threads", None
        return "gpu", torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    import jax

    device = jax.devices()[0]
    peak_bytes = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return device.platform, device.device_kind, peak_bytes


def serve(job: peer_step.Job, timing: Timing, settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns what this process measured of one step.

    Raises:
      RuntimeError: if there is another kind of device than asked.
      ValueError: if a setting is not an option.
    """
    started = time.perf_counter()
    platform_name, name, _ = device_of(job.framework)
    if platform_name != timing.device:
        raise RuntimeError(
            f"{job.framework} has {name}, asked is a {timing.device}: install it with CUDA, or try "
            "the script with --device=cpu --sizes=tiny"
        )
    batch = peer_step.random_batch(job)
    if job.framework == OURS:
        trainer = train_step.build(job, batch, settings)
    else:
        trainer = peer_step.build_torch(job, batch)
    loss = trainer.run(peer_step.WARM_UP_STEPS)
    ready = time.perf_counter()
    milliseconds = []
    for _ in range(timing.rounds):
        begun = time.perf_counter()
        trainer.run(timing.steps_per_round)
        milliseconds.append(1e3 * (time.perf_counter() - begun) / timing.steps_per_round)
    return {
        "device": name,
        "milliseconds": milliseconds,
        "peak_bytes": device_of(job.framework)[2],
        "parameters": trainer.parameters,
        "loss": loss,
        "start_seconds": ready - started,
        "versions": trainer.versions,
    }


def turn(
    python: str, job: peer_step.Job, timing: Timing, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Runs `serve` in a process of its own and returns its answer.

    Raises:
      RuntimeError: with the end of its error output, if it gives none.
    """
    asked = json.dumps([dataclasses.asdict(job), dataclasses.asdict(timing), dict(settings)])
    command = [python, str(pathlib.Path(__file__)), f"--child={asked}"]
    environment = {"CUDA_VISIBLE_DEVICES": "0", **os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    if timing.device == "cpu":
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT))
    raise RuntimeError(
        f"{job.framework} stopped with code {done.returncode} and no result:\n{done.stderr[-3000:]}"
    )


def measure(
    size: str, case: train_step.Case, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns what each framework's turns measured; every other turn goes backwards."""
    pythons = {OURS: sys.executable, TORCH: options.peer_python}
    order = [name for name in (OURS, TORCH) if options.only in (None, name)]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    for _ in range(options.turns):
        for name in order:
            job = train_step.job_of_size(size, case, name)
            job = dataclasses.replace(job, torch_compile=options.torch_compile)
            turns[name].append(turn(pythons[name], job, options.timing, options.set))
        order = order[::-1]
    return {name: summary(size, case, found) for name, found in turns.items()}


def summary(size: str, case: train_step.Case, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the last turn's facts with the medians of all turns in place of its times."""
    from bertjax.devices import accelerators

    milliseconds = statistics.median(value for it in turns for value in it["milliseconds"])
    peaks = [it["peak_bytes"] for it in turns if it["peak_bytes"] is not None]
    peak_flops = accelerators.peak_flops(turns[-1]["device"])
    flops_per_second = model_flops(size, case) / (milliseconds / 1e3)
    return {
        **turns[-1],
        "milliseconds": milliseconds,
        "turn_medians": [statistics.median(it["milliseconds"]) for it in turns],
        "tokens_per_second": case.batch * case.length / (milliseconds / 1e3),
        "model_flop_utilization": flops_per_second / peak_flops if peak_flops else None,
        "peak_bytes": max(peaks, default=None),
    }


def model_flops(size: str, case: train_step.Case) -> float:
    """Returns the model FLOPs of one update, as `perf/model_flop_utilization` counts them."""
    from bertjax import jobs
    from bertjax.training import config_faults

    config = train_step.step_config(train_step.job_of_size(size, case))
    config_faults.validate(config)
    job = jobs.JOBS[config.task].open(config)
    return jobs.train_flops(job, job.phases[0])


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line per framework, and ours over torch where both are there."""
    lines = []
    for name, it in results.items():
        utilization, peak = it["model_flop_utilization"], it["peak_bytes"]
        spread = f"{min(it['turn_medians']):.2f} to {max(it['turn_medians']):.2f}"
        lines += [
            f"  {name:8}{it['tokens_per_second']:>12,.0f} tokens/s  {it['milliseconds']:.2f} ms a "
            f"step ({spread})  utilization "
            + (f"{utilization:.1%}" if utilization else "unknown")
            + "  peak memory "
            + (f"{peak / 2**30:.2f} GiB" if peak else "not measured"),
            f"          on {it['device']}; {it['parameters']:,} parameters; loss {it['loss']:.3f}; "
            f"ready in {it['start_seconds']:.0f} s; "
            + ", ".join(f"{package} {version}" for package, version in it["versions"].items()),
        ]
    if len(results) == 2:
        ours, torch = results[OURS], results[TORCH]
        ratio = ours["tokens_per_second"] / torch["tokens_per_second"]
        turns = [b / a for a, b in zip(ours["turn_medians"], torch["turn_medians"], strict=True)]
        lines.append(
            f"  {OURS} / {TORCH}, tokens per second: {ratio:.3f} (turn by turn "
            f"{min(turns):.3f} to {max(turns):.3f})"
        )
    return lines


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options, lists taken apart."""
    parser = argparse.ArgumentParser(description="Our step beside transformers' BERT in torch.")
    timing = Timing()
    parser.add_argument("--peer_python", default=sys.executable, help="python with torch")
    parser.add_argument("--device", choices=("gpu", "cpu"), default=timing.device)
    parser.add_argument("--sizes", "--size", default="base,large", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--shapes", default="256x128,64x512", help="BATCHxLENGTH, comma-separated")
    parser.add_argument("--turns", type=int, default=3, help="processes of each")
    parser.add_argument("--rounds", type=int, default=timing.rounds, help="of one turn")
    parser.add_argument("--steps_per_round", type=int, default=timing.steps_per_round)
    parser.add_argument("--torch_compile", choices=peer_step.COMPILE_MODES, default="default")
    parser.add_argument("--only", choices=(OURS, TORCH))
    parser.add_argument("--json", action="store_true", help="print a JSON object per case")
    train_step.add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
    options = parser.parse_args(argv)
    if min(options.turns, options.rounds, options.steps_per_round) < 1:
        parser.error("--turns, --rounds and --steps_per_round must be at least 1")
    options.sizes = options.sizes.split(",")
    if unknown := [size for size in options.sizes if size not in SIZES]:
        parser.error(f"--sizes has {', '.join(unknown)}; known are {', '.join(SIZES)}")
    try:
        options.shapes = [train_step.parse_case(text) for text in options.shapes.split(",")]
    except ValueError as error:
        parser.error(str(error))
    options.set = dict(options.set)
    names = [field.name for field in dataclasses.fields(Timing)]
    options.timing = Timing(**{name: getattr(options, name) for name in names})
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every case and prints; with --child, answers the process that started this one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) == 1 and arguments[0].startswith("--child="):
        job, timing, settings = json.loads(arguments[0].removeprefix("--child="))
        answer = serve(peer_step.Job(**job), Timing(**timing), settings)
        print(RESULT + json.dumps(answer), flush=True)
        return 0
    options = parse(arguments)
    if not options.json:
        print(f"asked for {options.device}; host {platform.machine()}, {os.cpu_count()} CPU cores")
    for size in options.sizes:
        for case in options.shapes:
            results = measure(size, case, options)
            if options.json:
                print(json.dumps({"size": size, "shape": str(case), **results}), flush=True)
                continue
            print(f"BERT-{size}, {case}, {case.predictions} predictions a sequence")
            print("\n".join(table(results)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
