"""Processes that compute one function over many items, in order and with bounded memory."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import process
from typing import Any, TypeVar

from bertjax.options import faults

Item = TypeVar("Item")
Result = TypeVar("Result")

# More than one per process, so that none waits while the next item is prepared.
ITEMS_PER_WORKER = 2


class WorkerDied(faults.RunError):
    """A process was killed from outside, most likely for want of memory."""


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """A context of processes; with one worker, everything happens in this process instead."""

    def __init__(self, num_workers: int, prepare: Callable[[], Any] | None = None):
        """Starts the processes; each calls `prepare` (to load what takes long) before its work."""
        self._num_workers = num_workers
        self._executor = None
        if num_workers > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                num_workers,
                # A fork would copy threads of libraries that do not survive it.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(prepare,),
            )
            # So that they start now, while this process still does something else.
            self._executor.submit(int)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yields `function` of every item in the order of the items.

        `function` must be picklable and importable. At most a few items are under way: however long
        `items` is, memory does not grow.

        Raises:
          WorkerDied: if a process was killed from outside, or could not start.
        """
        if self._executor is None:
            yield from map(function, items)
            return
        pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for item in items:
                pending.append(self._executor.submit(function, item))
                if len(pending) >= ITEMS_PER_WORKER * self._num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except process.BrokenProcessPool as error:
            raise WorkerDied(
                "a worker process died, most likely because the machine ran out of memory; give a "
                "smaller --num_workers and run the same command again: what is finished is kept "
                '(in a script of your own, call this under `if __name__ == "__main__":`)'
            ) from error


def _start(prepare: Callable[[], Any] | None) -> None:
    # Ctrl-C reaches all processes of a terminal; only the parent answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()


def _end_with_parent() -> None:
    """Ends this process when its parent has died, killed for example.

    Otherwise it would go on working during the next build, and then wait for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
