"""Texts of files and standard input: lines, JSON objects with an id or not, sequences of FASTA."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.data import fasta
from bertjax.files import opening, path_lists, tables, text_encodings
from bertjax.tokenization import letters, token_ids

STANDARD_INPUT = "standard input"
Alphabet = frozenset[str]  # the letters of a vocabulary; empty for texts


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


COLUMNS = Columns()


def read_lines(
    paths: Sequence[epath.PathLike], columns: Columns = COLUMNS, alphabet: Alphabet = frozenset()
) -> Iterator[Line]:
    """Yields the lines of files, one file after the other; an empty line is also a text.

    Files of FASTA and FASTQ are known by their suffix, and by their beginning where texts are of
    an alphabet; their sequences have their names as ids.
    """
    files = [epath.Path("/dev/stdin" if path == "-" else path) for path in paths]
    if missing := [str(path) for path in files if not path.exists()]:
        raise FileNotFoundError(f"{', '.join(missing)}: no such file; --input names files of texts")
    return (
        line
        for number, path in enumerate(files)
        for line in _of_file(path, number, columns, alphabet)
    )


def paths(names: Sequence[str]) -> list[str]:
    """Returns the paths of --input, which was split at commas."""
    return path_lists.rejoined(names, lambda name: epath.Path(name).exists())


def opened(
    path: epath.PathLike, encoding: str = text_encodings.UTF8
) -> contextlib.AbstractContextManager[Any]:
    """Opens the text of a file, or of standard input, as UTF-8."""
    if path not in (STANDARD_INPUT, "-"):
        return opening.opened(path, encoding)
    return contextlib.nullcontext(text_encodings.as_utf8(sys.stdin.buffer, encoding, path))


def given(
    names: Sequence[str] | None, vocabulary: token_ids.Tokenizer, columns: Columns = COLUMNS
) -> Iterator[Line]:
    """Yields the lines of --input, or without it of standard input, for a vocabulary."""
    if names:
        return read_lines(paths(names), columns, vocabulary.letters)
    return _of_file(STANDARD_INPUT, 0, columns, vocabulary.letters)


def is_fasta(path: epath.PathLike, file: Any, *, by_content: bool = True) -> bool:
    """Returns whether an open file is FASTA or FASTQ, by its suffix or its beginning."""
    suffix = opening.suffixes(path)[0]
    return suffix in fasta.SUFFIXES or (by_content and fasta.begins(file.peek()))


def sequences(
    file: Any, path: epath.PathLike, alphabet: Alphabet, source: int = 0
) -> Iterator[Line]:
    """Yields the sequences of an open file of FASTA or FASTQ."""
    for number, name, sequence in fasta.sequences(file, str(path), alphabet):
        yield _line(source, number, name, sequence)


def with_remark(
    lines: Iterable[Line], outcome: str, vocabulary: token_ids.Tokenizer | None = None
) -> Iterator[Line]:
    """Yields lines, and at their end warns once of empty ones, of unknown letters, or of no lines.

    `outcome` says what becomes of them. A `vocabulary` of letters says which are unknown.
    """
    count, empty, unknown = 0, 0, collections.Counter()
    for line in lines:
        count += 1
        empty += not line.text.strip()
        if vocabulary is not None:
            unknown += letters.unknown(line.text, vocabulary)
        yield line
    if empty:
        logging.warning("Empty lines: %d; %s", empty, outcome)
    if not count:
        logging.warning("The input holds no texts")
    letters.warn(unknown)


def numbered(texts: Iterable[str]) -> Iterator[Line]:
    """Yields the lines of a stream, such as standard input."""
    return (_line(0, number, "", text) for number, text in enumerate(texts, start=1))


def count(paths: Sequence[epath.PathLike], alphabet: Alphabet = frozenset()) -> int | None:
    """Returns the number of lines or sequences of files, which are read to the end for it.

    None if one of them is a pipe, which can be read once.
    """
    total = 0
    if any(path == "-" or opening.is_pipe(path) for path in paths):
        return None
    for path in paths:
        with opening.opened(path, text_encodings.UTF8) as file:
            has_sequences = is_fasta(path, file, by_content=bool(alphabet))
            items = sequences(file, path, alphabet) if has_sequences else tables.lines(file)
            total += sum(1 for _ in items)
    return total


def _of_file(
    path: epath.PathLike, source: int, columns: Columns, alphabet: Alphabet
) -> Iterator[Line]:
    if opening.suffixes(path)[0] not in JSON_SUFFIXES:
        with opened(path) as file:
            if is_fasta(path, file, by_content=bool(alphabet)):
                yield from sequences(file, path, alphabet, source)
                return
            for number, text in enumerate(tables.text_lines_of(file, path), start=1):
                yield _line(source, number, "", text)
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
