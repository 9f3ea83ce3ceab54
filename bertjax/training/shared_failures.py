"""Several processes: once one of them fails, all end.

A process that fails would leave the others at a collective, or at a barrier of orbax, which waits
for 20 minutes. JAX notices by itself when a process is lost, by its heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import jax
from absl import logging
from jax._src import distributed  # its client has no public name

from bertjax.training import agreement

POLL_SECONDS = 0.5
# In which a process may end by itself, with its own error. A spot machine gives half a minute.
GRACE_SECONDS = 10
# The service that all of them read belongs to process 0, which ends last.
GRACE_SECONDS_OF_FIRST = 13
EXIT_CODE = 1
FAILED = "bertjax/failed/"  # below it, what each process that failed says


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Ends this process soon after any process has failed, itself too; tells the others if it does.

    Does nothing where there is one process.
    """
    if jax.process_count() == 1:
        yield
        return
    is_over = threading.Event()
    # At its end JAX forgets what it knows of processes, so the watch asks nothing of it later.
    known = (distributed.global_state.client, jax.process_index(), jax.process_count(), is_over)
    threading.Thread(target=_watch, args=known, name="failures", daemon=True).start()
    try:
        yield
    except SystemExit:  # it stops as it should
        is_over.set()
        raise
    except BaseException as error:
        tell(error)  # and the watch goes on: what still has to end may wait for the others
        raise
    is_over.set()


def tell(error: BaseException) -> None:
    """Tells the other processes, if there are any, that this one ends with an error."""
    client = distributed.global_state.client
    if client is None or jax.process_count() == 1:
        return
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    key = f"{FAILED}{jax.process_index()}"
    try:
        client.key_value_set(key, said, allow_overwrite=True)
    except jax.errors.JaxRuntimeError as unheard:
        logging.warning("The other processes could not be told of the error: %s", unheard)


def _watch(client: agreement.KeyValues, process: int, count: int, is_over: threading.Event) -> None:
    while not (failed := _failed(client)):
        if is_over.wait(POLL_SECONDS):
            return
    time.sleep(GRACE_SECONDS if process else GRACE_SECONDS_OF_FIRST)
    if is_over.is_set():
        return
    said = (f"process {number}: {error}" for number, error in sorted(failed.items()))
    logging.error(
        "Ending, since one of %d processes failed (%s). To continue, run the same command on all",
        count, "; ".join(said),
    )  # fmt: skip
    _leave()


def _failed(client: agreement.KeyValues) -> dict[int, str]:
    """Returns what the processes that failed said, by their numbers."""
    try:
        found = client.key_value_dir_get(FAILED)
    except jax.errors.JaxRuntimeError:
        return {}  # where process 0 is lost, JAX ends this one
    return {int(key.rpartition("/")[2]): said for key, said in found}


def _leave() -> None:
    sys.stderr.flush()
    os._exit(EXIT_CODE)  # what the process waits for never comes
