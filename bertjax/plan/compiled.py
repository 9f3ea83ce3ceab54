"""One phase's step, compiled for devices that need not exist here, and the compiler's figures.

`estimates` has seconds and money.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from typing import Any

import jax

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.plan import hlo
from bertjax.training import program as program_lib

GIB = 2**30

# Sizes in messages of libtpu and XLA's GPU compiler; the units are powers of 1024. The second form
# says temporaries but includes arguments (libtpu 0.0.42.1: 10 GiB and 6 GiB of temporaries are 16).
_SIZE = r"\(?(\d+(?:\.\d+)?)([KMGT]?)i?B?\)?"
_USED = re.compile(rf"Used {_SIZE} of {_SIZE}")
_TEMPORARIES = re.compile(rf"temporaries {_SIZE} exceeds available \w+ {_SIZE}")
_ALLOCATION = re.compile(rf"allocate {_SIZE}")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's figures for a step; bytes are those of one device.

    `alias_bytes` of the outputs reuse donated arguments. `analysis` is for TPU programs, None on
    other platforms, where compilers estimate no cycles.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    compile_seconds: float
    analysis: hlo.Analysis | None

    @property
    def total_bytes(self) -> int:
        """The peak bytes of a device in a step."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temp_bytes + self.code_bytes


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """The compiler's refusal: the bytes of a device that it states, if any, and its message."""

    needed_bytes: int | None
    available_bytes: int | None
    message: str


Outcome = Compiled | OutOfMemory


@dataclasses.dataclass(frozen=True)
class StateBytes:
    """Bytes of a step's arguments on one device, counted from shapes and shardings."""

    parameters: int
    optimizer: int
    batch: int


def abstract_batch(program: program_lib.Program, phase: jobs.Phase) -> dict[str, Any]:
    """Returns the phase's batch as shapes with shardings."""
    rows = sharding.batch_sharding(program.mesh)
    return {
        name: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=rows)
        for name, shape in program.job.data.abstract_batch(phase).items()
    }


def count_bytes(program: program_lib.Program, phase: jobs.Phase) -> StateBytes:
    """Returns the bytes per device of parameters, optimizer state (with the step) and batch."""

    def count(tree: Any) -> int:
        return sharding.bytes_per_device(tree, jax.tree.map(lambda leaf: leaf.sharding, tree))

    state = program.abstract_state
    return StateBytes(
        parameters=count(state.params),
        optimizer=count((state.step, state.opt_state, state.ema)),
        batch=count(abstract_batch(program, phase)),
    )


def compile_step(program: program_lib.Program, phase: jobs.Phase) -> Outcome:
    """Compiles the phase's training step for the program's devices; returns the outcome."""
    start = time.perf_counter()
    with jax.set_mesh(program.mesh):
        lowered = program.in_phase(phase).train_step.lower(
            program.abstract_state, abstract_batch(program, phase), program.abstract_step_inputs
        )
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return parse_refusal(str(error))
    memory: Any = compiled.memory_analysis()
    is_tpu = program.mesh.devices.flat[0].platform == "tpu"
    return Compiled(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        compile_seconds=time.perf_counter() - start,
        analysis=hlo.analyze(str(compiled.as_text())) if is_tpu else None,
    )


def parse_refusal(message: str) -> OutOfMemory:
    """Returns the bytes in a RESOURCE_EXHAUSTED message, with its first line."""
    first_line = message.strip().splitlines()[0]
    if match := _USED.search(message) or _TEMPORARIES.search(message):
        return OutOfMemory(_bytes(*match.group(1, 2)), _bytes(*match.group(3, 4)), first_line)
    if match := _ALLOCATION.search(message):
        return OutOfMemory(_bytes(*match.group(1, 2)), None, first_line)
    return OutOfMemory(None, None, first_line)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Returns an outcome as JSON objects; the inverse of `from_json`."""
    return {"kind": type(outcome).__name__} | dataclasses.asdict(outcome)


def from_json(fields: Mapping[str, Any]) -> Outcome:
    """Returns the outcome that `to_json` wrote."""
    values = {name: value for name, value in fields.items() if name != "kind"}
    if fields["kind"] == OutOfMemory.__name__:
        return OutOfMemory(**values)
    analysis = values["analysis"]
    if analysis is not None:
        collectives = tuple(hlo.Collective(**found) for found in analysis["collectives"])
        values["analysis"] = hlo.Analysis(**{**analysis, "collectives": collectives})
    return Compiled(**values)


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))
