"""Directories that programs of bertjax make: how one is recognized, and how it is replaced.

Such a directory holds bertjax.json: the name and version of its format and, where it was finished
at once, the names of its files. Without that file a directory is someone else's, and is never
deleted or replaced. Links are never followed to delete.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Collection, Iterator, Sequence

from absl import logging
from etils import epath

from bertjax.files import atomic, foreign_files, json_text, mounts

MARKER = "bertjax.json"
VERSION = 1
NAMES_SHOWN = 10
LOCK_FILE = "lock"  # in a directory of unfinished work

# Format -> what a directory of it holds.
FORMATS = {
    "records": "records of data_pipelines.build",
    "build": "unfinished work of data_pipelines.build",
    "vocabulary": "vocabularies of data_pipelines.train_vocabulary",
    "vectors": "vectors of bertjax.encode",
    "weights": "weights of bertjax.convert",
    "start": "what bertjax.start makes",
    "run": "runs of bertjax.train and bertjax.glue",
}

_OLD, _DRAFT = ".bertjax_old", ".bertjax_draft"


class NotOursError(FileExistsError, ValueError):
    """A path holds files of someone else, or of another format; the message lists them."""


def real_path(path: epath.PathLike) -> epath.Path:
    """Returns the absolute path without links; an address such as gs://bucket/dir as it is."""
    return epath.Path(path if atomic.is_remote(path) else os.path.realpath(path))


def mark(directory: epath.PathLike, format: str, files: Collection[str] = ()) -> None:
    """Makes a directory one of ours; `files` are the paths in it if they are complete."""
    directory = epath.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"format": format, "version": VERSION, "files": sorted(files)}
    atomic.write(directory / MARKER, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def format_of(directory: epath.PathLike) -> str:
    """Returns the key of FORMATS of a directory, "" if it is not one of ours."""
    return _read(epath.Path(directory))[0]


def claim(
    directory: epath.PathLike,
    format: str,
    names: Collection[str],
    *,
    advice: str,
) -> None:
    """Marks a directory, made if missing, in which a program is going to write, if it may."""
    if check_free(directory, format, names, advice=advice):
        mark(real_path(directory), format)


def check_free(
    directory: epath.PathLike, format: str, names: Collection[str], *, advice: str
) -> bool:
    """Returns whether a directory is still to be marked; one of the format is taken as it is.

    `names` are those of the files that the program writes.
    """
    directory = real_path(directory)  # of a link to nothing, too
    if directory.exists() and not directory.is_dir():
        raise NotOursError(f"{directory} is a file; give a directory")
    there = {path.name for path in directory.iterdir()} if directory.exists() else set()
    kind = format_of(directory)
    in_the_way = there & {*names}
    if kind != format and (kind or in_the_way):
        raise NotOursError(_refusal(directory, format, kind, sorted(in_the_way), advice))
    return kind != format


def check_replaceable(target: epath.PathLike, format: str, *, advice: str) -> None:
    """Raises a NotOursError unless `target` is missing, empty, or of the format and nothing else.

    The message lists the files that would be lost, and ends in `advice`.
    """
    target = epath.Path(target)
    if not target.exists():
        if os.path.islink(target):
            raise NotOursError(f"{target} is a link to nothing; {advice}")
        return
    if not target.is_dir():
        raise NotOursError(f"{target} is a file; give a directory")
    if others := strangers(target, format):
        raise NotOursError(_refusal(target, format, format_of(target), others, advice))


def strangers(directory: epath.Path, format: str) -> list[str]:
    """Returns what a finished directory of the format did not have, of another one all names."""
    kind, files = _read(directory)
    if kind == format:
        return sorted({*_names(directory)} - {*files, MARKER})
    return sorted(path.name for path in directory.iterdir())


def replace(draft: epath.PathLike, target: epath.PathLike, format: str) -> None:
    """Marks the complete directory `draft` and renames it to `target`.

    A directory that it replaces is first moved aside, and removed last. A stop at any moment leaves
    the old or the new directory complete, if not always under its name: `finish_replacing` gives it
    back. Whether `target` may be replaced is a question for `check_replaceable`.
    """
    draft, target = epath.Path(draft), epath.Path(target)
    mark(draft, format, [*_names(draft)])
    with brief_lock(target.parent):
        _finish(target)
        if target.exists() and not any(target.iterdir()):
            target.rmdir()
        if target.exists():
            target.rename(target.parent / f".{target.name}.{uuid.uuid4().hex}{_OLD}")
        draft.rename(target)
        _finish(target)


def finish_replacing(target: epath.PathLike) -> None:
    """Ends a replacement of the directory `target` that was stopped."""
    target = epath.Path(target)
    if target.parent.exists() and any(_asides(target, _OLD)):
        with brief_lock(target.parent):
            _finish(target)


@contextlib.contextmanager
def drafting(target: epath.PathLike) -> Iterator[epath.Path]:
    """Yields a new directory in that of `target`, known to this process alone, removed in the end.

    Drafts of processes that were killed are removed, too, where the disk has locks.
    """
    target = epath.Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in _asides(target, _DRAFT):
        # A store has no locks that could say whether it is in use.
        if not atomic.is_remote(other) and (other / LOCK_FILE).exists():
            with contextlib.suppress(BlockingIOError), lock(other) as is_locked:
                if is_locked:
                    other.rmtree()
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex}{_DRAFT}"
    draft.mkdir()
    try:
        with lock(draft):
            yield draft / "content"
    finally:
        draft.rmtree(missing_ok=True)


@contextlib.contextmanager
def lock(directory: epath.PathLike) -> Iterator[bool]:
    """Holds a lock in a directory, made if missing; yields False where the disk knows no locks."""
    directory = epath.Path(directory)
    if atomic.is_remote(directory):
        yield False
        return
    path = directory / LOCK_FILE
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            foreign_files.check_regular(path)  # a pipe would be waited for
        with path.open("a") as file:
            is_locked = mounts.lock(file)
            # Its owner before may have removed the file, and a third process locked a new one.
            if path.exists() and os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                yield is_locked
                return


@contextlib.contextmanager
def brief_lock(directory: epath.Path) -> Iterator[None]:
    """Waits for the lock of a directory, for the time of a few renames."""
    if atomic.is_remote(directory):
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        mounts.wait_for_lock(descriptor, os.fspath(directory))
        yield
    finally:
        os.close(descriptor)


def described(names: Sequence[str]) -> str:
    """Returns at most NAMES_SHOWN names and the number of the others."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _refusal(
    directory: epath.Path, format: str, kind: str, others: Sequence[str], advice: str
) -> str:
    if kind and kind != format:
        what = f"is a directory of {FORMATS[kind]}, and no {FORMATS[format]}"
    elif kind:
        what = f"holds files that bertjax did not write: {described(others)}"
    else:
        what = f"holds {described(others)}, and no {FORMATS[format]} (it has no {MARKER})"
    return f"{directory} {what}. Nothing was changed; {advice}"


def _read(directory: epath.Path) -> tuple[str, frozenset[str]]:
    """Returns format and files of a directory, and ("", {}) if it is not one of ours."""
    path = directory / MARKER
    try:
        if not path.is_file():  # a pipe would be waited for
            return "", frozenset()
        fields = json_text.read_object(path)
    except (OSError, ValueError):
        return "", frozenset()
    kind, files = fields.get("format"), fields.get("files")
    is_ours = kind in FORMATS if isinstance(kind, str) else False
    if not is_ours or fields.get("version") != VERSION or not isinstance(files, list):
        return "", frozenset()
    return str(kind), frozenset(map(str, files))


def _names(directory: epath.Path, above: str = "") -> Iterator[str]:
    """Yields the paths of all files, links and empty directories; links are not followed."""
    for path in directory.iterdir():
        name = f"{above}{path.name}"
        if not path.is_dir() or os.path.islink(path):
            yield name
            continue
        inside = [*_names(path, f"{name}/")]
        yield from inside or [f"{name}/"]


def _asides(target: epath.Path, suffix: str) -> Iterator[epath.Path]:
    """Yields the directories that `replace` and `drafting` have named for a target."""
    for path in target.parent.iterdir():
        middle = path.name.removeprefix(f".{target.name}.").removesuffix(suffix)
        is_named = path.name == f".{target.name}.{middle}{suffix}"
        if is_named and len(middle) == 32 and set(middle) <= set("0123456789abcdef"):
            yield path


def _finish(target: epath.Path) -> None:
    for old in sorted(_asides(target, _OLD)):
        kind, files = _read(old)
        there = {*_names(old)}
        if not target.exists():
            if kind and files <= there:
                old.rename(target)
        elif kind and not there - {*files, MARKER}:
            old.rmtree()
        else:
            others = sorted(there - {*files, MARKER})
            logging.warning("%s is left: it holds %s", old, described(others))
