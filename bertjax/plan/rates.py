"""The tokens a second of a run on one target, with batches that fit.

TPUs are estimated: each phase is compiled, in the fewest micro-batches that fit. CPUs and GPUs are
measured: a few steps on random tokens, on this machine.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence

import jax
import ml_collections
from absl import logging

from bertjax import jobs
from bertjax.devices import accelerators, sharding
from bertjax.plan import compiled, estimates, planner
from bertjax.tasks import base as tasks
from bertjax.training import program as program_lib
from bertjax.training import time_budget

# The least bytes that a step without remat keeps for each token, layer and unit of width: 21 for
# BERT-base, 42 for BERT-mini (docs/scaling.md). It saves compilations that cannot fit.
LEAST_ACTIVATION_BYTES = 16

# The most tokens of a measured step and device. Larger batches need memory but are not faster on
# CPU.
MOST_TOKENS = {"cpu": 2_048, "gpu": 65_536}
MEASURED = 0.01  # of the hours that are planned, for each phase of a recipe


@dataclasses.dataclass(frozen=True)
class Rate:
    """The tokens a second of a run, averaged over its phases; None if it cannot run.

    `how` is as in `estimates`. `note` has the size of batches, or the reason why it cannot run.
    """

    tokens_per_second: float | None
    how: str
    note: str = ""


def average(phases: Sequence[jobs.Phase], rates: Sequence[float]) -> float:
    """Returns the tokens a second of a run with these rates in its phases."""
    tokens = [phase.num_steps * phase.tokens_per_step for phase in phases]
    return sum(tokens) / sum(count / rate for count, rate in zip(tokens, rates, strict=True))


def estimated(
    config: ml_collections.ConfigDict, on_target: planner.Planner, hours: float = 0.0
) -> Rate:
    """Returns the rate by the compiler's cycles, in the fewest micro-batches that fit."""
    program = on_target.build(config)
    limit = accelerators.memory_bytes(on_target.target.device_kind) or math.inf
    counted = compiled.count_bytes(program, program.job.phases[0])
    fixed = counted.parameters + counted.optimizer
    growing = _least_activations(program)  # bytes that shrink with the micro-batch
    choices = _micro_batches(program, program.job.phases)
    while choices := [number for number in choices if fixed + growing / number <= limit]:
        number = choices.pop(0)
        changed = config.copy_and_resolve_references()
        changed.gradient_accumulation_steps = number
        rates, needed = _compiled_rates(on_target, changed)
        if rates:
            note = f"in {number} micro-batches" if number > 1 else ""
            return Rate(average(program.job.phases, rates), estimates.ESTIMATED, note)
        logging.info("In %d micro-batches it does not fit", number)
        growing = max(growing, (needed - fixed) * number)
    note = (
        "does not fit in any number of micro-batches; parameters and optimizer state take "
        f"{fixed / compiled.GIB:.1f} GiB of a device's {limit / compiled.GIB:.0f}"
    )
    return Rate(None, estimates.ESTIMATED, note)


def _compiled_rates(
    on_target: planner.Planner, config: ml_collections.ConfigDict
) -> tuple[list[float], int]:
    """Returns the rates of all phases; or [] if one does not fit, and the bytes that it needs."""
    program = on_target.build(config)
    rates = {}
    for phase in sorted(program.job.phases, key=lambda it: -it.tokens_per_step):
        plan, outcome = on_target.phase_plan(program, phase)
        if plan.fits is False:
            assert outcome is not None
            return [], estimates.needed_bytes(outcome) or 0
        rates[phase.first_step] = plan.speed["tokens_per_second"].value
    return [rates[phase.first_step] for phase in program.job.phases], 0


def _least_activations(program: program_lib.Program) -> float:
    model = program.config.model
    if model.remat != "none":
        return 0.0
    tokens = max(phase.tokens_per_step for phase in program.job.phases) / program.mesh.size
    return LEAST_ACTIVATION_BYTES * model.num_hidden_layers * model.hidden_size * tokens


def _micro_batches(program: program_lib.Program, phases: Sequence[jobs.Phase]) -> list[int]:
    """Returns the numbers of micro-batches that divide the batch of each phase, smallest first.

    They are multiples of the config's number.
    """
    task, least = program.job.task, program.config.gradient_accumulation_steps
    rows = task.row_unit if isinstance(task, tasks.HasKindsOfRows) else 1
    unit = program.mesh.shape[sharding.DATA] * rows * least
    most = math.gcd(*(phase.global_batch_size // unit for phase in phases))
    return [least * number for number in range(1, most + 1) if most % number == 0]


def measured(
    config: ml_collections.ConfigDict, on_target: planner.Planner, hours: float = 1.0
) -> Rate:
    """Measures the rate on batches of as many rows or fewer; rows are independent.

    The steps that are timed take about MEASURED of the hours that are planned, and a few seconds at
    most; compiling comes before.
    """
    program = on_target.build(config)
    counted = compiled.count_bytes(program, program.job.phases[0])
    needed, limit = 2 * counted.parameters + counted.optimizer, _memory(on_target.target)
    if needed > limit:
        shown = f"{needed / compiled.GIB:.1f} GiB of a device's {limit / compiled.GIB:.0f}"
        note = f"does not fit: parameters, gradients and optimizer state take {shown}"
        return Rate(None, estimates.MEASURED, note)
    rates, rows = [], []
    for phase in program.job.phases:
        seconds = min(time_budget.MEASURED_SECONDS, 3600 * MEASURED * hours)
        sizes = _batch_sizes(program, phase)
        rate, size = _largest_that_runs(config, on_target, phase, sizes, seconds)
        if rate is None:
            return Rate(None, estimates.MEASURED, f"does not fit with {size} rows of {phase.name}")
        rates.append(rate)
        rows.append(str(size) + f" of {phase.global_batch_size}" * (size < phase.global_batch_size))
    note = f"by steps of {' and '.join(dict.fromkeys(rows))} rows"
    return Rate(average(program.job.phases, rates), estimates.MEASURED, note)


def _batch_sizes(program: program_lib.Program, phase: jobs.Phase) -> list[int]:
    """Returns the sizes of micro-batches that can be measured in seconds, largest first."""
    most = MOST_TOKENS[program.mesh.devices.flat[0].platform] * program.mesh.size
    sizes = [phase.global_batch_size // number for number in _micro_batches(program, [phase])]
    return [size for size in sizes if size * phase.max_seq_length <= most] or sizes[-1:]


def _largest_that_runs(
    config: ml_collections.ConfigDict,
    on_target: planner.Planner,
    phase: jobs.Phase,
    sizes: Sequence[int],
    seconds: float,
) -> tuple[float | None, int]:
    """Returns the tokens a second of a phase, and the first batch size that fits, or the last."""
    size = 0
    for size in sizes:
        try:
            return _tokens_per_second(config, on_target, phase, size, seconds), size
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        logging.info("A batch of %d rows does not fit", size)
    return None, size


def _tokens_per_second(
    config: ml_collections.ConfigDict,
    on_target: planner.Planner,
    phase: jobs.Phase,
    size: int,
    measured: float,
) -> float:
    logging.info(
        "Measuring %s on %s: compiling, then about %.3g s of steps of %d x %d tokens ...",
        phase.name, on_target.target.name, measured, size, phase.max_seq_length,
    )  # fmt: skip
    batch_size = {f"phases.{phase.name}.global_batch_size": size}
    one_phase = planner.of_one_phase(
        config, phase, {**batch_size, "gradient_accumulation_steps": 1}
    )
    program = on_target.build(one_phase)
    (phase,) = program.job.phases
    with jax.set_mesh(program.mesh):
        train_state = program.init(program.step_inputs.seed)
        seconds, _ = time_budget.seconds_per_step(program, phase, train_state, measured)
    return phase.tokens_per_step / seconds


def _memory(target: estimates.Target) -> float:
    if target.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return accelerators.memory_bytes(target.device_kind) or math.inf


# Platform -> the function that returns its rate.
RATES = {"tpu": estimated, "cpu": measured, "gpu": measured}
