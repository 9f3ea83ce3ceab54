"""Notices that a run has to stop: SIGTERM, the platform's notice, Ctrl-C."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils

from bertjax import interruptions

EXIT_CODE = interruptions.EXIT_CODES[signal.SIGTERM]


class Preempted(Exception):
    """The run saved its state and stopped because it was told to."""

    def __init__(self, step: int, *, by_hand: bool = False):
        cause = "interrupted" if by_hand else "preempted"
        super().__init__(f"{cause}: saved at step {step}; run the same command again to continue")
        self.step = step
        self.exit_code = interruptions.EXIT_CODES[signal.SIGINT if by_hand else signal.SIGTERM]


class Notice:
    """Whether a notice to stop has come; all hosts agree on when they act on it.

    One process listens for SIGTERM itself. With several, JAX's preemption service listens (for
    SIGTERM, the notice of Cloud TPU) and finds a moment that every process has yet to reach. Ctrl-C
    on any of them is such a notice, too; a second one ends that process at once.
    """

    def __init__(self):
        self._has_come = threading.Event()
        self.by_hand = False
        self._previous: dict[int, Any] = {}
        self._moments = itertools.count(1)

    def __enter__(self) -> Notice:
        if threading.current_thread() is threading.main_thread():
            ours = (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else (signal.SIGINT,)
            for number in ours:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def reached(self) -> bool:
        """Returns whether to save and stop now.

        Every process must call it equally often: after every step and every batch of an evaluation.
        """
        moment = next(self._moments)
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(moment)
        return self._has_come.is_set()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self.by_hand:  # a program leaves, a notebook raises KeyboardInterrupt
                previous = self._previous[signum]
                (previous if callable(previous) else signal.default_int_handler)(signum, frame)
            self.by_hand = True
            logging.warning("Ctrl-C: saving after this step; a second one stops at once")
            if jax.process_count() > 1:
                os.kill(os.getpid(), signal.SIGTERM)  # which JAX tells the other processes
        else:
            logging.warning("SIGTERM received: saving after this step")
        self._has_come.set()
