r"""Pretrains or finetunes a model as a recipe says; the same command again resumes the run.

python -m bertjax.train --config=configs/bert_large.py --workdir=DIR \
    --config.data.train_dir='train_{max_seq_length}'

`train(config, workdir)` is the one loop for every task.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax import interruptions  # first: what follows takes seconds to import

    interruptions.leave_at_once()

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import ml_collections
import numpy as np
from absl import flags, logging
from etils import epath

import bertjax
from bertjax import command_line, interruptions, jobs, recipes, whole_numbers
from bertjax import config as config_lib
from bertjax.devices import accelerators, sharding
from bertjax.models import weight_masks
from bertjax.training import (
    attention_trial,
    config_faults,
    evaluation,
    monitor,
    preemption,
    profiling,
    program,
    run_log,
    schedules,
    shared_failures,
    state,
    trials,
    warm_start,
    writers,
)
from bertjax.workdirs import checkpoint, ownership, reader


@dataclasses.dataclass(frozen=True)
class Run(program.Program):
    """Everything that stays the same from the first step to the last of one training."""

    workdir: epath.Path

    @property
    def last_step(self) -> int:
        return self.job.last_step

    @property
    def always_kept(self) -> tuple[int, ...]:
        """The steps whose checkpoints are for others to go on from: the last before the decay."""
        step = schedules.last_step_before_decay(self.knobs.schedule)
        return () if step is None else (step,)


def train(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> state.TrainState:
    """Trains to the end of the last phase, from the workdir's checkpoint if it holds one.

    Raises:
      ValueError: if config, data and devices do not fit, or differ from the run to be resumed.
      checkpoint.CheckpointError: if saving fails, or no checkpoint of several can be read.
      monitor.DivergedError: after config.max_skipped_steps non-finite steps in a row.
      ownership.WorkdirInUseError: if another run has the workdir.
      profiling.OutOfMemoryError: where a step does not fit into the memory of the devices.
      preemption.Preempted: after SIGTERM or Ctrl-C, when the state is saved.
    """
    return execute(prepare(config, workdir))


def train_trials(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> dict[str, Any]:
    """Trains once for every seed and setting that the config asks for, and returns the results.

    Raises:
      ValueError, checkpoint.CheckpointError, monitor.DivergedError, preemption.Preempted: as
        `train`; the same command goes on where it stopped.
    """
    run = prepare(config, workdir)
    return trials.run(
        run, run.workdir, lambda own, where: execute(_run_in(own, where), is_one_of_several=True)
    )


def execute(run: Run, *, is_one_of_several: bool = False) -> state.TrainState:
    """Trains as `train` does, a run that is prepared.

    A notice after the last step ends nothing, unless other runs follow this one.
    """
    with (
        jax.set_mesh(run.mesh),
        _owned(run.workdir) as owner,
        checkpoint.Checkpointer(run.workdir, _retention(run)) as checkpointer,
        preemption.Notice() as notice,
        profiling.memory_explained(run.workdir),
    ):
        begun = start(run, checkpointer)
        step = int(begun.state.step)
        is_late = _is_evaluation_missing(run, checkpointer, step)
        with _open_writer(run, step, again=is_late) as writer:
            options = _monitor_options(run)
            watch = monitor.Monitor(
                options, writer, begun.progress, checkpointer.latest_step, run.begun
            )
            keeper = _Keeper(run, owner, checkpointer, notice, writer, watch, begun.tuned)
            if is_late:
                keeper.evaluate(begun.state, step)
            with _profile(run, step) as profile:
                train_state = _train(run, begun.state, keeper, profile)
            writer.curves()
        keeper.write_predictions(train_state, is_new=run.last_step > step)
        if is_one_of_several and notice.reached():
            keeper.stop(run.last_step)
    if jax.process_index() == 0:
        run_log.end(run, run.workdir, is_new=run.last_step > step)
    return train_state


def _train(
    run: Run, train_state: state.TrainState, keeper: _Keeper, profile: profiling.Profile
) -> state.TrainState:
    """Returns the state after the last step; `keeper` saves and evaluates on the way."""
    watch, step = keeper.watch, int(train_state.step)
    if keeper.notice.reached():  # before a step is compiled, which takes minutes
        keeper.stop(step)
    knobs = run.placed_knobs()
    for phase, facts, fill, batch in remaining_batches(run, step):
        on_devices = sharding.to_devices(batch, run.mesh, phase.global_batch_size)
        watch.begin(step, facts)
        profile.before(step + 1, train_state)
        train_state, report = run.in_phase(phase).train_step(train_state, on_devices, knobs)
        step += 1
        profile.after(step, train_state)
        watch.submit(step, report, batch["record_positions"], facts, fill)
        must_stop = keeper.notice.reached()
        must_save, must_evaluate = due(run, phase, step)
        if not (must_stop or must_save or must_evaluate):
            continue
        watch.flush()
        with watch.paused():
            if must_save or must_stop:
                keeper.save(train_state)
            if must_stop and (step < run.last_step or must_evaluate):
                keeper.stop(step)
            if must_evaluate:
                keeper.evaluate(train_state, step)
    return train_state


@dataclasses.dataclass
class _Keeper:
    """Saves and evaluates the states of a run, and ends it where it has to stop.

    A save that is due comes before the evaluation that is due: what an evaluation costs is not
    lost with the machine. One that was not finished is made up for when the run goes on.
    """

    run: Run
    owner: ownership.Ownership | None
    checkpointer: checkpoint.Checkpointer
    notice: preemption.Notice
    writer: writers.RunWriter
    watch: monitor.Monitor
    tuned: dict[str, float]

    def save(self, train_state: state.TrainState) -> None:
        if self.owner is not None:
            self.owner.check()
        self.writer.keep()
        self.checkpointer.save(train_state, _meta(self.run, self.watch, self.tuned))

    def evaluate(self, train_state: state.TrainState, step: int) -> None:
        try:
            params = self.run.scored(train_state)
            scores = evaluation.score(
                self.run.at(step), params, self.writer, step, self.notice.reached
            )
        except evaluation.Stopped:
            self.save(train_state)
            self.stop(step)
        found = {name: scores[name] for name in self.run.job.evaluation.tunes if name in scores}
        self.tuned |= found
        self.checkpointer.add_evaluation(step, scores, found)

    def write_predictions(self, train_state: state.TrainState, *, is_new: bool) -> None:
        self.checkpointer.wait()
        params, workdir = self.run.scored(train_state), self.run.workdir
        try:
            evaluation.write_predictions(
                self.run, params, workdir, self.tuned, self.notice.reached, is_new=is_new
            )
        except evaluation.Stopped:
            self.stop(self.run.last_step)

    def stop(self, step: int) -> NoReturn:
        """Raises Preempted once what is being saved is on disk."""
        self.checkpointer.wait()
        raise preemption.Preempted(step, by_hand=self.notice.by_hand)


@contextlib.contextmanager
def _owned(workdir: epath.Path) -> Iterator[ownership.Ownership | None]:
    """Keeps other runs out of the workdir, which is for process 0 to do."""
    if jax.process_index() != 0:
        yield None
        return
    with ownership.Ownership(workdir) as owner:
        yield owner


def _is_evaluation_missing(run: Run, checkpointer: checkpoint.Checkpointer, step: int) -> bool:
    """Returns whether the run stopped before the evaluation of the step that it goes on from."""
    is_due = bool(run.job.evaluation.sets) and step > 0 and _is_evaluation_due(run, step)
    return is_due and not checkpointer.is_evaluated(step)


def prepare(config: ml_collections.ConfigDict, workdir: epath.PathLike) -> Run:
    """Checks config, data and devices, and compiles nothing yet.

    Raises:
      NotADirectoryError: if the workdir is a file.
      ValueError: as `train`.
    """
    config_faults.validate(config)
    if epath.Path(workdir).is_file():
        raise NotADirectoryError(
            f"the workdir, {workdir}, is a file; give a directory or a new name"
        )
    if config.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache_dir)
    mesh = sharding.make_mesh(jax.devices(), data=config.mesh.data, tensor=config.mesh.tensor)
    device, workdir = mesh.devices.flat[0], epath.Path(workdir)
    config = program.resolve(config, device.platform, device.device_kind)
    job = jobs.JOBS[config.task].open(config, trials.workdirs(config, workdir))
    is_of_gpu = job.config.model.attention == "cudnn" and device.platform == "gpu"
    is_tried = job.config.model.attention == "auto" or is_of_gpu
    if is_tried and not attention_trial.agrees(job, mesh):
        config.model.attention = "xla"
        job = jobs.JOBS[config.task].open(config, trials.workdirs(config, workdir))
    return _run_in(program.build(job, mesh), workdir)


def _run_in(made: program.Program, workdir: epath.Path) -> Run:
    return Run(**{**vars(made), "workdir": workdir})


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run begins with: its state, and what is known besides from before a restart."""

    state: state.TrainState
    progress: monitor.Progress
    tuned: dict[str, float]


def start(run: Run, checkpointer: checkpoint.Checkpointer) -> Start:
    """Returns the restored state, or a fresh one, after checking that the run may be continued.

    Only a fresh state takes over what config.init_from has.

    Raises:
      FileNotFoundError: if there is nothing at config.init_from.
      ValueError: if the workdir's run had another config or other data, listing the differences;
        or if what config.init_from has does not fit the run.
    """
    saved_meta = checkpointer.read_meta()
    if saved_meta is not None:
        _keep_origin(run, saved_meta)
        _check_resumable(run, saved_meta, checkpointer.latest_step() or 0)
        _tell_other_versions(saved_meta)
    run_log.start(run, run.workdir)
    restored = checkpointer.restore(run.abstract_state)
    if restored is not None:
        logging.info("Resuming at step %d from %s", int(restored.state.step), run.workdir)
        _write_config(run)  # with the changes that are allowed
        progress = monitor.Progress.of_meta(restored.meta)
        tuned = dict(restored.meta["tuned"]) if run.job.evaluation.tunes else {}
        return Start(restored.state, progress, tuned)
    source = warm_start.of_job(run.job, run.abstract_state.params)
    _write_workdir(run)
    fresh = run.init(run.knobs.seed)
    fresh = warm_start.apply(source, fresh) if source else fresh
    return Start(fresh, monitor.Progress(), {})


def remaining_batches(
    run: Run, step: int
) -> Iterator[tuple[jobs.Phase, monitor.PhaseFacts, float, dict[str, np.ndarray]]]:
    """Yields the batch of global step `step`, and all after it to the end, with their phases.

    Before each batch stands the share of its positions that hold a token, counted on the host in
    the rows that it reads: those of the other hosts are alike.
    """
    for phase in run.job.phases:
        if step >= phase.end_step:
            continue
        rows = sharding.local_rows(run.mesh, phase.global_batch_size)
        batches = run.job.data.train_batches(phase, start_step=step, rows=rows)
        facts: dict[tuple[int, ...], monitor.PhaseFacts] = {}
        for batch in itertools.islice(batches, phase.end_step - step):
            mask = run.job.data.token_mask(batch)
            shape = mask.shape[1:]
            if shape not in facts:
                facts[shape] = _facts(run.job, phase, shape)
            yield phase, facts[shape], np.count_nonzero(mask) / mask.size, batch
        step = phase.end_step


def _facts(job: jobs.Job, phase: jobs.Phase, shape: tuple[int, ...]) -> monitor.PhaseFacts:
    """Returns what a step costs; with length buckets, a batch may be shorter than the phase's."""
    *choices, length = shape
    return monitor.PhaseFacts(
        tokens_per_step=phase.global_batch_size * math.prod(choices) * length,
        flops_per_step=jobs.train_flops(job, phase, length=length),
        chance_loss=job.data.chance_loss(phase),
        rotary=phase.rotary,
    )


def due(run: Run, phase: jobs.Phase, step: int) -> tuple[bool, bool]:
    """Returns whether to save and whether to evaluate after the step that made the count `step`."""
    must_save = (
        phase.is_last and step == phase.end_step
    ) or step % run.config.checkpoint.save_every_steps == 0
    must_save |= step in run.always_kept
    is_due, evaluation = _is_evaluation_due(run, step), run.job.evaluation
    return must_save or (is_due and evaluation.is_saved), is_due and bool(evaluation.sets)


def _is_evaluation_due(run: Run, step: int) -> bool:
    return step == run.last_step or step % run.job.evaluation.every_steps == 0


def _check_resumable(run: Run, saved_meta: Mapping[str, Any], step: int) -> None:
    saved = config_lib.completed(saved_meta["config"])
    changeable: list[str] = [*config_lib.CHANGEABLE]
    if program.are_steps_the_same(saved, run.job, step):
        changeable.append(r"phases\.\w+\.num_steps")
    allowed, refused = config_lib.differences(saved, run.config, changeable)
    for change in allowed:
        logging.info("Resuming with a change: %s", change)
    hint = ""
    if refused and all(".num_steps: " in change for change in refused):
        name = run.config.schedule.name
        hint = (
            f". A run of another length would have taken other steps so far (the schedule "
            f"{name!r} goes by the length): to train on from its model, give "
            f"--config.init_from={run.workdir} and another --workdir"
        )
    if run.job.data.identity() != saved_meta["identity"]:
        refused.append("the records or the vocabulary are not those that the run began with")
    if saved_meta.get("teacher_sha256", "") != _teacher_sha256(run):
        refused.append(
            f"what is at config.distillation.teacher, {run.config.distillation.teacher!r}, is not "
            "the teacher that the run began with"
        )
    if refused:
        raise ValueError(
            f"{run.workdir} holds a run that cannot be continued with this config:\n  "
            + "\n  ".join(refused)
            + "\nUndo these changes to continue it, or give another --workdir to start afresh"
            + hint
        )


def _keep_origin(run: Run, saved_meta: Mapping[str, Any]) -> None:
    """Makes the config tell where the run began, whatever a command says."""
    saved = config_lib.completed(saved_meta["config"])
    if run.config.init_from not in ("", saved["init_from"]):
        logging.warning(
            "config.init_from, %s, is not read: %s holds a run already, which began from %s",
            run.config.init_from, run.workdir, saved["init_from"] or "its seed alone",
        )  # fmt: skip
    began = ("init_from", "init_from_smaller", "resize_vocabulary")
    run.config.update({name: saved[name] for name in began})


def _meta(run: Run, watch: monitor.Monitor, tuned: Mapping[str, float]) -> dict[str, Any]:
    return {
        "config": run.config.to_dict(),
        "identity": run.job.data.identity(),
        "teacher_sha256": _teacher_sha256(run),
        **watch.progress.to_meta(),
        "tuned": dict(tuned),
        "versions": _versions(),
    }


def _versions() -> dict[str, Any]:
    """Returns what the bits of a run depend on besides config, data and devices."""
    return {
        "bertjax": bertjax.__version__,
        "jax": jax.__version__,
        "attention_masks": weight_masks.VERSION,
    }


def _tell_other_versions(saved_meta: Mapping[str, Any]) -> None:
    saved = saved_meta["versions"]
    changed = [
        f"{name}: was {saved.get(name)}, is {now}"
        for name, now in _versions().items()
        if saved.get(name) != now
    ]
    if changed:
        logging.warning(
            "The run was saved by other versions (%s). It goes on, but not bit for bit: "
            "JAX may round otherwise, and dropout may draw other masks, as with another seed",
            "; ".join(changed),
        )


def _teacher_sha256(run: Run) -> str:
    return run.job.teacher.sha256 if run.job.teacher else ""


def _write_config(run: Run) -> None:
    if jax.process_index() == 0:
        reader.write_config(run.config.to_dict(), run.workdir)


def _write_workdir(run: Run) -> None:
    _write_config(run)
    if jax.process_index() == 0:
        if vocabulary := run.job.data.vocabulary():
            vocabulary.save(run.workdir / reader.VOCABULARY_DIRECTORY)
        if contents := run.job.data.contents():
            contents.save(run.workdir / reader.TRAINING_DATA_DIRECTORY)


def _retention(run: Run) -> checkpoint.RetentionOptions:
    options = run.config.checkpoint
    return checkpoint.RetentionOptions(
        keep_last=options.keep_last,
        keep_every_steps=options.keep_every_steps,
        keep_best=options.keep_best,
        best_metric=run.job.evaluation.best_score,
        is_higher_better=run.job.evaluation.is_higher_better,
        always_kept=run.always_kept,
    )


def _monitor_options(run: Run) -> monitor.MonitorOptions:
    peak = accelerators.peak_flops(run.mesh.devices.flat[0].device_kind)
    return monitor.MonitorOptions(
        objectives=run.job.task.objectives,
        log_every_steps=run.config.log_every_steps,
        last_step=run.last_step,
        max_skipped_steps=run.config.max_skipped_steps,
        plateau_check_step=run.config.plateau.check_step,
        plateau_margin=run.config.plateau.margin,
        peak_flops=peak * run.mesh.size if peak else None,
        chance=run.job.chance,
    )


def _open_writer(run: Run, step: int, *, again: bool) -> writers.RunWriter:
    """Returns the writer of a run that goes on from `step`, which is evaluated `again`, or not."""
    return writers.RunWriter(
        run.workdir,
        total_steps=run.last_step,
        start_step=step,
        evaluates_again=again,
        enabled=jax.process_index() == 0,
        kinds=run.config.writers,
        config=dict(config_lib.flatten(run.config)),
    )


def _profile(run: Run, step: int) -> profiling.Profile:
    """Returns what profiles the steps that the config asks for, on one host."""
    steps = run.config.profile_steps if jax.process_index() == 0 else ()
    return profiling.Profile(run.workdir, steps, step)


def define_flags() -> None:
    """Defines the flags of `main`; importing this module defines none."""
    recipes.define_flag()
    flags.DEFINE_string("workdir", None, "Directory of the run; resumed if it has a checkpoint.")
    flags.DEFINE_bool("distributed", False, "Several hosts; found on Cloud TPU, Slurm, GKE.")
    flags.DEFINE_string("coordinator_address", None, "host:port of process 0, if not found.")
    whole_numbers.DEFINE_integer("num_processes", None, "Number of hosts, if not found.")
    whole_numbers.DEFINE_integer("process_id", None, "Number of this host, if not found.")
    flags.mark_flags_as_required(["config", "workdir"])


def main(argv: list[str]) -> None:
    """Trains as the flags say; exits with 75 after a preemption."""
    del argv
    options = flags.FLAGS
    if options.distributed or options.coordinator_address:
        jax.distributed.initialize(
            options.coordinator_address, options.num_processes, options.process_id
        )
        interruptions.keep_sigterm_in_mind()  # in place of JAX, which listens since that call
    if jax.process_index() != 0:
        logging.set_verbosity(logging.WARNING)
    with shared_failures.watched():
        try:
            several = trials.are_wanted(options.config)
            (train_trials if several else train)(options.config, options.workdir)
        except preemption.Preempted as notice:
            logging.warning("%s", notice)
            sys.exit(notice.exit_code)


if __name__ == "__main__":
    logging.set_verbosity(logging.INFO)
    define_flags()
    command_line.run(main)
