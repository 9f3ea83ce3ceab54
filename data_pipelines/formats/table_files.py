"""Tables to documents: a row of CSV or TSV, a line of JSON or a row of Parquet is a document.

`text_field` names the column that holds the text; a dotted path reaches into nested fields of JSON
and Parquet. How rows are read belongs to `bertjax.files.tables`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow
from pyarrow import parquet

from bertjax.files import delimiters, opening, tables
from data_pipelines.formats import base, input_files, integers, text_files

# Faults of rows -> their names in the log; a row that is not CSV ends the reading.
_PROBLEMS = {
    "columns": "torn_rows",
    "json": "invalid_json_lines",
    "long": "long_lines",
    "object": "records_without_text",
    "utf8": "invalid_utf8_lines",
}
_LENIENT = tables.Rules(lenient=True)


def read_delimited(
    path: str, reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    """Yields ("path:row", text) of CSV or TSV, rows numbered from 1 below the line of names.

    Rows with more or fewer fields than names, and texts that are not UTF-8, are counted and left
    out.
    """
    number, (column,) = 0, delimiters.column_names([reading.text_field])
    for number, row in enumerate(_delimited_rows(path, reading, log), start=1):
        place = f"{path}:{number}"
        if row.fault:
            log.problem(_PROBLEMS[row.fault.kind], place)
        elif any("\udc80" <= character <= "\udcff" for character in row.values[column]):
            log.problem("invalid_utf8_records", place)
        else:
            yield from text_files.tidied(place, row.values[column], log)
    if not number:
        log.problem("empty_files", path)


def check_delimited(path: str, reading: base.Reading) -> None:
    """Raises ValueError unless CSV or TSV has the column, and a first row that fits the names."""
    text_files.check(path, reading)
    row = next(_delimited_rows(path, reading, input_files.Log()), None)
    if row and row.fault:
        raise ValueError(
            f"{path}:{row.number}: {row.fault.message}: put quotes around texts that hold the "
            "delimiter, name another --delimiter, or, if it is plain text, rename it to end in .txt"
        )


def read_json_lines(
    path: str, reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    """Yields ("path:line", text) of the records of a JSON lines file.

    Lines that are not JSON, and records without text in that field, are counted and left out.
    """
    yield from _documents(path, _json_rows(path, reading, log), reading, log)


def check_json_lines(path: str, reading: base.Reading) -> None:
    """Raises ValueError unless the first record of a JSON lines file has the field."""
    text_files.check(path, reading)
    row = _first_json_row(path, reading)
    if row is None:
        return
    if row.fault:
        raise ValueError(
            f"{path}:{row.number}: {row.fault.message}; `jq -c '.[]' {path} > NAME.jsonl` writes "
            "the elements of an array so"
        )
    if _text(row.values, reading.text_field) is None:
        raise ValueError(_wrong_field(path, reading.text_field, _field_names(row.values)))


def read_parquet(
    path: str, reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    """Yields ("path:row", text) of a Parquet file, rows numbered from 1, reading one column.

    Rows without text are counted and left out.
    """
    with _opened_parquet(path) as file:
        size, count = input_files.size(path), file.metadata.num_rows

        def counted() -> Iterator[tables.Row]:
            # A row counts as its share of the file: the bytes of a column are not known.
            for row in tables.parquet_rows(file, [reading.text_field]):
                yield row
                log.bytes_read += size * row.number // count - size * (row.number - 1) // count

        yield from _documents(path, counted(), reading, log)


def check_parquet(path: str, reading: base.Reading) -> None:
    """Raises ValueError unless a Parquet file has the column, of strings or lists of integers."""
    text_field = reading.text_field
    with _opened_parquet(path) as file:
        names = _column_names(file.schema_arrow)
    kind = names.get(text_field)
    if kind is None:
        raise ValueError(_wrong_field(path, text_field, list(names)))
    if not tables.is_text(kind) and not _is_list_of_integers(kind):
        raise ValueError(
            f"{path} has {kind} in its column {text_field!r}, neither strings nor lists of "
            f"integers; text_field must be one of {', '.join(names)}"
        )


def parquet_holds_integers(path: str, reading: base.Reading) -> bool:
    """Returns whether a Parquet file has lists of token ids in the column that is read."""
    with _opened_parquet(path) as file:
        return _is_list_of_integers(_column_names(file.schema_arrow)[reading.text_field])


def json_lines_hold_integers(path: str, reading: base.Reading) -> bool:
    """Returns whether the first record of a JSON lines file has a list of token ids as its text."""
    row = _first_json_row(path, reading)
    return row is not None and integers.are_integers(_value(row.values, reading.text_field))


def _delimited_rows(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tables.Row]:
    def names_fault(names: Sequence[str]) -> str | None:
        if not names or delimiters.column_names([reading.text_field])[0] in names:
            return None
        return (
            f"there is no column {reading.text_field!r}; --text_field must be one of those that "
            f"the first line names: {', '.join(names)}. If it is plain text, rename it to end in "
            ".txt"
        )

    rules = tables.Rules(lenient=True, names_fault=names_fault, delimiter=reading.delimiter)
    with input_files.opened(path, log, reading.encoding) as file:
        for row in tables.rows_of(file, path, opening.suffixes(path)[0], rules):
            if row.fault and row.fault.kind == "csv":
                raise ValueError(f"{path}:{row.number}: {row.fault.message}")
            yield row


def _json_rows(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tables.Row]:
    with input_files.opened(path, log, reading.encoding) as file:
        yield from tables.rows_of(file, path, ".jsonl", _LENIENT)


def _first_json_row(path: str, reading: base.Reading) -> tables.Row | None:
    """Returns the first row that is not absurdly long."""
    rows = _json_rows(path, reading, input_files.Log())
    return next((row for row in rows if not row.fault or row.fault.kind != "long"), None)


def _documents(
    path: str, rows: Iterator[tables.Row], reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    is_empty = True
    for row in rows:
        is_empty = False
        place = f"{path}:{row.number}"
        text = None if row.fault else _text(row.values, reading.text_field)
        if text is not None:
            yield from text_files.tidied(place, text, log)
        else:
            log.problem(_PROBLEMS[row.fault.kind if row.fault else "object"], place)
    if is_empty:
        log.problem("empty_files", path)


def _value(record: Any, text_field: str) -> Any:
    for name in text_field.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _text(record: Mapping[str, Any], text_field: str) -> str | None:
    value = _value(record, text_field)
    if integers.are_integers(value):
        return integers.as_text(value)
    return value if isinstance(value, str) else None


def _is_list_of_integers(kind: Any) -> bool:
    types = pyarrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_integer(kind.value_type)


def _field_names(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns the dotted paths of the strings in a record, or else of all its fields."""
    names = []
    for name, value in record.items():
        if isinstance(value, dict):
            names += _field_names(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            names.append(f"{prefix}{name}")
    return names or [f"{prefix}{name}" for name in record]


def _wrong_field(path: str, text_field: str, names: Sequence[str]) -> str:
    return (
        f"{path} has no text in the field {text_field!r} of its first record; text_field must be "
        f"one of its fields: {', '.join(names) or '(it has none)'}"
    )


def _column_names(schema: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the types of all columns, those inside of structures by their dotted paths."""
    names: dict[str, Any] = {}
    for field in schema:
        if pyarrow.types.is_struct(field.type):
            names |= _column_names(field.type, f"{prefix}{field.name}.")
        else:
            names[f"{prefix}{field.name}"] = field.type
    return names


@contextlib.contextmanager
def _opened_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    with (
        opening.opened(path) as stored,
        tables.parquet_errors(path),
        parquet.ParquetFile(stored) as file,
    ):
        yield file
