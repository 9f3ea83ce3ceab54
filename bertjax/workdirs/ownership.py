"""A workdir has one run at a time: a second one is refused in a line, before it changes anything.

On a disk the system holds the lock, and lets it go when the process ends, however it ends. A store
(gs://...) knows no locks, nor do some mounts: there the owner writes a new heartbeat into the file
every so often, and whoever finds the file waits whether another one comes. Of a mount that knows
locks of this machine alone, two machines may each believe to be the owner.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import IO

from absl import logging
from etils import epath

from bertjax.data import atomic, mounts

FILE = "owner.json"  # in the workdir
HEARTBEAT_SECONDS = 20.0
# Heartbeats that may fail to come before an owner counts as gone.
PATIENCE = 3


class WorkdirInUseError(RuntimeError):
    """Another process has the workdir; the message says which."""


class Ownership:
    """The right to write into a workdir. Use it as a context manager.

    `option` is the one that names the directory, for the error.

    Raises:
      WorkdirInUseError: on entering, if another process has it.
      OSError: if the file cannot be written.
    """

    def __init__(self, workdir: epath.PathLike, *, option: str = "--workdir"):
        self._workdir = epath.Path(workdir)
        self._path = self._workdir / FILE
        self._option = option
        self._token = uuid.uuid4().hex
        self._file: IO[str] | None = None
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._taken_by: str | None = None

    def __enter__(self) -> Ownership:
        self._workdir.mkdir(parents=True, exist_ok=True)
        if atomic.is_remote(self._workdir) or not self._lock():
            self._begin_heartbeat()
        return self

    def __exit__(self, *_: object) -> None:
        if self._heart is not None:
            self._stop.set()
            self._heart.join()
            if self._is_mine():
                self._path.unlink(missing_ok=True)
        if self._file is not None:
            # The file stays: to remove it would let a third process lock another of its name.
            self._file.truncate(0)
            self._file.close()

    def check(self) -> None:
        """Raises WorkdirInUseError if another process took the workdir over meanwhile."""
        if self._taken_by is not None:
            raise WorkdirInUseError(
                f"{self._workdir} was taken over by {self._taken_by}, because this process had "
                "given no sign for long; it writes nothing more"
            )

    def _lock(self) -> bool:
        """Returns whether the system holds a lock for us, False where it has none to give."""
        file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115  it stays open
        try:
            is_locked = mounts.lock(file)
        except OSError as error:
            file.seek(0)
            told = file.read()
            file.close()
            if isinstance(error, BlockingIOError):
                raise self._refusal(told) from error
            raise
        if not is_locked:
            file.close()
            return False
        file.truncate(0)
        file.write(self._sign(0))
        file.flush()
        self._file = file
        return True

    def _begin_heartbeat(self) -> None:
        found = self._read()
        if found:
            logging.info(
                "%s has an owner (%s): waiting %g s for a sign of it",
                self._workdir, _who(found), PATIENCE * HEARTBEAT_SECONDS,
            )  # fmt: skip
            if _comes_true(lambda: self._read() not in ("", found)):
                raise self._refusal(self._read())
        atomic.write(self._path, self._sign(0))
        time.sleep(HEARTBEAT_SECONDS / 10)
        if not self._is_mine():  # two that began at once: the last to write has it
            raise self._refusal(self._read())
        self._heart = threading.Thread(target=self._beat, name="owner of the workdir", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        beats = 0
        while not self._stop.wait(HEARTBEAT_SECONDS):
            beats += 1
            try:
                told = self._read()
                if told and json.loads(told)["token"] != self._token:
                    self._taken_by = _who(told)
                    logging.error("%s was taken over by %s", self._workdir, self._taken_by)
                    return
                atomic.write(self._path, self._sign(beats))
            except (OSError, ValueError, KeyError) as error:
                logging.warning("No sign could be left in %s: %s", self._path, error)

    def _sign(self, beats: int) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        told = {"host": socket.gethostname(), "pid": os.getpid(), "time": now}
        return json.dumps(told | {"token": self._token, "beats": beats}) + "\n"

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return ""

    def _is_mine(self) -> bool:
        return f'"{self._token}"' in self._read()

    def _refusal(self, told: str) -> WorkdirInUseError:
        return WorkdirInUseError(
            f"{self._workdir} is in use by {_who(told)}: wait until that run ends, stop it, or "
            f"give another {self._option}"
        )


def _who(told: str) -> str:
    """Returns host, process and time of what an owner wrote."""
    try:
        found = json.loads(told)
        return f"process {found['pid']} on {found['host']}, since or at {found['time']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _comes_true(condition: Callable[[], bool]) -> bool:
    """Returns whether the condition holds before the patience with a heartbeat ends."""
    deadline = time.monotonic() + PATIENCE * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(HEARTBEAT_SECONDS / 10)
    return False
