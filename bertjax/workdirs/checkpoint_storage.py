"""Checkpoints on disk: orbax's manager, the items of one checkpoint, and proof of damage.

Reading is local: no process waits for another, so each may read again. A failed read says nothing
about the checkpoint, since disks and networks fail for moments; `damage` proves it by the content.
Which checkpoints stay, and which one a run resumes from, is decided in `checkpoint`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import json
import logging as std_logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from bertjax import config as config_lib
from bertjax.files import atomic, json_text, mounts, opening
from bertjax.models import parameters
from bertjax.options import schema

PARAMS, OPT_STATE, EMA, META = "params", "opt_state", "ema", "meta"
META_FILE = "metadata"  # of orbax's JSON items
EVALUATION_FILE = "evaluation.json"  # in the checkpoint's directory, once it was evaluated

RETRY_SECONDS = (0.2, 1.0, 4.0)  # waits before a failed read is repeated
LOOK_SECONDS = 5.0  # how often a process checks whether what it waits for can still be seen

# Errors that orbax and tensorstore raise on torn, foreign or altered files and on failed writes.
# Reading has one more, see `_reading`.
STORAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError)

# tensorstore's reports of errors of the system or of a store.
_OF_THE_STORAGE = re.compile(
    r"\[OS error (?P<number>\d+)|\b(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED"
    r"|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)
# A file that is missing, or is a directory, is a fault of the content.
_OF_THE_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

T = TypeVar("T")


def _is_not_chatter(record: std_logging.LogRecord) -> bool:
    # orbax logs some forty lines a checkpoint, and warnings about its own options, through absl's
    # logger as we do. Failures reach the user as exceptions.
    return "/orbax/" not in record.pathname or record.levelno >= std_logging.ERROR


logging.get_absl_logger().addFilter(_is_not_chatter)


# The fields that a meta item may have.
_META = {
    "fingerprints": {"*": tuple},
    "identity": {"manifests": {"*": str}},
    "skipped": {"*": int},
    "sums": {"*": tuple},
    "words": int,
    "word_marks": tuple,
    "tuned": {"*": float},
    "versions": {},
    "finetuned": {"head": str},
    "converted": {
        **dict.fromkeys(("head", "model_type", "pooling", "source"), str),
        **{"labels": {"*": str}, "sentence_vectors": {}},
        **{"is_regression": bool, "is_multi_label": bool},
    },
    "teacher_sha256": str,
    "is_higher_better": bool,
}


class UnreadableError(OSError):
    """An item could not be read; the message says why in one line.

    `is_of_storage` marks errors of a disk or a network, which may pass; others are of the content.
    """

    def __init__(self, message: str, *, is_of_storage: bool = False):
        super().__init__(message)
        self.is_of_storage = is_of_storage


@dataclasses.dataclass(frozen=True)
class Restored:
    """A training state as it was saved, with its meta item."""

    state: Any
    meta: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of a checkpoint.

    `score` is the value of `metric`, by which the best checkpoint is chosen, None if not finite.
    `tuned` are the numbers, such as thresholds, that later predictions use.
    """

    metric: str
    score: float | None
    tuned: Mapping[str, float]


def again(read: Callable[[], T], what: str) -> T:
    """Returns what `read` returns; a read that fails is repeated after each of RETRY_SECONDS."""
    for wait in RETRY_SECONDS:
        try:
            with _reading(what):
                return read()
        except UnreadableError as error:
            logging.warning("%s; reading it again in %g s", error, wait)
            time.sleep(wait)
    with _reading(what):
        return read()


def names_in(directory: epath.Path) -> set[str]:
    """Returns the names in a directory, the empty set if it does not exist.

    Unlike `exists`, which takes an error of the disk for "no".
    """

    def listed() -> set[str]:
        try:
            return {path.name for path in directory.iterdir()}
        except FileNotFoundError:
            return set()

    return again(listed, str(directory))


def read_json(path: epath.Path) -> Any:
    """Returns the content of a JSON file."""
    return again(lambda: json_text.loads(opening.read(path)), str(path))


def read_evaluation(directory: epath.Path) -> Evaluation | None:
    """Returns the checkpoint's evaluation, None if it was not evaluated or the file is damaged.

    A damaged file is logged.
    """
    try:
        if EVALUATION_FILE in names_in(directory):
            return Evaluation(**read_json(directory / EVALUATION_FILE))
    except (UnreadableError, TypeError) as error:
        if isinstance(error, UnreadableError) and error.is_of_storage:
            raise
        logging.warning("The scores of a checkpoint are left out: %s: %s", directory, error)
    return None


def write_evaluation(directory: epath.Path, evaluation: Evaluation) -> None:
    """Writes the file that `read_evaluation` reads, whole or not at all."""
    text = json.dumps(dataclasses.asdict(evaluation), allow_nan=False)
    atomic.write(directory / EVALUATION_FILE, text + "\n")


def read_meta(directory: epath.Path) -> Mapping[str, Any]:
    """Returns the meta item, with the numbers that an evaluation tuned after the save."""
    path = directory / META / META_FILE
    meta = read_json(path)
    if not isinstance(meta, dict) or not {"config", "fingerprints"} <= meta.keys():
        raise UnreadableError(f"{path} is not a meta item of bertjax")
    faults = [*schema.faults(meta, _META, "meta"), *config_lib.type_faults(meta["config"])]
    if faults:
        listed = "; ".join(map(str, faults))
        raise UnreadableError(f"{path} is not a meta item of bertjax: {listed}")
    evaluation = read_evaluation(directory)
    if evaluation is not None and evaluation.tuned:
        meta["tuned"] = {**meta.get("tuned", {}), **evaluation.tuned}
    return meta


def read_params(
    directory: epath.Path, fingerprints: Mapping[str, Sequence[int]], name: str = PARAMS
) -> Any:
    """Returns the parameters as NumPy arrays; with the `name` EMA, their average."""
    return _read_arrays(directory, name, fingerprints)


def restore(directory: epath.Path, abstract_state: Any) -> Restored:
    """Returns the training state on devices, with the shapes and shardings of `abstract_state`.

    Only `check_fingerprints` tells whether the values are those that were saved.
    """
    meta = read_meta(directory)
    params = _restored(directory / PARAMS, abstract_state.params)
    by_path = _restored(directory / OPT_STATE, flat_by_path(abstract_state.opt_state))
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
    leaves = [by_path[parameters.path_name(path)] for path, _ in paths]
    step = jnp.asarray(int(directory.name), jnp.int32)
    average = {}
    if (abstract := getattr(abstract_state, EMA, None)) is not None:
        average = {EMA: _restored(directory / EMA, abstract)}
    restored = dataclasses.replace(
        abstract_state,
        **average,
        step=jax.device_put(step, abstract_state.step.sharding),
        params=params,
        opt_state=treedef.unflatten(leaves),
    )
    return Restored(restored, meta)


def check_fingerprints(restored: Restored) -> None:
    """Checks on the devices that the values are those that were saved; all processes call it."""
    for name in (PARAMS, OPT_STATE, EMA):
        if (tree := getattr(restored.state, name, None)) is not None:
            _check_fingerprint(name, tree, restored.meta["fingerprints"])


def damage(directory: epath.Path) -> str | None:
    """Returns the damage of a checkpoint's content in words, None if it is whole.

    This process alone reads it to its end, on the host.
    """
    try:
        meta = read_meta(directory)
        for name in meta["fingerprints"]:
            _read_arrays(directory, name, meta["fingerprints"])
    except UnreadableError as error:
        if error.is_of_storage:
            raise
        # tensorstore does not always repeat the error of the system: read the bytes as well.
        for path in tree(directory):
            if path.is_file():
                again(lambda path=path: _read_through(path), str(path))
        return str(error)
    return None


def tree(directory: epath.Path) -> Iterator[epath.Path]:
    """Yields all paths below a directory."""
    for path in directory.iterdir():
        yield path
        if not path.is_file():  # listing raises if the path cannot be read
            yield from tree(path)


def fingerprint(tree: Any) -> list[int]:
    """Returns a number for every array that changes with each of its bits.

    Arrays on the host are summed there: a device that trains may have no room for a second state.
    """
    leaves = jax.tree.leaves(tree)
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        words = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in leaves]
        return [int(bits.sum(dtype=np.uint32)) for bits in words]
    return [int(value) for value in jax.device_get(_fingerprints(leaves))]


def flat_by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves by their paths, the form in which the optimizer's state is saved."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {parameters.path_name(path): leaf for path, leaf in leaves}


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def make_manager(
    directory: epath.Path, retained: Callable[[Iterable[int]], set[int]]
) -> ocp.CheckpointManager:
    """Returns orbax's manager of a directory; `retained` chooses the steps that stay after a save.

    Drafts of interrupted saves are removed first.
    """
    _do_not_wait_for_unlistable_directories()
    is_remote = atomic.is_remote(directory)
    if not is_remote:
        directory.mkdir(parents=True, exist_ok=True)
        if not mounts.is_like_a_disk(directory.parent):
            _disable_locks_and_syncs()
        names = names_in(directory) if jax.process_index() == 0 else ()
        for draft in (directory / name for name in names if ocp.utils.TMP_DIR_SUFFIX in name):
            again(functools.partial(draft.rmtree, missing_ok=True), str(draft))
    options = ocp.CheckpointManagerOptions(
        preservation_policy=_Retention(retained),
        # The loop decides when to save; orbax's own preemption check would need a call a step.
        save_decision_policy=policies.FixedIntervalPolicy(1),
        # orbax cleans up in the background, which breaks the next manager of the directory.
        cleanup_tmp_directories=is_remote,
        create=True,
        # A store has its objects whole or not at all, and renames none.
        temporary_path_class=None if is_remote else _OnDisk,
        async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier_unless_failing()),
    )
    return _Manager(directory, options=options)


def _restored(path: epath.Path, abstract: Any) -> Any:
    arguments = ocp.args.StandardRestore(abstract)  # pyright: ignore[reportCallIssue]

    def read() -> Any:
        _check_is_there(path)
        # A handler by itself: a checkpointer would wait for the other processes.
        return ocp.StandardCheckpointHandler().restore(path, args=arguments)

    return again(read, str(path))


def _read_arrays(
    directory: epath.Path, name: str, fingerprints: Mapping[str, Sequence[int]]
) -> Any:
    path = directory / name

    def read() -> Any:
        _check_is_there(path)
        handler = ocp.PyTreeCheckpointHandler()
        saved = handler.metadata(path).tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        arguments = ocp.args.PyTreeRestore(restore_args=as_numpy)  # pyright: ignore[reportCallIssue]
        return handler.restore(path, args=arguments)

    tree = again(read, str(path))
    _check_fingerprint(name, tree, fingerprints)
    return tree


def _check_is_there(path: epath.Path) -> None:
    try:
        next(path.iterdir(), None)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"item {path.name!r} is missing") from None


def _read_through(path: epath.Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raises UnreadableError for faults of a checkpoint; other errors pass."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, UnreadableError):
        raise  # a JaxRuntimeError means a full device, not a bad checkpoint
    except STORAGE_ERRORS as error:
        raise _unreadable(what, error) from error
    except Exception as error:
        # orbax wraps whatever tensorstore raises for an array in a bare Exception.
        if type(error) is not Exception:
            raise
        raise _unreadable(what, error.__cause__ or error) from error


def _unreadable(what: str, error: BaseException) -> UnreadableError:
    if isinstance(error, OSError) and error.errno is not None:
        is_of_storage = error.errno not in _OF_THE_CONTENT
    else:
        match = _OF_THE_STORAGE.search(str(error))
        number = match and match["number"]
        is_of_storage = bool(match) and not (number and int(number) in _OF_THE_CONTENT)
    return UnreadableError(f"{what}: {first_line(error)}", is_of_storage=is_of_storage)


@jax.jit
def _fingerprints(leaves: Sequence[jax.Array]) -> jax.Array:
    # Integer sums of the bit patterns are exact, so the same on every mesh. orbax has no checksum
    # for array data, and training would go on with a flipped bit.
    def bit_sum(leaf: jax.Array) -> jax.Array:
        words = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")  # moments may have 16 bits
        return jnp.sum(jax.lax.bitcast_convert_type(leaf, words), dtype=jnp.uint32)

    return jnp.stack([bit_sum(leaf) for leaf in leaves])


def _check_fingerprint(name: str, tree: Any, saved: Mapping[str, Sequence[int]]) -> None:
    if fingerprint(tree) != list(saved[name]):
        raise UnreadableError(f"the values of item {name!r} are not those that were saved")


def _barrier_unless_failing() -> ocp.multihost.BarrierSyncFn:
    """Returns orbax's barrier, which a process skips whose own write failed.

    orbax would let that process wait 20 minutes for the others, which wait for it elsewhere, before
    its error is raised. `training.preemption` then stops the others.
    """
    wait = ocp.multihost.get_barrier_sync_fn()

    def barrier(*, key: str, timeout_ms: int) -> None:
        if sys.exception() is None:  # orbax waits inside `finally`
            wait(key=key, timeout_ms=timeout_ms)

    return barrier


@functools.cache
def _do_not_wait_for_unlistable_directories() -> None:
    """Stops orbax's wait for a directory that the disk does not list.

    Processes wait up to 10 minutes for the directory of array metadata, which process 0 makes. They
    ask whether it exists, and take any error of a disk for "no". Buckets keep orbax's wait: with
    the extra look a stop took over 30 s there, without it 22 (tests.faults.soak --store).
    """
    try:
        store = ocp._src.metadata.array_metadata_store.Store
        waits = store._maybe_create_base_dir
    except AttributeError:
        return  # another version of orbax; a test notices

    async def looks_and_waits(self: Any, directory: epath.Path) -> None:
        if atomic.is_remote(directory):
            return await waits(self, directory)
        waiting = asyncio.ensure_future(waits(self, directory))
        try:
            while not (await asyncio.wait([waiting], timeout=LOOK_SECONDS))[0]:
                if directory.name in await asyncio.to_thread(names_in, directory.parent):
                    return  # writing there raises the error
            await waiting
        finally:
            waiting.cancel()

    store._maybe_create_base_dir = looks_and_waits


@functools.cache
def _disable_locks_and_syncs() -> None:
    """Lets orbax write on mounts without locks and without synced directories.

    tensorstore uses both by default, and orbax has no option for it. Lock files replace the locks:
    a draft has one writer. `_OnDisk` syncs all files of a checkpoint anyway.
    """
    utils = ocp._src.serialization.tensorstore_utils
    context = utils.get_ts_context
    files = {"file_io_locking": {"mode": "lockfile"}, "file_io_sync": False}
    utils.get_ts_context = lambda **options: utils.ts.Context(files, parent=context(**options))


class _Retention(policies.PreservationPolicy):
    """A function of the steps as a policy, which orbax asks after every save."""

    def __init__(self, retained: Callable[[Iterable[int]], set[int]]):
        self._retained = retained

    def should_preserve(
        self,
        checkpoints: Sequence[policies.PolicyCheckpointInfo],
        *,
        context: policies.PreservationContext,
    ) -> list[bool]:
        del context
        retained = self._retained([info.step for info in checkpoints])
        return [info.step in retained for info in checkpoints]


class _Manager(ocp.CheckpointManager):
    """orbax's manager without the scores that it would look for at its start: we save none."""

    def metrics(self, step: int) -> None:
        del step


class _OnDisk(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """A checkpoint that gets its name once all of it has reached the disk.

    orbax does not sync its small files: a power failure left complete names and empty files.
    """

    async def finalize(self) -> None:
        await asyncio.to_thread(_check_merged_and_sync, self.get())
        await super().finalize()
        await asyncio.to_thread(mounts.sync, self.get_final().parent)


def _check_merged_and_sync(directory: epath.Path) -> None:
    """Syncs all paths; raises OSError if the arrays that each process wrote were not merged.

    orbax takes a directory that it cannot list for one without arrays, without an error.
    """
    paths = [*tree(directory), directory]
    for path in paths:
        is_unmerged = path.name.startswith("ocdbt.process_")
        if is_unmerged and not (path.parent / "manifest.ocdbt").exists():
            message = "the arrays of the processes were not merged"
            raise OSError(errno.EIO, message, str(path.parent))
    for path in paths:
        mounts.sync(path)
