"""Whether a workdir can be used: written, renamed, read back, removed; how much fits, how fast."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator

from etils import epath

from bertjax.checkup.findings import Finding
from bertjax.data import atomic, mounts

GB = 10**9
# A checkpoint of BERT-base with the optimizer's state has 1.3 GB, and up to five are kept.
LEAST_FREE = 7 * GB
# With which such a checkpoint is written in half a minute.
LEAST_RATE = 50e6
PIECE = 2**20
PIECES = 64
MOST_SECONDS = 10.0  # for each direction


def disk(workdir: str) -> Iterator[Finding]:
    """Yields what is free on the disk of the workdir; nothing of a store."""
    if atomic.is_remote(workdir):
        return
    path = epath.Path(workdir).absolute()
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    status = "ok" if free >= LEAST_FREE else "fault"
    yield Finding(
        "free disk",
        f"{free / GB:.1f} GB",
        f"{LEAST_FREE / GB:.0f} GB, five checkpoints of BERT-base",
        status,
    )


def reach(workdir: str) -> Iterator[Finding]:
    """Yields whether a file can be written, renamed, read back and removed in the workdir."""
    content = os.urandom(1024)
    with _place(workdir) as place:
        (place / "written").write_bytes(content)
        (place / "written").replace(place / "renamed")
        if (place / "renamed").read_bytes() != content:
            yield Finding("workdir", "reads back other bytes than were written", status="fault")
            return
        (place / "renamed").unlink()
        if (place / "renamed").exists():
            yield Finding("workdir", "a removed file is still there", status="fault")
            return
        kind = _kind(workdir, place)
    yield Finding("workdir", f"{kind}: written, renamed, read back, removed")


def _kind(workdir: str, place: epath.Path) -> str:
    if atomic.is_remote(workdir):
        return workdir.partition("://")[0]
    if mounts.is_like_a_disk(place):
        return "a local disk"
    return "a mount without the locks or the syncs of a disk, for one session at a time"


def rate(workdir: str) -> Iterator[Finding]:
    """Yields how fast one file is written to the workdir, and read from it."""
    piece = os.urandom(PIECE)
    with _place(workdir) as place:
        path = place / "speed"
        for what, seconds, count in (
            ("storage write", *_written(path, piece)),
            ("storage read", *_read(path)),
        ):
            found = count / max(seconds, 1e-9)
            status = "ok" if found >= LEAST_RATE else "slow"
            wanted = f"{LEAST_RATE / 1e6:.0f} MB/s or more"
            yield Finding(what, f"{found / 1e6:.0f} MB/s", wanted, status)


def _written(path: epath.Path, piece: bytes) -> tuple[float, int]:
    """Returns the seconds that writing took until all of it was stored, and how many bytes."""
    start, count = time.perf_counter(), 0
    with path.open("wb") as file:
        while count < PIECES * PIECE and time.perf_counter() - start < MOST_SECONDS:
            file.write(piece)  # tells nothing where it is a store's
            count += len(piece)
        file.flush()
        if not atomic.is_remote(path):
            os.fsync(file.fileno())
    return time.perf_counter() - start, count


def _read(path: epath.Path) -> tuple[float, int]:
    start, count = time.perf_counter(), 0
    with path.open("rb") as file:
        if not atomic.is_remote(path) and hasattr(os, "posix_fadvise"):
            # Else it would come from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        while time.perf_counter() - start < MOST_SECONDS and (piece := file.read(PIECE)):
            count += len(piece)
    return time.perf_counter() - start, count


@contextlib.contextmanager
def _place(workdir: str) -> Iterator[epath.Path]:
    """Makes a directory of its own in the workdir, and leaves nothing behind."""
    root = epath.Path(workdir)
    missing = [it for it in _folders(root) if not it.exists()]
    place = root / f".bertjax_doctor_{uuid.uuid4().hex}"
    try:
        place.mkdir(parents=True)
        yield place
    finally:
        if place.exists():
            place.rmtree()
        for it in missing:  # the innermost first
            if it.exists() and not any(it.iterdir()):
                it.rmdir()


def _folders(path: epath.Path) -> list[epath.Path]:
    """Returns the path and the folders that it lies in; a store's bucket is none of them."""
    all_of_them = [path, *path.parents]
    if not atomic.is_remote(path):
        return all_of_them
    return [it for it in all_of_them if "/" in str(it).partition("://")[2].strip("/")]
