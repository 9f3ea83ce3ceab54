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

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import peer
import peer_step
import report
import train_step

OURS, TORCH = train_step.OURS, "torch"


def turn(framework: str, job: peer_step.Job, options: argparse.Namespace) -> dict[str, Any]:
    """Returns what a process of its own measured of one step."""
    environment = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    if options.device == "cpu":
        environment = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    flags = [*job.flags, f"--device={options.device}"]
    command = train_step.command(options.peer_python, framework, flags, dict(options.set))
    with peer.Peer(command, environment) as child:
        ready = child.answer()
        steps = options.steps_per_round
        rounds = [child.ask(steps) for _ in range(options.rounds)]
    milliseconds = [1e3 * it["seconds"] / steps for it in rounds]
    return {**ready, "milliseconds": milliseconds, "peak_bytes": rounds[-1]["peak_bytes"]}


def measure(
    size: str, case: train_step.Case, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns what each framework's turns measured, a process a turn."""
    job = train_step.job_of_size(size, case)
    job = dataclasses.replace(job, torch_compile=options.torch_compile)
    names = [name for name in (OURS, TORCH) if options.only in (None, name)]
    sides = {name: functools.partial(turn, name, job, options) for name in names}
    turns = report.take_turns(sides, options.turns)
    return {name: summary(job, found) for name, found in turns.items()}


def summary(job: peer_step.Job, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the last turn's facts with the medians of all turns in place of its times."""
    from bertjax.devices import accelerators

    milliseconds = statistics.median(value for it in turns for value in it["milliseconds"])
    peaks = [it["peak_bytes"] for it in turns if it["peak_bytes"] is not None]
    peak_flops = accelerators.peak_flops(turns[-1]["device"])
    flops_per_second = model_flops(job) / (milliseconds / 1e3)
    names = ("device", "parameters", "loss", "start_seconds", "versions")
    return {
        **{name: turns[-1][name] for name in names},
        "milliseconds": milliseconds,
        "turn_medians": [statistics.median(it["milliseconds"]) for it in turns],
        "tokens_per_second": job.batch * job.length / (milliseconds / 1e3),
        "model_flop_utilization": flops_per_second / peak_flops if peak_flops else None,
        "peak_bytes": max(peaks, default=None),
    }


def model_flops(job: peer_step.Job) -> float:
    """Returns the model FLOPs of one update, as `perf/model_flop_utilization` counts them."""
    from bertjax import jobs
    from bertjax.training import config_faults

    config = train_step.step_config(job)
    config_faults.validate(config)
    opened = jobs.JOBS[config.task].open(config)
    return jobs.train_flops(opened, opened.phases[0])


def lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns two lines per framework, and ours over torch where both are there."""
    found = []
    for name, it in results.items():
        utilization, peak = it["model_flop_utilization"], it["peak_bytes"]
        found += [
            f"  {name:8}{it['tokens_per_second']:>12,.0f} tokens/s  {it['milliseconds']:.2f} ms a "
            f"step ({min(it['turn_medians']):.2f} to {max(it['turn_medians']):.2f})  utilization "
            + (f"{utilization:.1%}" if utilization else "unknown")
            + "  peak memory "
            + (f"{peak / 2**30:.2f} GiB" if peak else "not measured"),
            f"          on {it['device']}; {it['parameters']:,} parameters; loss {it['loss']:.3f}; "
            f"ready in {it['start_seconds']:.0f} s; {report.named(it['versions'])}",
        ]
    if len(results) == 2:
        ours, torch = results[OURS], results[TORCH]
        ratio = ours["tokens_per_second"] / torch["tokens_per_second"]
        turns = [b / a for a, b in zip(ours["turn_medians"], torch["turn_medians"], strict=True)]
        found.append(
            f"  {OURS} / {TORCH}, tokens per second: {ratio:.3f} (turn by turn "
            f"{min(turns):.3f} to {max(turns):.3f})"
        )
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options, lists taken apart."""
    parser = argparse.ArgumentParser(description="Our step beside transformers' BERT in torch.")
    sizes = peer_step.SIZES
    parser.add_argument("--peer_python", default=sys.executable, help="python with torch")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--sizes", "--size", default="base,large", help=f"of {', '.join(sizes)}")
    parser.add_argument(
        "--shapes", type=train_step.cases_of, default="256x128,64x512", help="BATCHxLENGTH, ..."
    )
    parser.add_argument("--turns", type=int, default=3, help="processes of each")
    parser.add_argument("--rounds", type=int, default=5, help="of one turn")
    parser.add_argument("--steps_per_round", type=int, default=10)
    parser.add_argument("--torch_compile", choices=peer_step.COMPILE_MODES, default="default")
    parser.add_argument("--only", choices=(OURS, TORCH))
    parser.add_argument("--json", action="store_true", help="print a JSON object per case")
    train_step.add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
    options = parser.parse_args(argv)
    if min(options.turns, options.rounds, options.steps_per_round) < 1:
        parser.error("--turns, --rounds and --steps_per_round must be at least 1")
    options.sizes = options.sizes.split(",")
    if unknown := [size for size in options.sizes if size not in sizes]:
        parser.error(f"--sizes has {', '.join(unknown)}; known are {', '.join(sizes)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every case and prints."""
    options = parse(argv)
    if not options.json:
        print(f"asked for {options.device}; host {report.machine()}")
    for size in options.sizes:
        for case in options.shapes:
            results = measure(size, case, options)
            if options.json:
                print(json.dumps({"size": size, "shape": str(case), **results}), flush=True)
                continue
            print(f"BERT-{size}, {case}, {case.predictions} predictions a sequence")
            print("\n".join(lines(results)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
