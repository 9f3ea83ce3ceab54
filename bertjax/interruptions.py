"""What SIGTERM and Ctrl-C do before a run can save: a program leaves at once, with the right code.

The imports of a program take seconds, and so do the checks of its data. This module imports nothing
that is slow, so that it can come first. Once there is something to save, `training.preemption`
listens in its place.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

# EX_TEMPFAIL of sysexits.h: run the same command again. 130 is what shells say of Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}


def leave_at_once() -> None:
    """Makes the signals end this process from now on."""
    for number in EXIT_CODES:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    os.write(2, f"\nbertjax: {name}: run the same command again to continue\n".encode())
    os._exit(EXIT_CODES[signal.Signals(number)])
