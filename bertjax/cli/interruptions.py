"""What SIGTERM and Ctrl-C do before a run can save: a program leaves at once, with the right code.

The imports of a program take seconds, and so do the checks of its data. This module imports nothing
that is slow, so that it can come first. Once there is something to save, `training.preemption`
listens in its place. One of several processes must not leave alone: it keeps SIGTERM in mind until
then.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

# EX_TEMPFAIL of sysexits.h: run the same command again. 130 is what shells say of Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}

_has_come = threading.Event()


def leave_at_once() -> None:
    """Makes the signals end this process from now on."""
    for number in EXIT_CODES:
        signal.signal(number, _leave)


def keep_sigterm_in_mind() -> None:
    """Makes SIGTERM something to ask `has_come` for; call it when the other processes are known."""
    signal.signal(signal.SIGTERM, lambda *_: _has_come.set())


def has_come() -> bool:
    """Returns whether there was a SIGTERM that nobody has acted on."""
    return _has_come.is_set()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    os.write(2, f"\nbertjax: {name}: run the same command again to continue\n".encode())
    os._exit(EXIT_CODES[signal.Signals(number)])
