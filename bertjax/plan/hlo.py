"""The cost of a compiled TPU program by the compiler's own estimates, read from its optimized HLO.

Text in, numbers out: nothing here imports jax. Seconds and prices belong to `plan`. Only executed
instructions count: a fusion by its own estimate (not by those of its parts), a loop's body as often
as it runs, a conditional by its most expensive branch.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast", "send"),
)
# Kind -> the smallest share of the payload that one of several devices sends: gathered data goes
# once around them, sums twice.
_SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda devices: 2 * (devices - 1) / devices,
    **dict.fromkeys(
        ("all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        lambda devices: (devices - 1) / devices,
    ),
    **dict.fromkeys(("collective-permute", "collective-broadcast"), lambda devices: 1.0),
    "send": lambda devices: 0.0,  # to another slice, over another network
}
KERNELS = "kernels"  # a key like the opcodes
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
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[^\s(]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(?P<root>ROOT )?%(?P<name>\S+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(?P<type>[a-z][a-z0-9]*)\[(?P<dimensions>[\d,]*)\]")
_NAME = re.compile(r"%([^\s,(){}]+)")
_PASS_ON = ("copy", "bitcast", "convert", "reshape")
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}

_NO_ESTIMATE = 2**63 - 1  # cycles of fusions whose cost the compiler could not tell

# Kernel without its direction (`pallas_parts.name_of`) -> instruction bundles of 1,000 scores,
# forward and backward: one cycle each without stalls, so about a lower bound, like the compiler's
# estimates. Source: benchmarks/kernel_bundles.py --all, v5e:2x2, heads of 64, bfloat16, libtpu
# 0.0.42.1, 2026-11-23; those with dropout 2026-11-25, with positions too 2026-11-28, with terms
# 2026-11-30. Rows of 512 take 1.01 and 0.99 times as many on v5p, 0.86 and 0.79 on v6e. Only shapes
# of recipes are here.
KERNEL_BUNDLES: dict[str, tuple[float, float]] = {
    "attention_rows_128_dropout": (9.04, 15.04),
    "attention_rows_128_pairs_dropout": (10.49, 16.29),
    "attention_rows_512_dropout": (6.15, 12.70),
    "attention_rows_512_pairs_dropout": (7.36, 13.51),
    "attention_rows_128": (7.39, 13.90),
    "attention_rows_128_pairs": (8.79, 15.00),
    "attention_rows_512": (4.84, 11.49),
    "attention_rows_256_dropout": (7.11, 13.24),
    "attention_rows_256_pairs_positions_dropout": (8.22, 13.99),
    "attention_rows_384_dropout": (7.25, 13.38),
    "attention_rows_512_pairs": (5.63, 12.14),
    "attention_rows_128_terms_dropout": (21.46, 60.62),
    "attention_rows_128_terms_pairs_dropout": (23.09, 61.23),
    "attention_rows_512_terms_dropout": (15.79, 39.24),
    "attention_rows_512_terms_pairs_dropout": (16.40, 39.70),
    "attention_rows_128_terms": (20.99, 59.05),
    "attention_rows_512_terms": (13.87, 38.28),
    "attention_blocks_512_dropout": (6.98, 12.43),
    "attention_blocks_512_pairs_dropout": (8.00, 12.70),
    "attention_blocks_512": (5.46, 11.50),
    "attention_blocks_512_pairs": (6.34, 11.97),
    "attention_blocks_512_rotary": (5.84, 12.55),
    "attention_blocks_512_pairs_rotary": (6.80, 13.11),
    "attention_window_128x256_pairs_rotary": (8.77, 14.56),
    "attention_window_128x256_pairs_positions_rotary": (10.34, 17.53),
    "attention_window_128x256_pairs_dropout": (9.18, 13.69),
    "attention_window_128x256_pairs": (7.60, 12.43),
}


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

    `uncounted` counts executions of operations without an estimate, which are missing in `cycles`:
    collectives, custom calls by target, random bits, sorts, copies in parallel to computation.
    Operations on scalars are left out of both. `uncounted_bytes` are the bytes that such operations
    read and write, except collectives and operations in parallel to computation. `kernel_cycles`,
    in `cycles` too, are those of our kernels, which the compiler does not know (KERNEL_BUNDLES).
    """

    cycles: float
    cycles_by_operation: dict[str, float]
    cycles_by_opcode: dict[str, float]
    collectives: tuple[Collective, ...]
    uncounted: dict[str, int]
    kernel_cycles: float = 0.0
    uncounted_bytes: int = 0


def analyze(text: str) -> Analysis:
    """Returns the analysis of an optimized HLO text, `compiled.as_text()`."""
    module = parse(text)
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
    and the part of the derivative: forward, backward, or recomputed by jax.checkpoint. Operations
    outside of the derivative (the optimizer) have no such mark; those without a scope are "other".
    """
    cycles_of = collections.defaultdict(float)
    for operation, cycles in cycles_by_operation.items():
        scopes = "/".join(_scopes(operation)[:depth]) or "other"
        direction = _direction(operation)
        cycles_of[f"{scopes} ({direction})" if direction else scopes] += cycles
    return dict(sorted(cycles_of.items(), key=lambda item: -item[1]))


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


def _computation_costs(module: Module) -> Callable[[str], _Costs]:
    """Returns the function from a computation's name to its costs, each computed once."""

    @functools.cache
    def costs_of(name: str) -> _Costs:
        computation = module.computations[name]
        costs, seen = _Costs(), set()
        for instruction in computation.instructions.values():
            if instruction.opcode == "while":
                trips = trip_count(module, instruction, computation)
                costs.uncounted[UNKNOWN_TRIP_COUNT] += trips is None
                for part in ("body", "condition"):
                    costs.add(costs_of(instruction.called(part)[0]), 1 if trips is None else trips)
            elif instruction.opcode == "conditional":
                branches = instruction.called("branch_computations") or (
                    *instruction.called("true_computation"),
                    *instruction.called("false_computation"),
                )
                costs.add(max(map(costs_of, branches), key=lambda each: each.cycles))
            elif instruction.opcode in ("call", "call-start", "async-start"):
                called = instruction.called("to_apply") or instruction.called("calls")
                costs.add(costs_of(called[0]))
            else:
                costs.add(_instruction_costs(module, computation, instruction, seen))
        return costs

    return costs_of


def _instruction_costs(
    module: Module, computation: Computation, instruction: Instruction, seen: set[tuple[str, str]]
) -> _Costs:
    costs = _Costs()
    cycles, opcode = instruction.estimated_cycles, instruction.opcode
    if cycles is None and instruction.kernel:
        cycles, opcode = _kernel_cycles(*instruction.kernel), KERNELS
    if cycles is not None:
        costs.by_operation[instruction.operation] += cycles
        costs.by_opcode[opcode] += cycles
    fused = _fused_collectives(module, instruction, seen)
    for place, collective in (*fused, *_itself(computation, instruction)):
        kind = collective.opcode.removesuffix("-start")
        if place.name.startswith(_SCATTERED):
            kind = "reduce-scatter"
        read, returned = place.operand_bytes(collective), num_bytes(collective.shape)
        if collective.opcode.endswith("-start") or collective.opcode == "send":
            returned -= read  # a start returns its operands too
        payload = max(read, returned)
        costs.executions[kind] += 1
        costs.payload[kind] += payload
        devices = collective.group_size(module.num_partitions)
        costs.sent[kind] += round(payload * _SENT[kind](devices))
        if collective.estimated_cycles is None:
            costs.uncounted[kind] += 1
    if cycles is None and not costs.executions and not _is_free(module, instruction):
        costs.uncounted[_shown(instruction)] += 1
        if not instruction.opcode.endswith("-start"):  # which overlaps computation
            touched = computation.operand_bytes(instruction) + num_bytes(instruction.shape)
            costs.touched[_shown(instruction)] += touched
    return costs


def _itself(
    computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    if instruction.opcode.removesuffix("-start") in COLLECTIVES:
        yield computation, instruction


def _fused_collectives(
    module: Module, instruction: Instruction, seen: set[tuple[str, str]]
) -> list[tuple[Computation, Instruction]]:
    """Returns the collectives that begin in a fusion.

    A collective that overlaps computation appears in the fusions of its start, of the computation
    and of its end, under one channel_id; `seen` holds those that began before.
    """
    collectives = []
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
                    collectives.append((computation, collective))
                seen.add(identity)
    return collectives


def _is_free(module: Module, instruction: Instruction) -> bool:
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(("-done", "-update")) or instruction.is_scalar:
        return True
    if opcode == "fusion":  # the later parts of a collective, whose start was counted
        called = module.computations[instruction.called("calls")[0]]
        return any(
            inner.target.startswith("AsyncCollective") for inner in called.instructions.values()
        )
    return instruction.target in _FREE_TARGETS


def _shown(instruction: Instruction) -> str:
    if instruction.opcode == "fusion":
        return f"fusion ({instruction.operation.rpartition('/')[2]})"
    return instruction.target or instruction.opcode


def _kernel_cycles(name: str, scores: int) -> int | None:
    """Returns the cycles of a kernel for its number of scores, None for an unknown one."""
    kind = re.sub("_(forward|backward)", "", name, count=1)
    if kind not in KERNEL_BUNDLES:
        return None
    return round(KERNEL_BUNDLES[kind]["_backward" in name] * scores / 1000)


# The text as objects: computations, instructions, shapes, trip counts. The syntax is that of
# `compiled.as_text()` of jax 0.10 and 0.11.


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`shape` and `attributes` as they stand in the text; `operands` are names."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def called(self, attribute: str) -> tuple[str, ...]:
        """Returns the computations of `calls=`, `body=`, `branch_computations=` and so on."""
        match = re.search(rf"\b{attribute}=(%[^\s,]+|\{{[^}}]*\}})", self.attributes)
        return tuple(_NAME.findall(match[1])) if match else ()

    @property
    def operation(self) -> str:
        """The op_name of the metadata: scopes and the primitive, "" where there is none."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1] if match else ""

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate, None without one, or with the number that says it has none."""
        match = re.search(r'"estimated_cycles":"?(\d+)', self.attributes)
        return int(match[1]) if match and int(match[1]) < _NO_ESTIMATE else None

    @property
    def target(self) -> str:
        """The custom_call_target, "" where there is none."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def kernel(self) -> tuple[str, int] | None:
        """The name of a Pallas kernel and its stated number of exponentials; None for others."""
        if self.target != "tpu_custom_call":
            return None
        match = re.search(r'"transcendentals":"?(\d+)', self.attributes)
        return self.name.partition(".")[0], int(match[1]) if match else 0

    def group_size(self, num_partitions: int) -> int:
        """Returns the number of devices in a group of a collective.

        The text has the groups as lists of devices ({{0,1},{2,3}}), as a number of groups and their
        size ([2,2]<=[4]), as axes of a mesh (mesh['a'=2,'b'=2] {'b'}), or not at all: all devices.
        """
        if listed := re.search(r"\breplica_groups=\{\{([\d,]+)\}", self.attributes):
            return listed[1].count(",") + 1
        if counted := re.search(r"\breplica_groups=\[\d+,(\d+)\]", self.attributes):
            return int(counted[1])
        if meshed := re.search(r"\breplica_groups=mesh\[(.*?)\] \{(.*?)\}", self.attributes):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", meshed[1]))
            return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", meshed[2]))
        return num_partitions

    @property
    def is_scalar(self) -> bool:
        """Whether the result, or every element of it, is a single number."""
        return not any(
            set(match["dimensions"]) - set("1,") for match in _ARRAY.finditer(self.shape)
        )


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order of the text, which is that of execution."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    def integer(self, name: str) -> int | None:
        """Returns the constant that `name` stands for, None if it is none."""
        source = self.source(name)
        if source is None or source.opcode != "constant":
            return None
        return int(source.literal) if re.fullmatch(r"-?\d+", source.literal) else None

    def element(self, name: str) -> int | None:
        """Returns which element of the computation's tuple `name` is, None if it is none."""
        source = self.source(name)
        if source is None or source.opcode != "get-tuple-element":
            return None
        origin = self.instructions.get(source.operands[0])
        index = re.search(r"\bindex=(\d+)", source.attributes)
        return int(index[1]) if index and origin and origin.opcode == "parameter" else None

    def operand_bytes(self, instruction: Instruction) -> int:
        """Returns the bytes of the operands that are instructions of the computation."""
        operands = (self.instructions.get(name) for name in instruction.operands)
        return sum(num_bytes(operand.shape) for operand in operands if operand)

    def source(self, name: str) -> Instruction | None:
        """Returns what computes `name`, copies and casts left out."""
        instruction = self.instructions.get(name)
        while instruction is not None and instruction.opcode in _PASS_ON:
            instruction = self.instructions.get(instruction.operands[0])
        return instruction


@dataclasses.dataclass(frozen=True)
class Module:
    """Computations by name; `entry` names the one that runs, on `num_partitions` devices."""

    computations: dict[str, Computation]
    entry: str
    num_partitions: int = 1


def parse(text: str) -> Module:
    """Returns the module of an HLO text."""
    computations, entry, open_name = {}, None, None
    instructions, root = {}, None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            open_name, instructions, root = header["name"], {}, None
            entry = open_name if header["entry"] else entry
        elif line.startswith("}") and open_name and root:
            computations[open_name] = Computation(open_name, instructions, root)
        elif open_name and (match := _INSTRUCTION.match(line)):
            instruction = _instruction(match["name"], match["rest"])
            instructions[instruction.name] = instruction
            root = instruction if match["root"] else root
    if entry is None or entry not in computations:
        raise ValueError(
            "the text has no ENTRY computation; expected the optimized HLO of compiled.as_text()"
        )
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    return Module(computations, entry, int(partitions[1]) if partitions else 1)


def num_bytes(shape: str) -> int:
    """Returns the bytes of an array or of all arrays of a tuple, without the padding of tiles.

    Scalars of a tuple are left out: they are flags of an asynchronous operation.
    """
    arrays = [(_bits(match["type"]), match["dimensions"]) for match in _ARRAY.finditer(shape)]
    return sum(
        bits * math.prod(int(size) for size in dimensions.split(",") if size) // 8
        for bits, dimensions in arrays
        if dimensions or not shape.startswith("(")
    )


def trip_count(module: Module, loop: Instruction, caller: Computation) -> int | None:
    """Returns how often the body of a `while` runs, None where only the data tell.

    Taken from the compiler's own known_trip_count, else from the condition's comparison of a
    counter with a constant, the counter's start and its step.
    """
    if match := re.search(r'"?known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)', loop.attributes):
        return int(match[1])
    condition = module.computations[loop.called("condition")[0]]
    body = module.computations[loop.called("body")[0]]
    test = condition.root
    direction = re.search(r"\bdirection=(\w\w)", test.attributes)
    if test.opcode != "compare" or not direction:
        return None
    step_of = functools.partial(_step, module, body)
    for counter, limit, sign in (
        (*test.operands, direction[1]),
        (*reversed(test.operands), _FLIPPED.get(direction[1], "")),
    ):
        start = _initial(caller, loop, condition.element(counter))
        step = step_of(condition.element(counter))
        end = condition.integer(limit)
        if end is None and step_of(condition.element(limit)) == 0:
            end = _initial(caller, loop, condition.element(limit))
        if start is not None and end is not None and step:
            return _num_steps(start, end, step, sign)
    return None


def _instruction(name: str, rest: str) -> Instruction:
    end_of_shape = _end_of_group(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, call = rest[:end_of_shape], rest[end_of_shape:].lstrip()
    opening = call.index("(")
    closing = _end_of_group(call, opening)
    literal = call[opening + 1 : closing - 1]
    operands = tuple(_NAME.findall(literal))
    return Instruction(name, call[:opening], shape, operands, literal, call[closing:])


def _end_of_group(text: str, start: int) -> int:
    depth = 0
    for match in re.finditer(r"[()]", text[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.end()
    return len(text)


def _bits(element_type: str) -> int:
    if element_type == "pred":
        return 8
    digits = re.search(r"\d+", element_type)
    return int(digits[0]) if digits else 0  # token, opaque


def _initial(caller: Computation, loop: Instruction, index: int | None) -> int | None:
    carried = caller.instructions.get(loop.operands[0])
    if index is None or carried is None or carried.opcode != "tuple":
        return None
    return caller.integer(carried.operands[index])


def _step(module: Module, body: Computation, index: int | None) -> int | None:
    """Returns what the body adds to an element of its tuple, 0 if it passes the element on."""
    if index is None or body.root.opcode != "tuple":
        return None
    if body.element(body.root.operands[index]) == index:
        return 0
    update = body.source(body.root.operands[index])
    if update is None:
        return None
    inner, arguments = body, update.operands
    if update.opcode == "fusion":
        inner = module.computations[update.called("calls")[0]]
        update = inner.root
    if update.opcode != "add":
        return None
    for counter, amount in (update.operands, update.operands[::-1]):
        step = inner.integer(amount)
        if inner is not body:  # an argument of the fusion
            parameter = inner.source(counter)
            if parameter is None or parameter.opcode != "parameter":
                continue
            counter = arguments[int(parameter.literal)]
        if step is not None and body.element(counter) == index:
            return step
    return None


def _num_steps(start: int, end: int, step: int, sign: str) -> int | None:
    distance = (end - start) * (1 if step > 0 else -1)
    step = abs(step)
    if sign in ("LT", "GT", "NE"):
        return max(math.ceil(distance / step), 0)
    return max(distance // step + 1, 0) if sign in ("LE", "GE") else None
