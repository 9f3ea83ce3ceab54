r"""Tables: CSV, TSV, JSON lines and Parquet files, compressed or not.

`rows` yields them row by row in constant memory, `columns` returns them as columns of text.

CSV and TSV name their columns in the first line, JSON lines as keys, Parquet in its schema. Fields
of CSV may be quoted and then hold commas and line ends (RFC 4180); in TSV, as in GLUE's files, a
quote is an ordinary character. `delimiters` says what stands between them. A line ends at
"\n" or "\r\n" alone, or at "\r" in files that have no other end; str.splitlines would also break
texts at U+2028.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import decimal
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute
from absl import logging
from etils import epath
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bertjax.files import delimiters, json_text, opening, text_encodings

# A longer field comes from a quote that is never closed. (csv's default is 131,072.)
LONGEST_FIELD = 1 << 28
# A longer line means a file without line ends; the whole line must be in memory.
LONGEST_RECORD_BYTES = 1 << 28
ROWS_PER_BATCH = 256
# A block of columns has whole rows. Larger blocks are tried where a row is longer.
BLOCK_BYTES = (1 << 24, 1 << 27, (1 << 31) - 1)
_SKIPPED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Fault:
    """A reason why a row cannot be read.

    `kind` is "csv" (quotes), "columns" (their number or names), "json", "object" (JSON of another
    type), "utf8" or "long" (`LONGEST_RECORD_BYTES`).
    """

    kind: str
    message: str


class Row(NamedTuple):
    """The values of a row by column, or its fault.

    `number` is the line on which the row begins, from 1; for Parquet the row.
    """

    number: int
    values: Mapping[str, Any]
    fault: Fault | None = None


# Returns the fault in the names of a file's columns and its remedy, None without a fault.
NamesFault = Callable[[Sequence[str]], str | None]


@dataclasses.dataclass(frozen=True)
class Rules:
    """How strictly to read.

    A `lenient` reader takes stray quotes in CSV as characters, ends a row at a lone carriage
    return, and decodes bytes that are not UTF-8 to surrogates ("surrogateescape"; in JSON lines
    they are the fault of a row). Others raise ValueError. With `blank_lines` a blank line is a row,
    without it is skipped. `names` are the columns of a CSV or TSV file without a header.
    `delimiter` is a value of `delimiters`; only "auto" looks into the file.
    `encoding` is the encoding of a text file; `encoding_option` is the option that names it.
    """

    lenient: bool = False
    blank_lines: bool = False
    names: tuple[str, ...] = ()
    names_fault: NamesFault = lambda names: None
    delimiter: str = delimiters.AUTO
    encoding: str = text_encodings.UTF8
    encoding_option: str = ""


class _Head(NamedTuple):
    """The format and the delimiter of a CSV or TSV file.

    `skipped` lines before the header state the delimiter. `notes_quotes`: a TSV file that looks
    quoted is warned of.
    """

    suffix: str
    delimiter: str
    skipped: int
    notes_quotes: bool


EXACT = Rules()


def rows(path: epath.PathLike, rules: Rules = EXACT, suffix: str | None = None) -> Iterator[Row]:
    """Yields the rows of a file, in its order.

    `suffix`, one of FORMATS, is the format; by default it is the suffix of the file.
    """
    suffix = suffix or _format(path)
    with _opened(path, suffix, rules) as file:
        yield from rows_of(file, path, suffix, rules)


def rows_of(file: opening.File, path: epath.PathLike, suffix: str, rules: Rules) -> Iterator[Row]:
    """Yields the rows of an open file, text in UTF-8; `suffix` is one of FORMATS.

    `path` and `rules.encoding`, which the file had before, are for messages.
    """
    if suffix in FIELDS:
        head, numbered = _begun(lines(file), path, suffix, rules)
        yield from _under_header(path, head, FIELDS[suffix](numbered, path, rules, head), rules)
        return
    for row in RECORDS[suffix](file, path, rules):
        fault = None if row.fault else rules.names_fault(list(row.values))
        yield Row(row.number, row.values, Fault("columns", fault)) if fault else row


def column_names(path: epath.PathLike, rules: Rules = EXACT) -> tuple[str, ...]:
    """Returns the columns of a file by its first row, () if it has none."""
    suffix = _format(path)
    with _opened(path, suffix, rules) as file:
        if suffix in FIELDS:
            head, numbered = _begun(lines(file), path, suffix, rules)
            _, names = next(FIELDS[suffix](numbered, path, rules, head), (1, ()))
            return () if isinstance(names, Fault) else tuple(delimiters.column_names(names))
        return tuple(next((r.values for r in RECORDS[suffix](file, path, rules) if r.values), {}))


def columns(path: epath.PathLike, rules: Rules = EXACT) -> pyarrow.Table:
    """Returns the columns of a .csv, .tsv or .parquet file; other names are read as .csv.

    Columns of CSV and TSV are strings as they stand in the file, columns of Parquet have its types.
    Rows are the rows of `rows`; with `rules.blank_lines`, rows of delimiters alone are among them
    but for those beneath the table. ValueError if two columns have one name.
    """
    suffix = _suffix_of_columns(path)
    if suffix not in (*FIELDS, ".parquet"):
        raise ValueError(f"{path} ends in {suffix!r}; files of columns are .csv, .tsv or .parquet")
    opening.check_regular(path)
    if suffix == ".parquet":
        with opening.opened(path) as file, parquet_errors(path):
            table = parquet.read_table(file)
    else:
        table = _text_columns(path, suffix, rules)
    names = delimiters.column_names(table.column_names)
    if repeated := sorted(name for name, n in collections.Counter(names).items() if n > 1):
        raise ValueError(f"{path} has several columns {', '.join(map(repr, repeated))}")
    return table.rename_columns(names)


def row_lines(path: epath.PathLike, num_rows: int, rules: Rules = EXACT) -> Sequence[int]:
    """Returns the lines on which the rows of `columns` of a CSV or TSV file begin."""
    suffix = _suffix_of_columns(path)
    with opening.opened(path, rules.encoding) as file:
        head, _ = _begun(lines(file), path, suffix, rules)
    num_lines, last = 0, b"\n"
    with opening.opened(path, rules.encoding) as file:
        while block := file.read(opening.BUFFER_BYTES):
            num_lines, last = num_lines + block.count(b"\n"), block[-1:]
    first = head.skipped + 2
    # A blank line, or a line end in quotes, adds to the lines alone.
    if num_lines + (last != b"\n") == num_rows + first - 1:
        return range(first, first + num_rows)
    if not rules.blank_lines:
        return [row.number for row in rows(path, rules, suffix)]
    with opening.opened(path, rules.encoding) as file:
        head, numbered = _begun(lines(file), path, suffix, rules)
        fields = FIELDS[suffix](numbered, path, rules, head)
        numbers = [number for number, it in fields if it and (it != [""] or suffix != ".tsv")]
    return numbers[1 : 1 + num_rows]


def _suffix_of_columns(path: epath.PathLike) -> str:
    suffix = opening.suffixes(path)[0]
    return suffix if suffix in FORMATS else ".csv"


def _text_columns(path: epath.PathLike, suffix: str, rules: Rules) -> pyarrow.Table:
    with opening.opened(path, rules.encoding) as file:
        head, numbered = _begun(lines(file), path, suffix, rules)
        _, names = next(FIELDS[suffix](numbered, path, rules, head), (1, ()))
    if isinstance(names, Fault) or not names:
        reason = names.message if isinstance(names, Fault) else "it has no columns"
        raise ValueError(f"{path}:{1 + head.skipped}: {reason}")
    for block in BLOCK_BYTES:
        try:
            with opening.opened(path, rules.encoding) as file:
                table = _read_text(file, len(names), head, block)
            break
        except pyarrow.ArrowInvalid as error:
            if "straddl" not in str(error) or block == BLOCK_BYTES[-1]:
                _check_rows(path, suffix, rules)
                raise ValueError(f"{path} cannot be read as a table: {error}") from error
    # A quote that is not closed takes all lines that follow.
    if len(table) and any("\n" in column[-1].as_py() for column in table.columns):
        _check_rows(path, suffix, rules)
    table = table.slice(1).rename_columns(names)
    if len(names) == 1:
        return table
    # Excel's rows beneath the table hold delimiters alone.
    is_empty = [pyarrow.compute.equal(column, "") for column in table.columns]
    is_blank = functools.reduce(pyarrow.compute.and_, is_empty)
    if not pyarrow.compute.any(is_blank).as_py():
        return table
    is_row = pyarrow.compute.invert(is_blank)
    if rules.blank_lines:
        places = pyarrow.compute.indices_nonzero(is_row)
        return table.slice(0, 1 + places[-1].as_py() if len(places) else 0)
    return table.filter(is_row)


def _read_text(file: opening.File, width: int, head: _Head, block: int) -> pyarrow.Table:
    """Returns all rows, the header among them, as strings."""
    names = [str(place) for place in range(width)]
    kinds = dict.fromkeys(names, pyarrow.string())
    return arrow_csv.read_csv(
        file,
        arrow_csv.ReadOptions(column_names=names, skip_rows=head.skipped, block_size=block),
        arrow_csv.ParseOptions(
            delimiter=head.delimiter,
            quote_char=False if head.suffix == ".tsv" else '"',
            newlines_in_values=head.suffix != ".tsv",
        ),
        arrow_csv.ConvertOptions(column_types=kinds, strings_can_be_null=False),
    )


def _check_rows(path: epath.PathLike, suffix: str, rules: Rules) -> None:
    """Raises a ValueError with the line of the first row that has a fault."""
    for row in rows(path, dataclasses.replace(rules, blank_lines=False), suffix):
        if row.fault:
            raise ValueError(f"{path}:{row.number}: {row.fault.message}")


def decimal_mark(path: epath.PathLike, rules: Rules) -> str:
    """Returns the decimal mark of the numbers in a file: "," or ".".

    Countries with decimal commas separate columns by semicolons.
    """
    suffix = _suffix_of_columns(path)
    if suffix not in FIELDS:
        return "."
    with _opened(path, suffix, rules) as file:
        head, _ = _begun(lines(file), path, suffix, rules)
    return "," if head.delimiter == ";" else "."


def lines(file: opening.File, longest: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yields the number, from 1, and the bytes of each line, with its end.

    The rest of a line after `longest` bytes is skipped.
    """
    number = 0
    while line := file.readline(longest):
        number += 1
        yield number, line
        if len(line) == longest and not line.endswith(b"\n"):
            while (rest := file.readline(_SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                pass


def text_lines(path: epath.PathLike, encoding: str = text_encodings.UTF8) -> Iterator[str]:
    """Yields the lines of a text, without their ends and a byte-order mark."""
    with opening.opened(path, encoding) as file:
        yield from text_lines_of(file, path)


def text_lines_of(file: opening.File, path: epath.PathLike) -> Iterator[str]:
    """Yields the lines of an open file, as `text_lines`; `path` is for messages."""
    for number, line in lines(text_encodings.with_line_feeds(file)):
        yield _text(line, number, path, EXACT)


def _opened(path: epath.PathLike, suffix: str, rules: Rules) -> Any:
    """Opens a file for `rows_of`."""
    return opening.opened(path, None if suffix == ".parquet" else rules.encoding)


def _format(path: epath.PathLike) -> str:
    suffix = opening.suffixes(path)[0]
    if suffix not in FORMATS and not epath.Path(path).is_dir():
        raise ValueError(f"{path} ends in {suffix!r}; known files end in {', '.join(FORMATS)}")
    return suffix


def _text(line: bytes, number: int, path: epath.PathLike, rules: Rules, head: bytes = b"") -> str:
    """Returns a line without its end; `head` is the beginning of the file, for a guess."""
    line = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
    errors = "surrogateescape" if rules.lenient else "strict"
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        excel = '; in Excel save it as "CSV UTF-8"' if opening.suffixes(path)[0] == ".csv" else ""
        fault = f"it is not {rules.encoding}"
        if text_encodings.is_utf8(rules.encoding):
            advice = _advice(head or _head(path) or line, rules)
            fault = f"it is not UTF-8 ({error.reason} at byte {error.start}); {advice}"
        raise ValueError(f"{path}:{number}: {fault}{excel}") from error


def _head(path: epath.PathLike) -> bytes:
    """Returns the beginning of a file; nothing of a stream, which has no path."""
    if not epath.Path(path).is_file():
        return b""
    with opening.opened(path) as file:
        return file.read(text_encodings.HEAD_BYTES)


def _texts(
    numbered: Iterable[tuple[int, bytes]], path: epath.PathLike, rules: Rules
) -> Iterator[str]:
    """Yields the lines as text that ends in a line feed."""
    for number, line in numbered:
        text = _text(line, number, path, rules) + "\n"
        if rules.lenient and "\r" in text:
            yield from io.StringIO(text, newline="")
        else:
            yield text


def _begun(
    numbered: Iterator[tuple[int, bytes]], path: epath.PathLike, suffix: str, rules: Rules
) -> tuple[_Head, Iterator[tuple[int, bytes]]]:
    """Returns how a file's columns are separated, and its lines without one that states it."""
    first: list[tuple[int, bytes]] = []
    size = 0
    while size < text_encodings.HEAD_BYTES and (line := next(numbered, None)):
        first.append(line)
        size += len(line[1])
    head = b"".join(line for _, line in first)
    if text_encodings.is_wide_or_binary(head):
        raise ValueError(f"{path}:1: it is not UTF-8 text; {_advice(head, rules)}")
    if not rules.lenient:
        for number, line in first:
            _text(line, number, path, rules, head)
    stated = delimiters.stated(first[0][1]) if first else ""
    first = first[1:] if stated else first
    delimiter, is_found = delimiters.character(rules.delimiter), rules.delimiter == delimiters.AUTO
    if is_found and not stated:
        texts = list(_texts(first, path, dataclasses.replace(rules, lenient=True)))
        expected = [] if rules.names else texts
        delimiter = delimiters.find(expected, suffix, rules.names_fault)
    elif is_found:
        delimiter = stated
    return _Head(suffix, delimiter, int(bool(stated)), is_found), itertools.chain(first, numbered)


def _tsv_fields(
    numbered: Iterable[tuple[int, bytes]], path: epath.PathLike, rules: Rules, head: _Head
) -> Iterator[tuple[int, list[str] | Fault]]:
    notes_quotes = head.notes_quotes
    for number, text in enumerate(_texts(numbered, path, rules), start=1 + head.skipped):
        line = text.rstrip("\r\n") if rules.lenient else text.removesuffix("\n")
        fields = line.split(head.delimiter)
        if notes_quotes and '"' in line and delimiters.are_quoted(fields):
            notes_quotes = False
            logging.warning(
                "%s:%d: the file looks quoted, and in .tsv a quote is a character like others; "
                "rename it to end in .csv to have the quotes taken away", path, number,
            )  # fmt: skip
        if line or rules.blank_lines:
            yield number, fields


def _csv_fields(
    numbered: Iterable[tuple[int, bytes]], path: epath.PathLike, rules: Rules, head: _Head
) -> Iterator[tuple[int, list[str] | Fault]]:
    """Yields the first line of each row and its fields; reading goes on after a fault."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(
        _texts(numbered, path, rules), delimiter=head.delimiter, strict=not rules.lenient
    )
    try:
        while True:
            first = reader.line_num + 1 + head.skipped
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                remedy = (
                    "a field that holds quotes must be in quotes, with each quote inside doubled"
                )
                reason = str(error)
                if reason == "unexpected end of data":
                    remedy = (
                        "a quote that opens a field here is not closed up to the file's end: close "
                        "it, or fetch the file again if it was cut off"
                    )
                elif reason.startswith("new-line character"):
                    reason = "a carriage return stands in a field without quotes"
                    remedy = "put the field in quotes, or end all lines of the file in one way"
                yield first, Fault("csv", f"the row is not CSV ({reason}); {remedy}")
                continue
            # Excel's rows beneath the table hold delimiters alone.
            is_blank = not any(fields) and len(fields) != 1
            if not is_blank or rules.blank_lines:
                yield first, fields
    finally:
        csv.field_size_limit(limit)


def _under_header(
    path: epath.PathLike,
    head: _Head,
    fields: Iterator[tuple[int, list[str] | Fault]],
    rules: Rules,
) -> Iterator[Row]:
    names: Sequence[str] | Fault = rules.names
    line = 1
    if not names:
        line, names = next(fields, (1, []))
    if isinstance(names, Fault):
        raise ValueError(f"{path}:{line}: {names.message}")
    names = names if rules.names else delimiters.column_names(names)
    if fault := rules.names_fault(names):
        hint = delimiters.looks_separated(names, head.suffix, head.delimiter)
        raise ValueError(f"{path}:{line}: {fault}{hint}")
    expected = f"of this format: {', '.join(names)}" if rules.names else "of the header"
    for number, values in fields:
        if isinstance(values, Fault):
            yield Row(number, {}, values)
        elif len(values) == len(names):
            # If two columns have one name, the first counts.
            yield Row(number, dict(zip(reversed(names), reversed(values), strict=True)))
        else:
            message = f"the row has {len(values)} columns; it must have the {len(names)} {expected}"
            yield Row(number, {}, Fault("columns", message))


def _json_rows(file: opening.File, path: epath.PathLike, rules: Rules) -> Iterator[Row]:
    for number, line in lines(file, LONGEST_RECORD_BYTES):
        if rules.blank_lines or not line.isspace():
            record = _record(line)
            if not isinstance(record, Fault):
                yield Row(number, record)
            elif record.kind == "utf8" and not rules.lenient:
                advice = _advice(_head(path) or line, rules)
                raise ValueError(f"{path}:{number}: {record.message}; {advice}")
            else:
                yield Row(number, {}, record)


def _record(line: bytes) -> dict[str, Any] | Fault:
    if len(line) == LONGEST_RECORD_BYTES and not line.endswith(b"\n"):
        return Fault("long", f"the line is longer than {LONGEST_RECORD_BYTES:,} bytes")
    try:
        record = json_text.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Fault("utf8", f"it is not UTF-8 ({error.reason} at byte {error.start})")
    except ValueError as error:
        return Fault("json", f"it is not JSON ({error}); each line must be an object")
    if isinstance(record, dict):
        return record
    length = f" of {len(record):,} elements" if isinstance(record, list) else ""
    return Fault(
        "object", f"it is a JSON {type(record).__name__}{length}; each line must be an object"
    )


def _advice(head: bytes, rules: Rules) -> str:
    return text_encodings.advice(head, rules.encoding_option)


def _parquet_rows(file: opening.File, path: epath.PathLike, rules: Rules) -> Iterator[Row]:
    del rules
    with parquet_errors(path), parquet.ParquetFile(file) as opened_file:
        yield from parquet_rows(opened_file)


@contextlib.contextmanager
def parquet_errors(path: epath.PathLike) -> Iterator[None]:
    """Raises a ValueError inside of the `with` block where a Parquet file cannot be read."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet ({' '.join(str(error).split())}); fetch or write it "
            "again"
        ) from error


def parquet_rows(file: parquet.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yields the rows of an open file, numbered from 1, with all or some of its columns.

    Values are as in JSON: decimals are numbers, dates and times are text. Bytes are text if they
    are UTF-8, and stay bytes otherwise.
    """
    number = 0
    for batch in file.iter_batches(ROWS_PER_BATCH, columns=columns):
        names, values = batch.schema.names, map(_json_values, batch.columns)
        for row in zip(*values, strict=True):
            number += 1
            yield Row(number, dict(zip(names, row, strict=True)))


def is_text(kind: pyarrow.DataType) -> bool:
    """Returns whether a column of Parquet holds text, as strings of any kind or as bytes."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    are_bytes = (types.is_binary, types.is_large_binary, types.is_binary_view)
    return _is_string(kind) or any(fits(kind) for fits in are_bytes)


def in_microseconds(column: Any) -> Any:
    """Returns a column of arrow whose times, also nested ones, have no nanoseconds.

    Python's times have none, so arrow converts nanoseconds with pandas where it is installed, and
    refuses most of them where it is not.
    """
    kind = _without_nanoseconds(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _without_nanoseconds(kind: pyarrow.DataType) -> pyarrow.DataType:
    types = pyarrow.types
    if types.is_dictionary(kind):
        value = _without_nanoseconds(kind.value_type)
        return kind if value == kind.value_type else value
    if types.is_nested(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        inner = [field.with_type(_without_nanoseconds(field.type)) for field in fields]
        if inner == fields:
            return kind
        if types.is_struct(kind):
            return pyarrow.struct(inner)
        (field,) = inner
        if types.is_map(kind):
            return pyarrow.map_(field.type.field(0), field.type.field(1))
        return pyarrow.large_list(field)  # of any kind of list
    if kind.id not in _TIMES or kind.unit != "ns":
        return kind
    zone = (kind.tz,) if types.is_timestamp(kind) else ()
    return _TIMES[kind.id]("us", *zone)


def _json_values(column: pyarrow.Array) -> list[Any]:
    values = in_microseconds(column).to_pylist()
    return values if _is_json(column.type) else list(map(_json_value, values))


def _is_json(kind: pyarrow.DataType) -> bool:
    """Returns whether values of a type need no conversion for JSON."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _is_json(kind.value_type)
    if types.is_nested(kind):
        return all(_is_json(kind.field(place).type) for place in range(kind.num_fields))
    numbers = types.is_integer(kind) or types.is_floating(kind)
    return numbers or types.is_boolean(kind) or types.is_null(kind) or _is_string(kind)


def _is_string(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, Mapping):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_json_value, value))
    return str(value)  # dates, times, durations


_TIMES = {
    pyarrow.timestamp("ns").id: pyarrow.timestamp,
    pyarrow.time64("ns").id: pyarrow.time64,
    pyarrow.duration("ns").id: pyarrow.duration,
}

# Files that name their columns in the first row, and files that name them in every row.
FIELDS = {".csv": _csv_fields, ".tsv": _tsv_fields}
RECORDS = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}
FORMATS = (*FIELDS, *RECORDS)
