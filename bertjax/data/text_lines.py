"""Texts of files, one a line: plain lines, or JSON objects with a text and perhaps an id."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import opening, tables, text_encodings
from bertjax.tokenization import token_ids


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


def read_lines(paths: Sequence[epath.PathLike], columns: Columns) -> Iterator[Line]:
    """Yields the lines of files, one file after the other; an empty line is also a text."""
    files = [epath.Path("/dev/stdin" if path == "-" else path) for path in paths]
    if missing := [str(path) for path in files if not path.exists()]:
        raise FileNotFoundError(f"{', '.join(missing)}: no such file; --input names files of texts")
    return (line for number, path in enumerate(files) for line in _of_file(path, number, columns))


def with_remark(lines: Iterable[Line], outcome: str) -> Iterator[Line]:
    """Yields lines, and at their end warns once of those that are empty.

    `outcome` says what becomes of them.
    """
    empty = 0
    for line in lines:
        empty += not line.text.strip()
        yield line
    if empty:
        logging.warning("Empty lines: %d; %s", empty, outcome)


def numbered(texts: Iterable[str]) -> Iterator[Line]:
    """Yields the lines of a stream, such as standard input."""
    return (_line(0, number, "", text) for number, text in enumerate(texts, start=1))


def count(paths: Sequence[epath.PathLike]) -> int | None:
    """Returns the number of lines of files, which are read to the end for it.

    None if one of them is a pipe, which can be read once.
    """
    total = 0
    if any(path == "-" or opening.is_pipe(path) for path in paths):
        return None
    for path in paths:
        with opening.opened(path, text_encodings.UTF8) as file:
            total += sum(1 for _ in tables.lines(file))
    return total


def _of_file(path: epath.Path, source: int, columns: Columns) -> Iterator[Line]:
    if opening.suffixes(path)[0] not in JSON_SUFFIXES:
        for number, text in enumerate(tables.text_lines(path), start=1):
            yield Line(source, number, "", text)
        return
    for row in tables.rows(path, tables.Rules(blank_lines=True)):
        fault = row.fault.message if row.fault else _fault(row.values, columns)
        if fault:
            raise ValueError(f"{path}:{row.number}: {fault}")
        id = str(row.values.get(columns.id, ""))
        yield _line(source, row.number, id, row.values[columns.text])


def _line(source: int, number: int, id: str, text: str) -> Line:
    """Returns a line whose text and id UTF-8 can hold, as the files of vectors need."""
    return Line(source, number, *map(token_ids.without_surrogates, (id, text)))


def _fault(fields: Mapping[str, Any], columns: Columns) -> str | None:
    """Returns the fault of the fields of a line, None without one."""
    if not isinstance(fields.get(columns.text), str):
        return (
            f"it has no text under {columns.text!r}; it has "
            f"{', '.join(map(repr, fields)) or 'nothing'}: name the field with --text_column"
        )
    id = fields.get(columns.id, "")
    if not isinstance(id, str | int):
        return (
            f"it has the id {id!r:.60} under {columns.id!r}; an id must be a string or a whole "
            "number (--id_column names its field)"
        )
    return None


# Files of JSON objects, by their suffix; all others are plain lines.
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
