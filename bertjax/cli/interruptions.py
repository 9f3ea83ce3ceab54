"""Signals to stop before a run can save: the program exits at once, with the right code.

The imports of a program take seconds, and so do the checks of its data. This module imports nothing
slow, so that it can come first. Once there is something to save, `training.preemption` handles the
signals. One of several processes must not exit alone: it records them until then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType

# The notices of machines that end: SIGTERM of clouds and Slurm; of a lost terminal; those that
# `sbatch --signal` may send; the limit of CPU time.
NOTICES = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# EX_TEMPFAIL of sysexits.h: run the same command again. Shells report Ctrl-C as 130.
EXIT_CODES = dict.fromkeys(NOTICES, 75) | {signal.SIGINT: 130}

_has_come = threading.Event()


def received_signals() -> list[signal.Signals]:
    """Returns the signals to stop that are not ignored; `nohup` has SIGHUP ignored."""
    return [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]


def leave_at_once() -> None:
    """Makes the signals end this process from now on."""
    for number in received_signals():
        signal.signal(number, _leave)


def leave_at_notices() -> None:
    """Makes notices that nothing handles yet end this process from now on."""
    for number in NOTICES:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)


def record_notices() -> None:
    """Makes notices set a flag instead of exiting; call it once there are several processes."""
    for number in {*NOTICES} & {*received_signals()}:
        signal.signal(number, lambda *_: _has_come.set())


def notice_recorded() -> bool:
    """Returns whether a notice was recorded."""
    return _has_come.is_set()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    with contextlib.suppress(OSError):  # of a terminal that is gone
        os.write(2, f"\nbertjax: {name}: run the same command again\n".encode())
    os._exit(EXIT_CODES[signal.Signals(number)])
