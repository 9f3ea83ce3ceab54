"""Tables whose columns are numbers, times or categories, as training decided; and their parts."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow
import pyarrow.compute
from absl import logging

from bertjax.cli import command_line
from bertjax.files import delimiters, opening, tables, text_encodings
from bertjax.options import faults
from data_pipelines.values import spellings, value_records

MOST_WHOLE = 2**53  # float64 holds all whole numbers up to it
WHOLE = "^[+-]?[0-9]+$"
NUMBER, TIME, CLOCK, TEXT = "number", "time", "clock", "text"
WHOLE_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


@dataclasses.dataclass(frozen=True)
class Reading:
    """How the text of tables is read: `missing` are texts of empty cells, in every column.

    With `empty_rows`, a row of delimiters alone is a row.
    """

    delimiter: str = delimiters.AUTO
    encoding: str = text_encodings.UTF8
    missing: tuple[str, ...] = ()
    decimal: str = spellings.AUTO
    empty_rows: bool = False

    @property
    def rules(self) -> tables.Rules:
        """The rules for the rows of a file."""
        return tables.Rules(
            delimiter=self.delimiter,
            encoding=self.encoding,
            encoding_option="--encoding",
            blank_lines=self.empty_rows,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The options of builders that read tables."""

    delimiter: str = command_line.option(delimiters.HELP, default=delimiters.AUTO)
    encoding: str = command_line.option(
        "of CSV and TSV, for example cp1252 or utf-16", default=text_encodings.UTF8
    )
    missing: str = command_line.option(
        "texts of empty cells, with commas between them, in addition to those of numbers and "
        f"times: {' '.join(spellings.MISSING)}",
        default="",
    )
    decimal: str = command_line.option(
        "the decimal mark of numbers; auto: as the cells of a column show",
        choices=lambda: (spellings.AUTO, *spellings.MARKS),
        default=spellings.AUTO,
    )

    @property
    def reading(self) -> Reading:
        """How the input is read; ValueError for an option that is not possible."""
        for name, fault in (
            ("--delimiter", delimiters.fault(self.delimiter)),
            ("--encoding", text_encodings.fault(self.encoding)),
        ):
            if fault:
                raise ValueError(f"{name} {fault}")
        missing = tuple(it.strip() for it in self.missing.split(",") if it.strip())
        return Reading(self.delimiter, self.encoding, missing, self.decimal)


@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a column: their `kind`, and for text files the form in which they are spelt.

    values: [rows], nan where empty: numbers, seconds since 1970, or seconds since midnight; for
      text places in `texts`, -1 where empty
    texts: the different texts of a column of text
    type: the type that the file states, "text" in text files
    strays: places of cells that are not of the kind, and are empty in `values`
    """

    kind: str
    values: np.ndarray
    type: str
    form: str = ""
    texts: tuple[str, ...] = ()
    strays: np.ndarray = dataclasses.field(default_factory=lambda: np.arange(0))


class Table:
    """The columns of a file, read once."""

    def __init__(self, path: str, reading: Reading = Reading()):
        self.path, self.reading = path, reading
        self._warnings: set[str] = set()
        self._table = tables.columns(path, reading.rules)
        self._mark = reading.decimal
        if self._mark == spellings.AUTO:
            self._mark = "." if self._is_typed else tables.decimal_mark(path, reading.rules)
        if not len(self._table):
            raise ValueError(
                f"{path} has no rows under its header, {', '.join(self._table.column_names)}"
            )

    @property
    def _is_typed(self) -> bool:
        return opening.suffixes(self.path)[0] == ".parquet"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self._table.column_names)

    def __len__(self) -> int:
        return len(self._table)

    def place(self, row: int) -> str:
        """Returns "FILE:LINE" of a row counted from 0, "FILE, row N" of Parquet."""
        if self._is_typed:
            return f"{self.path}, row {int(row) + 1}"
        return f"{self.path}:{self._lines[int(row)]}"

    @functools.cached_property
    def _lines(self) -> Sequence[int]:
        return tables.row_lines(self.path, len(self), self.reading.rules)

    def check_column(self, name: str, option: str) -> None:
        """Raises a ValueError if there is no column that an option names."""
        if self._table.schema.get_field_index(name) < 0:
            raise faults.unknown(option, name, self.names, f"the columns of {self.path}")

    def example(self, name: str, row: int) -> str:
        """Returns a cell as the file has it."""
        return str(self._table.column(name)[int(row)].as_py())

    def cells(
        self,
        name: str,
        *,
        training: np.ndarray | None = None,
        form: str | None = None,
        as_text: bool = False,
    ) -> Cells:
        """Returns the cells of a column, whose kind and form the rows `training` decide, or all.

        With `form` they have that form, "" for text. Whole numbers and times are text by `as_text`.
        """
        column = self._table.column(name)
        try:
            column, type = _decoded(column)
            as_text |= pyarrow.types.is_dictionary(self._table.field(name).type)
            if pyarrow.types.is_string(column.type) or as_text:
                column = column.cast(pyarrow.string())
                cells = self._of_text(name, column, type, training, "" if as_text else form)
            else:
                cells = self._of_type(name, column, type)
        except _ColumnFault:
            raise
        except (ValueError, pyarrow.ArrowException) as error:
            raise self._fault(name, None, str(error)) from error
        if cells.kind != TEXT and (at := np.flatnonzero(np.isinf(cells.values))).size:
            raise self._fault(name, at[0], "holds an infinite number; leave such cells empty")
        self._report_strays(name, cells, is_known=form is not None)
        return cells

    def _of_type(self, name: str, column: pyarrow.ChunkedArray, type: str) -> Cells:
        types, kind = pyarrow.types, column.type
        if types.is_integer(kind):
            for extreme in pyarrow.compute.min_max(column).as_py().values():
                if extreme is not None and abs(extreme) > MOST_WHOLE:
                    row = pyarrow.compute.index(column, extreme).as_py()
                    raise self._fault(name, row, _NOT_WHOLE.format(extreme))
        if types.is_temporal(kind) and not types.is_duration(kind):
            if types.is_time(kind):
                return Cells(CLOCK, _seconds(column), type, spellings.CLOCK)
            return Cells(TIME, _seconds(column), type, spellings.ISO)
        values = _seconds(column) if types.is_duration(kind) else _floats(column)
        return Cells(NUMBER, values, type, spellings.PLAIN)

    def _of_text(
        self,
        name: str,
        column: pyarrow.ChunkedArray,
        type: str,
        training: np.ndarray | None,
        form: str | None,
    ) -> Cells:
        is_plain = form in (None, spellings.PLAIN) and self._mark == "."
        missing = self.reading.missing
        if is_plain and (values := _plain_numbers(column, missing)) is not None:
            return Cells(NUMBER, values, type, spellings.PLAIN)
        texts, codes = _distinct(column, missing)
        if form is None:
            part = codes if training is None else codes[training]
            part = part if (part >= 0).any() else codes
            counts = np.bincount(part[part >= 0], minlength=len(texts))
            is_empty = pyarrow.compute.is_in(texts, pyarrow.array(spellings.MISSING))
            counts = np.where(is_empty, 0, counts)
            decimal = self.reading.decimal
            form = spellings.decide(texts, counts, file_mark=self._mark, decimal=decimal)
            self._warn_of_leading_zeros(name, texts, codes, counts)
        if not form:
            return Cells(TEXT, codes, type, texts=tuple(texts.to_pylist()))
        is_empty = pyarrow.compute.is_in(texts, pyarrow.array(spellings.MISSING))
        by_text = spellings.parse(texts, form)
        large = np.flatnonzero(np.abs(by_text) >= MOST_WHOLE)
        # Among numbers with digits behind the mark a large one is measured, and names nothing.
        if large.size and spellings.matches(texts, WHOLE)[np.isfinite(by_text)].all():
            for place in large:
                if abs(int(texts[int(place)].as_py())) > MOST_WHOLE:
                    row = np.flatnonzero(codes == place)[0]
                    raise self._fault(name, row, _NOT_WHOLE.format(texts[int(place)]))
        is_stray = np.isnan(by_text) & ~np.asarray(is_empty)
        values = np.append(by_text, np.nan)[codes]
        strays = np.flatnonzero(np.append(is_stray, False)[codes])
        return Cells(spellings.FORMS[form].kind, values, type, form, strays=strays)

    def _warn_of_leading_zeros(
        self, name: str, texts: pyarrow.StringArray, codes: np.ndarray, counts: np.ndarray
    ) -> None:
        """Warns of a column that is text as few of its cells have zeros in front."""
        zeros, total = spellings.matches(texts, spellings.LEADING_ZEROS), counts.sum()
        plain = spellings.matches(texts, spellings.FORMS[spellings.PLAIN].pattern)
        if counts[zeros].sum() and counts[plain].sum() >= spellings.LEAST_SHARE * total:
            row = np.flatnonzero(np.isin(codes, np.flatnonzero(zeros)))[0]
            self._warn(
                f"The column {name!r} of {self.path} is text, as numbers with zeros in front are; "
                f"{counts[zeros].sum() / total:.2%} of its cells are such numbers, the first "
                f"{self.example(name, row)!r} in {self.place(row)}"
            )

    def _report_strays(self, name: str, cells: Cells, *, is_known: bool) -> None:
        """Warns of cells that are not of the kind; a ValueError if a known kind has too many."""
        if not cells.strays.size:
            return
        row = cells.strays[0]
        filled = np.isfinite(cells.values).sum() + cells.strays.size
        share = cells.strays.size / filled
        cell = f"{self.example(name, row)!r:.60} in {self.place(row)}"
        kind = f"{cells.kind}s such as {cells.form}"
        if is_known and share > 1 - spellings.LEAST_SHARE:
            raise self._fault(
                name, None, f"holds {kind} in the training records, and here {share:.2%} of its "
                f"cells are others, the first {cell}"
            )  # fmt: skip
        self._warn(
            f"The column {name!r} of {self.path} holds {kind}, but {cells.strays.size:,} of its "
            f"cells ({share:.2%}) are others, the first {cell}: they are not observed. --missing "
            "names texts of empty cells"
        )

    def _warn(self, sentence: str) -> None:
        """Warns once: a column may be read again."""
        if sentence not in self._warnings:
            self._warnings.add(sentence)
            logging.warning("%s", sentence)

    def _fault(self, name: str, row: int | None, reason: str) -> _ColumnFault:
        place = self.path if row is None else self.place(row)
        return _ColumnFault(f"the column {name!r} of {place} {reason}")


class _ColumnFault(ValueError):
    """A fault that names the column."""


def _decoded(column: pyarrow.ChunkedArray) -> tuple[pyarrow.ChunkedArray, str]:
    """Returns a column as strings, numbers or times, and its type in the file."""
    types = pyarrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if tables.is_text(kind):
        return column.cast(pyarrow.string()), TEXT
    if types.is_boolean(kind):
        return column.cast(pyarrow.string()), str(kind)
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    if not types.is_null(kind) and not any(fits(kind) for fits in numbers):
        raise ValueError(
            f"holds {kind}; it must hold numbers, text, times, or true and false: leave it out"
        )
    return column, str(kind)


def _plain_numbers(column: pyarrow.ChunkedArray, missing: Sequence[str]) -> np.ndarray | None:
    """Returns the values of a column of plain numbers and empty cells, None of any other.

    Other columns are read by their different texts, which takes several times as long.
    """
    compute, pattern = pyarrow.compute, spellings.FORMS[spellings.PLAIN].pattern
    is_empty = compute.is_in(column, pyarrow.array(["", *missing]))
    if compute.any(is_empty).as_py():
        column = compute.if_else(is_empty, pyarrow.scalar(None, pyarrow.string()), column)
    if not compute.all(compute.match_substring_regex(column, pattern)).as_py():
        return None
    values = _floats(column)
    largest = np.nanmax(np.abs(values), initial=0.0)
    return None if MOST_WHOLE <= largest < np.inf else values


def _distinct(
    column: pyarrow.ChunkedArray, missing: Sequence[str]
) -> tuple[pyarrow.StringArray, np.ndarray]:
    """Returns the different texts, without white space around them, and their places [rows].

    The place of an empty cell is -1.
    """
    encoded = column.dictionary_encode().unify_dictionaries()
    kept = (
        encoded.chunk(0).dictionary if encoded.num_chunks else pyarrow.array([], pyarrow.string())
    )
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    codes = np.concatenate([*codes, np.zeros(0, np.int32)])
    texts = pyarrow.compute.utf8_trim_whitespace(kept)
    if not pyarrow.compute.all(pyarrow.compute.string_is_ascii(texts)).as_py():
        normal = [unicodedata.normalize("NFC", text) for text in texts.to_pylist()]
        texts = pyarrow.array(normal, pyarrow.string())
    places = np.arange(len(texts))
    if not texts.equals(kept):
        again = texts.dictionary_encode()
        texts, places = again.dictionary, again.indices.to_numpy(zero_copy_only=False)
    is_empty = pyarrow.compute.is_in(texts, pyarrow.array(["", *missing]))
    is_empty = is_empty.to_numpy(zero_copy_only=False).astype(bool)
    places = np.append(np.where(is_empty[places], -1, places), -1)
    return texts, places[codes]


def _floats(column: pyarrow.ChunkedArray) -> np.ndarray:
    return column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64)


def _seconds(column: pyarrow.ChunkedArray) -> np.ndarray:
    """Returns times as seconds since 1970 or midnight, durations as seconds, to microseconds."""
    column = tables.in_microseconds(column)
    types, kind = pyarrow.types, column.type
    units = {"s": 1, "ms": 1e3, "us": 1e6}
    if types.is_date(kind):
        column = column.cast(pyarrow.timestamp("s"))
        unit = "s"
    else:
        unit = kind.unit
    whole = pyarrow.int32() if types.is_time32(kind) else pyarrow.int64()
    return _floats(column.cast(whole)) / units[unit]


def column(table: pyarrow.Table, name: str, path: str, option: str) -> pyarrow.ChunkedArray:
    """Returns the column of a file that an option names; ValueError if there is none."""
    if name not in table.column_names:
        raise faults.unknown(option, name, table.column_names, f"the columns of {path}")
    return table.column(name)


_NOT_WHOLE = (
    "holds {}, and float64 has whole numbers up to 2^53 alone: leave it out with --leave_out, or "
    "name it in --categories"
)


def part_sizes(text: str, total: int, names: Sequence[str]) -> list[int]:
    """Returns the numbers of rows of parts, given as numbers or as shares of all."""
    try:
        numbers = [float(it) for it in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= len(names) or not np.isfinite(numbers).all() or min(numbers) < 0:
        numbers = []
    if not numbers or not numbers[0]:
        raise ValueError(
            f"--parts is {text!r}; it must be up to {len(names)} numbers ({', '.join(names)}): "
            "rows, or shares of all"
        )
    if sum(numbers) <= 1 + 1e-9:
        bounds = np.rint(np.cumsum(numbers) * total).astype(int)
        numbers = np.diff(bounds, prepend=0).tolist()
    if sum(numbers) > total:
        raise ValueError(f"--parts is {text!r}, {sum(numbers):,.0f} rows; there are {total:,}")
    return [int(it) for it in numbers] + [0] * (len(names) - len(numbers))
