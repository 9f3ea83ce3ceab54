"""orbax's manager of checkpoints as we use it: what it is told, and what it gets wrong.

Which checkpoints stay, and what is in them, belongs to `checkpoint`.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging as std_logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from bertjax.data import atomic, mounts
from bertjax.workdirs import checkpoint_items as items

Kept = Callable[[Iterable[int]], set[int]]

LOOK_SECONDS = 5.0  # how often one looks at what it waits for


def _is_no_chatter(record: std_logging.LogRecord) -> bool:
    # orbax tells some forty lines a checkpoint and warns of its own options, through absl's logger
    # as we do. What fails reaches the user as an exception.
    return "/orbax/" not in record.pathname or record.levelno >= std_logging.ERROR


logging.get_absl_logger().addFilter(_is_no_chatter)


def make(directory: epath.Path, kept: Kept) -> ocp.CheckpointManager:
    """Returns the manager of a directory; `kept` tells which of its steps stay after a save.

    What an interrupted save left is removed first.

    Raises:
      UnreadableError: if the storage does not let it be looked for or removed.
    """
    _wait_for_nothing_out_of_sight()
    is_remote = atomic.is_remote(directory)
    if not is_remote:
        directory.mkdir(parents=True, exist_ok=True)
        if not mounts.is_like_a_disk(directory.parent):
            _use_no_locks_and_syncs()
        if jax.process_index() == 0:
            _remove_drafts(directory)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=_Kept(kept),
        # The loop decides when to save; orbax's own preemption check would need a call a step.
        save_decision_policy=policies.FixedIntervalPolicy(1),
        # orbax does so behind the back of who opens and closes it: the next one then trips over it.
        cleanup_tmp_directories=is_remote,
        create=True,
        # A store has its objects whole or not at all, and renames none.
        temporary_path_class=None if is_remote else _OnDisk,
        async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier_of_the_well()),
    )
    return _Manager(directory, options=options)


def _barrier_of_the_well() -> ocp.multihost.BarrierSyncFn:
    """Returns orbax's barrier, without the wait of a process that could not write its part.

    orbax lets such a one wait 20 minutes for the others, which wait for it elsewhere, before its
    error is seen. Once it is, the others are told (`training.preemption`).
    """
    wait = ocp.multihost.get_barrier_sync_fn()

    def barrier(*, key: str, timeout_ms: int) -> None:
        if sys.exception() is None:  # orbax waits inside `finally`
            wait(key=key, timeout_ms=timeout_ms)

    return barrier


@functools.cache
def _wait_for_nothing_out_of_sight() -> None:
    """Lets a process not wait for a directory that its disk does not let it see.

    orbax's processes wait up to 10 minutes for the one of array metadata, which process 0 makes.
    They ask whether it exists, and take any error of a disk for "no". In a bucket they wait as
    before: with the looking a stop took over 30 s there, without it 22 (tests.faults.soak --store).
    """
    try:
        store = ocp._src.metadata.array_metadata_store.Store
        waits = store._maybe_create_base_dir
    except AttributeError:
        return  # an orbax that waits in another way; a test says so

    async def looks_and_waits(self: Any, directory: epath.Path) -> None:
        if atomic.is_remote(directory):
            return await waits(self, directory)
        waiting = asyncio.ensure_future(waits(self, directory))
        try:
            while not (await asyncio.wait([waiting], timeout=LOOK_SECONDS))[0]:
                if directory.name in await asyncio.to_thread(items.names_in, directory.parent):
                    return  # writing there tells what is wrong
            await waiting
        finally:
            waiting.cancel()

    store._maybe_create_base_dir = looks_and_waits


@functools.cache
def _use_no_locks_and_syncs() -> None:
    """Lets orbax write where there are no locks and directories are not synced.

    tensorstore asks for both by itself, and orbax has no option for it. Files that are made or not
    stand for the locks: a draft has one writer. `_OnDisk` syncs all files of a checkpoint anyway.
    """
    utils = ocp._src.serialization.tensorstore_utils
    of_disks = utils.get_ts_context
    files = {"file_io_locking": {"mode": "lockfile"}, "file_io_sync": False}
    utils.get_ts_context = lambda **options: utils.ts.Context(files, parent=of_disks(**options))


def _remove_drafts(directory: epath.Path) -> None:
    for name in items.names_in(directory):
        if ocp.utils.TMP_DIR_SUFFIX in name:
            draft = directory / name
            items.again(functools.partial(draft.rmtree, missing_ok=True), str(draft))


class _Kept(policies.PreservationPolicy):
    """A function of the steps as a policy, which orbax asks after every save."""

    def __init__(self, kept: Kept):
        self._kept = kept

    def should_preserve(
        self,
        checkpoints: Sequence[policies.PolicyCheckpointInfo],
        *,
        context: policies.PreservationContext,
    ) -> list[bool]:
        del context
        stay = self._kept([info.step for info in checkpoints])
        return [info.step in stay for info in checkpoints]


class _Manager(ocp.CheckpointManager):
    """orbax's manager, which does not look for scores of its own at its start: we save none."""

    def metrics(self, step: int) -> None:
        del step


class _OnDisk(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """A checkpoint gets its name when all of it has reached the disk.

    orbax leaves its small files to the system: a power failure left whole names and empty files.
    """

    async def finalize(self) -> None:
        await asyncio.to_thread(_check_merged, self.get())
        await asyncio.to_thread(_sync_all, self.get())
        await super().finalize()
        await asyncio.to_thread(mounts.sync, self.get_final().parent)


def _check_merged(directory: epath.Path) -> None:
    """Raises OSError if arrays are not put together that each process wrote by itself.

    orbax takes a directory that it cannot list at that moment for one without arrays, and says
    nothing.
    """
    for path in (directory, *items.tree(directory)):
        own = path.name.startswith("ocdbt.process_")
        if own and not (path.parent / "manifest.ocdbt").exists():
            raise OSError(errno.EIO, "arrays were written and not put together", str(path.parent))


def _sync_all(directory: epath.Path) -> None:
    for path in (*items.tree(directory), directory):
        mounts.sync(path)
