"""Texts of files, one a line: plain lines, or JSON objects with a text and perhaps an id."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from etils import epath

from bertjax.data import json_text


@dataclasses.dataclass(frozen=True)
class Line:
    """A text, the number of its source, and of its line there, from 1; "" where it has no id."""

    source: int
    number: int
    id: str
    text: str


@dataclasses.dataclass(frozen=True)
class Columns:
    """In which fields of a JSON object the text and the id are; an id may be missing."""

    text: str = "text"
    id: str = "id"


def read(paths: Sequence[epath.PathLike], columns: Columns) -> Iterator[Line]:
    """Yields the lines of files, one file after the other; also an empty line is a text.

    Raises:
      FileNotFoundError: naming all files that are not there.
      ValueError: with file and line, for what is no UTF-8, no JSON object, or has no text.
    """
    files = [epath.Path(path) for path in paths]
    if missing := [str(path) for path in files if not path.exists()]:
        raise FileNotFoundError(f"{', '.join(missing)}: no such file; --input names files of texts")
    return (line for number, path in enumerate(files) for line in _of_file(path, number, columns))


def numbered(texts: Iterable[str]) -> Iterator[Line]:
    """Yields lines of a source that is no file."""
    return (Line(0, number, "", text) for number, text in enumerate(texts, start=1))


def count(paths: Sequence[epath.PathLike]) -> int:
    """Returns how many lines files have: they are read, and unpacked, once for that.

    Raises:
      ValueError: with file and line, where a file cannot be unpacked.
    """
    return sum(sum(1 for _ in _lines(epath.Path(path))) for path in paths)


def _of_file(path: epath.Path, source: int, columns: Columns) -> Iterator[Line]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = (suffixes[:-1] if suffixes and suffixes[-1] in OPENED else suffixes)[-1:]
    parse = FORMATS.get(kind[0] if kind else "", _plain)
    for number, content in _lines(path):
        try:
            id, text = parse(content.decode(), columns)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}:{number} is not UTF-8 ({error.reason} at byte {error.start}); convert the "
                "file, for example with iconv"
            ) from error
        except _LineError as error:
            raise ValueError(f"{path}:{number} {error}") from error
        yield Line(source, number, id, text)


def _lines(path: epath.Path) -> Iterator[tuple[int, bytes]]:
    """Yields each line of a file, unpacked, with its number from 1."""
    opened = OPENED.get(path.suffix.lower())
    with path.open("rb") as raw, opened(raw) if opened else raw as file:
        number = 0
        try:
            for number, content in enumerate(file, start=1):
                yield number, content
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ValueError(f"{path}:{number + 1} cannot be unpacked ({error})") from error


class _LineError(Exception):
    """What is wrong with a line; who reads the file knows where it is."""


def _plain(line: str, columns: Columns) -> tuple[str, str]:
    del columns
    # str.splitlines would also break a line at U+2028.
    return "", line.removesuffix("\n").removesuffix("\r")


def _json(line: str, columns: Columns) -> tuple[str, str]:
    try:
        fields: Any = json_text.loads(line)
    except ValueError as error:
        raise _LineError(f"is not JSON ({error}); a line must be one object") from error
    if not isinstance(fields, dict):
        raise _LineError(f"holds a {type(fields).__name__}; a line must be a JSON object")
    if not isinstance(fields.get(columns.text), str):
        raise _LineError(
            f"has no text under {columns.text!r}; it has "
            f"{', '.join(map(repr, fields)) or 'nothing'}: name the field with --text_column"
        )
    id = fields.get(columns.id, "")
    if not isinstance(id, str | int):
        raise _LineError(
            f"has the id {id!r:.60} under {columns.id!r}; an id must be a string or a whole number "
            "(--id_column names its field)"
        )
    return str(id), fields[columns.text]


# By the suffix of the file: how a line becomes an id and a text. All others are plain lines.
FORMATS: dict[str, Callable[[str, Columns], tuple[str, str]]] = {
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".txt": _plain,
}

# By the last suffix: how a packed file is read.
OPENED: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
