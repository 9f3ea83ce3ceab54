"""How a run stops: after a signal, and together with the other processes of the run.

All processes stop at one moment, once any of them got a signal (`Agreement`), and all end soon
after one of them fails (`failures_watched`). A failed process would leave the others at a
collective, or at a barrier of orbax, which waits for 20 minutes. JAX notices by its heartbeat when
a process is lost.

JAX's preemption service agrees on a moment, too, and is not used: it counts by the last number that
anybody gave it, and orbax gives it the step at every save. In a resumed run that is far ahead of
the count of moments, so the run went on for as many steps as it had made before.
Source: ComputeSyncCallCounter in xla/tsl/distributed_runtime/preemption/preemption_sync_manager.cc.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import jax
from absl import logging
from jax._src import distributed  # its client has no public name

from bertjax.cli import interruptions

EXIT_CODE = interruptions.EXIT_CODES[signal.SIGTERM]
FAILURE_EXIT_CODE = 1

POLL_SECONDS = 0.5
# Time for a process to end by itself, with its own error. A spot machine gives half a minute.
GRACE_SECONDS = 10
# Process 0 ends last: it runs the service that all of them read.
GRACE_SECONDS_OF_FIRST = 13

SIGNALLED = "bertjax/signalled/"  # below it, the processes that got a signal to stop
FAILED = "bertjax/failed/"  # below it, the error of each process that failed
_CLOSING = 0  # no signal has this number
_STOPPING = frozenset(interruptions.EXIT_CODES)


class Preempted(Exception):
    """The run got a signal, saved its state and stopped."""

    def __init__(self, step: int, *, by_hand: bool = False):
        cause = "interrupted" if by_hand else "preempted"
        saved = f"{cause}: saved at step {step}; run the same command again to continue"
        super().__init__(saved if step else f"{cause} before step 1; run the same command again")
        self.step = step
        self.exit_code = interruptions.EXIT_CODES[signal.SIGINT if by_hand else signal.SIGTERM]


class Notice:
    """Whether a signal to stop has come; all processes agree on when they act on it.

    Every process listens for the signals of `interruptions.EXIT_CODES` that it does not ignore. One
    process that gets one is enough. Ctrl-C on any of them is such a notice; a second one ends that
    process at once.
    """

    def __init__(self):
        self._has_come = threading.Event()
        self.by_hand = False
        self._previous: dict[int, Any] = {}
        self._agreement = Agreement.of_run() if jax.process_count() > 1 else None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Notice:
        is_main = threading.current_thread() is threading.main_thread()
        if self._agreement is not None:
            self._exits.enter_context(self._agreement)
            if is_main:
                previous = signal.set_wakeup_fd(self._agreement.fileno(), warn_on_full_buffer=False)
                self._exits.callback(signal.set_wakeup_fd, previous)
            if interruptions.notice_recorded():
                self._agreement.report_signal()
        if is_main:
            for number in interruptions.received_signals():
                self._previous[number] = signal.signal(number, self._receive)
                self._exits.callback(signal.signal, number, self._previous[number])
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Preempted):
            report_failure(error)  # now: what is closed next may wait for the others
        self._exits.close()

    def reached(self) -> bool:
        """Returns whether to save and stop now.

        Every process must call it equally often: after every step and every batch of an evaluation.
        """
        return self._agreement.reached() if self._agreement else self._has_come.is_set()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self.by_hand:  # a program leaves, a notebook raises KeyboardInterrupt
                previous = self._previous[signum]
                (previous if callable(previous) else signal.default_int_handler)(signum, frame)
            self.by_hand = True
            logging.warning("Ctrl-C: saving after this step; a second one stops at once")
        else:
            logging.warning("%s received: saving after this step", signal.Signals(signum).name)
        self._has_come.set()


class KeyValues(Protocol):
    """Values that all processes can read: the part of JAX's distributed client that is used."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


class Agreement:
    """The moment at which every process stops, counted from the first signal that one gets.

    A thread listens in every process. Once it learns that any process got a signal, it publishes
    the number of moments that its process has reached, and holds the process there until all have
    published theirs. All stop at the moment after the largest. No thread waits for a busy process:
    a step that compiles delays nothing.
    """

    _numbers = itertools.count()  # every process makes its agreements in the same order

    def __init__(self, client: KeyValues, process: int, count: int, number: int):
        self._client = client
        self._process, self._count = process, count
        self._moments = f"bertjax/moments_{number}/"
        self._moment, self._last = 0, math.inf
        self._lock = threading.Lock()
        self._sender, self._receiver = socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.settimeout(POLL_SECONDS)
        self._thread = threading.Thread(target=self._listen, name="agreement", daemon=True)

    @classmethod
    def of_run(cls) -> Agreement:
        """Returns the agreement of this process with the others of `jax.distributed`."""
        client: Any = distributed.global_state.client
        return cls(client, jax.process_index(), jax.process_count(), next(cls._numbers))

    def __enter__(self) -> Agreement:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.send(bytes([_CLOSING]))
        self._thread.join(timeout=10)  # a lost process 0 would leave it waiting
        if not self._thread.is_alive():
            self._sender.close()
            self._receiver.close()

    def fileno(self) -> int:
        """Returns the descriptor for `signal.set_wakeup_fd`: a signal counts even in a step."""
        return self._sender.fileno()

    def report_signal(self) -> None:
        """Reports a signal to this process, as the descriptor does."""
        self._sender.send(bytes([signal.SIGTERM]))

    def reached(self) -> bool:
        """Counts a moment; returns whether it is the one to stop at, or a later one."""
        with self._lock:
            self._moment += 1
            return self._moment >= self._last

    def _listen(self) -> None:
        while True:
            received = self._received()
            if not _STOPPING.isdisjoint(received):
                self._set(f"{SIGNALLED}{self._process}", "")
            if _CLOSING in received:
                with self._lock:
                    self._write_moment()  # or the others would wait for it
                return
            if self._all_below(SIGNALLED):
                self._agree()
                return

    def _received(self) -> bytes:
        try:
            return self._receiver.recv(64)
        except TimeoutError:
            return b""

    def _agree(self) -> None:
        with self._lock:
            self._write_moment()
            while len(moments := self._all_below(self._moments)) < self._count:
                time.sleep(POLL_SECONDS / 10)
            self._last = max(map(int, moments)) + 1

    def _write_moment(self) -> None:
        self._set(f"{self._moments}{self._process}", str(self._moment))

    def _set(self, key: str, value: str) -> None:
        self._until_answered(lambda: self._client.key_value_set(key, value, allow_overwrite=True))

    def _all_below(self, directory: str) -> list[str]:
        pairs = self._until_answered(lambda: self._client.key_value_dir_get(directory))
        return [value for _, value in pairs]

    def _until_answered(self, call: Callable[[], Any]) -> Any:
        """Returns the result of a call of the service, once it answers.

        If it never does, JAX ends the process, which has lost its heartbeat.
        """
        while True:
            try:
                return call()
            except jax.errors.JaxRuntimeError as error:
                logging.warning("Process 0 does not answer; asking again: %s", error)
                time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def failures_watched() -> Iterator[None]:
    """Ends this process soon after any process has failed; reports its own failure to the others.

    Does nothing in a run of one process.
    """
    if jax.process_count() == 1:
        yield
        return
    is_over = threading.Event()
    # At its end JAX forgets what it knows of processes, so the watch asks nothing of it later.
    facts = (distributed.global_state.client, jax.process_index(), jax.process_count(), is_over)
    threading.Thread(target=_watch, args=facts, name="failures", daemon=True).start()
    try:
        yield
    except SystemExit:  # it stops as it should
        is_over.set()
        raise
    except BaseException as error:
        report_failure(error)  # and the watch goes on: what still has to end may wait for others
        raise
    is_over.set()


def report_failure(error: BaseException) -> None:
    """Reports to the other processes, if there are any, that this one ends with an error."""
    client = distributed.global_state.client
    if client is None or jax.process_count() == 1:
        return
    message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    key = f"{FAILED}{jax.process_index()}"
    try:
        client.key_value_set(key, message, allow_overwrite=True)
    except jax.errors.JaxRuntimeError as unsent:
        logging.warning("The error could not be reported to the other processes: %s", unsent)


def _watch(client: KeyValues, process: int, count: int, is_over: threading.Event) -> None:
    while not (failures := _failures(client)):
        if is_over.wait(POLL_SECONDS):
            return
    time.sleep(GRACE_SECONDS if process else GRACE_SECONDS_OF_FIRST)
    if is_over.is_set():
        return
    messages = (f"process {number}: {error}" for number, error in sorted(failures.items()))
    logging.error(
        "Ending, since one of %d processes failed (%s). To continue, run the same command on all",
        count, "; ".join(messages),
    )  # fmt: skip
    _leave()


def _failures(client: KeyValues) -> dict[int, str]:
    """Returns the errors of the processes that failed, by their numbers."""
    try:
        pairs = client.key_value_dir_get(FAILED)
    except jax.errors.JaxRuntimeError:
        return {}  # where process 0 is lost, JAX ends this one
    return {int(key.rpartition("/")[2]): message for key, message in pairs}


def _leave() -> None:
    sys.stderr.flush()
    os._exit(FAILURE_EXIT_CODE)  # what the process waits for never comes
