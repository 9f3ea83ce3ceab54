"""Directories that programs of bertjax make: how one is recognized, claimed and locked.

Such a directory holds bertjax.json: the name and version of its format and, where it was finished
at once, the names of its files. Without that file a directory is someone else's, and is never
deleted or replaced. Links are never followed to delete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence

from etils import epath

from bertjax.files import atomic, json_text, mounts, opening

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


class ExistsError(FileExistsError, ValueError):
    """An output exists, and is not to be overwritten."""


class NotOursError(ExistsError):
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
    return read_mark(epath.Path(directory))[0]


def read_mark(directory: epath.Path) -> tuple[str, frozenset[str]]:
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


def claim(
    directory: epath.PathLike,
    format: str,
    names: Collection[str] | None,
    *,
    advice: str,
) -> None:
    """Marks a directory, made if missing, in which a program is going to write, if it may."""
    if check_free(directory, format, names, advice=advice):
        mark(real_path(directory), format)


def check_free(
    directory: epath.PathLike, format: str, names: Collection[str] | None, *, advice: str
) -> bool:
    """Returns whether a directory must be marked; one of the format is taken as it is.

    `names` are the files that the program writes, and that must not be there without a mark. None
    stands for all files but drafts and the lock.
    """
    directory = real_path(directory)
    if directory.exists() and not directory.is_dir():
        raise NotOursError(f"{directory} is a file; give a directory")
    there = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if names is None:
        names = {name for name in there if not atomic.is_draft(name)} - {LOCK_FILE}
    kind = format_of(directory)
    in_the_way = there & {*names}
    if kind != format and (kind or in_the_way):
        raise refusal(directory, format, sorted(in_the_way), advice)
    return kind != format


def unlisted(directory: epath.Path, format: str) -> list[str]:
    """Returns the files that bertjax did not write (all names if the format differs)."""
    kind, files = read_mark(directory)
    if kind == format:
        return sorted({*names_in(directory)} - {*files, MARKER})
    return sorted(path.name for path in directory.iterdir())


def refusal(directory: epath.Path, format: str, others: Sequence[str], advice: str) -> NotOursError:
    """Returns the fault of a directory that is not of the format, or also holds `others`."""
    kind = format_of(directory)
    if kind and kind != format:
        what = f"is a directory of {FORMATS[kind]}, not of {FORMATS[format]}"
    elif kind:
        what = f"holds files that bertjax did not write: {described(others)}"
    else:
        what = f"holds {described(others)}, and no {FORMATS[format]} (it has no {MARKER})"
    return NotOursError(f"{directory} {what}. Nothing was changed; {advice}")


def names_in(directory: epath.Path, above: str = "") -> Iterator[str]:
    """Yields the paths of all files, links and empty directories; links are not followed."""
    for path in directory.iterdir():
        name = f"{above}{path.name}"
        if not path.is_dir() or os.path.islink(path):
            yield name
            continue
        inside = [*names_in(path, f"{name}/")]
        yield from inside or [f"{name}/"]


def described(names: Sequence[str]) -> str:
    """Returns at most NAMES_SHOWN names and the number of the others."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def clear(directory: epath.Path) -> None:
    """Removes everything in a directory, if there is one, but its mark and its lock."""
    for path in directory.iterdir() if directory.exists() else ():
        if path.name in (MARKER, LOCK_FILE):
            continue
        if path.is_dir() and not os.path.islink(path):
            path.rmtree()
        else:
            path.unlink()


def remove(directory: epath.Path) -> None:
    """Removes a directory of ours, the mark last: what a stop leaves is still known as ours."""
    clear(directory)
    directory.rmtree(missing_ok=True)


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
            opening.check_regular(path)  # a pipe would be waited for
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
