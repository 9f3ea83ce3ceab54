"""JSON lines and Parquet files to documents: one record, one document.

`text_field` names the field that holds the text; a dotted path reaches into nested ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import parquet

from data_pipelines.formats import base, input_files, integers, text_files

# A longer line is no record but a file without line ends; the whole line must be in memory.
LONGEST_RECORD_BYTES = 1 << 28
ROWS_PER_BATCH = 256
_SKIPPED_BYTES = 1 << 20


def read_json_lines(
    path: str, reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    """Yields ("path:line", text) of the records of a JSON lines file.

    Lines that are not JSON, and records without text in that field, are counted and left out.

    Raises:
      ValueError: if the file cannot be read or decompressed.
    """
    found = 0
    for number, line in _records(path, log):
        place = f"{path}:{number}"
        kind, text = _json_text(line, reading.text_field)
        found += 1
        if text is None:
            log.problem(kind, place)
        else:
            yield from text_files.tidied(place, text, log)
    if not found:
        log.problem("empty_files", path)


def check_json_lines(path: str, reading: base.Reading) -> None:
    """Reads the first record of a JSON lines file.

    Raises:
      ValueError: if it is not JSON or lacks the field.
    """
    text_files.check(path, reading)
    line = next((line for _, line in _records(path, input_files.Log())), None)
    if line is None:
        return
    kind, text = _json_text(line, reading.text_field)
    if kind == "invalid_utf8_lines" or kind == "invalid_json_lines":
        raise ValueError(
            f"{path} does not begin with a JSON record on a line of its own; JSON lines are wanted "
            "(`jq -c '.[]'` makes them of an array)"
        )
    if text is None:
        record = json.loads(line)
        if isinstance(record, list):
            raise ValueError(
                f"{path} is a JSON array, of {len(record):,} elements in its first line; a record "
                f"on each line is wanted, which `jq -c '.[]' {path} > NAME.jsonl` makes of it"
            )
        raise ValueError(_wrong_field(path, reading.text_field, _field_names(record)))


def read_parquet(
    path: str, reading: base.Reading, log: input_files.Log
) -> Iterator[tuple[str, str]]:
    """Yields ("path:row", text) of a Parquet file, rows numbered from 1, reading one column.

    Rows without text are counted and left out.

    Raises:
      ValueError: if the file is damaged.
    """
    row, text_field = 0, reading.text_field
    with _opened_parquet(path) as file:
        size = input_files.size(path)
        for group in range(file.num_row_groups):
            batches = file.iter_batches(ROWS_PER_BATCH, row_groups=[group], columns=[text_field])
            for batch in batches:
                for text in _texts(batch, text_field):
                    row += 1
                    if text is None:
                        log.problem("records_without_text", f"{path}:{row}")
                    else:
                        yield from text_files.tidied(f"{path}:{row}", text, log)
            # By groups: what a column takes of a file is not known better.
            log.bytes_read += (
                size * (group + 1) // file.num_row_groups - size * group // file.num_row_groups
            )
    if not row:
        log.problem("empty_files", path)


def check_parquet(path: str, reading: base.Reading) -> None:
    """Reads the schema of a Parquet file.

    Raises:
      ValueError: if the file is none, or has no such column of strings.
    """
    text_field = reading.text_field
    with _opened_parquet(path) as file:
        schema = file.schema_arrow
    names = _column_names(schema)
    kind = names.get(text_field)
    if kind is None:
        raise ValueError(_wrong_field(path, text_field, list(names)))
    is_text = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    if not is_text and not _is_list_of_integers(kind):
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
    line = next((line for _, line in _records(path, input_files.Log())), b"{}")
    return integers.are_integers(_json_value(json.loads(line.decode("utf-8-sig")), reading))


def _is_list_of_integers(kind: Any) -> bool:
    types = pyarrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_integer(kind.value_type)


def _records(path: str, log: input_files.Log) -> Iterator[tuple[int, bytes]]:
    """Yields (number, line) of the lines that are not blank and not absurdly long."""
    with input_files.opened(path, log) as file:
        number = 0
        while line := file.readline(LONGEST_RECORD_BYTES):
            number += 1
            if len(line) == LONGEST_RECORD_BYTES and not line.endswith(b"\n"):
                log.problem("long_lines", f"{path}:{number}")
                while (rest := file.readline(_SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                    pass
            elif not line.isspace():
                yield number, line


def _json_text(line: bytes, text_field: str) -> tuple[str, str | None]:
    """Returns what is wrong with a record and its text, one of them empty."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "invalid_utf8_lines", None
    # The second one for thousands of nested brackets.
    except (ValueError, RecursionError):
        return "invalid_json_lines", None
    value = _json_value(record, base.Reading(text_field=text_field))
    if integers.are_integers(value):
        return "", integers.as_text(value)
    return ("", value) if isinstance(value, str) else ("records_without_text", None)


def _json_value(record: Any, reading: base.Reading) -> Any:
    for name in reading.text_field.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _field_names(record: Any, prefix: str = "") -> list[str]:
    """Returns the dotted paths of the strings in a record, or else of all its fields."""
    if not isinstance(record, dict):
        return []
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


def _texts(batch: Any, text_field: str) -> list[str | None]:
    first, *rest = text_field.split(".")
    column = batch.column(first)
    for name in rest:
        column = column.field(name)
    return [integers.as_text(it) if isinstance(it, list) else it for it in column.to_pylist()]


@contextlib.contextmanager
def _opened_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    with (
        _parquet_errors(path),
        input_files.unbuffered(path) as raw,
        parquet.ParquetFile(raw) as file,
    ):
        yield file


@contextlib.contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet ({error}); fetch or write it again, or leave it out "
            "of the input"
        ) from error
