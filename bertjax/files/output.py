"""Outputs of programs: a draft takes the name of the output when it is complete.

A directory that is written in place, such as a run's, is claimed instead (`directories.claim`).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterator

from absl import logging
from etils import epath

from bertjax.files import atomic, directories

_OLD, _DRAFT = ".bertjax_old", ".bertjax_draft"


class Output:
    """A directory of one of `directories.FORMATS` that a program is going to write.

    With `overwrite` it may replace one of the same format that holds nothing else. A link stands
    for the directory it points to. `option` is the flag that names the directory. A stop at any
    moment leaves the old or the new directory complete, if not always under its name: the next
    Output of the same path gives it back, and removes what is left of the other.
    """

    def __init__(
        self, path: epath.PathLike, format: str, *, overwrite: bool, option: str = "--output"
    ):
        self.path = directories.real_path(path)
        self._format, self._overwrite, self._option = format, overwrite, option
        self.check()

    def check(self) -> None:
        """Raises an ExistsError if the path must not be written, which lists what would be lost."""
        _recover(self.path)
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise directories.NotOursError(f"{self.path} is a file; give a directory")
        if any(self.path.iterdir()) and not self._overwrite:
            raise directories.ExistsError(
                f"{self.path} exists; give another {self._option}, or --overwrite to replace it"
            )
        # Overwriting deletes, and a mistyped path might be a home directory.
        if others := directories.unlisted(self.path, self._format):
            advice = f"give another {self._option}, or remove it by hand"
            raise directories.refusal(self.path, self._format, others, advice)

    def draft(self) -> contextlib.AbstractContextManager[epath.Path]:
        """Yields the path of a draft, see `drafting`."""
        return drafting(self.path)

    def publish(self, draft: epath.Path) -> None:
        """Marks a complete draft and renames it to the output, which is checked once more.

        A directory that it replaces is first moved aside, and removed last.
        """
        self.check()
        directories.mark(draft, self._format, [*directories.names_in(draft)])
        with directories.brief_lock(self.path.parent):
            _finish(self.path)
            if self.path.exists() and not any(self.path.iterdir()):
                self.path.rmdir()
            if self.path.exists():
                self.path.rename(_aside(self.path, _OLD))
            draft.rename(self.path)
            _finish(self.path)


class FilesOutput:
    """Files of one of `directories.FORMATS` that may share a directory with files of others.

    `names` are all files that the format may have. With `overwrite` those that are there are
    replaced if the directory has the mark of the format.
    """

    def __init__(
        self, path: epath.PathLike, format: str, *, names: Collection[str], overwrite: bool
    ):
        self.path = epath.Path(path)
        self._format, self._names, self._overwrite = format, names, overwrite
        self.check()

    def check(self) -> tuple[list[str], bool]:
        """Returns the files that are there, and whether the directory must be marked."""
        existing = [name for name in self._names if (self.path / name).exists()]
        if existing and not self._overwrite:
            raise directories.ExistsError(
                f"{self.path / existing[0]} exists; give another --output, or --overwrite to "
                "replace it"
            )
        is_new = directories.check_free(
            self.path, self._format, existing, advice="give another --output"
        )
        return existing, is_new

    def draft(self) -> contextlib.AbstractContextManager[epath.Path]:
        """Yields the path of a draft, see `drafting`."""
        return drafting(self.path)

    def publish(self, draft: epath.Path) -> None:
        """Moves the files of a complete draft into the directory, which is checked once more."""
        self.path.mkdir(parents=True, exist_ok=True)
        with directories.brief_lock(self.path):
            existing, is_new = self.check()
            written = {path.name: path for path in draft.iterdir()}
            for name, path in written.items():
                path.replace(self.path / name)
            for name in {*existing} - written.keys():
                (self.path / name).unlink()
            if is_new:
                directories.mark(self.path, self._format)


@contextlib.contextmanager
def drafting(target: epath.Path) -> Iterator[epath.Path]:
    """Yields the path of a new directory next to `target`, which is removed in the end.

    Drafts of processes that were killed are removed as well, where the disk has locks.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A store has no locks that could say whether a draft is in use.
    others = [] if atomic.is_remote(target) else [*_asides(target, _DRAFT)]
    for other in others:
        if (other / directories.LOCK_FILE).exists():
            with contextlib.suppress(BlockingIOError), directories.lock(other) as is_locked:
                if is_locked:
                    directories.remove(other)
    draft = _aside(target, _DRAFT)
    with contextlib.ExitStack() as locks:
        with directories.brief_lock(target.parent):
            for other in others:
                with contextlib.suppress(OSError):  # not empty, or removed by another process
                    os.rmdir(other)
            draft.mkdir()
            locks.callback(directories.remove, draft)
            locks.enter_context(directories.lock(draft))
        yield draft / "content"


def _recover(target: epath.Path) -> None:
    """Ends a replacement of the directory `target` that was stopped."""
    if target.parent.exists() and any(_asides(target, _OLD)):
        with directories.brief_lock(target.parent):
            _finish(target)


def _finish(target: epath.Path) -> None:
    for old in sorted(_asides(target, _OLD)):
        kind, files = directories.read_mark(old)
        there = {*directories.names_in(old)}
        others = sorted(there - {*files, directories.MARKER} if kind else there)
        if not target.exists():
            if kind and files <= there:
                old.rename(target)
        elif not others:
            directories.remove(old)
        else:
            logging.warning("%s is left: it holds %s", old, directories.described(others))


def _aside(target: epath.Path, suffix: str) -> epath.Path:
    return target.parent / f".{target.name}.{uuid.uuid4().hex}{suffix}"


def _asides(target: epath.Path, suffix: str) -> Iterator[epath.Path]:
    """Yields the directories of a target that `_aside` has named."""
    for path in target.parent.iterdir():
        middle = path.name.removeprefix(f".{target.name}.").removesuffix(suffix)
        is_named = path.name == f".{target.name}.{middle}{suffix}"
        if is_named and len(middle) == 32 and set(middle) <= set("0123456789abcdef"):
            yield path
