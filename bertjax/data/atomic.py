"""Files that appear under their name whole or not at all, however the writer ends.

A file grows as a draft beside its target, reaches the disk, and only then gets its name. The name
of a draft is its writer's own: two that write the same file at once (Beam does work twice) never
touch each other's draft, and the file is that of the last to finish.
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
    """Opens a draft that becomes `path` where the block ends, and is removed where it fails."""
    path = epath.Path(path)
    draft = path.parent / f"{path.name}.{uuid.uuid4().hex}{DRAFT_SUFFIX}"
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            # Else a power failure could leave the name without the content. Files of other
            # machines have no number, and are whole once they are closed.
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
    """Removes what killed writers left in a directory in which nobody writes now."""
    for draft in epath.Path(directory).glob(f"*{DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)
