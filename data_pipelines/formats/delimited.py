"""CSV and TSV files to documents: one row, one document, its text in the column `text_field`.

The first line names the columns. As in finetuning's tables, fields of CSV may be quoted and then
hold commas and line ends (RFC 4180); in TSV a quote is a character like others.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator

from data_pipelines.formats import base, input_files, text_files

# A longer field is no text but a quote that is never closed.
LONGEST_FIELD = 1 << 28


def read(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields ("path:row", text), rows numbered from 1 below the line of names.

    Rows with more or fewer fields than names, and texts that are not UTF-8, are counted and left
    out.

    Raises:
      ValueError: if the file cannot be read, or a quote in it is never closed.
    """
    number = 0
    with _rows(path, log) as (names, rows):
        if not names:
            log.problem("empty_files", path)
            return
        column = _column(path, names, reading.text_field)
        for number, row in enumerate(rows, start=1):
            place = f"{path}:{number}"
            if len(row) != len(names):
                log.problem("torn_rows", place)
            elif any("\udc80" <= character <= "\udcff" for character in row[column]):
                log.problem("invalid_utf8_records", place)
            else:
                yield from text_files.tidied(place, row[column], log)
    if not number:
        log.problem("empty_files", path)


def check(path: str, reading: base.Reading) -> None:
    """Reads the first rows.

    Raises:
      ValueError: if the file is no text, has no such column, or its rows are not of its columns.
    """
    text_files.check(path, reading)
    with _rows(path, input_files.Log()) as (names, rows):
        if not names:
            return
        _column(path, names, reading.text_field)
        first = next(rows, names)
        if len(first) != len(names):
            raise ValueError(
                f"{path} names {len(names)} columns in its first line, and its first row has "
                f"{len(first)}: put quotes around texts with commas, or, if it is plain text, "
                "rename it to end in .txt"
            )


@contextlib.contextmanager
def _rows(path: str, log: input_files.Log) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Opens a file as the names in its first line, [] if it is empty, and its rows."""
    before = csv.field_size_limit(LONGEST_FIELD)
    is_csv = input_files.suffixes(path)[0] == ".csv"
    delimiter, quoting = (",", csv.QUOTE_MINIMAL) if is_csv else ("\t", csv.QUOTE_NONE)
    try:
        with input_files.opened(path, log) as file:
            # What is not UTF-8 becomes half a surrogate pair, which UTF-8 cannot hold.
            text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
            rows = csv.reader(text, delimiter=delimiter, quoting=quoting)
            written = (row for row in rows if row)
            names = next(written, [])
            yield names, written
    except csv.Error as error:
        raise ValueError(
            f"{path} cannot be read as a table ({error}): look for a quote that is never closed"
        ) from error
    finally:
        csv.field_size_limit(before)


def _column(path: str, names: list[str], text_field: str) -> int:
    if text_field not in names:
        raise ValueError(
            f"{path} has no column {text_field!r}; --text_field must be one of those that its "
            f"first line names: {', '.join(names)}. If it is plain text, rename it to end in .txt"
        )
    return names.index(text_field)
