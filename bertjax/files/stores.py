"""Paths of stores, gs://BUCKET/..., with the errors of a disk.

`epath` reaches a store through TensorFlow, where that is installed, and lets most of TensorFlow's
errors through. They are not OSErrors, so `except FileNotFoundError` and retries after an error of
the disk miss them. Importing this module mends that for the whole process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils.epath import backend

# TensorFlow's codes (tf.errors.OpError.error_code) -> the system's numbers; all others are EIO.
# Source: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
ERRNO: Mapping[int, int] = {
    3: errno.EINVAL,  # INVALID_ARGUMENT
    5: errno.ENOENT,  # NOT_FOUND
    6: errno.EEXIST,  # ALREADY_EXISTS
    7: errno.EACCES,  # PERMISSION_DENIED
    16: errno.EACCES,  # UNAUTHENTICATED
}


class _DiskErrors(backend._TfBackend):  # pyright: ignore[reportPrivateUsage]
    """epath's TensorFlow backend with the errors of a disk. Checked with etils 1.15."""

    @contextlib.contextmanager
    def open(self, path: Any, mode: str) -> Iterator[Any]:
        with self.errors_of_a_disk(path), self.gfile.GFile(path, mode) as file:
            yield file

    @contextlib.contextmanager
    def errors_of_a_disk(self, path: Any) -> Iterator[None]:
        """Raises an OSError with the path for what TensorFlow raises."""
        try:
            yield
        except self.tf.errors.OpError as error:
            number = ERRNO.get(error.error_code, errno.EIO)
            raise OSError(number, error.message.splitlines()[0], str(path)) from error


def _with_errors_of_a_disk(name: str) -> Callable[..., Any]:
    """Returns the backend's method of that name, which raises OSErrors."""
    method = getattr(backend._TfBackend, name)  # pyright: ignore[reportPrivateUsage]

    @functools.wraps(method)
    def translated(self: _DiskErrors, path: Any, *args: Any, **options: Any) -> Any:
        with self.errors_of_a_disk(path):
            return method(self, path, *args, **options)

    return translated


METHODS = (
    *("copy", "exists", "glob", "isdir", "listdir", "makedirs", "mkdir"),
    *("remove", "rename", "replace", "rmtree", "stat"),
)
for _name in METHODS:
    setattr(_DiskErrors, _name, _with_errors_of_a_disk(_name))
backend.tf_backend = _DiskErrors()
