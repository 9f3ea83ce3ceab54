"""Files with named columns, and a classification or regression task of the user's own in them.

CSV and TSV name their columns in the first line, JSON lines as keys, Parquet in its schema. Fields
of CSV may be quoted and then hold commas and line ends (RFC 4180); in TSV, as in the files of GLUE,
a quote is a character like others.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow
from absl import logging
from etils import epath
from pyarrow import parquet

from bertjax.data import json_text
from bertjax.finetuning import example_files, text_examples

# Where a row stands, and its values by column; those of JSON and Parquet need not be text.
Row = tuple[str, Mapping[str, Any]]
# What is wrong with the names of a file's columns, and what to do; None if nothing.
NamesFault = Callable[[Sequence[str]], str | None]

# Texts, the number, the name of the class or the names of the labels, and where it stands.
_RawExample = tuple[tuple[str, ...], Any, str]

# csv.reader refuses longer fields than its limit, 131,072 unless told; a text may be a book.
_MAX_FIELD_CHARACTERS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns hold one or two texts, and which the label, a class or a number.

    A row has any number of labels with a `separator`, which stands between them in the label's
    column (or there is a list, in JSON), and with `flags`: columns that are named as the labels and
    hold 0 or 1. Without any of them the files are to be predicted on.

    Raises:
      ValueError: if there are not one or two texts, or a column is named twice.
    """

    texts: tuple[str, ...]
    label: str | None = None
    is_number: bool = False
    separator: str = ""
    flags: tuple[str, ...] = ()

    def __post_init__(self):
        if len(self.texts) not in (1, 2):
            raise ValueError(f"text columns are {self.texts}; there must be one or two")
        if len(set(self.wanted)) != len(self.wanted):
            raise ValueError(f"columns are {self.wanted}; each must be another one")

    @property
    def wanted(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        return (*self.texts, *([] if self.label is None else [self.label]), *self.flags)

    def fault(self, names: Sequence[str]) -> str | None:
        """Returns what is wrong with the names that a file has, and what to do, None if nothing."""
        fault = example_files.missing_columns(names, self.wanted)
        if fault is None or all(name in names for name in self.wanted):
            return fault
        options = {name: "label_column" for name in self.wanted}
        options |= zip(self.texts, ("text_column", "second_text_column"), strict=False)
        wrong = dict.fromkeys(option for name, option in options.items() if name not in names)
        told = " and ".join(f"config.finetuning.{option}" for option in wrong)
        return f"{fault}; set {told}, or rename the columns of the file"

    @property
    def labelling(self) -> str:
        """How labels stand in a row, a key of `_LABELS`."""
        if self.flags:
            return "flags"
        if self.label is None:
            return "none"
        return "several" if self.separator else "one"

    @property
    def told(self) -> str:
        """What messages call the columns of the labels."""
        return ", ".join(map(repr, self.flags or (self.label,)))


@dataclasses.dataclass(frozen=True)
class Table:
    """The examples of a file, and the classes: `Example.label` is a place in `labels`, or several.

    `labels` is empty where the label is a number or there is none.
    """

    examples: list[text_examples.Example]
    labels: tuple[str, ...]


def read_table(
    path: epath.PathLike, columns: Columns, *, labels: Sequence[str] | None = None
) -> Table:
    """Returns the examples of a .csv, .tsv, .jsonl, .json (lines) or .parquet file, in its order.

    Without `labels`, as for the training file, the classes are those found, sorted: as numbers if
    all are whole ones, else as text; or the columns with flags, in their order. Other files get the
    `labels` of training, which are to be stored with the checkpoint. White space around a class
    does not count.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if its kind is unknown, a column is missing, there are no rows, only one class
        where each row has one, no label in any row, or rows have the wrong number of columns, an
        empty text, an unknown class or no number: the first ten faults with their lines.
    """
    path = epath.Path(path)
    faults = example_files.Faults()
    raw = list(_raw_examples(path, columns, faults))
    is_new = labels is None
    if columns.labelling == "none" or columns.is_number:
        known: tuple[str, ...] = ()
        examples = [text_examples.Example(*parts) for parts in raw]
    else:
        if labels is None:
            labels = columns.flags or _sorted_labels(it for _, own, _ in raw for it in _each(own))
        known = tuple(labels)
        examples = list(_with_places(raw, known, columns, faults))
    faults.check()
    if not examples:
        raise example_files.FaultyFile(f"{path} has no rows; it must have at least one")
    if columns.labelling == "one" and len(known) == 1:
        raise example_files.FaultyFile(
            f"{path}: {columns.told} is {known[0]!r} in every row; there must be two classes"
        )
    if columns.labelling in ("several", "flags") and is_new:
        _check_that_all_occur(path, columns, examples, known)
    _log(path, columns, examples, known)
    return Table(examples, known)


def column_names(path: epath.PathLike) -> tuple[str, ...]:
    """Returns the columns of a file by its first row; what is wrong with it, reading it tells."""
    path = epath.Path(path)
    kind = _kind(path)
    if kind in _FIELDS:
        _, names = next(_FIELDS[kind](path), (1, []))
        return tuple(names)
    return tuple(next((row for _, row in _ROWS[kind](path, example_files.Faults())), {}))


def _check_that_all_occur(
    path: epath.Path,
    columns: Columns,
    examples: Sequence[text_examples.Example],
    labels: Sequence[str],
) -> None:
    found = {place for example in examples for place in _each(example.label)}
    if not found:
        raise example_files.FaultyFile(f"{path}: {columns.told} names no label in any row")
    if never := [label for place, label in enumerate(labels) if place not in found]:
        logging.warning("%s: no row has the label %s: it cannot be learnt", path, ", ".join(never))


def _with_places(
    raw: Iterable[_RawExample],
    labels: Sequence[str],
    columns: Columns,
    faults: example_files.Faults,
) -> Iterator[text_examples.Example]:
    """Yields the examples with the place of their class in `labels`."""
    places = {label: place for place, label in enumerate(labels)}
    for found, label, source in raw:
        if unknown := [it for it in _each(label) if it not in places]:
            faults.add(source, f"{columns.told} is {unknown[0]!r}; known are {', '.join(labels)}")
        elif isinstance(label, tuple):
            several = tuple(sorted({places[it] for it in label}))
            yield text_examples.Example(found, several, source)
        else:
            yield text_examples.Example(found, places[label], source)


def _each(label: Any) -> tuple[Any, ...]:
    return label if isinstance(label, tuple) else (label,)


def _raw_examples(
    path: epath.Path, columns: Columns, faults: example_files.Faults
) -> Iterator[_RawExample]:
    for source, row in rows(path, columns.fault, faults):
        try:
            found = tuple(text(row[column], column) for column in columns.texts)
            label = _LABELS[columns.labelling](row, columns)
        except ValueError as error:
            faults.add(source, str(error))
            continue
        yield found, label, source


def text(value: Any, column: str) -> str:
    """Returns the text of a field; ValueError if nothing or no text stands in it."""
    if not isinstance(value, str):
        raise ValueError(f"{column!r} is {json.dumps(value)}; it must be a text")
    if not value.strip():
        raise ValueError(f"{column!r} is empty; it must be a text")
    return value


def _several(row: Mapping[str, Any], columns: Columns) -> tuple[str, ...]:
    """Returns the labels of a row, none for an empty field."""
    value = row[str(columns.label)]
    if value is None or value == "":
        return ()
    values = value if isinstance(value, list) else str(value).split(columns.separator)
    names = tuple(str(_label(it, columns)) for it in values)
    if isinstance(value, list) and len(set(names)) < len(names) and _FLAGS.keys() >= set(names):
        raise ValueError(
            f"{columns.label!r} is {json.dumps(value)}; a list must hold the names of the labels. "
            "For 0 and 1 make a column of each label, --config.finetuning.label_column=A,B,..."
        )
    return names


def _flags(row: Mapping[str, Any], columns: Columns) -> tuple[str, ...]:
    """Returns the columns that hold 1."""
    return tuple(name for name in columns.flags if _flag(row[name], name))


def _flag(value: Any, column: str) -> bool:
    told = value.strip() if isinstance(value, str) else json.dumps(value)
    if told.lower() not in _FLAGS:
        raise ValueError(f"{column!r} is {told!r}; it must be 0 or 1")
    return _FLAGS[told.lower()]


def _label(value: Any, columns: Columns) -> str | float:
    """Returns the class, or the number, that a field holds."""
    if isinstance(value, list | dict):
        raise ValueError(f"{columns.label!r} is {json.dumps(value)}; it must be one value")
    if not isinstance(value, str):  # of JSON: 1 is the class "1", true is "true"
        value = "" if value is None else json.dumps(value)
    value = value.strip()
    if not columns.is_number:
        if not value:
            raise ValueError(f"{columns.label!r} is empty; it must be a class")
        return value
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{columns.label!r} is {value!r}; it must be a finite number")
    return number


# As tables of others have them, those of pandas too.
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}

# How labels stand in a row -> what reads them: nothing, a class or number, or several names.
_LABELS: dict[str, Callable[[Mapping[str, Any], Columns], Any]] = {
    "none": lambda row, columns: None,
    "one": lambda row, columns: _label(row[str(columns.label)], columns),
    "several": _several,
    "flags": _flags,
}


def _sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    found = sorted(set(labels))
    if all(re.fullmatch(r"-?[0-9]+", label, re.ASCII) for label in found):
        found.sort(key=int)
    return tuple(found)


def _log(
    path: epath.Path,
    columns: Columns,
    examples: Sequence[text_examples.Example],
    labels: Sequence[str],
) -> None:
    counts = collections.Counter(it for example in examples for it in _each(example.label))
    told = ", ".join(f"{label!r} ({counts[place]})" for place, label in enumerate(labels))
    of_each = f"{columns.told} is one of" if columns.labelling == "one" else "labels"
    suffix = f"; {of_each} {told}" if told else ""
    logging.info("%s: %d examples%s", path, len(examples), suffix)


def rows(path: epath.Path, names_fault: NamesFault, faults: example_files.Faults) -> Iterator[Row]:
    """Yields the rows that have the right columns; what is wrong with others goes to `faults`.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if its kind is unknown, or its header lacks a column.
    """
    kind = _kind(path)
    if kind in _FIELDS:
        return _under_header(path, _FIELDS[kind](path), names_fault, faults)
    return _with_columns(_ROWS[kind](path, faults), names_fault, faults)


def _kind(path: epath.Path) -> str:
    kind, known = path.suffix.lower(), (*_FIELDS, *_ROWS)
    if kind not in known:
        raise ValueError(f"{path} ends in {kind!r}; known files end in {', '.join(known)}")
    return kind


def _tsv_fields(path: epath.Path) -> Iterator[tuple[int, list[str]]]:
    lines = enumerate(example_files.lines(path), start=1)
    return ((number, line.split("\t")) for number, line in lines if line)


def _json_rows(path: epath.Path, faults: example_files.Faults) -> Iterator[Row]:
    for number, line in enumerate(example_files.lines(path), start=1):
        source = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            row = json_text.loads(line)
        except ValueError as error:
            faults.add(source, f"it is not JSON ({error}); each line must be an object")
            continue
        if isinstance(row, dict):
            yield source, row
        else:
            faults.add(source, f"it is a JSON {type(row).__name__}; each line must be an object")


def _parquet_rows(path: epath.Path, faults: example_files.Faults) -> Iterator[Row]:
    """Yields rows by their number, from 1; they are read a row group at a time."""
    del faults
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a file of examples")
    try:
        with path.open("rb") as file:
            number = 0
            for batch in parquet.ParquetFile(file).iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except pyarrow.ArrowException as error:
        raise example_files.FaultyFile(f"{path} cannot be read as Parquet: {error}") from error


def _with_columns(
    rows: Iterator[Row], names_fault: NamesFault, faults: example_files.Faults
) -> Iterator[Row]:
    for source, row in rows:
        if fault := names_fault(list(row)):
            faults.add(source, fault)
        else:
            yield source, row


def _csv_fields(path: epath.Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (first line, fields) of each row that is not blank."""
    limit = csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    first = 1
    try:
        reader = csv.reader((line + "\n" for line in example_files.lines(path)), strict=True)
        for fields in reader:
            if fields:
                yield first, fields
            first = reader.line_num + 1
    except csv.Error as error:
        raise example_files.FaultyFile(
            f"{path}:{first}: the row is not CSV ({error}); a field with quotes stands in quotes, "
            "and each of its own is doubled"
        ) from error
    finally:
        csv.field_size_limit(limit)


# Files that name their columns in the first row, and those that do in every one.
_FIELDS = {".csv": _csv_fields, ".tsv": _tsv_fields}
_ROWS = {".jsonl": _json_rows, ".json": _json_rows, ".parquet": _parquet_rows}


def _under_header(
    path: epath.Path,
    fields: Iterator[tuple[int, list[str]]],
    names_fault: NamesFault,
    faults: example_files.Faults,
) -> Iterator[Row]:
    line, names = next(fields, (1, []))
    if fault := names_fault(names):
        raise example_files.FaultyFile(f"{path}:{line}: {fault}")
    for number, values in fields:
        source = f"{path}:{number}"
        if len(values) == len(names):
            yield source, dict(zip(names, values, strict=True))
        else:
            faults.add(source, example_files.wrong_columns(len(values), len(names)))
