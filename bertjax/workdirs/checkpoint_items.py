"""The items of one checkpoint as they lie in its directory: how they are read, what is damaged.

Reading is local: no process waits for another, so that each may read again. A reading that fails
says nothing of the checkpoint: disks and networks have bad moments. What is proven damaged, by its
content, is told by `damage`. Which checkpoints there are, and which stay, belongs to `checkpoint`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from bertjax.data import atomic
from bertjax.models import parameters

PARAMS, OPT_STATE, EMA, META = "params", "opt_state", "ema", "meta"
META_FILE = "metadata"  # of orbax's JSON items

# How long to wait before each further reading.
RETRY_SECONDS = (0.2, 1.0, 4.0)

# What orbax and tensorstore raise on torn, foreign or altered files and on failed writes; reading
# has one more, see `_reading`.
STORAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError)

# How tensorstore tells what the system, or a store, did not let it do.
_OF_THE_STORAGE = re.compile(
    r"\[OS error (?P<number>\d+)|\b(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED"
    r"|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)
# A file that is not there, or is something else, is no passing error.
_OF_THE_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

EVALUATION_FILE = "evaluation.json"  # beside the items, once the checkpoint was evaluated

T = TypeVar("T")


class UnreadableError(OSError):
    """An item could not be read; the message says why in one line.

    `is_of_storage` tells an error of a disk or a network, which may pass, from one of the content.
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
    """What the evaluation of a checkpoint found.

    `score` is the value of `metric`, by which the best is chosen, None where it was no number.
    `tuned` are the numbers that the model's answers go by from then on.
    """

    metric: str
    score: float | None
    tuned: Mapping[str, float]


def again(read: Callable[[], T], what: str) -> T:
    """Returns what `read` returns, which is called again, after waiting, where it cannot read.

    Raises:
      UnreadableError: if it never can, naming `what`.
    """
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
    """Returns the names of what is in a directory, none where there is no such directory.

    Unlike `exists`, which takes an error of the disk for "no".

    Raises:
      UnreadableError: if the storage does not let it be listed.
    """

    def listed() -> set[str]:
        try:
            return {path.name for path in directory.iterdir()}
        except FileNotFoundError:
            return set()

    return again(listed, str(directory))


def read_json(path: epath.Path) -> Any:
    """Returns the content of a JSON file.

    Raises:
      UnreadableError: if there is none, or it cannot be read, or is no JSON; names the file.
    """
    return again(lambda: json.loads(path.read_text()), str(path))


def read_evaluation(directory: epath.Path) -> Evaluation | None:
    """Returns what was found when the checkpoint was evaluated, None where it was not.

    A file whose content is no such thing is reported, and counts as none.

    Raises:
      UnreadableError: if the storage does not let it be read.
    """
    try:
        if EVALUATION_FILE in names_in(directory):
            return Evaluation(**read_json(directory / EVALUATION_FILE))
    except (UnreadableError, TypeError) as error:
        if isinstance(error, UnreadableError) and error.is_of_storage:
            raise
        logging.warning("The scores of a checkpoint are left out: %s: %s", directory, error)
    return None


def write_evaluation(directory: epath.Path, found: Evaluation) -> None:
    """Writes what `read_evaluation` reads, whole or not at all."""
    text = json.dumps(dataclasses.asdict(found), allow_nan=False)
    atomic.write(directory / EVALUATION_FILE, text + "\n")


def read_meta(directory: epath.Path) -> Mapping[str, Any]:
    """Returns the meta item, with what an evaluation tuned after it was saved.

    Raises:
      UnreadableError: as `read_json`, and where it is not one of ours.
    """
    path = directory / META / META_FILE
    meta = read_json(path)
    if not isinstance(meta, dict) or not {"config", "fingerprints"} <= meta.keys():
        raise UnreadableError(f"{path} is no meta item of bertjax")
    evaluation = read_evaluation(directory)
    if evaluation is not None and evaluation.tuned:
        meta["tuned"] = {**meta.get("tuned", {}), **evaluation.tuned}
    return meta


def read_params(
    directory: epath.Path, fingerprints: Mapping[str, Sequence[int]], name: str = PARAMS
) -> Any:
    """Returns the parameters as NumPy arrays, or with the `name` EMA their average.

    Raises:
      UnreadableError: if they cannot be read, or are not those that were saved.
    """
    return _read_arrays(directory, name, fingerprints)


def restore(directory: epath.Path, abstract_state: Any) -> Restored:
    """Returns the training state on its devices, as `abstract_state` has shapes and shardings.

    Whether the values are those that were saved is not known before `check_fingerprints`.

    Raises:
      UnreadableError: if an item cannot be read, or does not fit `abstract_state`.
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
    """Computes on the devices whether the values are those that were saved; all processes call it.

    Raises:
      UnreadableError: if they are not.
    """
    for name in (PARAMS, OPT_STATE, EMA):
        if (tree := getattr(restored.state, name, None)) is not None:
            _check_fingerprint(name, tree, restored.meta["fingerprints"])


def damage(directory: epath.Path) -> str | None:
    """Returns what is wrong with the content of a checkpoint, None where it is whole.

    It is read to its end on the host, by this process alone.

    Raises:
      UnreadableError: if the storage does not let it be read, so that nothing is known.
    """
    try:
        meta = read_meta(directory)
        for name in meta["fingerprints"]:
            _read_arrays(directory, name, meta["fingerprints"])
    except UnreadableError as error:
        if error.is_of_storage:
            raise
        # tensorstore does not always say what the system said: read the bytes as well.
        for path in tree(directory):
            if path.is_file():
                again(lambda path=path: _read_through(path), str(path))
        return str(error)
    return None


def tree(directory: epath.Path) -> Iterator[epath.Path]:
    """Yields all that is in a directory and below.

    Raises:
      OSError: if something cannot be looked at.
    """
    for path in directory.iterdir():
        yield path
        if not path.is_file():  # what could not be looked at is an error when it is listed
            yield from tree(path)


def fingerprint(tree: Any) -> list[int]:
    """Returns a number for every array, which another bit anywhere in it changes.

    Arrays of the host are summed there: a device that trains may have no room for another state.
    """
    leaves = jax.tree.leaves(tree)
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return [_bit_sum(leaf) for leaf in leaves]
    return [int(value) for value in jax.device_get(_fingerprints(leaves))]


def flat_by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves by their paths, as the optimizer's state is saved."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {parameters.path_name(path): leaf for path, leaf in leaves}


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, its type without one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
    """Raises UnreadableError for what is wrong with a checkpoint, and nothing else."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, UnreadableError):
        raise  # of the first the device has no room; the checkpoint is not to blame
    except STORAGE_ERRORS as error:
        raise _unreadable(what, error) from error
    except Exception as error:
        # orbax wraps whatever tensorstore raises for an array in a bare Exception.
        if type(error) is not Exception:
            raise
        raise _unreadable(what, error.__cause__ or error) from error


def _unreadable(what: str, error: BaseException) -> UnreadableError:
    is_of_storage = _is_of_storage(error)
    return UnreadableError(f"{what}: {first_line(error)}", is_of_storage=is_of_storage)


def _is_of_storage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in _OF_THE_CONTENT
    found = _OF_THE_STORAGE.search(str(error))
    if found is None:
        return False
    return found["number"] is None or int(found["number"]) not in _OF_THE_CONTENT


def _bit_sum(array: np.ndarray) -> int:
    words = np.dtype(f"uint{8 * array.dtype.itemsize}")
    return int(np.ascontiguousarray(array).view(words).sum(dtype=np.uint32))


@jax.jit
def _fingerprints(leaves: Sequence[jax.Array]) -> jax.Array:
    # Integer sums of the bit patterns: exact, so the same on every mesh. orbax has no checksum of
    # its own for array data, and a flipped bit would otherwise be trained on.
    def bit_sum(leaf: jax.Array) -> jax.Array:
        words = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")  # moments may have 16 bits
        return jnp.sum(jax.lax.bitcast_convert_type(leaf, words), dtype=jnp.uint32)

    return jnp.stack([bit_sum(leaf) for leaf in leaves])


def _check_fingerprint(name: str, tree: Any, saved: Mapping[str, Sequence[int]]) -> None:
    if fingerprint(tree) != list(saved[name]):
        raise UnreadableError(f"the values of item {name!r} are not those that were saved")
