"""The start of a run: the checkpoint of its workdir or a fresh state, and the parts that it needs.

A resumed run must be the one that started: its config, data and teacher are compared with the
checkpoint's meta item, which is written here as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from etils import epath

import bertjax
from bertjax import config as config_lib
from bertjax import jobs
from bertjax.checks import runs, table
from bertjax.devices import accelerators
from bertjax.files import directories
from bertjax.models import weight_masks
from bertjax.training import (
    evaluation,
    monitor,
    profiling,
    program,
    run_log,
    schedules,
    state,
    time_budget,
    warm_start,
    writers,
)
from bertjax.training.run_writers import base as writer_base
from bertjax.workdirs import checkpoint, ownership, reader, scalars, word_marks

# The names that a run writes in its workdir, where no other files may have them.
WRITTEN = (
    reader.CONFIG_FILE,
    reader.VOCABULARY_DIRECTORY,
    reader.TRAINING_DATA_DIRECTORY,
    scalars.FILE,
    time_budget.FILE,
    writer_base.SENT_FILE,
    writers.CURVES_FILE,
    evaluation.PREDICTIONS_DIRECTORY,
    evaluation.PREDICTIONS_DRAFT,
    checkpoint.DIRECTORY,
    checkpoint.UNREADABLE_DIRECTORY,
)
# The keys of the meta item that a resume needs.
RESUMED = frozenset(
    {"identity", "seconds", "skipped", "sums", "tuned", "versions", "words", "word_marks"},
)


def start(
    run: program.Program,
    workdir: epath.Path,
    checkpointer: checkpoint.Checkpointer,
    must_stop: Callable[[], bool] = lambda: False,
) -> tuple[state.TrainState, monitor.Progress, dict[str, float]]:
    """Returns the state, restored or fresh, what the monitor had counted, and tuned scores.

    A restored state comes with a check that the run may be continued; only a fresh one takes over
    what config.init_from has. `must_stop` ends the evaluation of an exchanged vocabulary.
    """
    saved_meta = checkpointer.read_meta()
    if saved_meta is not None:
        saved_config = config_lib.completed(saved_meta["config"])
        _check_resumable(run, workdir, saved_meta, saved_config, checkpointer.latest_step() or 0)
        _warn_of_other_versions(saved_meta["versions"])
    run_log.start(run, workdir)
    restored = checkpointer.restore(run.abstract_state)
    if restored is not None:
        logging.info("Resuming at step %d from %s", int(restored.state.step), workdir)
        write_config(run, workdir)  # with the changes that are allowed
        tuned = dict(restored.meta["tuned"]) if run.job.evaluation.tunes else {}
        progress = monitor.Progress.of_meta(restored.meta)
        checkpointer.keep(progress.word_marks.values())
        return restored.state, progress, tuned
    source = warm_start.of_job(run.job, run.abstract_state.params)
    write_workdir(run, workdir)
    fresh = run.init(run.step_inputs.seed)
    if source is not None:
        begun = warm_start.apply(source, fresh)
        if source.exchange is not None:
            _log_exchange(run, source, begun, fresh, must_stop)
        fresh = begun
    return fresh, monitor.Progress(), {}


def check_complete(meta: Mapping[str, Any], workdir: epath.Path) -> None:
    """Raises a CheckpointError if the meta item of a run lacks what a resume needs."""
    if lacking := sorted(RESUMED - meta.keys()):
        raise checkpoint.CheckpointError(
            f"the newest meta item in {workdir / checkpoint.DIRECTORY} lacks "
            f"{', '.join(lacking)}: the run cannot be continued; give another --workdir"
        )


def _log_exchange(
    run: program.Program,
    source: warm_start.WarmStart,
    begun: state.TrainState,
    fresh: state.TrainState,
    must_stop: Callable[[], bool],
) -> None:
    """Logs the held-out loss of the start, and of one with random rows for the new pieces."""
    names = [it for it in run.job.evaluation.sets if it not in run.job.evaluation.answered]
    if not names:
        logging.info(
            "Without config.data.eval_dir the exchanged vocabulary is not scored before training"
        )
        return
    random = warm_start.with_random_rows(source, begun.params, fresh.params)
    try:
        means, others = (
            evaluation.evaluate_set(
                *(run.job, names[0], run.at(0).evaluate_step, params),
                mesh=run.mesh,
                batch_size=run.config.evaluation.global_batch_size,
                must_stop=must_stop,
            )
            for params in (begun.params, random)
        )
    except evaluation.Stopped:
        return
    for loss in evaluation.TOKEN_LOSSES:
        if loss in means:
            logging.info(
                "Vocabulary exchanged: %s on %s before training is %.4f nats; with random rows for "
                "the new entries it would be %.4f",
                *(loss, names[0], means[loss], others[loss]),
            )


def _check_resumable(
    run: program.Program,
    workdir: epath.Path,
    saved_meta: Mapping[str, Any],
    saved_config: Mapping[str, Any],
    step: int,
) -> None:
    changeable: list[str] = [*config_lib.CHANGEABLE]
    # With hours the decisions of the workdir say the lengths, and never change the past.
    hours = (saved_config["budget"]["hours"], run.config.budget.hours)
    if all(hours):
        changeable += [r"budget\.hours", r"phases\.\w+\.num_steps"]
    if program.are_steps_the_same(saved_config, run.job, step):
        changeable.append(r"phases\.\w+\.num_steps")
    allowed, refused = config_lib.differences(saved_config, run.config, changeable)
    for change in allowed:
        logging.info("Resuming with a change: %s", change)
    hint = ""
    if refused and all(".num_steps: " in change for change in refused):
        name = run.config.schedule.name
        hint = (
            f". A run of another length would have taken other steps so far (the schedule "
            f"{name!r}, or a share of masked tokens that falls, goes by the length): to train on "
            f"from its model, give --config.init_from={workdir} and another --workdir"
        )
    if run.job.data.identity() != saved_meta["identity"]:
        refused.append("the records or the vocabulary have changed since the run started")
    if saved_meta.get("teacher_sha256", "") != _teacher_sha256(run):
        refused.append(
            f"the model at config.distillation.teacher, {run.config.distillation.teacher!r}, is "
            "not the teacher that the run began with"
        )
    if refused:
        raise ValueError(
            f"{workdir} holds a run that cannot be continued with this config:\n  "
            + "\n  ".join(refused)
            + "\nUndo these changes to continue it, or give another --workdir to start afresh"
            + hint
        )


def with_origin(
    run: program.Program, workdir: epath.Path, saved: Mapping[str, Any] | None
) -> program.Program:
    """Returns a run with the options that say where it started, as its `saved` meta item has them.

    They are the command's for a new run, whose `saved` is None.
    """
    if saved is None:
        return run
    check_complete(saved, workdir)
    saved_config = config_lib.completed(saved["config"])
    if run.config.init_from not in ("", saved_config["init_from"]):
        logging.warning(
            "config.init_from, %s, is not read: %s holds a run already, which began from %s",
            run.config.init_from, workdir, saved_config["init_from"] or "its seed alone",
        )  # fmt: skip
    origin = ("init_from", "init_from_smaller", "resize_vocabulary", "exchange_vocabulary")
    config = jobs.unfrozen(run.config)
    config.update({name: saved_config[name] for name in origin})
    return dataclasses.replace(run, job=dataclasses.replace(run.job, config=config))


def meta(
    run: program.Program, step: int, progress: monitor.Progress, tuned: Mapping[str, float]
) -> dict[str, Any]:
    """Returns what the checkpoint of a step holds besides the state."""
    return {
        "config": run.config.to_dict(),
        "identity": run.job.data.identity(),
        "teacher_sha256": _teacher_sha256(run),
        **run.job.meta,
        **progress.to_meta(),
        "epochs": jobs.epochs(run.job, step),
        "tuned": dict(tuned),
        "versions": _versions(),
    }


def _versions() -> dict[str, Any]:
    """Returns the versions that the bits of a run depend on."""
    return {
        "bertjax": bertjax.__version__,
        "jax": jax.__version__,
        "attention_masks": weight_masks.VERSION,
    }


def _warn_of_other_versions(saved: Mapping[str, Any]) -> None:
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


def _teacher_sha256(run: program.Program) -> str:
    return run.job.teacher.sha256 if run.job.teacher else ""


def write_config(run: program.Program, workdir: epath.Path) -> None:
    """Writes the config of a run for people to read, on the first process."""
    if jax.process_index() == 0:
        reader.write_config(run.config.to_dict(), workdir)


def write_workdir(run: program.Program, workdir: epath.Path) -> None:
    """Writes the config, the vocabulary and the contents or scaling of the training records."""
    write_config(run, workdir)
    if jax.process_index() == 0:
        if vocabulary := run.job.data.vocabulary:
            vocabulary.save(workdir / reader.VOCABULARY_DIRECTORY)
        if contents := run.job.data.contents:
            contents.save(workdir / reader.TRAINING_DATA_DIRECTORY)
        if manifest := run.job.data.manifest:
            manifest.save(workdir / reader.TRAINING_DATA_DIRECTORY)


def always_kept(run: program.Program) -> tuple[int, ...]:
    """Returns the steps whose checkpoints stay: the last one before the learning-rate decay."""
    step = schedules.last_step_before_decay(run.step_inputs.schedule)
    return () if step is None else (step,)


def retention(run: program.Program) -> checkpoint.RetentionOptions:
    """Returns which checkpoints of a run stay."""
    options = run.config.checkpoint
    return checkpoint.RetentionOptions(
        keep_last=options.keep_last,
        keep_every_steps=options.keep_every_steps,
        keep_best=options.keep_best,
        best_metric=run.job.evaluation.best_score,
        is_higher_better=run.job.evaluation.is_higher_better,
        always_kept=always_kept(run),
    )


def monitor_options(run: program.Program) -> monitor.MonitorOptions:
    """Returns what the monitor of a run watches."""
    peak = accelerators.peak_flops(run.mesh.devices.flat[0].device_kind)
    return monitor.MonitorOptions(
        objectives=run.job.task.objectives,
        log_every_steps=run.config.log_every_steps,
        last_step=run.job.last_step,
        max_skipped_steps=run.config.max_skipped_steps,
        plateau_check_step=run.config.plateau.check_step,
        peak_flops=peak * run.mesh.size if peak else None,
        faults=functools.partial(_faults, run),
        word_marks=word_marks.marks(run.config.checkpoint.save_at_words),
        epochs=functools.partial(jobs.epochs, run.job),
    )


def _faults(run: program.Program, lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields the faults of a run that goes on, by its lines of metrics.jsonl."""
    of_last = run.job.data.of_phase(run.job.phases[-1])
    data = runs.DataFacts(unigram_entropy=of_last.unigram_entropy)
    of_run = runs.of_config(run.config, run.job.phases, lines, data=data)
    yield from table.faults(of_run, table.MEANWHILE)


def open_writer(
    run: program.Program, workdir: epath.Path, step: int, *, again: bool
) -> writers.RunWriter:
    """Returns the writer of a run that goes on from `step`, whose evaluation may come `again`."""
    return writers.RunWriter(
        workdir,
        total_steps=run.job.last_step,
        start_step=step,
        evaluates_again=again,
        enabled=jax.process_index() == 0,
        kinds=run.config.writers,
        config=dict(config_lib.flatten(run.config)),
    )


def profile(run: program.Program, workdir: epath.Path, step: int) -> profiling.Profile:
    """Returns the profile of the steps that the config asks for, on one host."""
    steps = run.config.profile_steps if jax.process_index() == 0 else ()
    return profiling.Profile(workdir, steps, step)


@contextlib.contextmanager
def owned(workdir: epath.Path) -> Iterator[ownership.Ownership | None]:
    """Keeps other runs out of the workdir; process 0 does, the others yield None."""
    if jax.process_index() != 0:
        yield None
        return
    advice = f"give another --workdir; --config.init_from={workdir} starts from weights there"
    # The checkpoints of a run say with which version of bertjax they were made.
    is_ours = checkpoint.resumable_meta(workdir) is not None
    names = () if is_ours else WRITTEN
    names = (*names, *ownership.others_file(workdir))
    directories.claim(workdir, "run", names, advice=advice)
    with ownership.Ownership(workdir) as owner:
        yield owner
