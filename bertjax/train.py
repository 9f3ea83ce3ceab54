r"""Pretrains or finetunes a model as a recipe says; the same command again resumes the run.

python -m bertjax.train --config=configs/bert_large.py --workdir=DIR \
    --config.data.train_dir='train_{max_seq_length}'
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import interruptions  # first: what follows takes seconds to import

    interruptions.leave_at_once()
    from bertjax.cli import command_line, programs

    command_line.parse(programs.Train, __doc__, logs=True)

import contextlib
import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import config as config_lib
from bertjax import jobs
from bertjax.cli import command_line, interruptions, programs
from bertjax.devices import sharding
from bertjax.jobs import automatic
from bertjax.training import (
    attention_trial,
    config_faults,
    evaluation,
    monitor,
    preemption,
    profiling,
    program,
    protocols,
    run_log,
    starting,
    state,
    time_budget,
    trials,
    writers,
)
from bertjax.workdirs import checkpoint, ownership


def train(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> state.TrainState:
    """Trains to the end of the last phase, from the workdir's checkpoint if it holds one.

    Raises:
      ValueError: if config, data and devices do not fit, or differ from the run to be resumed.
      checkpoint.CheckpointError: if saving fails, or no checkpoint of several can be read.
      monitor.DivergedError: after config.max_skipped_steps non-finite steps in a row.
      ownership.WorkdirInUseError: if another run has the workdir.
      profiling.OutOfMemoryError: where a step does not fit into the memory of the devices.
      preemption.Preempted: after a signal to stop, when the state is saved.
    """
    return execute(prepare(config, workdir), workdir)


def train_trials(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> dict[str, Any]:
    """Trains once for every seed and setting that the config asks for, and returns the results.

    Raises:
      ValueError, checkpoint.CheckpointError, monitor.DivergedError, preemption.Preempted: as
        `train`; the same command goes on where it stopped.
    """
    run = prepare(config, workdir)
    return trials.run(run, workdir, functools.partial(execute, is_one_of_several=True))


def execute(
    run: program.Program, workdir: epath.PathLike, *, is_one_of_several: bool = False
) -> state.TrainState:
    """Trains a prepared run in its workdir, as `train` does.

    A notice after the last step ends nothing, unless other runs follow this one.
    """
    workdir = epath.Path(workdir)
    with (
        jax.set_mesh(run.mesh),
        starting.owned(workdir) as owner,
        checkpoint.Checkpointer(workdir, starting.retention(run)) as checkpointer,
        preemption.Notice() as notice,
        profiling.memory_explained(workdir),
    ):
        run = starting.with_origin(run, workdir, checkpointer.read_meta())
        train_state, progress, tuned = starting.start(run, workdir, checkpointer, notice.reached)
        step = int(train_state.step)
        # Whether the run stopped before the evaluation of the step that it resumes from.
        is_late = step > 0 and bool(run.job.evaluation.sets) and _is_evaluation_due(run, step)
        is_late = is_late and not checkpointer.is_evaluated(step)
        with starting.open_writer(run, workdir, step, again=is_late) as writer:
            options = starting.monitor_options(run)
            watch = monitor.Monitor(options, writer, progress, checkpointer.latest_step, run.begun)
            budget = time_budget.Budget(run, workdir, step)
            parts = (owner, checkpointer, notice, writer, watch, budget, tuned)
            saver = RunSaver(run, workdir, *parts)
            if is_late:
                saver.evaluate(train_state, step)
            with starting.profile(run, workdir, step) as profile:
                train_state = _train(train_state, saver, profile)
            writer.curves()
        run = saver.run
        saver.write_predictions(train_state, is_new=run.job.last_step > step)
        if is_one_of_several and notice.reached():
            saver.stop(run.job.last_step)
    if jax.process_index() == 0:
        run_log.end(run, workdir, is_new=run.job.last_step > step)
    return train_state


def _train(
    train_state: state.TrainState, saver: RunSaver, profile: profiling.Profile
) -> state.TrainState:
    """Returns the state after the last step; `saver` saves and evaluates on the way."""
    watch, budget, begun = saver.watch, saver.budget, int(train_state.step)
    if saver.notice.reached():  # before a step is compiled, which takes minutes
        saver.stop(begun)
    step, step_inputs = begun, saver.run.placed_step_inputs()
    for phase, facts, batch in _batches(saver, begun):
        run = saver.run
        on_devices = sharding.to_devices(batch, run.mesh, phase.global_batch_size)
        watch.begin(step, facts)
        profile.before(step + 1, train_state)
        train_state, report = run.in_phase(phase).train_step(train_state, on_devices, step_inputs)
        step += 1
        profile.after(step, train_state)
        mask = batch["input_mask"]  # of this host's rows; other hosts' rows are alike
        fill = np.count_nonzero(mask) / mask.size
        watch.submit(step, report, batch["record_positions"], facts, fill)
        if step == begun + 1:
            budget.begin(train_state, watch.progress.seconds)
        budget.passed()
        if budget.is_due(step):
            saver.decide(step)
            step_inputs = saver.run.placed_step_inputs()
        must_stop = saver.notice.reached()
        must_save, must_evaluate = due(saver.run, phase, step)
        if watch.reaches_mark(step):
            saver.checkpointer.keep([step])
            must_save = True
        if not (must_stop or must_save or must_evaluate):
            continue
        watch.flush()
        with watch.paused():
            if must_save or must_stop:
                saver.save(train_state)
            if must_stop and (step < saver.run.job.last_step or must_evaluate):
                saver.stop(step)
            if must_evaluate:
                saver.evaluate(train_state, step)
    return train_state


def _batches(
    saver: RunSaver, step: int
) -> Iterator[tuple[jobs.Phase, monitor.PhaseFacts, dict[str, np.ndarray]]]:
    """Yields the remaining batches of a run whose length may change between two of them."""
    while step < saver.run.job.last_step:
        run = saver.run
        for batch in remaining_batches(run, step):
            yield batch
            step += 1
            if saver.run is not run:
                break


@dataclasses.dataclass
class RunSaver:
    """Saves and evaluates the states of a run, and stops it.

    A save comes before an evaluation of the same step, so a machine that is lost during the
    evaluation loses no step. The resumed run repeats an evaluation that was not finished. `tuned`
    are the tuned scores so far (`jobs.Evaluation.tunes`).
    """

    run: program.Program
    workdir: epath.Path
    owner: ownership.Ownership | None
    checkpointer: checkpoint.Checkpointer
    notice: preemption.Notice
    writer: writers.RunWriter
    watch: monitor.Monitor
    budget: time_budget.Budget
    tuned: dict[str, float]

    def decide(self, step: int) -> None:
        """Decides the number of steps again, and writes it down before it is used."""
        self.watch.flush()
        with self.watch.paused():
            self.run = self.budget.decided(self.run, step, self.watch.progress.seconds)
            starting.write_config(self.run, self.workdir)
            self.checkpointer.keep(starting.always_kept(self.run))
            self.watch.set_last_step(self.run.job.last_step)

    def save(self, train_state: state.TrainState) -> None:
        if self.owner is not None:
            self.owner.check()
        self.writer.keep()
        step = int(train_state.step)
        meta = starting.meta(self.run, step, self.watch.progress, self.tuned)
        self.checkpointer.save(train_state, meta)
        self.budget.keep()

    def evaluate(self, train_state: state.TrainState, step: int) -> None:
        begun = time.monotonic()
        try:
            params = self.run.scored(train_state)
            scores = evaluation.score(
                self.run.at(step), params, self.writer, step, self.notice.reached
            )
        except evaluation.Stopped:
            self.save(train_state)
            self.stop(step)
        self.budget.evaluated(time.monotonic() - begun)
        self.watch.evaluated(step)
        tuned = {name: scores[name] for name in self.run.job.evaluation.tunes if name in scores}
        self.tuned |= tuned
        self.checkpointer.add_evaluation(step, scores, tuned)

    def write_predictions(self, train_state: state.TrainState, *, is_new: bool) -> None:
        self.checkpointer.wait()
        params, must_stop = self.run.scored(train_state), self.notice.reached
        try:
            evaluation.write_predictions(
                self.run, params, self.workdir, self.tuned, must_stop, is_new=is_new
            )
        except evaluation.Stopped:
            self.stop(self.run.job.last_step)

    def stop(self, step: int) -> NoReturn:
        """Raises Preempted once the checkpoint is on disk."""
        self.checkpointer.wait()
        raise preemption.Preempted(step, by_hand=self.notice.by_hand)


def prepare(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> program.Program:
    """Returns the program of a run after checking config, data and devices; compiles nothing yet.

    Raises:
      NotADirectoryError: if the workdir is a file.
      ValueError: as `train`.
    """
    if epath.Path(workdir).is_file():
        raise NotADirectoryError(
            f"the workdir, {workdir}, is a file; give a directory or a new name"
        )
    config = protocols.applied(config)
    newest = checkpoint.read_meta(workdir)
    saved = None if newest is None else config_lib.completed(newest[0]["config"])
    if newest is not None and saved is not None and saved["budget"]["hours"]:
        decisions = time_budget.decisions(workdir, config.budget.hours, newest[1])
        saved = automatic.with_decisions(saved, decisions)
    decided = automatic.decided(config, saved)
    run = _open(decided, workdir)
    if saved is not None or not decided.budget.hours:
        return run
    with jax.set_mesh(run.mesh):
        bounded = time_budget.bounded(run, config)
    bounded.update(model=run.config.model, prng_impl=run.config.prng_impl)  # with what was tried
    return program.for_job(run, jobs.JOBS[config.task].open(bounded, [epath.Path(workdir)]))


def _open(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> program.Program:
    """Returns the program of a config in which no option is open."""
    config_faults.validate(config)
    if config.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache_dir)
    mesh = sharding.make_mesh(jax.devices(), data=config.mesh.data, tensor=config.mesh.tensor)
    device = mesh.devices.flat[0]
    config = program.resolve(config, device.platform, device.device_kind)
    open_job, workdirs = jobs.JOBS[config.task].open, trials.workdirs(config, epath.Path(workdir))
    job = open_job(config, workdirs)
    is_of_gpu = job.config.model.attention == "cudnn" and device.platform == "gpu"
    is_tried = job.config.model.attention == "auto" or is_of_gpu
    if is_tried and not attention_trial.agrees(job, mesh):
        config.model.attention = "xla"
        job = open_job(config, workdirs)
    return program.build(job, mesh)


def remaining_batches(
    run: program.Program, step: int
) -> Iterator[tuple[jobs.Phase, monitor.PhaseFacts, dict[str, np.ndarray]]]:
    """Yields the batch of global step `step`, and all after it to the end, with their phases."""
    for phase in run.job.phases:
        if step >= phase.end_step:
            continue
        rows = sharding.local_rows(run.mesh, phase.global_batch_size)
        batches = run.job.data.train_batches(phase, start_step=step, rows=rows)
        facts: dict[tuple[int, ...], monitor.PhaseFacts] = {}
        for batch in itertools.islice(batches, phase.end_step - step):
            shape = batch["input_mask"].shape[1:]
            if shape not in facts:
                facts[shape] = _facts(run.job, phase, shape)
            yield phase, facts[shape], batch
        step = phase.end_step


def _facts(job: jobs.Job, phase: jobs.Phase, shape: tuple[int, ...]) -> monitor.PhaseFacts:
    """Returns what a step costs; with length buckets, a batch may be shorter than the phase's."""
    *choices, length = shape
    return monitor.PhaseFacts(
        tokens_per_step=phase.global_batch_size * math.prod(choices) * length,
        flops_per_step=jobs.train_flops(job, phase, length=length),
        details=phase.details,
    )


def due(run: program.Program, phase: jobs.Phase, step: int) -> tuple[bool, bool]:
    """Returns whether to save and whether to evaluate after the step that made the count `step`."""
    must_save = step % run.config.checkpoint.save_every_steps == 0
    must_save |= phase.is_last and step == phase.end_step
    must_save |= step in starting.always_kept(run)
    is_due, evaluation = _is_evaluation_due(run, step), run.job.evaluation
    return must_save or (is_due and evaluation.is_saved), is_due and bool(evaluation.sets)


def _is_evaluation_due(run: program.Program, step: int) -> bool:
    return step == run.job.last_step or step % run.job.evaluation.every_steps == 0


def main(options: programs.Train) -> None:
    """Trains as the options say; exits with 75 after a preemption."""
    several = trials.are_configured(options.config)
    with launched(options):
        (train_trials if several else train)(options.config, options.workdir)


@contextlib.contextmanager
def launched(options: programs.Processes) -> Iterator[None]:
    """Joins the processes that the options name; exits with 75 after a preemption."""
    if options.distributed or options.coordinator_address:
        jax.distributed.initialize(
            options.coordinator_address, options.num_processes, options.process_id
        )
        interruptions.record_notices()  # in place of JAX, which listens since that call
    if jax.process_index() != 0:
        logging.set_verbosity(logging.WARNING)
    with preemption.failures_watched():
        try:
            yield
        except preemption.Preempted as notice:
            logging.warning("%s", notice)
            sys.exit(notice.exit_code)


if __name__ == "__main__":
    command_line.run(main, choices=config_faults.CHOICES)
