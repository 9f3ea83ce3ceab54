"""What a compiled TPU program costs by the compiler's own estimates, read from its optimized HLO.

Text in, numbers out: nothing here imports jax. Seconds and prices belong to `plan`. Only executed
instructions count: a fusion by its own estimate (not by what is fused into it), a loop's body as
often as it runs, of a conditional's branches the most expensive one.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping

from bertjax.planning import hlo_text, kernels

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast", "send"),
)
# Kind -> the share of the payload that a device of so many sends at the least. What is gathered
# goes once around them, what is summed twice.
_SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda devices: 2 * (devices - 1) / devices,
    **dict.fromkeys(
        ("all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        lambda devices: (devices - 1) / devices,
    ),
    **dict.fromkeys(("collective-permute", "collective-broadcast"), lambda devices: 1.0),
    "send": lambda devices: 0.0,  # to another slice, over another network
}
KERNELS = "kernels"  # beside opcodes
# How libtpu names the computation of a sum of which a device keeps a slice.
_SCATTERED = "all-reduce-scatter"
UNKNOWN_TRIP_COUNT = "while (trip count unknown, counted once)"

# Bookkeeping that makes no code, by opcode and by custom_call_target.
_FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "domain")
    + ("partition-id", "replica-id", "opt-barrier", "add-dependency", "recv")
)
_FREE_TARGETS = frozenset(
    ("AllocateBuffer", "ConcatBitcast", "X64Combine", "X64SplitHigh", "X64SplitLow", "Sharding")
    + ("AssumeGatherIndicesInBound", "PrepareAsyncCallStart", "PrepareAsyncCallDone")
)
# Parts of an operation's name that are the work of jax, not the name of a module.
_STRUCTURE = frozenset(
    ("while", "body", "cond", "closed_call", "checkpoint", "remat", "shard_map", "pallas_call")
    + ("rematted_computation", "custom_jvp_call", "custom_vjp_call", "core_call")
)
_WRAPPER = re.compile(r"\w+\((?P<inner>.*)\)$")
_NUMBERED = re.compile(r"(layers?|branch)[_.]?\d+(_fun)?|\d+")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All executions of one kind in a step, and their payload in bytes of one device.

    The payload of an execution is the larger of what goes in and what comes out: what is gathered,
    what is summed before it is scattered. "send" goes to another slice. `sent_bytes` is what a
    device sends of it inside its slice, at the least.
    """

    kind: str
    count: int
    bytes: int
    sent_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One device, one execution of the program (one training step).

    `uncounted` counts executions of what carries no estimate and so is missing in `cycles`:
    collectives, custom calls by target, random bits, sorts, copies that run beside computation.
    Operations on scalars are left out of both. `uncounted_bytes` is what those of them read and
    write that are no collectives and have nothing else run beside them. `kernel_cycles`, in
    `cycles` too, are those of our kernels, which the compiler does not know (`kernels`).
    """

    cycles: float
    cycles_by_operation: dict[str, float]
    cycles_by_opcode: dict[str, float]
    collectives: tuple[Collective, ...]
    uncounted: dict[str, int]
    kernel_cycles: float = 0.0
    uncounted_bytes: int = 0


def analyze(text: str) -> Analysis:
    """Returns the analysis of an optimized HLO text, `compiled.as_text()`.

    Raises:
      ValueError: if the text is no HLO module.
    """
    module = hlo_text.parse(text)
    costs = _computation_costs(module)(module.entry)
    return Analysis(
        cycles=float(sum(costs.by_operation.values())),
        cycles_by_operation=dict(costs.by_operation),
        cycles_by_opcode=dict(costs.by_opcode),
        collectives=tuple(
            Collective(kind, costs.executions[kind], costs.payload[kind], costs.sent[kind])
            for kind in sorted(costs.executions)
        ),
        uncounted={name: count for name, count in costs.uncounted.items() if count},
        kernel_cycles=float(costs.by_opcode[KERNELS]),
        uncounted_bytes=costs.touched.total(),
    )


def by_module(cycles_by_operation: Mapping[str, float], *, depth: int = 3) -> dict[str, float]:
    """Returns cycles by the `jax.named_scope`s around an operation, the largest first.

    A key reads "encoder/attention (backward)": up to `depth` scopes, numbers of layers left out,
    and the part of the derivative: forward, backward, or recomputed by jax.checkpoint. What the
    derivative has no part in (the optimizer) has no such mark; what no scope names is "other".
    """
    found = collections.defaultdict(float)
    for operation, cycles in cycles_by_operation.items():
        scopes = "/".join(_scopes(operation)[:depth]) or "other"
        direction = _direction(operation)
        found[f"{scopes} ({direction})" if direction else scopes] += cycles
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _scopes(operation: str) -> list[str]:
    scopes = []
    for part in operation.split("/")[:-1]:
        is_function = False
        while match := _WRAPPER.match(part):
            is_function = is_function or part.startswith(("jit(", "pjit("))
            part = match["inner"]
        # "->": the formula of an einsum. A scope around a derivative stands twice in its names.
        is_scope = part and "->" not in part and not is_function and part not in scopes
        if is_scope and part not in _STRUCTURE and not _NUMBERED.fullmatch(part):
            scopes.append(part)
    return scopes


def _direction(operation: str) -> str:
    if "rematted_computation" in operation:
        return "recomputed"
    if "transpose(" in operation:
        return "backward"
    return "forward" if "jvp(" in operation else ""


@dataclasses.dataclass(frozen=True)
class _Costs:
    """Sums over the executed instructions of a computation and of what it calls."""

    by_operation: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    by_opcode: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    executions: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    payload: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    sent: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    touched: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    uncounted: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, other: _Costs, times: int = 1) -> None:
        for field in dataclasses.fields(self):
            total, part = getattr(self, field.name), getattr(other, field.name)
            for key, value in part.items():
                total[key] += times * value

    @property
    def cycles(self) -> int:
        return sum(self.by_operation.values())


def _computation_costs(module: hlo_text.Module) -> Callable[[str], _Costs]:
    """Returns the function from a computation's name to its costs, each computed once."""

    @functools.cache
    def costs_of(name: str) -> _Costs:
        computation = module.computations[name]
        costs, seen = _Costs(), set()
        for instruction in computation.instructions.values():
            if instruction.opcode == "while":
                trips = hlo_text.trip_count(module, instruction, computation)
                costs.uncounted[UNKNOWN_TRIP_COUNT] += trips is None
                for part in ("body", "condition"):
                    costs.add(costs_of(instruction.called(part)[0]), 1 if trips is None else trips)
            elif instruction.opcode == "conditional":
                costs.add(max(map(costs_of, _branches(instruction)), key=lambda each: each.cycles))
            elif instruction.opcode in ("call", "call-start", "async-start"):
                called = instruction.called("to_apply") or instruction.called("calls")
                costs.add(costs_of(called[0]))
            else:
                costs.add(_instruction_costs(module, computation, instruction, seen))
        return costs

    return costs_of


def _branches(conditional: hlo_text.Instruction) -> tuple[str, ...]:
    return conditional.called("branch_computations") or (
        *conditional.called("true_computation"),
        *conditional.called("false_computation"),
    )


def _instruction_costs(
    module: hlo_text.Module,
    computation: hlo_text.Computation,
    instruction: hlo_text.Instruction,
    seen: set[tuple[str, str]],
) -> _Costs:
    costs = _Costs()
    cycles, opcode = instruction.estimated_cycles, instruction.opcode
    if cycles is None and instruction.kernel:
        cycles, opcode = kernels.cycles(*instruction.kernel), KERNELS
    if cycles is not None:
        costs.by_operation[instruction.operation] += cycles
        costs.by_opcode[opcode] += cycles
    fused = _fused_collectives(module, instruction, seen)
    for place, collective in (*fused, *_itself(computation, instruction)):
        kind = collective.opcode.removesuffix("-start")
        if place.name.startswith(_SCATTERED):
            kind = "reduce-scatter"
        payload = _payload(place, collective)
        costs.executions[kind] += 1
        costs.payload[kind] += payload
        devices = collective.group_size(module.num_partitions)
        costs.sent[kind] += round(payload * _SENT[kind](devices))
        if collective.estimated_cycles is None:
            costs.uncounted[kind] += 1
    if cycles is None and not costs.executions and not _is_free(module, instruction):
        costs.uncounted[_shown(instruction)] += 1
        if not instruction.opcode.endswith("-start"):  # which runs beside computation
            costs.touched[_shown(instruction)] += _touched(computation, instruction)
    return costs


def _touched(computation: hlo_text.Computation, instruction: hlo_text.Instruction) -> int:
    """Returns the bytes that an instruction is given and returns."""
    given = [
        hlo_text.num_bytes(computation.instructions[name].shape)
        for name in instruction.operands
        if name in computation.instructions
    ]
    return sum(given) + hlo_text.num_bytes(instruction.shape)


def _itself(
    computation: hlo_text.Computation, instruction: hlo_text.Instruction
) -> Iterator[tuple[hlo_text.Computation, hlo_text.Instruction]]:
    if instruction.opcode.removesuffix("-start") in COLLECTIVES:
        yield computation, instruction


def _fused_collectives(
    module: hlo_text.Module, instruction: hlo_text.Instruction, seen: set[tuple[str, str]]
) -> list[tuple[hlo_text.Computation, hlo_text.Instruction]]:
    """Returns the collectives that begin in a fusion.

    One that runs beside computation stands in the fusions of its start, of all that it runs beside
    and of its end, under one channel_id; `seen` holds those that began before.
    """
    found = []
    pending = list(instruction.called("calls")) if instruction.opcode == "fusion" else []
    while pending:
        computation = module.computations[pending.pop()]
        for inner in computation.instructions.values():
            if inner.opcode == "fusion":
                pending += inner.called("calls")
            for _, collective in _itself(computation, inner):
                # Sums that are scattered run alone, and several may have one channel.
                has_channel = not computation.name.startswith(_SCATTERED)
                channel = has_channel and re.search(r"\bchannel_id=\d+", collective.attributes)
                identity = (collective.opcode, channel[0] if channel else collective.name)
                if identity not in seen:
                    found.append((computation, collective))
                seen.add(identity)
    return found


def _payload(computation: hlo_text.Computation, collective: hlo_text.Instruction) -> int:
    given = sum(
        hlo_text.num_bytes(computation.instructions[name].shape)
        for name in collective.operands
        if name in computation.instructions
    )
    returned = hlo_text.num_bytes(collective.shape)
    if collective.opcode.endswith("-start") or collective.opcode == "send":
        returned -= given  # a start returns its operands too
    return max(given, returned)


def _is_free(module: hlo_text.Module, instruction: hlo_text.Instruction) -> bool:
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(("-done", "-update")) or instruction.is_scalar:
        return True
    if opcode == "fusion":  # the later parts of a collective, whose start was counted
        called = module.computations[instruction.called("calls")[0]]
        return any(
            inner.target.startswith("AsyncCollective") for inner in called.instructions.values()
        )
    return instruction.target in _FREE_TARGETS


def _shown(instruction: hlo_text.Instruction) -> str:
    if instruction.opcode == "fusion":
        return f"fusion ({instruction.operation.rpartition('/')[2]})"
    return instruction.target or instruction.opcode
