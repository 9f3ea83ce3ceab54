"""Finds and opens the files of a source, and keeps the record of what was wrong in them.

Compressed files are recognized by their suffix. `text_files`, `table_files` and `wikipedia` parse
the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import os
import pathlib
from typing import Any, BinaryIO

from etils import epath

from bertjax.files import atomic, opening, text_encodings

PLACES_KEPT = 5
# The name of standard input in a list of files, and its file.
STANDARD_INPUT, STANDARD_INPUT_FILE = "-", "/dev/stdin"

# First bytes by which a file is recognized whatever its name.
_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
}


@dataclasses.dataclass
class Log:
    """The record of reading: bytes of the (maybe compressed) files, and problems by kind.

    `counts` and `first_places` are keyed by the kind of problem, "invalid_utf8_lines" for example;
    a place is "path:line" or the id of a document. `removed` counts the copies that were left out,
    by what they are.
    """

    bytes_read: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    first_places: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    removed: dict[str, int] = dataclasses.field(default_factory=dict)

    def read(self, size: int) -> None:
        """Counts bytes that were read."""
        self.bytes_read += size

    def problem(self, kind: str, place: str) -> None:
        """Counts one problem and remembers where, if it is among the first of its kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        places = self.first_places.setdefault(kind, [])
        if len(places) < PLACES_KEPT and place not in places:
            places.append(place)

    def merge(self, later: Log) -> None:
        """Adds what another log has recorded of the documents that come after those of this one."""
        self.bytes_read += later.bytes_read
        for kind, count in later.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
            places = self.first_places.get(kind, []) + later.first_places[kind]
            self.first_places[kind] = list(dict.fromkeys(places))[:PLACES_KEPT]
        for kind, count in later.removed.items():
            self.removed[kind] = self.removed.get(kind, 0) + count

    def statistics(self) -> dict[str, Any]:
        """Returns {"reading_problems": {kind: {"count": number, "first": places}}} for JSON.

        If copies were looked for, "removed_copies" has their numbers.
        """
        removed = {"removed_copies": dict(self.removed)} if self.removed else {}
        return removed | {
            "reading_problems": {
                kind: {"count": self.counts[kind], "first": list(self.first_places[kind])}
                for kind in sorted(self.counts)
            }
        }


def find(pattern: str, *, accepted: str = "paths and globs of files") -> list[str]:
    """Returns the files that a path or glob (`**` recursive) stands for, sorted."""
    if atomic.is_remote(pattern):
        return _find_remote(pattern, accepted)
    if paths := _matches(pattern):
        return sorted(paths)
    if pattern and os.path.isdir(pattern):
        raise ValueError(
            f"input {pattern!r} is a directory; say which of its files to read, for example "
            f"{os.path.join(pattern, '**', '*.txt')!r}"
        )
    raise _matches_nothing(pattern, accepted)


_OF_TEXT = "a document of a text processor: save it as plain text (UTF-8)"
_OF_CELLS = "a table of a spreadsheet: save it as CSV UTF-8"
_PAGES = (".html", ".htm", ".xhtml")
_MARKED_UP = (
    "a page with tags, which would become tokens: extract its text, for example with trafilatura, "
    "or name it .txt if the tags are wanted"
)
# First bytes of documents of other programs; another file of their name is text.
_MAGIC_OF_DOCUMENTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf", b"%PDF")
# Suffix -> what such a file is, and the remedy.
_DOCUMENTS = {
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf", ".pages"), _OF_TEXT),
    **dict.fromkeys((".xls", ".xlsx", ".ods", ".numbers"), _OF_CELLS),
    ".pdf": "a PDF: extract its text, for example with pdftotext",
}


def is_there(pattern: str) -> bool:
    """Returns whether a path or glob on this machine stands for a file or a directory."""
    return atomic.is_remote(pattern) or os.path.exists(pattern) or bool(_matches(pattern))


def _matches(pattern: str) -> list[str]:
    """Returns the files that a path or glob on this machine stands for."""
    if pattern == STANDARD_INPUT:
        return [STANDARD_INPUT_FILE]
    # A name may hold the characters of globs.
    if os.path.lexists(pattern) and not os.path.isdir(pattern):
        return [pattern]
    for glob_pattern in (pattern, pattern.replace("[", "[[]")):
        # Folders that a glob matches are skipped: `**` always matches them.
        found = glob.glob(glob_pattern, recursive=True)
        if paths := [path for path in found if not os.path.isdir(path)]:
            return paths
    return []


def store(path: str, target: epath.Path) -> tuple[int, str]:
    """Copies a pipe to its end, and returns the number of bytes and their sha256."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "rb", buffering=0) as source, target.open("wb") as file:
        try:
            while piece := source.read(opening.BUFFER_BYTES):
                digest.update(piece)
                size += file.write(piece)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}, copying {path}", str(target)) from error
    return size, digest.hexdigest()


def size(path: str) -> int:
    """Returns the bytes of the file; 0 for a link to nowhere, of which opening it will tell."""
    file = epath.Path(path)
    return file.stat().length if file.exists() else 0


def opened(
    path: str, log: Log | None = None, encoding: str = text_encodings.UTF8
) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens the decompressed bytes of a file, counting the compressed ones in `log.bytes_read`.

    They are UTF-8 where the file is text in `encoding`.
    """
    return opening.opened(path, encoding, log.read if log else None)


def head(path: str, size: int) -> bytes:
    """Returns the first `size` decompressed bytes, or all if there are fewer.

    ValueError for documents of other programs, with the remedy.
    """
    suffix = pathlib.PurePath(path).suffix.lower()
    if suffix in _PAGES:
        raise ValueError(f"{path} is {_MARKED_UP}")
    with opened(path) as file:
        first = file.read(size)
    if suffix in _DOCUMENTS and first.startswith(_MAGIC_OF_DOCUMENTS):
        raise ValueError(f"{path} is {_DOCUMENTS[suffix]}")
    for magic, suffix in _MAGIC.items():
        if first.startswith(magic) and suffix != opening.suffixes(path)[0]:
            raise ValueError(
                f"{path} holds {suffix} data, which its name does not say; "
                + ("unpack it" if suffix == ".zip" else f"rename it to end in {suffix}")
            )
    return first


def _find_remote(pattern: str, accepted: str) -> list[str]:
    parts = pattern.split("/")
    if "**" in pattern:
        raise ValueError(
            f"input {pattern!r} holds **, which would list a whole bucket; name the folders with *"
        )
    fixed = next((i for i, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    root, glob = epath.Path("/".join(parts[:fixed])), "/".join(parts[fixed:])
    paths = sorted(str(path) for path in root.glob(glob)) if glob else []
    if not glob and root.exists():
        paths = [pattern]
    if not paths:
        raise _matches_nothing(pattern, accepted)
    return paths


def _matches_nothing(pattern: str, accepted: str) -> FileNotFoundError:
    return FileNotFoundError(f"input {pattern!r} matches no file; give {accepted}")
