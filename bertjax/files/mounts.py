"""Locks and the syncing of directories, which a disk has and a mount may lack.

Mounts are network file systems and FUSE file systems, such as Google Drive in Colab. Addresses of
stores (gs://...) are not mounts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from typing import IO, Any

from etils import epath

# The errors of a file system without locks or syncs.
_UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def lock(file: IO[Any]) -> bool:
    """Returns whether the system holds a lock of the open file for us, False if it knows none.

    A mount may know the locks of this machine alone, without saying so.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            reason = f"{error.strerror}; it cannot be locked"
            raise OSError(error.errno, reason, str(file.name)) from error
        return False
    return True


def wait_for_lock(descriptor: int, path: str) -> bool:
    """Waits for the lock of an open file or directory; returns False if the system knows none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # A directory is open for reading, which is not enough for NFS.
        if error.errno not in (*_UNKNOWN, errno.EBADF):
            raise OSError(error.errno, f"{error.strerror}; it cannot be locked", path) from error
        return False
    return True


def sync(path: epath.PathLike) -> None:
    """Makes a file reach the disk, or the names in a directory where that can be asked for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not is_directory or error.errno not in _UNKNOWN:
            reason = f"{error.strerror}; it does not reach the disk"
            raise OSError(error.errno, reason, os.fspath(path)) from error
    finally:
        os.close(descriptor)


def is_like_a_disk(directory: epath.PathLike) -> bool:
    """Returns whether files in a directory have locks, and directories are synced.

    Other errors, such as a full disk, do not make it a mount: the next writer reports them.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno not in _UNKNOWN
    return True
