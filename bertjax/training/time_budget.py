"""The steps that fit into config.budget.hours: a speed is measured once, at the start of a run.

What fits is stored as the number of steps, so a resumed run ends at the same one on any devices.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.training import program, state

WARM_UP_STEPS = 2  # the first compiles
MEASURED_SECONDS = 5.0  # of steps, about
MOST_STEPS = 50  # that are measured


def bounded_steps(run: program.Program) -> dict[str, int]:
    """Returns the steps of each phase that fit into the hours of the config, {} if all do.

    Each phase is shortened by the same factor. Evaluations and saves are not counted.
    """
    seconds, steps = 0.0, dict.fromkeys((phase.name for phase in run.job.phases), 0)
    train_state = run.init(run.step_inputs.seed)
    for phase in run.job.phases:
        each, train_state = seconds_per_step(run, phase, train_state)
        seconds += each * phase.num_steps
        steps[phase.name] += phase.num_steps
    share = run.config.budget.hours * 3600 / seconds
    logging.info(
        "All %s steps would take %.2f h by the speed of the first ones; config.budget.hours is %g",
        f"{sum(steps.values()):,}", seconds / 3600, run.config.budget.hours,
    )  # fmt: skip
    return {} if share >= 1 else {name: max(1, int(it * share)) for name, it in steps.items()}


def seconds_per_step(
    run: program.Program, phase: jobs.Phase, train_state: state.TrainState
) -> tuple[float, state.TrainState]:
    """Returns the seconds of a step of a phase, and the state after the steps that were timed."""
    rows = sharding.local_rows(run.mesh, phase.global_batch_size)
    batches = run.job.data.train_batches(phase, start_step=phase.first_step, rows=rows)
    step, inputs = run.in_phase(phase).train_step, run.placed_step_inputs()

    def timed(train_state: Any, count: int) -> tuple[float, Any]:
        begun = time.monotonic()
        for _ in range(count):
            batch = sharding.to_devices(next(batches), run.mesh, phase.global_batch_size)
            train_state, _ = step(train_state, batch, inputs)
        jax.block_until_ready(train_state)
        return _of_first_process((time.monotonic() - begun) / count), train_state

    for _ in range(WARM_UP_STEPS):
        seconds, train_state = timed(train_state, 1)
    count = int(np.clip(MEASURED_SECONDS / seconds, 2, MOST_STEPS))
    return timed(train_state, count)


def _of_first_process(seconds: float) -> float:
    """Returns the number that the first process measured: all must take the same steps."""
    if jax.process_count() == 1:
        return seconds
    return float(multihost_utils.broadcast_one_to_all(np.float32(seconds)))
