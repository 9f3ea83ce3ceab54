"""Classification or regression examples of the user's own, in tables that `data.tables` reads."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import delimiters, tables, text_encodings
from bertjax.finetuning import example_files, feature_sets

# Texts, the number, the name of the class or the names of the labels, and where it stands.
_RawExample = tuple[tuple[str, ...], Any, str]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns hold one or two texts, and which the label, a class or a number.

    A row has any number of labels with a `separator`, which stands between them in the label's
    column (or there is a list, in JSON), and with `flags`: columns that are named as the labels and
    hold 0 or 1. Without any of them the files are to be predicted on. `decimal_mark` is the mark
    of the numbers in a file.
    """

    texts: tuple[str, ...]
    label: str | None = None
    is_number: bool = False
    separator: str = ""
    flags: tuple[str, ...] = ()
    decimal_mark: str = "."

    def __post_init__(self):
        for name in ("texts", "flags"):
            names = tuple(delimiters.column_names(getattr(self, name)))
            object.__setattr__(self, name, names)
        if self.label is not None:
            object.__setattr__(self, "label", delimiters.column_names([self.label])[0])
        if len(self.texts) not in (1, 2):
            raise ValueError(f"text columns are {self.texts}; there must be one or two")
        if len(set(self.required)) != len(self.required):
            raise ValueError(f"columns are {self.required}; each must be another one")

    @property
    def required(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        return (*self.texts, *([] if self.label is None else [self.label]), *self.flags)

    def fault(self, names: Sequence[str]) -> str | None:
        """Returns the fault of the names that a file has, and what to do; None if there is none."""
        names = delimiters.column_names(names)
        fault = example_files.missing_columns(names, self.required)
        if fault is None or all(name in names for name in self.required):
            return fault
        options = {name: "label_column" for name in self.required}
        options |= zip(self.texts, ("text_column", "second_text_column"), strict=False)
        wrong = dict.fromkeys(option for name, option in options.items() if name not in names)
        options_to_set = " and ".join(f"config.finetuning.{option}" for option in wrong)
        return f"{fault}; set {options_to_set}, or rename the columns of the file"

    @property
    def labelling(self) -> str:
        """How labels stand in a row, a key of `_LABELS`."""
        if self.flags:
            return "flags"
        if self.label is None:
            return "none"
        return "several" if self.separator else "one"

    @property
    def label_names(self) -> str:
        """The columns of the labels, for messages."""
        return ", ".join(map(repr, self.flags or (self.label,)))


@dataclasses.dataclass(frozen=True)
class Table:
    """The examples of a file, and the classes: `Example.label` is a place in `labels`, or several.

    `labels` is empty where the label is a number or there is none.
    """

    examples: list[feature_sets.TextExample]
    labels: tuple[str, ...]


def read_table(
    path: epath.PathLike,
    columns: Columns,
    *,
    labels: Sequence[str] | None = None,
    rules: tables.Rules = tables.EXACT,
) -> Table:
    """Returns the examples of a .csv, .tsv, .jsonl, .json (lines) or .parquet file, in its order.

    Without `labels`, as for the training file, the classes are those found, sorted: as numbers if
    all are whole ones, else as text; or the columns with flags, in their order. Other files get the
    `labels` of training, which are to be stored with the checkpoint. White space around a class
    does not count, nor how Unicode spells its marks. `rules` say how the file is read.
    """
    path = epath.Path(path)
    faults = example_files.Faults()
    raw = list(_raw_examples(path, columns, rules, faults))
    is_new = labels is None
    if columns.labelling == "none" or columns.is_number:
        known: tuple[str, ...] = ()
        examples = [feature_sets.TextExample(*parts) for parts in raw]
    else:
        occurring = (it for _, label, _ in raw for it in _each(label))
        known = tuple(columns.flags or _sorted_labels(occurring) if labels is None else labels)
        examples = list(_with_places(raw, known, columns, faults))
    faults.check()
    if not examples:
        raise ValueError(f"{path} has no rows; it must have at least one")
    if columns.labelling == "one" and len(known) == 1:
        raise ValueError(
            f"{path}: {columns.label_names} is {known[0]!r} in every row; there must be two classes"
        )
    counts = collections.Counter(it for example in examples for it in _each(example.label))
    if columns.labelling in ("several", "flags") and is_new:
        if not counts:
            raise ValueError(f"{path}: {columns.label_names} names no label in any row")
        if never := ", ".join(label for place, label in enumerate(known) if not counts[place]):
            logging.warning("%s: no row has the label %s: it cannot be learnt", path, never)
    counted = ", ".join(f"{label!r} ({counts[place]})" for place, label in enumerate(known))
    of_each = f"{columns.label_names} is one of" if columns.labelling == "one" else "labels"
    suffix = f"; {of_each} {counted}" if counted else ""
    logging.info("%s: %d examples%s", path, len(examples), suffix)
    return Table(examples, known)


def _with_places(
    raw: Iterable[_RawExample],
    labels: Sequence[str],
    columns: Columns,
    faults: example_files.Faults,
) -> Iterator[feature_sets.TextExample]:
    """Yields the examples with the place of their class in `labels`."""
    places = {example_files.normalized(label): place for place, label in enumerate(labels)}
    unknown = example_files.UnknownLabels()
    for texts, label, source in raw:
        if new := [it for it in _each(label) if it not in places]:
            unknown.add(source, new)
        elif isinstance(label, tuple):
            several = tuple(sorted({places[it] for it in label}))
            yield feature_sets.TextExample(texts, several, source)
        else:
            yield feature_sets.TextExample(texts, places[label], source)
    unknown.report(faults, columns.label_names, labels)


def _each(label: Any) -> tuple[Any, ...]:
    return label if isinstance(label, tuple) else (label,)


def _raw_examples(
    path: epath.Path, columns: Columns, rules: tables.Rules, faults: example_files.Faults
) -> Iterator[_RawExample]:
    rules = dataclasses.replace(rules, names_fault=columns.fault)
    if columns.is_number:
        columns = dataclasses.replace(columns, decimal_mark=tables.decimal_mark(path, rules))
    marks: dict[str, str] = {}
    has_controls = False
    for source, row in example_files.rows(path, faults, rules):
        try:
            texts = tuple(example_files.text(row[column], column) for column in columns.texts)
            label = _LABELS[columns.labelling](row, columns)
        except ValueError as error:
            faults.add(source, str(error))
            continue
        if not has_controls and any(map(text_encodings.C1_CONTROLS.search, texts)):
            has_controls = True
            logging.warning("%s: %s", source, text_encodings.C1_FAULT)
        if columns.decimal_mark == ",":
            marks |= {mark: source for mark in ".," if mark in row[str(columns.label)]}
        yield texts, label, source
    if len(marks) > 1:
        faults.add(
            marks["."],
            f"{columns.label!r} has a decimal point here and a decimal comma in {marks[',']}; "
            "write all numbers with a point",
        )


def _several(row: Mapping[str, Any], columns: Columns) -> tuple[str, ...]:
    """Returns the labels of a row, none for an empty field."""
    value = row[str(columns.label)]
    if value is None or value == "":
        return ()
    values = value if isinstance(value, list) else str(value).split(columns.separator)
    names = tuple(example_files.class_name(it, str(columns.label)) for it in values)
    if isinstance(value, list) and len(set(names)) < len(names) and _FLAGS.keys() >= set(names):
        raise ValueError(
            f"{columns.label!r} is {json.dumps(value)}; a list must hold the names of the labels. "
            "For 0 and 1 make a column of each label, --config.finetuning.label_column=A,B,..."
        )
    return names


def _flag(value: Any, column: str) -> bool:
    word = value.strip() if isinstance(value, str) else str(value)
    if word.lower() not in _FLAGS:
        remedy = "" if word else f": {example_files.EMPTY_REMEDY}"
        raise ValueError(f"{column!r} is {word!r}; it must be 0 or 1{remedy}")
    return _FLAGS[word.lower()]


def _label(value: Any, columns: Columns) -> str | float:
    """Returns the class, or the number, that a field holds."""
    name = str(columns.label)
    if not columns.is_number:
        return example_files.class_name(value, name)
    number = example_files.number(value, columns.decimal_mark)
    if not math.isfinite(number):
        hint = example_files.number_hint(value)
        raise ValueError(f"{name!r} is {value!r:.60}; it must be a finite number{hint}")
    return number


# As tables of other programs have them, such as pandas.
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}

# How labels stand in a row -> what reads them: nothing, a class or number, or several names.
_LABELS: dict[str, Callable[[Mapping[str, Any], Columns], Any]] = {
    "none": lambda row, columns: None,
    "one": lambda row, columns: _label(row[str(columns.label)], columns),
    "several": _several,
    "flags": lambda row, columns: tuple(it for it in columns.flags if _flag(row[it], it)),
}


def _sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(labels))
    if all(re.fullmatch(r"-?[0-9]+", label, re.ASCII) for label in ordered):
        ordered.sort(key=int)
    return tuple(ordered)
