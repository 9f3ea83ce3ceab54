"""The text of an optimized HLO module as objects: computations, instructions, shapes, trip counts.

Only what `hlo` asks for is parsed; what an instruction costs is not decided here. The syntax is
that of `compiled.as_text()` of jax 0.10 and 0.11.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re

_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[^\s(]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(?P<root>ROOT )?%(?P<name>\S+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(?P<type>[a-z][a-z0-9]*)\[(?P<dimensions>[\d,]*)\]")
_NAME = re.compile(r"%([^\s,(){}]+)")
_PASS_ON = ("copy", "bitcast", "convert", "reshape")
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}

_NO_ESTIMATE = 2**63 - 1  # cycles of fusions whose cost the compiler could not tell


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
        found = re.search(rf"\b{attribute}=(%[^\s,]+|\{{[^}}]*\}})", self.attributes)
        return tuple(_NAME.findall(found[1])) if found else ()

    @property
    def operation(self) -> str:
        """The op_name of the metadata: scopes and the primitive, "" where there is none."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate, None without one, or with the number that says it has none."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.attributes)
        return int(found[1]) if found and int(found[1]) < _NO_ESTIMATE else None

    @property
    def target(self) -> str:
        """The custom_call_target, "" where there is none."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def kernel(self) -> tuple[str, int] | None:
        """The name of a Pallas kernel and how many exponentials it says it makes; None if none."""
        if self.target != "tpu_custom_call":
            return None
        found = re.search(r'"transcendentals":"?(\d+)', self.attributes)
        return self.name.partition(".")[0], int(found[1]) if found else 0

    def group_size(self, num_partitions: int) -> int:
        """Returns how many devices take part in a collective together.

        A text has their groups as lists of devices ({{0,1},{2,3}}), as a number of groups and their
        size ([2,2]<=[4]), as axes of a mesh (mesh['a'=2,'b'=2] {'b'}), or none: all.
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
            set(found["dimensions"]) - set("1,") for found in _ARRAY.finditer(self.shape)
        )


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order of the text, which is that of execution."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction

    def integer(self, name: str) -> int | None:
        """Returns the constant that `name` stands for, None if it is none."""
        found = self.source(name)
        is_integer = found is not None and re.fullmatch(r"-?\d+", found.literal)
        return int(found.literal) if found and is_integer and found.opcode == "constant" else None

    def element(self, name: str) -> int | None:
        """Returns which element of the computation's tuple `name` is, None if it is none."""
        found = self.source(name)
        if found is None or found.opcode != "get-tuple-element":
            return None
        origin = self.instructions.get(found.operands[0])
        index = re.search(r"\bindex=(\d+)", found.attributes)
        return int(index[1]) if index and origin and origin.opcode == "parameter" else None

    def source(self, name: str) -> Instruction | None:
        """Returns what computes `name`, copies and casts left out."""
        found = self.instructions.get(name)
        while found is not None and found.opcode in _PASS_ON:
            found = self.instructions.get(found.operands[0])
        return found


@dataclasses.dataclass(frozen=True)
class Module:
    """Computations by name; `entry` is the name of the one that runs, on so many devices."""

    computations: dict[str, Computation]
    entry: str
    num_partitions: int = 1


def parse(text: str) -> Module:
    """Returns the module of an HLO text.

    Raises:
      ValueError: if the text has no entry computation.
    """
    computations, entry, open_name = {}, None, None
    found, root = {}, None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            open_name, found, root = header["name"], {}, None
            entry = open_name if header["entry"] else entry
        elif line.startswith("}") and open_name and root:
            computations[open_name] = Computation(open_name, found, root)
        elif open_name and (match := _INSTRUCTION.match(line)):
            instruction = _instruction(match["name"], match["rest"])
            found[instruction.name] = instruction
            root = instruction if match["root"] else root
    if entry is None or entry not in computations:
        raise ValueError(
            "the text has no ENTRY computation; expected the optimized HLO of compiled.as_text()"
        )
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    return Module(computations, entry, int(partitions[1]) if partitions else 1)


def num_bytes(shape: str) -> int:
    """Returns the bytes of an array or of all arrays of a tuple, without the padding of tiles.

    Scalars of a tuple are left out: they are flags of an operation that runs beside others.
    """
    arrays = [(_bits(found["type"]), found["dimensions"]) for found in _ARRAY.finditer(shape)]
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
    if known := re.search(r'"?known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)', loop.attributes):
        return int(known[1])
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
    for found in re.finditer(r"[()]", text[start:]):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return start + found.end()
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
        if inner is not body:
            counter = _argument(inner, counter, arguments)
        if step is not None and counter and body.element(counter) == index:
            return step
    return None


def _argument(inner: Computation, name: str, arguments: tuple[str, ...]) -> str | None:
    found = inner.source(name)
    if found is None or found.opcode != "parameter":
        return None
    return arguments[int(found.literal)]


def _num_steps(start: int, end: int, step: int, sign: str) -> int | None:
    distance = (end - start) * (1 if step > 0 else -1)
    step = abs(step)
    if sign in ("LT", "GT", "NE"):
        return max(math.ceil(distance / step), 0)
    return max(distance // step + 1, 0) if sign in ("LE", "GE") else None
