"""Files that get their name when they are complete, however the writer ends.

A file grows as a draft in the directory of its target, reaches the disk, and only then gets its
name. Each writer has a draft of its own: two that write the same file at once (Beam does work
twice) never touch each other's draft, and the last to finish wins.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from etils import epath

from bertjax.files import stores  # noqa: F401 (the errors of gs:// become OSErrors)

DRAFT_SUFFIX = ".draft"
_DRAFT = re.compile(r".+\.[0-9a-f]{32}\.draft", re.DOTALL)


@contextlib.contextmanager
def writing(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Opens a draft that becomes `path` when the block ends, and is removed if it raises."""
    path = epath.Path(path)
    if not is_remote(path) and path.exists() and not os.path.isfile(path):
        kind = "a directory" if path.is_dir() else "a pipe or a device"
        raise FileExistsError(f"{path} is {kind}, and a file is to be written: give another name")
    draft = path.parent / f"{path.name}.{uuid.uuid4().hex}{DRAFT_SUFFIX}"
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            # Without it a power failure could leave the name without the content. Files of stores
            # have no descriptor, and are complete once they are closed.
            if not is_remote(draft):
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.filename is not None and error.errno is not None:
            raise
        # The errors of a full disk, of fsync and of arrow name no file.
        if error.errno is None:
            raise OSError(f"{path} cannot be written: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether the path is an address of a store (gs://, s3://) and not of a disk."""
    return "://" in os.fspath(path)


def write(path: epath.PathLike, content: bytes | str) -> None:
    """Writes a file at once, text as UTF-8."""
    with writing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def is_draft(name: str) -> bool:
    """Returns whether a file has the name of a draft of `writing`."""
    return _DRAFT.fullmatch(name) is not None


def remove_drafts(directory: epath.PathLike) -> None:
    """Removes the drafts of killed writers in a directory; nothing may be writing there."""
    for path in epath.Path(directory).iterdir():
        if is_draft(path.name):
            path.unlink(missing_ok=True)
