"""A plan as text for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bertjax.data import mixtures
from bertjax.plan import estimates, planner, search

GIB = 2**30
MOST_MODULES = 12

_MEMORY_NAMES = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "batch": "batch",
    "activations": "activations (compiler's temporaries)",
    "code": "code",
    "padding": "padding of the arguments",
    "outputs": "outputs that are not donated",
    "total": "total",
    "needed": "needed",
    "available": "available, as the compiler says",
    "device": "memory of the device",
}
_SPEED_NAMES = {
    "cycles": ("cycles per step", "{:,.0f}"),
    "compute_seconds": ("seconds of computation", "{:.5f}"),
    "memory_seconds": ("seconds of other memory traffic", "{:.5f}"),
    "collective_seconds": ("seconds of collectives", "{:.5f}"),
    "step_seconds": ("seconds per step", "{:.5f}"),
    "model_flop_utilization": ("model FLOP utilization", "{:.1%}"),
    "tokens_per_second": ("positions per second", "{:,.0f}"),
    "real_tokens_per_second": ("real tokens per second", "{:,.0f}"),
    "hours": ("hours", "{:,.2f}"),
}


def to_json(plan: planner.Plan, totals: dict[str, estimates.Figure]) -> dict[str, Any]:
    """Returns the plan as JSON objects, with the run's `totals` (hours and prices)."""
    fields = dataclasses.asdict(plan)
    fields["totals"] = {name: dataclasses.asdict(figure) for name, figure in totals.items()}
    fields["searches"] = {
        name: {
            "largest_batch": found.largest_batch,
            "batches": [dataclasses.asdict(trial) for trial in found.batches.values()],
            "changes": [dataclasses.asdict(trial) for trial in found.changes],
        }
        for name, found in plan.searches.items()
    }
    return fields


def lines(plan: planner.Plan, totals: dict[str, estimates.Figure]) -> Iterator[str]:
    """Yields the plan line by line, with the run's `totals` (hours and prices)."""
    target = plan.target
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    yield f"Plan of {plan.date} for {target.name}: {target.num_devices} x {target.device_kind}"
    if target.tpu_slice:
        tpu_slice = target.tpu_slice
        yield (
            f"  {tpu_slice.num_chips} chips, {tpu_slice.num_hosts} hosts, "
            f"{tpu_slice.num_slices} slices of {tpu_slice.topology}"
        )
    vocabulary = f"{plan.vocab_size:,}" if plan.vocab_size else "none"
    yield f"  mesh {mesh}; vocabulary {vocabulary}"
    yield "  " + ", ".join(f"{name} {version}" for name, version in plan.versions.items())
    for assumption in plan.assumptions:
        yield f"  assumed: {assumption}"
    for phase in plan.phases:
        yield ""
        yield from _phase_lines(phase)
        read = plan.languages.get(phase.name, {})
        if read:
            yield "  languages"
        for name, part in read.items():
            yield f"    {name:38} {part}"
        if fault := mixtures.warning(read):
            yield f"  warning: {fault}"
        if phase.name in plan.searches:
            yield from _search_lines(plan.searches[phase.name])
    yield ""
    yield from _total_lines(plan, totals)


def _phase_lines(phase: estimates.PhasePlan) -> Iterator[str]:
    verdict = {True: "fits", False: "DOES NOT FIT", None: "not known whether it fits"}[phase.fits]
    yield (
        f"{phase.name}: {phase.num_steps:,} steps of {phase.global_batch_size} x "
        f"{phase.max_seq_length} tokens{f', {phase.details}' if phase.details else ''}: {verdict}"
    )
    if phase.refusal:
        yield f"  the compiler: {phase.refusal}"
    yield "  bytes per device"
    for name, figure in phase.memory.items():
        yield _row(_MEMORY_NAMES[name], _bytes(figure.value), figure)
    yield "  per step"
    yield _row("model FLOPs", f"{phase.model_flops.value:.4g}", phase.model_flops)
    for name, figure in phase.speed.items():
        label, shown = _SPEED_NAMES[name]
        yield _row(label, shown.format(figure.value), figure)
    for collective in phase.collectives:
        shown = f"{collective.count:,} x, {_bytes(collective.bytes)}"
        yield f"    {collective.kind:38} {shown:>24}  counted, payload of one device"
    yield from _module_lines(phase)


def _module_lines(phase: estimates.PhasePlan) -> Iterator[str]:
    cycles = phase.cycles_by_module
    total = sum(cycles.values())
    if total:
        yield "  cycles by module (estimated)"
    largest = sorted(cycles.items(), key=lambda item: -item[1])[:MOST_MODULES]
    for name, value in largest:
        yield f"    {name:48} {value:>14,.0f}  {value / total:6.1%}"
    if rest := total - sum(value for _, value in largest):
        yield f"    {f'{len(cycles) - len(largest)} others':48} {rest:>14,.0f}  {rest / total:6.1%}"
    if phase.kernel_cycles:
        shown = f"{phase.kernel_cycles:,.0f} ({phase.kernel_cycles / total:.1%})"
        yield f"  of these, our count of the instructions of kernels, as made for v5e: {shown}"
    if phase.uncounted:
        names = ", ".join(f"{count:,} x {name}" for name, count in phase.uncounted.items())
        yield f"  without an estimate of the compiler, so not in the cycles: {names}"


def _search_lines(search: planner.PhaseSearch) -> Iterator[str]:
    yield "  search (each compiled)"
    yield f"    largest global batch that fits, of those tried: {search.largest_batch or 'none'}"
    for size, trial in sorted(search.batches.items()):
        yield f"      batch {size:<42} {_outcome(trial)}"
    if search.changes:
        yield "    changes at the batch asked for"
    for trial in search.changes:
        names = " ".join(f"--config.{name}={value}" for name, value in trial.changes.items())
        yield f"      {names:48} {_outcome(trial)}"


def _outcome(trial: search.Trial) -> str:
    if trial.fault:
        return f"not possible: {trial.fault}"
    parts = ["fits" if trial.fits else "does not fit"]
    if trial.needed_bytes is not None:
        parts.append(_bytes(trial.needed_bytes))
    if trial.lacked_bytes is not None:
        parts.append(f"{_bytes(trial.lacked_bytes)} too much")
    if trial.step_seconds is not None:
        parts.append(f"{trial.step_seconds:.5f} s per step (estimated)")
    return ", ".join(parts)


def _total_lines(plan: planner.Plan, totals: dict[str, estimates.Figure]) -> Iterator[str]:
    if not totals:
        yield "Hours and price: not known without an estimated step time of every phase"
        return
    steps = sum(phase.num_steps for phase in plan.phases)
    yield f"The whole run, {steps:,} steps on {plan.target.num_chips} chips (nothing is measured)"
    for name, figure in totals.items():
        is_hours = figure.unit == "hours"
        yield _row(name, f"{figure.value:,.2f}" if is_hours else f"${figure.value:,.2f}", figure)
    price = plan.target.tpu_slice and estimates.price(plan.target.tpu_slice.generation, spot=False)
    if price and "price" not in totals:
        yield f"    prices from {price.source}"
    if len(totals) == 1:
        yield "    price: not in the table; give --price_per_chip_hour"
    yield "    without start, compilation, evaluation, saving, and waiting for data"


def _row(label: str, value: str, figure: estimates.Figure) -> str:
    source = f", {figure.source}" if figure.source else ""
    return f"    {label:38} {value:>24}  {figure.how}{source}"


def _bytes(value: float) -> str:
    return f"{value:,.0f} = {value / GIB:.3f} GiB"
