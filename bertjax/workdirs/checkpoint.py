"""Checkpoints with orbax: save, restore, resume, and what to do when one cannot be read.

A checkpoint holds three items: `params` (the nested dict of arrays), `opt_state` (a flat dict from
path to array) and `meta` (JSON: config, data identity, counters, fingerprints). The position in the
data is the step; nothing else of it needs saving. One of converted weights has no `opt_state`; a
run that averages its parameters has one item more, `ema`, like `params`.

A training state is any dataclass with `step`, `params` and `opt_state`, and with `ema` where there
is one; `training.state` has ours.
What its evaluation found is written beside the items afterwards, as evaluation.json.

Here belong which checkpoints there are, which stay, and which one a run goes on from; how the items
of one are read, and what is proven damaged, is `checkpoint_items`.
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

from bertjax.data import atomic
from bertjax.models import parameters
from bertjax.workdirs import checkpoint_items as items
from bertjax.workdirs import orbax_manager

DIRECTORY = "checkpoints"
UNREADABLE_DIRECTORY = "checkpoints_unreadable"
NEWEST, BEST = "newest", "best"  # the checkpoints that have names


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none of those there could be read."""


@dataclasses.dataclass(frozen=True)
class RetentionOptions:
    """Which checkpoints stay: the newest, those at multiples of a number of steps, the best.

    Those with the lowest `best_metric` are best, or with the highest. Those of `always_kept` stay
    whatever comes after them.
    """

    keep_last: int = 3
    keep_every_steps: int = 0
    keep_best: int = 1
    best_metric: str = "mlm_loss"
    is_higher_better: bool = False
    always_kept: tuple[int, ...] = ()


def kept(steps: Iterable[int], scores: Mapping[int, float], options: RetentionOptions) -> set[int]:
    """Returns which of the checkpoints stay; one without a score is never among the best."""
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
        self._evaluations = _evaluations_of_first(self._directory)
        try:
            self._manager = orbax_manager.make(self._directory, self._kept)
        except items.UnreadableError as error:
            raise _unlisted(self._directory, error) from error
        # orbax takes what it cannot look at for no checkpoint.
        if sorted(self._manager.all_steps()) != _steps(self._directory):
            self._manager.reload()
        if sorted(self._manager.all_steps()) != _steps(self._directory):
            raise _unlisted(self._directory, "not all of them can be looked at")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._manager.close()
        except items.STORAGE_ERRORS as close_error:
            if error is None:
                raise self._save_error(close_error) from close_error
            logging.error("%s", self._save_error(close_error))  # and the first error goes on

    def _kept(self, steps: Iterable[int]) -> set[int]:
        return kept(steps, _scores(self._evaluations), self._retention)

    def latest_step(self) -> int | None:
        """Returns the newest complete checkpoint's step, None without one."""
        return self._manager.latest_step()

    def save(self, train_state: Any, meta: Mapping[str, Any]) -> None:
        """Starts saving; the state may be donated once this returns.

        A step that is saved already is left as it is.

        Raises:
          CheckpointError: if this save, or the one before it, failed.
        """
        step = int(train_state.step)
        if step == self.latest_step():
            return
        opt_state = items.flat_by_path(train_state.opt_state)
        trees = {items.PARAMS: train_state.params, items.OPT_STATE: opt_state}
        if (ema := getattr(train_state, items.EMA, None)) is not None:
            trees[items.EMA] = ema
        self._save(step, trees, meta)

    def is_evaluated(self, step: int) -> bool:
        """Returns whether it is known what the evaluation of a checkpoint found."""
        return step in self._evaluations

    def add_evaluation(
        self, step: int, scores: Mapping[str, float], tuned: Mapping[str, float]
    ) -> None:
        """Writes beside a checkpoint what its evaluation found, once that checkpoint is complete.

        From then on it may be the best. What is kept no longer is removed. A step that is not
        saved is left alone.

        Raises:
          CheckpointError: if the save before it failed, or this cannot be written.
        """
        self.wait()
        if step not in self._manager.all_steps():
            return
        metric = self._retention.best_metric
        score = scores.get(metric, math.nan)
        found = items.Evaluation(metric, score if math.isfinite(score) else None, dict(tuned))
        self._evaluations[step] = found
        try:
            if jax.process_index() == 0:
                items.write_evaluation(self._directory / str(step), found)
            steps = self._manager.all_steps()
            for other in sorted(set(steps) - self._kept(steps)):
                self._manager.delete(other)
        except items.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def save_params(self, params: parameters.Params, meta: Mapping[str, Any]) -> None:
        """Starts saving parameters alone, as step 0: to use or to start from, not to resume.

        Raises:
          CheckpointError: if this save, or the one before it, failed.
        """
        self._save(0, {items.PARAMS: params}, meta)

    def _save(self, step: int, trees: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        fingerprints = {name: items.fingerprint(tree) for name, tree in trees.items()}
        saved = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}  # pyright: ignore[reportCallIssue]
        ours = {
            "fingerprints": fingerprints,
            "is_higher_better": self._retention.is_higher_better,
        }
        saved[items.META] = ocp.args.JsonSave(dict(meta) | ours)  # pyright: ignore[reportCallIssue]
        try:
            self._manager.save(step, args=ocp.args.Composite(**saved))
        except items.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Returns when the last save is complete on disk.

        Raises:
          CheckpointError: if it failed.
        """
        try:
            self._manager.wait_until_finished()
        except items.STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def restore(self, abstract_state: Any) -> items.Restored | None:
        """Returns the newest checkpoint that is whole, None if there never was one.

        `abstract_state` holds shapes with shardings; the checkpoint may come from another mesh. One
        that is proven damaged is reported, moved to `checkpoints_unreadable` and passed over. What
        cannot be read now, and may be later, moves nothing. All processes take the same one: which
        there are, and what is damaged, is for process 0 to say.

        Raises:
          CheckpointError: if the storage does not let the newest be read; if it is whole, but of
            another state; if there are checkpoints, here or set aside, and none is whole.
        """
        failures = []
        for step in _told_by_first(sorted(self._manager.all_steps(), reverse=True)):
            try:
                return self._restore_step(step, abstract_state)
            except items.UnreadableError as error:
                damage = self._proven_damage(step, error)
                failures.append(f"step {step}: {damage}")
                logging.error("A checkpoint cannot be read and is set aside, %s", failures[-1])
                self._set_aside(step)
        aside = self._root / UNREADABLE_DIRECTORY
        if failures:
            raise CheckpointError(
                f"none of the checkpoints in {self._directory} can be read:\n  "
                + "\n  ".join(failures)
                + f"\nThey were moved to {aside}. To start afresh, remove that directory, or give "
                "another --workdir"
            )
        if _names(aside):
            raise CheckpointError(
                f"{self._directory} holds no checkpoint, but {aside} holds what was set aside as "
                "damaged: nothing starts afresh there unasked. Remove that directory to do so, or "
                "give another --workdir"
            )
        return None

    def read_meta(self) -> Mapping[str, Any] | None:
        """Returns the newest readable meta item, to compare configs before anything is restored.

        Raises:
          CheckpointError: if it is that of parameters alone, with which no run can be continued.
        """
        newest = read_meta(self._root)
        meta = None if newest is None else newest[0]
        if meta is not None and "opt_state" not in meta["fingerprints"]:
            raise CheckpointError(
                f"{self._root} holds weights without the state of an optimizer, so no run can "
                f"be continued there; to start from them, give --config.init_from={self._root} "
                "and another --workdir"
            )
        return meta

    def _restore_step(self, step: int, abstract_state: Any) -> items.Restored:
        """Returns a checkpoint; an UnreadableError comes to all processes where it comes to one."""
        restored, error = None, None
        try:
            restored = items.restore(self._directory / str(step), abstract_state)
        except items.UnreadableError as own_error:
            error = own_error
        if not _is_so_everywhere(restored is not None):
            raise error or items.UnreadableError("another process could not read it")
        assert restored is not None
        items.check_fingerprints(restored)
        return restored

    def _proven_damage(self, step: int, error: items.UnreadableError) -> str:
        """Returns what is wrong with the content of a checkpoint that could not be restored.

        Raises:
          CheckpointError: if nothing is, or nobody can know now; on all processes alike.
        """
        damage, is_known = None, True
        if jax.process_index() == 0:
            try:
                damage = items.damage(self._directory / str(step))
            except items.UnreadableError as storage_error:
                error, is_known = storage_error, False
        is_known, is_damaged = _told_by_first([is_known, damage is not None])
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
        last_good = self._manager.latest_step()
        kept = "there is no earlier one"
        if last_good is not None:
            kept = f"the last good one is step {last_good}"
        return CheckpointError(
            f"a checkpoint could not be written to {self._directory} ({items.first_line(error)}); "
            f"{kept}. Make room or fix the permissions, then run the same command again to continue"
        )


def load_params(
    workdir: epath.PathLike, step: str | int = "newest", *, ema: bool | None = None
) -> tuple[parameters.Params, Mapping[str, Any], int]:
    """Returns a checkpoint's parameters (NumPy), meta item and step, to use the model.

    `step` is "newest", "best" (by the score that keep_best goes by), or a number. With `ema` it is
    the parameters' average; None: what the run evaluated, as its config.evaluation.ema says.

    Raises:
      FileNotFoundError: if `workdir` holds no checkpoint, or not that one.
      ValueError: if `step` is none of these, there is no score to find the best by, or no average.
      CheckpointError: if it cannot be read.
    """
    directory = _absolute(workdir) / DIRECTORY
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist; --checkpoint takes the workdir of a run of "
            "`python -m bertjax.train`"
        )
    step = _chosen_step(directory, step)
    try:
        meta = items.read_meta(directory / str(step))
        item = _item_of_model(meta, ema, f"the checkpoint of step {step} in {directory}")
        params = items.read_params(directory / str(step), meta["fingerprints"], item)
    except items.UnreadableError as error:
        hint = "resuming the run would fall back to the one before it"
        if error.is_of_storage:
            hint = "once the storage answers, run the same command again"
        raise CheckpointError(
            f"the checkpoint of step {step} in {directory} cannot be read ({error}); {hint}"
        ) from error
    return params, meta, step


def _item_of_model(meta: Mapping[str, Any], ema: bool | None, of_what: str) -> str:
    has_average = items.EMA in meta["fingerprints"]
    if ema is None:
        ema = has_average and meta["config"].get("evaluation", {}).get("ema", False)
    if ema and not has_average:
        raise ValueError(
            f"{of_what} holds no average of the parameters: the run had config.optimizer.ema_decay "
            "0; leave --ema out"
        )
    return items.EMA if ema else items.PARAMS


def read_meta(workdir: epath.PathLike) -> tuple[Mapping[str, Any], int] | None:
    """Returns a workdir's newest meta item with its step, None without a checkpoint.

    One that is damaged is passed over.

    Raises:
      CheckpointError: if the storage does not let it be read.
    """
    directory = _absolute(workdir) / DIRECTORY
    for step in reversed(_steps(directory)):
        try:
            return items.read_meta(directory / str(step)), step
        except items.UnreadableError as error:
            if error.is_of_storage:
                raise CheckpointError(
                    f"the checkpoint of step {step} in {directory} cannot be read now ({error}); "
                    "once the storage answers, run the same command again"
                ) from error
            logging.error("The meta item of step %d cannot be read: %s", step, error)
    return None


def _steps(directory: epath.Path) -> list[int]:
    if atomic.is_remote(directory):
        return sorted(ocp.utils.checkpoint_steps(directory))
    return sorted(int(name) for name in _names(directory) if name.isdecimal())


def _names(directory: epath.Path) -> set[str]:
    try:
        return items.names_in(directory)
    except items.UnreadableError as error:
        raise _unlisted(directory, error) from error


def _unlisted(directory: epath.Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"the checkpoints in {directory} cannot be listed now ({reason}). Nothing was moved or "
        "removed: once the storage answers, run the same command again"
    )


def _chosen_step(directory: epath.Path, wanted: str | int) -> int:
    steps = _steps(directory)
    if not steps:
        raise FileNotFoundError(f"{directory} holds no complete checkpoint")
    if wanted == NEWEST:
        return steps[-1]
    if wanted == BEST:
        return _best_step(directory, steps)
    if not str(wanted).isdecimal():
        raise ValueError(f"the step is {wanted!r}; it must be {NEWEST}, {BEST} or a number")
    if int(wanted) not in steps:
        known = ", ".join(map(str, steps))
        raise FileNotFoundError(f"{directory} holds no checkpoint of step {wanted}; it has {known}")
    return int(wanted)


def _best_step(directory: epath.Path, steps: Sequence[int]) -> int:
    """Returns the step with the best score; of equal ones the earliest, as keep_best does."""
    scores = _scores(_evaluations(directory))
    newest = read_meta(directory.parent)
    if not scores or newest is None:
        raise ValueError(
            f"no checkpoint in {directory} has a score, so none is the best: set the step to "
            f"{NEWEST} or to one of {', '.join(map(str, steps))}"
        )
    meta, _ = newest
    sign = -1 if meta["is_higher_better"] else 1
    return min(scores, key=lambda step: (sign * scores[step], step))


def _evaluations(directory: epath.Path) -> dict[int, items.Evaluation]:
    """Returns what is known of the checkpoints that were evaluated.

    Raises:
      CheckpointError: if the storage does not let it be read.
    """
    try:
        found = {step: items.read_evaluation(directory / str(step)) for step in _steps(directory)}
    except items.UnreadableError as error:
        raise CheckpointError(
            f"the scores of the checkpoints in {directory} cannot be read now ({error}), so which "
            "of them is the best is not known; once the storage answers, run the same command again"
        ) from error
    return {step: one for step, one in found.items() if one is not None}


def _evaluations_of_first(directory: epath.Path) -> dict[int, items.Evaluation]:
    """Returns the evaluations that process 0 finds, so that all evaluate and remove the same."""
    found = _evaluations(directory) if jax.process_index() == 0 else {}
    text = json.dumps({step: dataclasses.asdict(one) for step, one in found.items()})
    told = json.loads(bytes(_told_by_first(list(text.encode()))))
    return {int(step): items.Evaluation(**fields) for step, fields in told.items()}


def _scores(evaluations: Mapping[int, items.Evaluation]) -> dict[int, float]:
    """Returns the scores that keep_best goes by, of the checkpoints that have one."""
    return {step: one.score for step, one in evaluations.items() if one.score is not None}


def _told_by_first(values: Sequence[int]) -> list[int]:
    """Returns the values that process 0 has; every process calls it."""
    if jax.process_count() == 1:
        return list(values)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(values))))
    mine = np.resize(np.asarray(values or [0], np.int32), count)
    return multihost_utils.broadcast_one_to_all(mine).tolist()


def _is_so_everywhere(is_so: bool) -> bool:
    if jax.process_count() == 1:
        return is_so
    return bool(multihost_utils.process_allgather(np.asarray(is_so)).all())


def _absolute(path: epath.PathLike) -> epath.Path:
    # orbax refuses relative paths; an address such as gs://bucket/run is none.
    path = epath.Path(path)
    return path if atomic.is_remote(path) else path.absolute()
