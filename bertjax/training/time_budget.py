"""config.budget.hours: the steps that fit into them by the speed that is measured.

The first number of steps comes from a few steps that are taken before the run and forgotten. At
steps that every process knows it is decided again: by process 0, which writes the decision into the
workdir before it is used. A resumed run, also from an older checkpoint, reads the decisions there.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.files import atomic, json_text
from bertjax.jobs import automatic, lengths
from bertjax.training import program, state
from bertjax.workdirs import checkpoint

FILE = "budget.json"  # in the workdir: the decisions, and the seconds that are used

WARM_UP_STEPS = 2  # the first compiles
MEASURED_SECONDS = 5.0  # of steps, about
MOST_STEPS = 50  # that are measured

# The number of steps is decided again when these shares of the steps left are done. A machine that
# becomes slow by a factor of two is noticed while half of the hours that are left are still there,
# and the last decision leaves about a fortieth of them.
SHARES = (0.01, 0.05, 0.25)  # the last one again and again
LEAST_LEFT = 0.025
LEAST_STEPS = 4  # between two decisions
KEPT_EVERY = 20.0  # seconds: what a kill may take off the used time
LEAST_CHANGE = 0.02  # of the steps left: less is noise
EVALUATIONS = 0.1  # of the hours, at most
LEAST_USEFUL = 1_000  # steps
# An evaluation reads a row without its gradient: about a third of the work of a training step.
FORWARD = 1 / 3


@dataclasses.dataclass
class Used:
    """The seconds that a run has used of its hours, of all evaluations, and of the last one.

    `hours` and `decisions` are those options of config.budget.
    """

    hours: float
    seconds: float = 0.0
    evaluations: float = 0.0
    last_evaluation: float = 0.0
    decisions: Sequence[Sequence[int]] = ()


def read(workdir: epath.PathLike) -> Used:
    """Returns what a run has used of its hours.

    Raises:
      checkpoint.CheckpointError: if its file is missing or damaged.
    """
    path = epath.Path(workdir) / FILE
    try:
        used = Used(**json_text.read_object(path))
        if not isinstance(used.hours + used.seconds + used.evaluations, float):
            raise ValueError("its times are no numbers")
        used.decisions = tuple(tuple(map(int, it)) for it in used.decisions)
        if not used.decisions:
            raise ValueError("it has no decisions")
    except (FileNotFoundError, TypeError, ValueError) as error:
        raise checkpoint.CheckpointError(
            f"{path}, which has the decisions about the length of this run, cannot be read "
            f"({error}): put it back, or give another --workdir"
        ) from error
    return used


def decisions(workdir: epath.PathLike, hours: float, step: int) -> Sequence[Sequence[int]]:
    """Returns the decisions that a run resumed at a step keeps: with other hours, earlier ones."""
    used = read(workdir)
    return [it for it in used.decisions if it[0] <= step or used.hours == hours]


def bounded(run: program.Program, config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a config whose run fits into its hours.

    `run` is the program of the config. Each phase is shortened by the same factor.
    """
    hours, phases = run.config.budget.hours, run.job.phases
    train_state, seconds = run.init(run.step_inputs.seed), []
    for phase in phases:
        each, train_state = seconds_per_step(run, phase, train_state)
        seconds.append(each)
    plan, budget = _steps(phases), 3600 * hours
    whole = sum(each * it.num_steps for each, it in zip(seconds, phases, strict=True))
    evaluation = _evaluation_seconds(run.job, seconds[-1])
    of_evaluations = min(automatic.EVALUATIONS * evaluation, EVALUATIONS * budget)
    share = min(1.0, (budget - of_evaluations) / whole)
    steps = {name: max(1, int(it * share)) for name, it in plan.items()}
    logging.info(
        "All %s steps would take %.2f h by the speed of the first ones; config.budget.hours is %g",
        f"{sum(plan.values()):,}", whole / 3600, hours,
    )  # fmt: skip
    _warn_if_short(run, steps, whole)
    config = automatic.decided(automatic.with_steps(config, steps), None)
    entries = ((0, *plan.values()), (0, *steps.values()))
    config.budget.decisions = entries[: 1 + (steps != plan)]
    config.evaluation.update(_evaluations(config, run.job, evaluation, sum(steps.values())))
    return config


def _warn_if_short(run: program.Program, steps: Mapping[str, int], seconds: float) -> None:
    """Warns of hours in which a model learns next to nothing; All steps take `seconds`."""
    number, every = sum(steps.values()), sum(_steps(run.job.phases).values())
    if number >= min(LEAST_USEFUL, every):
        return
    model, each = run.config.model, seconds / every
    logging.warning(
        "config.budget.hours is %g: at %.3g s a step that is %s of the %s steps which this text "
        "and %d layers of %d ask for. Models are hardly better than word frequencies before about "
        "%s steps: give --config.budget.hours=%.2g at least (%.2g for all steps), a smaller model "
        "or shorter rows", run.config.budget.hours, each, f"{number:,}", f"{every:,}",
        model.num_hidden_layers, model.hidden_size, f"{LEAST_USEFUL:,}",
        1.1 * each * min(LEAST_USEFUL, every) / 3600, 1.1 * seconds / 3600,
    )  # fmt: skip


def seconds_per_step(
    run: program.Program,
    phase: jobs.Phase,
    train_state: state.TrainState,
    measured: float = MEASURED_SECONDS,
) -> tuple[float, state.TrainState]:
    """Returns the seconds of a step of a phase, and the state after the steps that were timed.

    They take about `measured` seconds; a step that alone takes as long is enough.
    """
    rows = sharding.local_rows(run.mesh, phase.global_batch_size)
    batches = run.job.data.train_batches(phase, start_step=phase.first_step, rows=rows)
    step, inputs = run.in_phase(phase).train_step, run.placed_step_inputs()

    def timed(train_state: Any, count: int) -> tuple[float, Any]:
        begun = time.monotonic()
        for _ in range(count):
            batch = sharding.to_devices(next(batches), run.mesh, phase.global_batch_size)
            train_state, _ = step(train_state, batch, inputs)
        jax.block_until_ready(train_state)
        (seconds,) = _of_first_process([(time.monotonic() - begun) / count])
        return seconds, train_state

    for _ in range(WARM_UP_STEPS):
        seconds, train_state = timed(train_state, 1)
    count = int(min(measured / seconds, MOST_STEPS))
    return timed(train_state, count) if count > 1 else (seconds, train_state)


def _steps(phases: Sequence[jobs.Phase]) -> dict[str, int]:
    steps = dict.fromkeys((phase.name for phase in phases), 0)
    for phase in phases:
        steps[phase.name] += phase.num_steps
    return steps


def _evaluation_seconds(job: jobs.Job, seconds_per_step: float) -> float:
    """Returns the seconds of an evaluation, by the seconds of a step of the last phase."""
    return FORWARD * seconds_per_step * _evaluated_rows(job) / job.phases[-1].global_batch_size


def _evaluated_rows(job: jobs.Job) -> int:
    rows = sum(map(job.data.num_examples, job.evaluation.sets))
    most = job.evaluation.max_batches * job.config.evaluation.global_batch_size
    return min(rows, most) if most else rows


def _evaluations(
    config: ml_collections.ConfigDict, job: jobs.Job, seconds: float, steps: int
) -> dict[str, int]:
    """Returns the options by which evaluations of these seconds take a share of the hours."""
    most = EVALUATIONS * config.budget.hours * 3600
    number = max(1, int(most / seconds)) if seconds else steps
    options = {"every_steps": max(config.evaluation.every_steps, -(-steps // number))}
    if seconds <= most:
        return options
    all_batches = -(-_evaluated_rows(job) // config.evaluation.global_batch_size)
    options["max_batches"] = max(1, int(all_batches * most / seconds))
    logging.warning(
        "An evaluation would take about %.0f s; %.0f s of config.budget.hours are for it: the run "
        "is evaluated at its end, on %d of %d batches",
        seconds, most, options["max_batches"], all_batches,
    )  # fmt: skip
    return options


def _of_first_process(numbers: Sequence[float]) -> list[float]:
    """Returns the numbers that the first process has: all must take the same steps."""
    if jax.process_count() == 1:
        return list(numbers)
    shared = multihost_utils.broadcast_one_to_all(np.asarray(numbers, np.float32))
    return [float(it) for it in shared]


class Budget:
    """The hours of a run in training: when its number of steps is decided again, and how.

    Without config.budget.hours it is never due. `step` is the one that this process starts from.
    """

    def __init__(self, run: program.Program, workdir: epath.Path, step: int):
        self._path = workdir / FILE
        self._is_on = run.config.budget.hours > 0
        self._has_file = self._is_on and jax.process_index() == 0
        decisions = run.config.budget.decisions
        has_begun = self._is_on and (step > 0 or self._path.exists())
        hours = run.config.budget.hours
        self._used = read(workdir) if has_begun else Used(hours)
        before, self._used.hours, self._used.decisions = self._used.hours, hours, decisions
        self._begun: float | None = time.monotonic() if step else None
        self._since, self._seconds_then, self._kept_at = step, 0.0, 0.0
        self._due = next_step(decisions) if self._is_on else 0
        if before != hours:
            self._due = min(max(step, decisions[-1][0]) + LEAST_STEPS, run.job.last_step - 1)
        (self._due,) = map(int, _of_first_process([self._due]))  # which writes the hours below
        self.keep()

    def begin(self, train_state: state.TrainState, seconds: float) -> None:
        """Starts the clock at the end of the first step of a process, which was compiled.

        Training took `seconds` before it.
        """
        if self._is_on:
            jax.block_until_ready(train_state)
            self._begun = time.monotonic() if self._begun is None else self._begun
            self._since, self._seconds_then = int(train_state.step), seconds

    def is_due(self, step: int) -> bool:
        """Returns whether the number of steps is decided again at the count `step`."""
        return step == self._due

    def evaluated(self, seconds: float) -> None:
        """Counts an evaluation."""
        self._used.evaluations += seconds
        self._used.last_evaluation = seconds
        self.keep()

    def keep(self) -> None:
        """Writes the used seconds into the workdir, so that a kill takes none off them."""
        if self._has_file:
            self._kept_at = time.monotonic()
            used = dataclasses.replace(self._used, seconds=self._seconds())
            atomic.write(self._path, json.dumps(dataclasses.asdict(used)) + "\n")

    def passed(self) -> None:
        """Notes that a step was taken: the used seconds are written every few of them."""
        if self._has_file and time.monotonic() - self._kept_at >= KEPT_EVERY:
            self.keep()

    def decided(self, run: program.Program, step: int, seconds: float) -> program.Program:
        """Returns the program with the steps that fit into the rest of the hours.

        Training took `seconds` so far, without compiling, evaluating and saving.
        """
        steps, every = self._decide(run, step, seconds)
        self._since, self._seconds_then = step, seconds
        before, run = run.job.last_step, _with_decision(run, step, steps, every)
        self._used.decisions = run.config.budget.decisions
        self.keep()
        if run.job.last_step != before:
            logging.info(
                "config.budget.hours: %.3g of %g h are used at step %d; the run ends at step %d",
                self._seconds() / 3600, run.config.budget.hours, step, run.job.last_step,
            )  # fmt: skip
        self._due = next_step(run.config.budget.decisions)
        return run

    def _seconds(self) -> float:
        now = time.monotonic()
        return self._used.seconds + (now - (now if self._begun is None else self._begun))

    def _decide(
        self, run: program.Program, step: int, seconds: float
    ) -> tuple[dict[str, int], int]:
        """Returns the steps of each phase, and the steps between two evaluations."""
        hours, config = 3600 * run.config.budget.hours, run.config
        each = _seconds_per_flop(run.job, self._since, step, seconds - self._seconds_then)
        left = hours - self._seconds()
        evaluation = self._used.last_evaluation
        if not evaluation:
            last = run.job.phases[-1]
            evaluation = _evaluation_seconds(run.job, each * jobs.train_flops(run.job, last))
        every, now = config.evaluation.every_steps, _steps(run.job.phases)
        number = -(-(run.job.last_step - step) // every)
        if evaluation:
            affordable = (EVALUATIONS * hours - self._used.evaluations) / evaluation
            number = max(1, min(number, int(affordable)))
        of_steps = max(0.0, left - number * evaluation)
        flops = {it.name: jobs.train_flops(run.job, it) for it in run.job.phases}
        plan = _plan_left(run, step)
        work = each * sum(it * flops[name] for name, it in plan.items())
        # In all, the run takes at most the steps of the plan.
        most = (sum(config.budget.decisions[0][1:]) - step) / sum(plan.values())
        steps = _shortened(run, step, min(most, of_steps / work) if work else most)
        if abs(sum(steps.values()) - sum(now.values())) < LEAST_CHANGE * (sum(now.values()) - step):
            steps = now
        every = max(every, -(-(sum(steps.values()) - step) // number))
        (*numbers, every) = map(int, _of_first_process([*steps.values(), every]))
        return dict(zip(steps, numbers, strict=True)), every


def next_step(decisions: Sequence[Sequence[int]]) -> int:
    """Returns the step after which the number of steps is decided again, 0 if there is none."""
    step, *steps = decisions[-1]
    left = sum(steps) - step
    most = lengths.MOST_STRETCHES - len(steps)
    if left < LEAST_LEFT * sum(steps) or len(lengths.course(decisions).starts) > most:
        return 0
    number = sum(step > 0 for step, *_ in decisions)
    due = step + max(LEAST_STEPS, int(SHARES[min(number, len(SHARES) - 1)] * left))
    return due if due < sum(steps) - 1 else 0


def _seconds_per_flop(job: jobs.Job, since: int, step: int, seconds: float) -> float:
    """Returns the seconds of a model FLOP between two steps, 0 if there are none."""
    flops = sum(
        max(0, min(step, it.end_step) - max(since, it.first_step)) * jobs.train_flops(job, it)
        for it in job.phases
    )
    return seconds / flops if flops else 0.0


def _plan_left(run: program.Program, step: int) -> dict[str, float]:
    """Returns the steps of the plan that are left after a step, by phase."""
    decisions = run.config.budget.decisions
    place, begun, left = lengths.course(decisions).at(step), 0, {}
    for name, steps in zip(_steps(run.job.phases), decisions[0][1:], strict=True):
        left[name] = min(float(steps), max(0.0, begun + steps - place))
        begun += steps
    return left


def _shortened(run: program.Program, step: int, share: float) -> dict[str, int]:
    """Returns the steps of each phase if a share of the rest of the plan is taken."""
    steps, begun = {}, 0
    left = _plan_left(run, step)
    for name, number in _steps(run.job.phases).items():
        done = min(max(step - begun, 0), number)
        has_ended = step >= begun + number
        steps[name] = number if has_ended else done + max(1, int(share * left[name]))
        begun += number
    return steps


def _with_decision(
    run: program.Program, step: int, steps: Mapping[str, int], every: int
) -> program.Program:
    """Returns the program whose phases have other steps from now on."""
    config = automatic.with_steps(jobs.unfrozen(run.config), steps)
    with config.ignore_type():
        config.budget.decisions = (*run.config.budget.decisions, (step, *steps.values()))
    config.evaluation.every_steps = every
    evaluation = dataclasses.replace(run.job.evaluation, every_steps=every)
    job = dataclasses.replace(
        run.job, config=config, phases=jobs.phases(config), evaluation=evaluation
    )
    return program.for_job(run, job)
