"""Checkpoints with orbax: save, restore, resume, and what to do when one cannot be read.

A checkpoint holds three items: `params` (the nested dict of arrays), `opt_state` (a flat dict from
path to array) and `meta` (JSON: config, data identity, counters, fingerprints). The step alone
gives the position in the data. Checkpoints of converted weights have no `opt_state`; a run that
averages its parameters saves `ema` too, like `params`.

A training state is any dataclass with `step`, `params` and `opt_state`, and perhaps `ema`, such as
`training.state.TrainState`. The checkpoint's evaluation is added later, as evaluation.json.

This file decides which checkpoints stay and which one a run resumes from; `checkpoint_storage`
reads and writes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from bertjax.files import atomic
from bertjax.models import parameters
from bertjax.options import faults as faults_lib
from bertjax.workdirs import checkpoint_storage as storage

DIRECTORY = "checkpoints"
UNREADABLE_DIRECTORY = "checkpoints_unreadable"
NEWEST, BEST = "newest", "best"  # the checkpoints that have names


class CheckpointError(faults_lib.RunError):
    """A checkpoint could not be written, or no checkpoint could be read."""


@dataclasses.dataclass(frozen=True)
class RetentionOptions:
    """Which checkpoints stay: the newest, those at multiples of a number of steps, the best.

    The best have the lowest `best_metric`, or with `is_higher_better` the highest. The steps
    `always_kept` stay in any case.
    """

    keep_last: int = 3
    keep_every_steps: int = 0
    keep_best: int = 1
    best_metric: str = "mlm_loss"
    is_higher_better: bool = False
    always_kept: tuple[int, ...] = ()


def retained(
    steps: Iterable[int], scores: Mapping[int, float], options: RetentionOptions
) -> set[int]:
    """Returns the steps whose checkpoints stay; those without a score are never among the best."""
    ordered = sorted(steps)
    sign = -1 if options.is_higher_better else 1
    scored = [step for step in ordered if step in scores]
    regular = options.keep_every_steps
    return {
        *ordered[-options.keep_last :],
        *(step for step in ordered if regular and step % regular == 0),
        *(step for step in ordered if step in options.always_kept),
        *sorted(scored, key=lambda step: (sign * scores[step], step))[: options.keep_best],
    }


class Checkpointer:
    """The checkpoints of one run. Saving is asynchronous; use it as a context manager."""

    def __init__(self, workdir: epath.PathLike, retention: RetentionOptions):
        self._root = _absolute(workdir)
        self._directory = self._root / DIRECTORY
        self._retention = retention
        self._evaluations = _shared_evaluations(self._directory)
        try:
            self._manager = storage.make_manager(self._directory, self._retained)
        except storage.UnreadableError as error:
            raise _unlisted(self._directory, error) from error
        # orbax ignores checkpoints that it cannot stat.
        if sorted(self._manager.all_steps()) != _steps(self._directory):
            self._manager.reload()
        if sorted(self._manager.all_steps()) != _steps(self._directory):
            raise _unlisted(self._directory, "some of them cannot be read")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._manager.close()
        except storage.STORAGE_ERRORS as close_error:
            if error is None:
                raise self._save_error(close_error) from close_error
            logging.error("%s", self._save_error(close_error))  # the first error is raised

    def _retained(self, steps: Iterable[int]) -> set[int]:
        return retained(steps, _scores(self._evaluations), self._retention)

    def keep(self, steps: Iterable[int]) -> None:
        """Keeps the checkpoints of these steps in any case, besides those always kept before."""
        kept = (*self._retention.always_kept, *steps)
        self._retention = dataclasses.replace(self._retention, always_kept=kept)

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint, None without one."""
        return self._manager.latest_step()

    def save(self, train_state: Any, meta: Mapping[str, Any]) -> None:
        """Starts saving; the state may be donated once this returns.

        A step that is saved already is not saved again.
        """
        step = int(train_state.step)
        if step == self.latest_step():
            return
        opt_state = storage.flat_by_path(train_state.opt_state)
        trees = {storage.PARAMS: train_state.params, storage.OPT_STATE: opt_state}
        if (ema := getattr(train_state, storage.EMA, None)) is not None:
            trees[storage.EMA] = ema
        self._save(step, trees, meta)

    def is_evaluated(self, step: int) -> bool:
        """Returns whether the checkpoint has an evaluation."""
        return step in self._evaluations

    def add_evaluation(
        self, step: int, scores: Mapping[str, float], tuned: Mapping[str, float]
    ) -> None:
        """Writes the evaluation into the checkpoint, once that is complete.

        From then on it may be the best; checkpoints that are no longer retained are removed. A step
        without a checkpoint is ignored.
        """
        self.wait()
        if step not in self._manager.all_steps():
            return
        metric = self._retention.best_metric
        score = scores.get(metric, math.nan)
        finite = score if math.isfinite(score) else None
        evaluation = storage.Evaluation(metric, finite, dict(tuned))
        self._evaluations[step] = evaluation
        try:
            if jax.process_index() == 0:
                storage.write_evaluation(self._directory / str(step), evaluation)
            steps = self._manager.all_steps()
            for other in sorted(set(steps) - self._retained(steps)):
                self._manager.delete(other)
        except storage.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def save_params(self, params: parameters.Params, meta: Mapping[str, Any]) -> None:
        """Starts saving parameters alone, as step 0: for use or a warm start, not to resume."""
        self._save(0, {storage.PARAMS: params}, meta)

    def _save(self, step: int, trees: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        fingerprints = {name: storage.fingerprint(tree) for name, tree in trees.items()}
        saved = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}  # pyright: ignore[reportCallIssue]
        ours = {"fingerprints": fingerprints, "is_higher_better": self._retention.is_higher_better}
        saved[storage.META] = ocp.args.JsonSave(dict(meta) | ours)  # pyright: ignore[reportCallIssue]
        try:
            self._manager.save(step, args=ocp.args.Composite(**saved))
        except storage.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Waits until the last save is complete on disk."""
        try:
            self._manager.wait_until_finished()
        except storage.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def restore(self, abstract_state: Any) -> storage.Restored | None:
        """Returns the newest whole checkpoint, None if the workdir never had one.

        `abstract_state` holds shapes with shardings; the checkpoint may come from another mesh. A
        checkpoint that is proven damaged is logged, moved to `checkpoints_unreadable` and skipped;
        one that only the storage does not deliver stays where it is. Process 0 lists and judges
        the checkpoints, so that all processes restore the same one.
        """
        failures = []
        for step in _broadcast(sorted(self._manager.all_steps(), reverse=True)):
            try:
                return self._restore_step(step, abstract_state)
            except storage.UnreadableError as error:
                damage = self._proven_damage(step, error)
                failures.append(f"step {step}: {damage}")
                logging.error("A checkpoint cannot be read and is set aside, %s", failures[-1])
                self._set_aside(step)
        aside = self._root / UNREADABLE_DIRECTORY
        if failures:
            raise CheckpointError(
                f"the checkpoints in {self._directory} cannot be read:\n  "
                + "\n  ".join(failures)
                + f"\nThey were moved to {aside}. To start afresh, remove that directory, or give "
                "another --workdir"
            )
        if _names(aside):
            raise CheckpointError(
                f"{self._directory} holds no checkpoint, but {aside} holds damaged ones. To start "
                "afresh, remove that directory, or give another --workdir"
            )
        return None

    def read_meta(self) -> Mapping[str, Any] | None:
        """Returns the newest readable meta item, to compare configs before the restore."""
        return resumable_meta(self._root)

    def _restore_step(self, step: int, abstract_state: Any) -> storage.Restored:
        """Returns a checkpoint; if one process cannot read it, all raise an UnreadableError."""
        restored, error = None, None
        try:
            restored = storage.restore(self._directory / str(step), abstract_state)
        except storage.UnreadableError as local_error:
            error = local_error
        if not _all_processes(restored is not None):
            raise error or storage.UnreadableError("another process could not read it")
        assert restored is not None
        storage.check_fingerprints(restored)
        return restored

    def _proven_damage(self, step: int, error: storage.UnreadableError) -> str:
        """Returns the damage of a checkpoint that could not be restored, in words."""
        damage, is_known = None, True
        if jax.process_index() == 0:
            try:
                damage = storage.damage(self._directory / str(step))
            except storage.UnreadableError as storage_error:
                error, is_known = storage_error, False
        is_known, is_damaged = _broadcast([is_known, damage is not None])
        moved = "Nothing was moved or removed"
        if not is_known:
            raise CheckpointError(
                f"the checkpoint of step {step} in {self._directory} cannot be read now ({error}). "
                f"{moved}: once the storage answers, run the same command again"
            ) from error
        if not is_damaged:
            raise CheckpointError(
                f"the checkpoint of step {step} in {self._directory} is whole, but could not be "
                f"restored ({error}). {moved}. If it was a passing error, run the same command "
                "again; if the run was begun with other model sizes, give another --workdir"
            ) from error
        return damage or "process 0 found it damaged"

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            target = self._root / UNREADABLE_DIRECTORY
            target.mkdir(parents=True, exist_ok=True)
            count = len(list(target.iterdir()))
            (self._directory / str(step)).rename(target / f"{step}_{count}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"step {step} is set aside")
        self._manager.reload()

    def _save_error(self, error: BaseException) -> CheckpointError:
        step = self._manager.latest_step()
        earlier = "there is no earlier one" if step is None else f"the last good one is step {step}"
        return CheckpointError(
            f"a checkpoint could not be written to {self._directory} "
            f"({storage.first_line(error)}); {earlier}. Make room or fix the permissions, then run "
            "the same command again to continue"
        )


def load_params(
    workdir: epath.PathLike, step: str | int = "newest", *, ema: bool | None = None
) -> tuple[parameters.Params, Mapping[str, Any], int]:
    """Returns a checkpoint's parameters (NumPy), meta item and step, to use the model.

    `step` is "newest", "best" (by the score of keep_best) or a number. `ema` chooses the average of
    the parameters; None: as the run's config.evaluation.ema.
    """
    directory = _existing(workdir)
    step = _chosen_step(directory, step)
    try:
        meta = storage.read_meta(directory / str(step))
        item = _item_of_model(meta, ema, f"the checkpoint of step {step} in {directory}")
        params = storage.read_params(directory / str(step), meta["fingerprints"], item)
    except storage.UnreadableError as error:
        hint = "resuming the run would fall back to the one before it"
        if error.is_of_storage:
            hint = "once the storage answers, run the same command again"
        raise CheckpointError(
            f"the checkpoint of step {step} in {directory} cannot be read ({error}); {hint}"
        ) from error
    return params, meta, step


def load_state(workdir: epath.PathLike, step: int, abstract_state: Any) -> storage.Restored:
    """Returns the training state of a checkpoint and its meta item, for a run elsewhere.

    `abstract_state` is as in `Checkpointer.restore`. Nothing in the workdir is changed.
    """
    directory = _absolute(workdir) / DIRECTORY / str(step)
    try:
        restored = storage.restore(directory, abstract_state)
        storage.check_fingerprints(restored)
    except storage.UnreadableError as error:
        raise CheckpointError(f"the checkpoint in {directory} cannot be read ({error})") from error
    return restored


def _item_of_model(meta: Mapping[str, Any], ema: bool | None, name: str) -> str:
    has_average = storage.EMA in meta["fingerprints"]
    if ema is None:
        ema = has_average and meta["config"].get("evaluation", {}).get("ema", False)
    if ema and not has_average:
        raise ValueError(
            f"{name} holds no average of the parameters: the run had config.optimizer.ema_decay "
            "0; leave --ema out"
        )
    return storage.EMA if ema else storage.PARAMS


def resumable_meta(workdir: epath.PathLike) -> Mapping[str, Any] | None:
    """Returns the newest readable meta item of a run, None without one."""
    root = _absolute(workdir)
    newest = read_meta(root)
    meta = None if newest is None else newest[0]
    if meta is not None and "opt_state" not in meta["fingerprints"]:
        raise CheckpointError(
            f"{root} holds weights without the state of an optimizer, so a run cannot resume "
            f"there; to start from them, give --config.init_from={root} and another --workdir"
        )
    return meta


def read_meta(workdir: epath.PathLike) -> tuple[Mapping[str, Any], int] | None:
    """Returns a workdir's newest readable meta item with its step, None without a checkpoint."""
    directory = _absolute(workdir) / DIRECTORY
    for step in reversed(_steps(directory)):
        try:
            return storage.read_meta(directory / str(step)), step
        except storage.UnreadableError as error:
            if error.is_of_storage:
                raise CheckpointError(
                    f"the checkpoint of step {step} in {directory} cannot be read now ({error}); "
                    "once the storage answers, run the same command again"
                ) from error
            logging.error("The meta item of step %d cannot be read: %s", step, error)
    return None


def meta_of(workdir: epath.PathLike, step: str | int = NEWEST) -> tuple[Mapping[str, Any], int]:
    """Returns the meta item and the step of a checkpoint; `step` is as in `load_params`."""
    directory = _existing(workdir)
    step = _chosen_step(directory, step)
    try:
        return storage.read_meta(directory / str(step)), step
    except storage.UnreadableError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} in {directory} cannot be read ({error})"
        ) from error


def _existing(workdir: epath.PathLike) -> epath.Path:
    directory = _absolute(workdir) / DIRECTORY
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist; give the workdir of a run of `python -m bertjax.train`"
        )
    return directory


def _steps(directory: epath.Path) -> list[int]:
    if atomic.is_remote(directory):
        return sorted(ocp.utils.checkpoint_steps(directory))
    return sorted(int(name) for name in _names(directory) if name.isdecimal())


def _names(directory: epath.Path) -> set[str]:
    try:
        return storage.names_in(directory)
    except storage.UnreadableError as error:
        raise _unlisted(directory, error) from error


def _unlisted(directory: epath.Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"the checkpoints in {directory} cannot be listed now ({reason}). Nothing was moved or "
        "removed: once the storage answers, run the same command again"
    )


def _chosen_step(directory: epath.Path, step: str | int) -> int:
    steps = _steps(directory)
    if not steps:
        raise FileNotFoundError(f"{directory} holds no complete checkpoint")
    if step == NEWEST:
        return steps[-1]
    if step == BEST:
        return _best_step(directory, steps)
    if not str(step).isdecimal():
        raise faults_lib.wrong("the step", step, f"{NEWEST}, {BEST} or a number")
    if int(step) not in steps:
        existing = f"it has {', '.join(map(str, steps))}"
        raise FileNotFoundError(f"{directory} holds no checkpoint of step {step}; {existing}")
    return int(step)


def _best_step(directory: epath.Path, steps: Sequence[int]) -> int:
    """Returns the step with the best score, the earliest of equal ones, as keep_best does."""
    scores = _scores(_evaluations(directory))
    newest = read_meta(directory.parent)
    if not scores or newest is None:
        raise ValueError(
            f"no checkpoint in {directory} has a score to choose the best by: set the step to "
            f"{NEWEST} or to one of {', '.join(map(str, steps))}"
        )
    meta, _ = newest
    if "is_higher_better" not in meta:
        raise CheckpointError(f"the newest meta item in {directory} lacks 'is_higher_better'")
    sign = -1 if meta["is_higher_better"] else 1
    return min(scores, key=lambda step: (sign * scores[step], step))


def _evaluations(directory: epath.Path) -> dict[int, storage.Evaluation]:
    """Returns the evaluations of the checkpoints that have one, by step."""
    try:
        by_step = {
            step: storage.read_evaluation(directory / str(step)) for step in _steps(directory)
        }
    except storage.UnreadableError as error:
        raise CheckpointError(
            f"the scores of the checkpoints in {directory} cannot be read now ({error}), so the "
            "best is unknown; once the storage answers, run the same command again"
        ) from error
    return {step: one for step, one in by_step.items() if one is not None}


def _shared_evaluations(directory: epath.Path) -> dict[int, storage.Evaluation]:
    """Returns the evaluations that process 0 reads, so that all evaluate and remove the same."""
    evaluations = _evaluations(directory) if jax.process_index() == 0 else {}
    text = json.dumps({step: dataclasses.asdict(one) for step, one in evaluations.items()})
    shared = json.loads(bytes(_broadcast(list(text.encode()))))
    return {int(step): storage.Evaluation(**fields) for step, fields in shared.items()}


def _scores(evaluations: Mapping[int, storage.Evaluation]) -> dict[int, float]:
    """Returns the scores of keep_best by step, without the checkpoints that have none."""
    return {step: one.score for step, one in evaluations.items() if one.score is not None}


def _broadcast(values: Sequence[int]) -> list[int]:
    """Returns the values of process 0; every process calls it."""
    if jax.process_count() == 1:
        return list(values)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(values))))
    local = np.resize(np.asarray(values or [0], np.int32), count)
    return multihost_utils.broadcast_one_to_all(local).tolist()


def _all_processes(value: bool) -> bool:
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.process_allgather(np.asarray(value)).all())


def _absolute(path: epath.PathLike) -> epath.Path:
    # orbax refuses relative paths; an address such as gs://bucket/run stays as it is.
    path = epath.Path(path)
    return path if atomic.is_remote(path) else path.absolute()
