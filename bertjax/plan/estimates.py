"""The figures of a compiled step: bytes by kind, seconds, tokens, hours and money.

A figure names its source. `counted`: from shapes, from the model's sizes, or from the compiler's
memory layout. `estimated`: from the compiler's cycle estimates and data sheets, not confirmed on a
device. `measured`: by a clock.
"""

from __future__ import annotations

import dataclasses

from bertjax import jobs
from bertjax.devices import accelerators
from bertjax.plan import compiled, hlo, topologies

COUNTED, ESTIMATED, MEASURED = "counted", "estimated", "measured"

# Google charges by the chip for every generation, although names of v2 to v5p count TensorCores.
_CATALOG = "skypilot-org/skypilot-catalog, catalogs/v8/gcp/vms.csv at commit 006059e0"
_ON_DEMAND_NOTE = "list price in US regions, from a catalog without a date"
_SPOT_NOTE = "in us-central1, or where the generation is offered in the US; spot prices change"

# Generation -> (dollars, the rest of the note) on demand, and on spot. The catalog lists whole
# machines; per chip that is v2-8 $4.50 / 4, v3-8 $8.00 / 4, v4-8 $12.88 / 4, v5litepod-1 $1.20,
# v5p-8 $16.80 / 4, v6e-4 $10.80 / 4. No row for tpu7x.
_DOLLARS = {
    "v2": ((1.125, ""), (0.34, "")),
    "v3": ((2.00, ""), (0.51, "")),
    "v4": ((3.22, ""), (0.92, "")),
    "v5e": ((1.20, "; $1.56 in europe-west4"), (0.245, "; up to $0.6 in other US regions")),
    "v5p": ((4.20, ""), (0.84, "; up to $1.68 in other US regions")),
    "v6e": ((2.70, "; $2.97 in Europe"), (0.54, "; up to $1.35 in other US regions")),
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number with its unit, how it is known, and its source."""

    value: float
    unit: str
    how: str
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Price:
    """US dollars per chip and hour; `date` is when the source was read."""

    dollars_per_chip_hour: float
    date: str
    source: str
    note: str


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a plan is for; `tpu_slice` is None on cpu and gpu."""

    name: str
    platform: str
    device_kind: str
    num_devices: int
    tpu_slice: topologies.Slice | None = None

    @property
    def num_chips(self) -> int:
        """Chips that are paid for."""
        return self.tpu_slice.num_chips if self.tpu_slice else self.num_devices


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """The plan of one phase; `fits` is None if nothing was compiled or no limit is known.

    `memory` is bytes of one device by kind, `speed` the figures from cycles (empty if the compiler
    estimates none), `collectives` the payload of one device and step. `details` is as in
    `jobs.Phase`.
    """

    name: str
    num_steps: int
    global_batch_size: int
    max_seq_length: int
    fits: bool | None
    refusal: str
    memory: dict[str, Figure]
    model_flops: Figure
    speed: dict[str, Figure]
    collectives: tuple[hlo.Collective, ...]
    cycles_by_module: dict[str, float]
    uncounted: dict[str, int]
    kernel_cycles: float
    fingerprint: str
    details: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Estimated seconds of a step."""
        figure = self.speed.get("step_seconds")
        return figure.value if figure else None


def of_phase(
    phase: jobs.Phase,
    target: Target,
    counted: compiled.StateBytes,
    outcome: compiled.Outcome | None,
    *,
    flops: float,
    fingerprint: str,
    fill: float | None = None,
) -> PhasePlan:
    """Returns the plan of a phase from counted bytes and the compiler's outcome, if any.

    `fill` is the share of positions that hold tokens, if a manifest has it.
    """
    analysis = outcome.analysis if isinstance(outcome, compiled.Compiled) else None
    return PhasePlan(
        name=phase.title,
        num_steps=phase.num_steps,
        global_batch_size=phase.global_batch_size,
        max_seq_length=phase.max_seq_length,
        fits=fits(outcome, target),
        refusal=outcome.message if isinstance(outcome, compiled.OutOfMemory) else "",
        memory=_memory(counted, outcome, target),
        model_flops=Figure(flops, "FLOPs", COUNTED, "matrix products of the model, 3 x forward"),
        speed=_speed(phase, target, analysis, flops, fill) if analysis else {},
        collectives=analysis.collectives if analysis else (),
        cycles_by_module=hlo.by_module(analysis.cycles_by_operation) if analysis else {},
        uncounted=analysis.uncounted if analysis else {},
        kernel_cycles=analysis.kernel_cycles if analysis else 0.0,
        fingerprint=fingerprint,
        details=phase.details,
    )


def fits(outcome: compiled.Outcome | None, target: Target) -> bool | None:
    """Returns whether the step fits in a device's memory, None if unknown."""
    if isinstance(outcome, compiled.OutOfMemory):
        return False
    limit = accelerators.memory_bytes(target.device_kind)
    if outcome is None or limit is None:
        return None
    return outcome.total_bytes <= limit


def needed_bytes(outcome: compiled.Outcome) -> int | None:
    """Returns the bytes of a device that a step needs, None if the compiler does not say."""
    return outcome.total_bytes if isinstance(outcome, compiled.Compiled) else outcome.needed_bytes


def lacked_bytes(outcome: compiled.Outcome, target: Target) -> int | None:
    """Returns the bytes by which a step exceeds a device, None if it fits or that is unknown.

    The compiler reserves some of the memory: if it refuses a step, the limit is the one it states.
    """
    needed, limit = needed_bytes(outcome), accelerators.memory_bytes(target.device_kind)
    if isinstance(outcome, compiled.OutOfMemory):
        limit = outcome.available_bytes or limit
    if fits(outcome, target) is not False or needed is None or limit is None:
        return None
    return max(needed - limit, 0)


def price(generation: str, *, spot: bool) -> Price | None:
    """Returns the price of a generation ("v5e", ...), None if the catalog has none (tpu7x)."""
    if generation not in _DOLLARS:
        return None
    dollars, more = _DOLLARS[generation][spot]
    return Price(dollars, "2026-11", _CATALOG, (_SPOT_NOTE if spot else _ON_DEMAND_NOTE) + more)


def dollars(
    hours: float, target: Target, *, spot: bool, price_per_chip_hour: float | None
) -> Figure | None:
    """Returns the cost of the target for `hours`, None if its price is unknown.

    `price_per_chip_hour` replaces the table's price.
    """
    if price_per_chip_hour is not None:
        rate, source = price_per_chip_hour, f"${price_per_chip_hour:g} per chip-hour, as given"
    else:
        listed = price(target.tpu_slice.generation, spot=spot) if target.tpu_slice else None
        if listed is None:
            return None
        rate = listed.dollars_per_chip_hour
        source = f"${rate:g} per chip-hour, {listed.date}: {listed.note}"
    return Figure(hours * target.num_chips * rate, "US dollars", ESTIMATED, source)


def _memory(
    counted: compiled.StateBytes, outcome: compiled.Outcome | None, target: Target
) -> dict[str, Figure]:
    sizes = {"from shapes and shardings": dataclasses.asdict(counted)}
    if isinstance(outcome, compiled.Compiled):
        in_shapes = counted.parameters + counted.optimizer + counted.batch
        sizes["by the compiler"] = {
            "activations": outcome.temp_bytes,
            "code": outcome.code_bytes,
            "padding": outcome.argument_bytes - in_shapes,
            "outputs": outcome.output_bytes - outcome.alias_bytes,
            "total": outcome.total_bytes,
        }
    elif outcome is not None:
        needed, available = outcome.needed_bytes, outcome.available_bytes
        sizes["by the compiler"] = {"needed": needed, "available": available}
    limit = accelerators.memory_bytes(target.device_kind)
    sizes[f"data sheet of {target.device_kind}"] = {"device": limit}
    return {
        name: Figure(size, "bytes", COUNTED, source)
        for source, by_name in sizes.items()
        for name, size in by_name.items()
        if size is not None
    }


def _speed(
    phase: jobs.Phase, target: Target, analysis: hlo.Analysis, flops: float, fill: float | None
) -> dict[str, Figure]:
    accelerator = accelerators.ACCELERATORS[target.device_kind]
    cycles = Figure(analysis.cycles, "cycles", ESTIMATED, "by the compiler, loops x trips")
    if not accelerator.clock_hz or not analysis.cycles:
        return {"cycles": cycles}
    parts = step_parts(target, analysis)
    seconds = sum(part.value for part in parts.values())
    whole = "the sum of these, as if they ran one after the other"
    tokens = phase.global_batch_size * phase.max_seq_length
    peak = accelerator.flops * target.num_devices
    speed = {
        "cycles": cycles,
        **parts,
        "step_seconds": Figure(seconds, "seconds", ESTIMATED, whole),
        "model_flop_utilization": Figure(flops / seconds / peak, "", ESTIMATED, "of bf16 peak"),
        "tokens_per_second": Figure(tokens / seconds, "tokens/s", ESTIMATED),
    }
    if fill is not None:
        source = f"{fill:.1%} of the positions, by the manifest"
        rate = fill * tokens / seconds
        speed["real_tokens_per_second"] = Figure(rate, "tokens/s", ESTIMATED, source)
    speed["hours"] = Figure(seconds * phase.num_steps / 3600, "hours", ESTIMATED)
    return speed


def step_parts(target: Target, analysis: hlo.Analysis) -> dict[str, Figure]:
    """Returns the seconds of a step by their bound: the compiler's cycles, memory, or the links.

    The compiler estimates neither communication nor some operations on memory.
    """
    accelerator = accelerators.ACCELERATORS[target.device_kind]
    assert accelerator.clock_hz  # of every TPU
    clock = f"compiler's cycles / {accelerator.clock_hz / 1e6:,.0f} MHz"
    seconds = {"compute_seconds": (analysis.cycles / accelerator.clock_hz, clock)}
    if (touched := analysis.uncounted_bytes) and (rate := accelerator.memory_rate):
        operations = f"{touched / 2**20:,.0f} MiB of operations without an estimate"
        seconds["memory_seconds"] = (touched / rate, f"{operations} / {rate / 1e9:,.0f} GB/s")
    sent = sum(collective.sent_bytes for collective in analysis.collectives)
    ports = target.tpu_slice.num_ports if target.tpu_slice else 0
    if sent and ports and accelerator.port_rate:
        rate = accelerator.port_rate
        links = f"{ports} ports of {rate / 1e9:,.0f} GB/s, at best"
        source = f"{sent / 2**20:,.0f} MiB that a device sends / {links}"
        seconds["collective_seconds"] = (sent / (ports * rate), source)
    return {
        name: Figure(value, "seconds", ESTIMATED, source)
        for name, (value, source) in seconds.items()
    }
