"""A workdir has one run at a time: a second one is refused before it changes anything.

On a disk the system holds the lock, and releases it when the process ends in any way. Stores
(gs://...) and some mounts have no locks: there the owner writes a heartbeat into the file, and
another process that finds the file waits for the next heartbeat. Where locks are local to a
machine, two machines may both own the workdir.
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

from bertjax.files import atomic, directories, mounts, opening
from bertjax.options import faults

FILE = "owner.json"  # in the workdir
HEARTBEAT_SECONDS = 20.0
PATIENCE = 3  # missed heartbeats after which an owner counts as gone


class WorkdirInUseError(faults.RunError):
    """Another process has the workdir; the message says which."""


class Ownership:
    """The right to write into a workdir. Use it as a context manager.

    `option` is the flag that names the directory, for the error.
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
            # The file stays: if it were removed, a third process could lock a new one.
            self._file.truncate(0)
            self._file.close()

    def check(self) -> None:
        """Raises WorkdirInUseError if another process has taken the workdir over."""
        if self._taken_by is not None:
            raise WorkdirInUseError(
                f"{self._workdir} was taken over by {self._taken_by}, because the heartbeats of "
                "this process stopped; it writes nothing more"
            )

    def _lock(self) -> bool:
        """Returns whether the system holds a lock for us, False without locks."""
        if self._path.exists():
            opening.check_regular(self._path)  # a pipe would be waited for
        file = open(self._path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
        file.seek(0)
        owner = file.read()
        try:
            self._check_ours(owner)
            is_locked = mounts.lock(file)
        except BlockingIOError as error:
            file.close()
            raise self._refusal(owner) from error
        except OSError:
            file.close()
            raise
        if not is_locked:
            file.close()
            return False
        file.truncate(0)
        file.write(self._heartbeat(0))
        file.flush()
        self._file = file
        return True

    def _begin_heartbeat(self) -> None:
        owner = self._read()
        self._check_ours(owner)
        if owner:
            logging.info(
                "%s has an owner (%s): waiting %g s for its heartbeat",
                self._workdir, _who(owner), PATIENCE * HEARTBEAT_SECONDS,
            )  # fmt: skip
            if _comes_true(lambda: self._read() not in ("", owner)):
                raise self._refusal(self._read())
        atomic.write(self._path, self._heartbeat(0))
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
                owner = self._read()
                if owner and json.loads(owner)["token"] != self._token:
                    self._taken_by = _who(owner)
                    logging.error("%s was taken over by %s", self._workdir, self._taken_by)
                    return
                atomic.write(self._path, self._heartbeat(beats))
            except (OSError, ValueError, KeyError) as error:
                logging.warning("The heartbeat in %s could not be written: %s", self._path, error)

    def _heartbeat(self, beats: int) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "time": now}
        return json.dumps(owner | {"token": self._token, "beats": beats}) + "\n"

    def _read(self) -> str:
        try:
            return _text(self._path)
        except FileNotFoundError:
            return ""

    def _is_mine(self) -> bool:
        return f'"{self._token}"' in self._read()

    def _check_ours(self, content: str) -> None:
        if content.strip() and not _is_heartbeat(content):
            raise directories.NotOursError(
                f"{self._path} was not written by bertjax, which keeps there who writes into "
                f"{self._workdir}. Nothing was changed; give another {self._option}"
            )

    def _refusal(self, owner: str) -> WorkdirInUseError:
        return WorkdirInUseError(
            f"{self._workdir} is in use by {_who(owner)}: wait until that run ends, stop it, or "
            f"give another {self._option}"
        )


def others_file(workdir: epath.PathLike) -> tuple[str, ...]:
    """Returns the name of owner.json if it is there and was written by another program."""
    path = epath.Path(workdir) / FILE
    content = _text(path) if path.exists() else ""
    return (FILE,) if content.strip() and not _is_heartbeat(content) else ()


def _text(path: epath.Path) -> str:
    return opening.read(path).decode("utf-8", "replace")


def _is_heartbeat(content: str) -> bool:
    """Returns whether the content of an owner.json was written here."""
    try:
        return {"host", "pid", "time", "token"} <= set(json.loads(content))
    except (ValueError, TypeError, RecursionError):
        # The last heartbeat of a process that was killed may be cut off.
        return content.startswith('{"host": ') and not content.endswith("}\n")


def _who(owner: str) -> str:
    """Returns process, host and time of an owner's heartbeat."""
    try:
        fields = json.loads(owner)
        return f"process {fields['pid']} on {fields['host']}, since or at {fields['time']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _comes_true(condition: Callable[[], bool]) -> bool:
    """Returns whether the condition holds before PATIENCE heartbeats are over."""
    deadline = time.monotonic() + PATIENCE * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(HEARTBEAT_SECONDS / 10)
    return False
