"""Files and directories that get their name when they are complete, however the writer ends.

A file grows as a draft in the directory of its target, reaches the disk, and only then gets its
name. Each writer has a draft of its own: two that write the same file at once (Beam does work
twice) never touch each other's draft, and the last to finish wins.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from etils import epath

from bertjax.data import stores  # noqa: F401 (the errors of gs:// become OSErrors)

DRAFT_SUFFIX = ".draft"


@contextlib.contextmanager
def writing(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Opens a draft that becomes `path` when the block ends, and is removed if it raises."""
    path = epath.Path(path)
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


def remove_drafts(directory: epath.PathLike) -> None:
    """Removes the drafts of killed writers in a directory; nothing may be writing there."""
    for draft in epath.Path(directory).glob(f"*{DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)


def replace_directory(draft: epath.PathLike, target: epath.PathLike) -> None:
    """Renames the directory `draft` to `target`; the directory that it replaces is removed last.

    A stop at any moment leaves the old or the new directory complete, if not always under its name:
    `finish_replacing` gives it back.
    """
    target = epath.Path(target)
    finish_replacing(target)
    if target.exists():
        target.rename(_replaced(target))
    epath.Path(draft).rename(target)
    finish_replacing(target)


def finish_replacing(target: epath.PathLike) -> None:
    """Ends a replacement of the directory `target` that was stopped."""
    target = epath.Path(target)
    old = _replaced(target)
    if not old.exists():
        return
    if target.exists():
        old.rmtree()
    else:
        old.rename(target)


def _replaced(target: epath.Path) -> epath.Path:
    return target.parent / f".{target.name}.bertjax_old"
