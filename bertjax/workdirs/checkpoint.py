"""Checkpoints with orbax: save, restore, resume, and what to do when one cannot be read.

A checkpoint holds three items: `params` (the nested dict of arrays), `opt_state` (a flat dict from
path to array) and `meta` (JSON: config, data identity, counters, fingerprints). The position in the
data is the step; nothing else of it needs saving. One of converted weights has no `opt_state`.

A training state is any dataclass with `step`, `params` and `opt_state`; `training.state` has ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging as std_logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from bertjax.models import parameters


def _is_no_chatter(record: std_logging.LogRecord) -> bool:
    # orbax tells some forty lines a checkpoint and warns of its own options, through absl's logger
    # as we do. What fails reaches the user as an exception.
    return "/orbax/" not in record.pathname or record.levelno >= std_logging.ERROR


logging.get_absl_logger().addFilter(_is_no_chatter)

DIRECTORY = "checkpoints"
UNREADABLE_DIRECTORY = "checkpoints_unreadable"
NEWEST, BEST = "newest", "best"  # the checkpoints that have names

# What orbax and tensorstore raise on torn, foreign or altered files and on failed writes; reading
# has one more, see `_reading`.
_STORAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none of those there could be read."""


class _UnreadableError(RuntimeError):
    """A checkpoint that is there cannot be read; the message says why in one line."""


@dataclasses.dataclass(frozen=True)
class RetentionOptions:
    """Which checkpoints stay: the newest, those at multiples of a number of steps, the best.

    Those with the lowest `best_metric` are best, or with the highest.
    """

    keep_last: int = 3
    keep_every_steps: int = 0
    keep_best: int = 1
    best_metric: str = "mlm_loss"
    is_higher_better: bool = False


@dataclasses.dataclass(frozen=True)
class Restored:
    """A training state as it was saved, with its meta item."""

    state: Any
    meta: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Best(policies.PreservationPolicy):
    """Keeps the checkpoints with the best values of a metric; those without it do not count."""

    metric: str
    count: int
    is_higher_better: bool

    def should_preserve(
        self,
        checkpoints: Sequence[policies.PolicyCheckpointInfo],
        *,
        context: policies.PreservationContext,
    ) -> list[bool]:
        del context
        scores = {
            info.step: info.metrics[self.metric]
            for info in checkpoints
            if info.metrics and self.metric in info.metrics
        }
        sign = -1 if self.is_higher_better else 1
        best = sorted(scores, key=lambda step: sign * scores[step])[: self.count]
        return [info.step in best for info in checkpoints]


def _preservation_policy(options: RetentionOptions) -> Any:
    kept: list[Any] = [policies.LatestN(options.keep_last)]
    if options.keep_every_steps:
        kept.append(policies.EveryNSteps(options.keep_every_steps))
    if options.keep_best:
        kept.append(_Best(options.best_metric, options.keep_best, options.is_higher_better))
    return policies.AnyPreservationPolicy(kept)


class Checkpointer:
    """The checkpoints of one run. Saving is asynchronous; use it as a context manager."""

    def __init__(self, workdir: epath.PathLike, retention: RetentionOptions):
        self._root = _absolute(workdir)
        self._directory = self._root / DIRECTORY
        self._retention = retention
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_preservation_policy(retention),
            # Only with a best_fn does orbax write the metrics, and so know them after a restart.
            best_fn=lambda metrics: metrics[retention.best_metric],
            # The loop decides when to save; orbax's own preemption check would need a call a step.
            save_decision_policy=policies.FixedIntervalPolicy(1),
            cleanup_tmp_directories=True,
            create=True,
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._manager.close()
        except _STORAGE_ERRORS as close_error:
            if error is None:
                raise self._save_error(close_error) from close_error
            logging.error("%s", self._save_error(close_error))  # and the first error goes on

    def latest_step(self) -> int | None:
        """Returns the newest complete checkpoint's step, None without one."""
        return self._manager.latest_step()

    def save(
        self,
        train_state: Any,
        meta: Mapping[str, Any],
        evaluation: Mapping[str, float] | None = None,
    ) -> None:
        """Starts saving; the state may be donated once this returns.

        `evaluation`, when the state was just evaluated, makes it a candidate for keep_best.

        Raises:
          CheckpointError: if this save, or the one before it, failed.
        """
        step = int(train_state.step)
        if step == self.latest_step():
            return
        score = (evaluation or {}).get(self._retention.best_metric, math.nan)
        metrics = {self._retention.best_metric: score} if math.isfinite(score) else {}
        trees = {"params": train_state.params, "opt_state": _by_path(train_state.opt_state)}
        self._save(step, trees, meta, metrics)

    def save_params(self, params: parameters.Params, meta: Mapping[str, Any]) -> None:
        """Starts saving parameters alone, as step 0: to use or to start from, not to resume.

        Raises:
          CheckpointError: if this save, or the one before it, failed.
        """
        self._save(0, {"params": params}, meta, {})

    def _save(
        self,
        step: int,
        trees: Mapping[str, Any],
        meta: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> None:
        fingerprints = {name: _fingerprint_of(tree) for name, tree in trees.items()}
        items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}  # pyright: ignore[reportCallIssue]
        ours = {
            "fingerprints": fingerprints,
            "is_higher_better": self._retention.is_higher_better,
        }
        items["meta"] = ocp.args.JsonSave(dict(meta) | ours)  # pyright: ignore[reportCallIssue]
        try:
            self._manager.save(step, args=ocp.args.Composite(**items), metrics=dict(metrics))
        except _STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Returns when the last save is complete on disk.

        Raises:
          CheckpointError: if it failed.
        """
        try:
            self._manager.wait_until_finished()
        except _STORAGE_ERRORS as error:
            raise self._save_error(error) from error

    def restore(self, abstract_state: Any) -> Restored | None:
        """Returns the newest checkpoint that can be read, None if there is none at all.

        `abstract_state` holds shapes with shardings; the checkpoint may come from another mesh. One
        that cannot be read is reported, moved to `checkpoints_unreadable` and passed over.

        Raises:
          CheckpointError: if there are checkpoints and none can be read.
        """
        failures = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                with _reading():
                    return self._restore_step(step, abstract_state)
            except _UnreadableError as error:
                failures.append(f"step {step}: {error}")
                logging.error("A checkpoint cannot be read and is set aside, %s", failures[-1])
                self._set_aside(step)
        if failures:
            raise CheckpointError(
                f"none of the checkpoints in {self._directory} can be read:\n  "
                + "\n  ".join(failures)
                + f"\nThey were moved to {self._root / UNREADABLE_DIRECTORY}. If they were made "
                "with other model sizes, use another workdir; to start afresh, run again"
            )
        return None

    def read_meta(self) -> Mapping[str, Any] | None:
        """Returns the newest readable meta item, to compare configs before anything is restored.

        Raises:
          CheckpointError: if it is that of parameters alone, with which no run can be continued.
        """
        newest = _newest_meta(self._manager)
        meta = None if newest is None else newest[0]
        if meta is not None and "opt_state" not in meta["fingerprints"]:
            raise CheckpointError(
                f"{self._root} holds weights without the state of an optimizer, so no run can "
                f"be continued there; to start from them, give --config.init_from={self._root} "
                "and another --workdir"
            )
        return meta

    def _restore_step(self, step: int, abstract_state: Any) -> Restored:
        opt_state = _by_path(abstract_state.opt_state)
        items = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract_state.params),  # pyright: ignore[reportCallIssue]
                opt_state=ocp.args.StandardRestore(opt_state),  # pyright: ignore[reportCallIssue]
                meta=ocp.args.JsonRestore(),
            ),
        )
        paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
        leaves = [items["opt_state"][parameters.path_name(path)] for path, _ in paths]
        step_array = jax.device_put(jnp.asarray(step, jnp.int32), abstract_state.step.sharding)
        restored = dataclasses.replace(
            abstract_state,
            step=step_array,
            params=items["params"],
            opt_state=treedef.unflatten(leaves),
        )
        for name in ("params", "opt_state"):
            _check_fingerprint(name, getattr(restored, name), items["meta"]["fingerprints"])
        return Restored(restored, items["meta"])

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            target = self._root / UNREADABLE_DIRECTORY
            target.mkdir(parents=True, exist_ok=True)
            count = len(list(target.iterdir()))
            (self._directory / str(step)).rename(target / f"{step}_{count}")
        self._manager.reload()

    def _save_error(self, error: BaseException) -> CheckpointError:
        last_good = self._manager.latest_step()
        kept = "there is no earlier one"
        if last_good is not None:
            kept = f"the last good one is step {last_good}"
        return CheckpointError(
            f"a checkpoint could not be written to {self._directory} ({_first_line(error)}); "
            f"{kept}. Make room or fix the permissions, then run the same command again to continue"
        )


def load_params(
    workdir: epath.PathLike, step: str | int = "newest"
) -> tuple[parameters.Params, Mapping[str, Any], int]:
    """Returns a checkpoint's parameters (NumPy), meta item and step, to use the model.

    `step` is "newest", "best" (by the score that keep_best goes by), or a number.

    Raises:
      FileNotFoundError: if `workdir` holds no checkpoint, or not that one.
      ValueError: if `step` is none of these, or there is no score to find the best by.
      CheckpointError: if it cannot be read.
    """
    directory = _absolute(workdir) / DIRECTORY
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist; --checkpoint takes the workdir of a run of "
            "`python -m bertjax.train`"
        )
    with ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(read_only=True)
    ) as m:
        step = _chosen_step(m, directory, step)
        try:
            with _reading():
                meta = _read_meta(m, step)
                params = _read_params(directory / str(step) / "params")
                _check_fingerprint("params", params, meta["fingerprints"])
        except _UnreadableError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} in {directory} cannot be read ({error}); "
                "resuming the run would fall back to the one before it"
            ) from error
    return params, meta, step


def _chosen_step(manager: ocp.CheckpointManager, directory: epath.Path, wanted: str | int) -> int:
    steps = sorted(manager.all_steps())
    if not steps:
        raise FileNotFoundError(f"{directory} holds no complete checkpoint")
    if wanted == NEWEST:
        return steps[-1]
    if wanted == BEST:
        return _best_step(manager, directory, steps)
    if not str(wanted).isdecimal():
        raise ValueError(f"the step is {wanted!r}; it must be {NEWEST}, {BEST} or a number")
    if int(wanted) not in steps:
        kept = ", ".join(map(str, steps))
        raise FileNotFoundError(f"{directory} holds no checkpoint of step {wanted}; it has {kept}")
    return int(wanted)


def _best_step(manager: ocp.CheckpointManager, directory: epath.Path, steps: Sequence[int]) -> int:
    """Returns the step with the best score; of equal ones the earliest, as keep_best does."""
    scores = {step: _score(directory / str(step)) for step in steps}
    known = {step: score for step, score in scores.items() if score is not None}
    newest = _newest_meta(manager)
    if not known or newest is None:
        raise ValueError(
            f"no checkpoint in {directory} has a score, so none is the best: set the step to "
            f"{NEWEST} or to one of {', '.join(map(str, steps))}"
        )
    meta, _ = newest
    # Before 0.2 checkpoints did not tell: finetuning had scores, pretraining a loss.
    is_higher_better = meta.get("is_higher_better", meta["config"].get("task") == "finetuning")
    sign = -1 if is_higher_better else 1
    return min(known, key=lambda step: (sign * known[step], step))


def _score(checkpoint: epath.Path) -> float | None:
    """Returns the one number that keep_best goes by, None where nothing was evaluated."""
    try:
        (score,) = json.loads((checkpoint / "metrics" / "metrics").read_text()).values()
    except (OSError, ValueError, AttributeError):
        return None
    return score


def read_meta(workdir: epath.PathLike) -> tuple[Mapping[str, Any], int] | None:
    """Returns a workdir's newest readable meta item with its step, None without a checkpoint."""
    directory = _absolute(workdir) / DIRECTORY
    if not directory.exists():
        return None
    with ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(read_only=True)
    ) as manager:
        return _newest_meta(manager)


def _absolute(path: epath.PathLike) -> epath.Path:
    # orbax refuses relative paths; an address such as gs://bucket/run is none.
    path = epath.Path(path)
    return path if "://" in os.fspath(path) else path.absolute()


def _newest_meta(manager: ocp.CheckpointManager) -> tuple[Mapping[str, Any], int] | None:
    for step in sorted(manager.all_steps(), reverse=True):
        try:
            with _reading():
                return _read_meta(manager, step), step
        except _UnreadableError as error:
            logging.error("The meta item of step %d cannot be read: %s", step, error)
    return None


def _read_meta(manager: ocp.CheckpointManager, step: int) -> Mapping[str, Any]:
    items = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
    return items["meta"]


def _read_params(path: epath.Path) -> parameters.Params:
    if not path.exists():
        raise FileNotFoundError(f"item {path.name!r} is missing")
    with ocp.PyTreeCheckpointer() as checkpointer:
        saved = checkpointer.metadata(path).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        return checkpointer.restore(path, restore_args=as_numpy)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Raises _UnreadableError for what is wrong with a checkpoint, and nothing else."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        raise  # the device has no room; the checkpoint is not to blame
    except _STORAGE_ERRORS as error:
        raise _UnreadableError(_first_line(error)) from error
    except Exception as error:
        # orbax wraps whatever tensorstore raises for an array in a bare Exception.
        if type(error) is not Exception:
            raise
        raise _UnreadableError(_first_line(error.__cause__ or error)) from error


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {parameters.path_name(path): leaf for path, leaf in leaves}


@jax.jit
def _fingerprint(leaves: Sequence[jax.Array]) -> jax.Array:
    # Integer sums of the bit patterns: exact, so the same on every mesh. orbax has no checksum of
    # its own for array data, and a flipped bit would otherwise be trained on.
    sums = [
        jnp.sum(jax.lax.bitcast_convert_type(leaf, jnp.uint32), dtype=jnp.uint32) for leaf in leaves
    ]
    return jnp.stack(sums)


def _fingerprint_of(tree: Any) -> list[int]:
    return [int(value) for value in jax.device_get(_fingerprint(jax.tree.leaves(tree)))]


def _check_fingerprint(name: str, tree: Any, saved: Mapping[str, Sequence[int]]) -> None:
    if _fingerprint_of(tree) != list(saved[name]):
        raise ValueError(f"the values of item {name!r} are not those that were saved")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
