r"""Our training step beside transformers' BERT in torch on a GPU: tokens per second and the ratio.

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
import tpu_step
import train_step

OURS, TORCH = "bertjax", "torch"
SIZES = tpu_peer.SIZES | {"tiny": (2, 128, 2, 512)}
RESULT = "RESULT "  # begins the line in which a child answers
COMPILE_MODES = ("default", "max-autotune", "max-autotune-no-cudagraphs", "none")
PACKAGES = {OURS: ("bertjax", "jax", "jaxlib", "flax"), TORCH: ("torch", "transformers")}


@dataclasses.dataclass(frozen=True)
class Timing:
    """How a child measures, and on what: `device` is "gpu" or "cpu"."""

    device: str = "gpu"
    rounds: int = 5
    steps_per_round: int = 10
    torch_compile: str = "default"


@dataclasses.dataclass(frozen=True)
class Step:
    """A step on a device; `run(n)` is that of `peer_step.Trainer`."""

    trainer: peer_step.Trainer
    device_name: str
    peak_bytes: Any  # () -> int | None


def job_of(size: str, case: train_step.Case, framework: str) -> peer_step.Job:
    """Returns what both sides are built from."""
    num_layers, hidden_size, num_heads, intermediate_size = SIZES[size]
    return peer_step.Job(
        framework=framework,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        batch=case.batch,
        length=case.length,
        predictions=case.predictions,
        dtype="bfloat16",
    )


def build_torch(job: peer_step.Job, timing: Timing) -> Step:
    """Returns the step of BertForPreTraining.

    Raises:
      RuntimeError: if torch sees no GPU and one is asked.
    """
    import torch
    import transformers

    device = "cuda" if timing.device == "gpu" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU; try the script with --device=cpu --sizes=tiny")
    torch.manual_seed(job.seed)
    torch.set_float32_matmul_precision("high")
    model = transformers.BertForPreTraining(peer_step.bert_config(job)).to(device).train()  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=peer_step.LEARNING_RATE,
        weight_decay=peer_step.WEIGHT_DECAY,
        fused=True,
    )
    forward: Any = model
    if timing.torch_compile != "none":
        mode = None if timing.torch_compile == "default" else timing.torch_compile
        forward = torch.compile(model, mode=mode)
    inputs = {
        name: torch.tensor(value, device=device).long()
        for name, value in torch_batch(peer_step.random_batch(job)).items()
    }

    def run(steps: int) -> float:
        loss = torch.tensor(float("nan"))
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16):
                loss = forward(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), peer_step.CLIP_NORM)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    parameters = sum(parameter.numel() for parameter in model.parameters())
    is_gpu = device == "cuda"
    return Step(
        peer_step.Trainer(run, parameters, peer_step.versions(*PACKAGES[TORCH])),
        torch.cuda.get_device_name() if is_gpu else f"cpu, {torch.get_num_threads()} threads",
        torch.cuda.max_memory_allocated if is_gpu else lambda: None,
    )


def torch_batch(batch: peer_step.Batch) -> dict[str, Any]:
    """Returns the batch under the names of BertForPreTraining's arguments."""
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
        "labels": peer_step.dense_labels(batch),
        "next_sentence_label": batch["next_sentence_labels"][:, 0],
    }


def build_bertjax(job: peer_step.Job, timing: Timing, settings: Mapping[str, str]) -> Step:
    """Returns our step on one device, as `python -m bertjax.train` compiles it.

    Raises:
      RuntimeError: if JAX has another kind of device than asked.
      ValueError: if a setting is no option.
    """
    import jax

    from bertjax import jobs
    from bertjax.devices import sharding
    from bertjax.training import program

    device = jax.devices()[0]
    if device.platform != timing.device:
        raise RuntimeError(
            f"JAX has {device.device_kind}, asked is a {timing.device}: install jax[cuda12], or "
            "try the script with --device=cpu --sizes=tiny"
        )
    config = train_step.step_config(job)
    tpu_step.set_options(config, settings)
    mesh = sharding.make_mesh([device], data=1)
    opened = jobs.JOBS[config.task].open(program.resolve(config, device.platform))
    built = program.build(opened, mesh)
    with jax.set_mesh(mesh):
        state = built.init(built.step_inputs.seed)
        inputs = sharding.to_devices(bertjax_batch(peer_step.random_batch(job)), mesh, job.batch)

    def run(steps: int) -> float:
        nonlocal state
        report = None
        with jax.set_mesh(mesh):
            for _ in range(steps):
                state, report = built.train_step(state, inputs, built.step_inputs)
        jax.block_until_ready(state)
        losses = [report.means[name].value() for name in opened.task.objectives] if report else []
        return float(sum(losses)) if losses else float("nan")

    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return Step(
        peer_step.Trainer(run, parameters, peer_step.versions(*PACKAGES[OURS])),
        device.device_kind,
        lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )


def bertjax_batch(batch: peer_step.Batch) -> dict[str, Any]:
    """Returns the batch as our steps take it: a value, not a column, per row."""
    return {
        **batch,
        "next_sentence_labels": batch["next_sentence_labels"][:, 0],
        "example_weights": batch["masked_lm_weights"][:, 0] * 0 + 1,
    }


def serve(job: peer_step.Job, timing: Timing, settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns what this process measured of one step."""
    started = time.perf_counter()
    is_ours = job.framework == OURS
    step = build_bertjax(job, timing, settings) if is_ours else build_torch(job, timing)
    trainer = step.trainer
    loss = trainer.run(peer_step.WARM_UP_STEPS)
    ready = time.perf_counter()
    milliseconds = []
    for _ in range(timing.rounds):
        begun = time.perf_counter()
        trainer.run(timing.steps_per_round)
        milliseconds.append(1e3 * (time.perf_counter() - begun) / timing.steps_per_round)
    return {
        "device": step.device_name,
        "milliseconds": milliseconds,
        "peak_bytes": step.peak_bytes(),
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
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if timing.device == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
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
            job = job_of(size, case, name)
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

    config = train_step.step_config(job_of(size, case, OURS))
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
    parser.add_argument("--torch_compile", choices=COMPILE_MODES, default=timing.torch_compile)
    parser.add_argument("--only", choices=(OURS, TORCH))
    parser.add_argument("--json", action="store_true", help="print a JSON object per case")
    tpu_step.add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
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
