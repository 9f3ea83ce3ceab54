"""Notices that the machine is about to be taken away: SIGTERM, or the platform's notice."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils

# EX_TEMPFAIL of sysexits.h: run the same command again.
EXIT_CODE = 75


class Preempted(Exception):
    """The run saved its state and stopped because it was told to."""

    def __init__(self, step: int):
        super().__init__(f"preempted: saved at step {step}; run the same command again to continue")
        self.step = step


class Notice:
    """Whether a preemption notice has come; all hosts agree on the step at which they act on it.

    One process listens for SIGTERM itself. With several, JAX's preemption service listens (for
    SIGTERM, the notice of Cloud TPU) and finds a step that every process has yet to reach.
    """

    def __init__(self):
        self._has_come = threading.Event()
        self._previous: Any = None

    def __enter__(self) -> Notice:
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def reached(self, step: int) -> bool:
        """Returns whether to save and stop now; every process must call it at every step."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._has_come.is_set()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        logging.warning("SIGTERM received: saving after this step")
        self._has_come.set()
