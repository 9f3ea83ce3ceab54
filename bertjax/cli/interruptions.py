"""SIGTERM and Ctrl-C before a run can save: the program exits at once, with the right code.

The imports of a program take seconds, and so do the checks of its data. This module imports nothing
slow, so that it can come first. Once there is something to save, `training.preemption` handles the
signals. One of several processes must not exit alone: it records SIGTERM until then.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

# EX_TEMPFAIL of sysexits.h: run the same command again. Shells report Ctrl-C as 130.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}

_has_come = threading.Event()


def leave_at_once() -> None:
    """Makes the signals end this process from now on."""
    for number in EXIT_CODES:
        signal.signal(number, _leave)


def record_sigterm() -> None:
    """Makes SIGTERM set a flag instead of exiting; call it once there are several processes."""
    signal.signal(signal.SIGTERM, lambda *_: _has_come.set())


def sigterm_recorded() -> bool:
    """Returns whether a SIGTERM was recorded."""
    return _has_come.is_set()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    os.write(2, f"\nbertjax: {name}: run the same command again to continue\n".encode())
    os._exit(EXIT_CODES[signal.Signals(number)])
