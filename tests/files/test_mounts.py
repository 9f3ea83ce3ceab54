"""Claims about what a mount lacks; tests/faults/test_mount.py runs the programs on one."""

import errno
import fcntl
import os
import stat

import pytest

from bertjax.files import mounts

UNKNOWN = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


def refuse(monkeypatch, module, name, number, *, if_directory=False):
    """Makes a call of the system fail, for directories alone or for all files."""
    real = getattr(module, name)

    def called(file, *rest):
        if not if_directory or stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        return real(file, *rest)

    monkeypatch.setattr(module, name, called)


def test_a_mount_without_locks_is_found(tmp_path, monkeypatch):
    assert mounts.is_like_a_disk(tmp_path)
    assert not list(tmp_path.iterdir())
    for number in UNKNOWN:
        with monkeypatch.context() as patched:
            refuse(patched, fcntl, "lockf", number)
            assert not mounts.is_like_a_disk(tmp_path)


def test_a_mount_that_syncs_no_directories_is_found_and_its_files_are_synced(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("content")
    for number in UNKNOWN:
        with monkeypatch.context() as patched:
            refuse(patched, os, "fsync", number, if_directory=True)
            assert not mounts.is_like_a_disk(tmp_path)
            mounts.sync(tmp_path)
            mounts.sync(tmp_path / "file")
    refuse(monkeypatch, os, "fsync", errno.EINVAL)  # of files it is an error
    with pytest.raises(OSError, match="Invalid argument"):
        mounts.sync(tmp_path / "file")


def test_a_disk_with_an_error_is_no_mount_and_a_sync_of_it_fails(tmp_path, monkeypatch):
    refuse(monkeypatch, os, "fsync", errno.EIO)
    assert mounts.is_like_a_disk(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        mounts.sync(tmp_path)


def test_a_lock_is_held_or_another_has_it_or_there_is_none(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        assert mounts.lock(first)
        with pytest.raises(BlockingIOError):
            mounts.lock(second)
        refuse(monkeypatch, fcntl, "flock", errno.ENOSYS)
        assert not mounts.lock(second)
        refuse(monkeypatch, fcntl, "flock", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            mounts.lock(second)
