"""Notices that a run has to stop: SIGTERM, the platform's notice, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

import jax
from absl import logging

from bertjax import interruptions
from bertjax.training import agreement, shared_failures

EXIT_CODE = interruptions.EXIT_CODES[signal.SIGTERM]


class Preempted(Exception):
    """The run saved its state and stopped because it was told to."""

    def __init__(self, step: int, *, by_hand: bool = False):
        cause = "interrupted" if by_hand else "preempted"
        told = f"{cause}: saved at step {step}; run the same command again to continue"
        super().__init__(told if step else f"{cause} before step 1; run the same command again")
        self.step = step
        self.exit_code = interruptions.EXIT_CODES[signal.SIGINT if by_hand else signal.SIGTERM]


class Notice:
    """Whether a notice to stop has come; all processes agree on when they act on it.

    Every process listens for SIGTERM, which is the notice of the clouds and of Slurm, too. Of
    several, one that hears it is enough. Ctrl-C on any of them is such a notice; a second one ends
    that process at once.
    """

    def __init__(self):
        self._has_come = threading.Event()
        self.by_hand = False
        self._previous: dict[int, Any] = {}
        self._agreement = agreement.Agreement.of_run() if jax.process_count() > 1 else None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Notice:
        is_main = threading.current_thread() is threading.main_thread()
        if self._agreement is not None:
            self._exits.enter_context(self._agreement)
            if is_main:
                previous = signal.set_wakeup_fd(self._agreement.fileno(), warn_on_full_buffer=False)
                self._exits.callback(signal.set_wakeup_fd, previous)
            if interruptions.has_come():
                self._agreement.tell()
        if is_main:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._receive)
                self._exits.callback(signal.signal, number, self._previous[number])
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Preempted):
            shared_failures.tell(error)  # now: what is closed next may wait for the others
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
            logging.warning("SIGTERM received: saving after this step")
        self._has_come.set()
