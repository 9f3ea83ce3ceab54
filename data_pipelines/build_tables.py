r"""Tables to records: a row of the table is a row of cells, numbers scaled and categories numbered.

    python -m data_pipelines.build_tables --input=housing.csv --output=DIR --leave_out=price

DIR gets a record directory for each part: train, heldout and test. The first position of a row is
[CLS], which holds nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from bertjax.cli import command_line
from bertjax.data import records, value_masking
from bertjax.options import faults
from data_pipelines.values import columns, value_records, value_tables

SCALINGS = ("quantile", "standard", "none")
CLS = "[CLS]"
Report = Callable[[str], None]
MOST_DONORS = 1 << 16  # training rows that are stored to exchange cells with
DEFAULT_PARTS = "0.8,0.1,0.1"
# Repeated values are named as possible groups if there are many, of a few rows each.
LEAST_GROUPS, MOST_ROWS_OF_GROUP, LEAST_ROWS_OF_GROUP = 20, 50, 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_tables.Options):
    """The input, and what a cell is."""

    taken = ("label", "scaling")
    kept = {"columns": "", "labels": "label", "label_column": "labels"}

    input: str = command_line.option(
        "a .csv, .tsv or .parquet file with the names of its columns, compressed or not"
    )
    leave_out: str = command_line.option(
        "columns that no row holds, with commas between them",
        default="",
    )
    label: str = command_line.option(
        "the column that finetuning predicts, which no cell holds: a number, or a class", default=""
    )
    categories: str = command_line.option(
        "columns of numbers that are categories, with commas between them; text always is",
        default="",
    )
    scaling: str = command_line.option(
        "how numbers are scaled, by the training part: quantile makes them normally "
        "distributed, standard gives them the mean 0 and the variance 1",
        choices=lambda: SCALINGS,
        default="quantile",
    )
    parts: str = command_line.option(
        "rows, or shares, of the parts train, heldout and test, with commas between them; rows are "
        f"dealt at random; unset: {DEFAULT_PARTS}, or with like one part",
        default="",
    )
    part_column: str = command_line.option(
        "the column that says the part of each row (train, heldout or test), in place of parts",
        default="",
    )
    group_column: str = command_line.option(
        "rows with the same value in this column are in one part, which a hash of it decides by "
        "the shares of parts: a patient, a shop",
        default="",
    )
    seed: int = command_line.option("seed of parts and shuffle", default=12345, at_least=0)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a part: `values` [rows, columns], nan where there is none; and their labels."""

    values: np.ndarray
    labels: np.ndarray | None = None

    @property
    def length(self) -> int:
        """The number of cells of a row, [CLS] among them."""
        return 1 + self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        cells = self.values[numbers]
        cells = np.concatenate([np.full_like(cells[:, :1], np.nan), cells], axis=1)
        is_observed = ~np.isnan(cells)
        of_rows = {} if self.labels is None else {records.LABELS_FEATURE: self.labels[numbers]}
        return {
            records.VALUES_FEATURE: np.where(is_observed, cells, np.float32(0))[:, :, None],
            records.OBSERVED_FEATURE: is_observed[:, :, None].astype(np.int32),
            **of_rows,
        }


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The columns as the training part has them, and the label if there is one.

    `described` is what the manifest says of the label.
    """

    columns: tuple[columns.Column, ...]
    label: columns.Column | None = None
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def restored(cls, statistics: Mapping[str, Any], path: str) -> Fitted:
        """Returns what the manifest of the records at a path describes."""
        kept = tuple(columns.Column.restored(it) for it in statistics["columns"][1:])
        if "labels" not in statistics:
            return cls(kept)
        label = columns.Column.restored(statistics["label_column"])
        names, classes = label.categories[1:], statistics["labels"].get("names")
        if names and sorted(names) != classes:
            raise ValueError(
                f"statistics.labels of {path} have the classes {classes}, label_column {names}"
            )
        return cls(kept, label, statistics["labels"])

    def statistics(self, values: np.ndarray) -> dict[str, Any]:
        """Returns what the manifest of a part keeps, {} of a part without rows."""
        if not len(values):
            return {}
        described = [{"name": CLS, "kind": "none"}, *(it.described() for it in self.columns)]
        statistics = {"columns": described, "unobserved_share": float(np.isnan(values).mean())}
        if self.label:
            statistics |= {"labels": self.described, "label_column": self.label.described()}
        return statistics


class _Builder:
    """The table of an input, its parts, and the values of all rows, once they are decided."""

    def __init__(
        self, options: Options, known: Fitted | None = None, report: Report = lambda line: None
    ):
        self.options, self.report = options, report
        self.table = value_tables.Table(options.input, options.reading)
        self.parts: dict[str, np.ndarray] = {"": np.arange(len(self.table))}
        if not known or options.parts or options.part_column or options.group_column:
            self.parts = value_records.by_part(_parts(self.table, options))
            if not len(self.parts["train"]):
                raise ValueError(f"no row of {options.input} is in the part train")
        self._training = self.parts["train" if "train" in self.parts else ""]
        self._values = np.zeros((len(self.table), 0), np.float32)
        self._labels: np.ndarray | None = None

    def fit(self) -> Fitted:
        """Returns what the training part decides."""
        names = _names_of_cells(self.table, self.options)
        for name in self.table.names:
            if name not in (*names, self.options.label):
                self.report(f"  {name:24} left out, as an option says")
        self._values = np.empty((len(self.table), len(names)), np.float32)
        fitted = []
        for at, name in enumerate(names):
            cells = self._cells(name)
            column = columns.fit(name, cells, self._training, self.options.scaling)
            fitted.append(column)
            self._values[:, at] = self._encoded(column, cells)
        return self._with_labels(Fitted(tuple(fitted)))

    def adopt(self, fitted: Fitted) -> Fitted:
        """Returns what other records decided; a label that they had not is fitted here."""
        label = self.options.label
        for option, known in (("leave_out", ()), ("categories", (label,))):
            if set(_names(given := getattr(self.options, option))) - {*known}:
                why = f"the records of {self.options.like} decide on columns"
                raise faults.unread(f"--{option}", given, why, "")
        self._values = np.empty((len(self.table), len(fitted.columns)), np.float32)
        for at, column in enumerate(fitted.columns):
            self._values[:, at] = self._encoded(column, column.cells(self.table))
        if label in {column.name for column in fitted.columns}:
            must = f"a column that the records of {self.options.like} do not hold"
            raise faults.wrong("--label", label, must, "a model would read what it predicts")
        return self._with_labels(fitted)

    def rows(self, fitted: Fitted, part: str) -> tuple[Rows, dict[str, Any]]:
        """Returns the rows of a part, and what its manifest keeps."""
        numbers = self.parts[part]
        labels = None if self._labels is None else self._labels[numbers]
        rows = Rows(self._values[numbers], labels)
        return rows, fitted.statistics(rows.values)

    def files(self, fitted: Fitted) -> value_records.Files:
        """Returns the cells of training rows that hidden cells are exchanged for."""
        _warn_of_copies(self._values, self.parts)
        if self.options.like:
            return {}
        chosen = np.random.default_rng(self.options.seed).permutation(len(self._training))
        taken = Rows(self._values).take(self._training[chosen[:MOST_DONORS]])
        names = {"values": records.VALUES_FEATURE, "observed": records.OBSERVED_FEATURE}
        donors = {name: taken[feature] for name, feature in names.items()}
        return {value_masking.DONORS_FILE: donors}

    def _with_labels(self, fitted: Fitted) -> Fitted:
        """Returns the decisions with the label of the options, and keeps the labels of all rows."""
        name = self.options.label
        if name and not (fitted.label and fitted.label.name == name):
            self.table.check_column(name, "--label")
            fitted = dataclasses.replace(fitted, **self._fit_label())
        self._labels = self._labels_of(fitted)
        return fitted

    def _cells(self, name: str) -> value_tables.Cells:
        """Returns the cells of a column whose kind is decided here."""
        is_category = name in _names(self.options.categories)
        cells = self.table.cells(name, training=self._training, as_text=is_category)
        if is_category and cells.type.startswith(("float", "double", "half", "decimal")):
            must = "columns of text, whole numbers, or true and false"
            raise faults.wrong("--categories", name, must, f"it holds {cells.type}")
        return cells

    def _encoded(self, column: columns.Column, cells: value_tables.Cells) -> np.ndarray:
        """Returns the values of a column in float32, and reports the column."""
        with np.errstate(over="ignore"):
            exact = column.encoded(cells)
            values = exact.astype(np.float32)
        if (beyond := np.flatnonzero(np.isinf(values))).size:
            raise ValueError(
                f"the column {column.name!r} of {self.table.place(beyond[0])} holds "
                f"{self.table.example(column.name, beyond[0])}, which is {exact[beyond[0]]:.3g} "
                "once it is scaled; the largest number of records is 3.4e38: leave the column or "
                "the row out"
            )
        role = "category" if column.kind == columns.CATEGORY else cells.kind
        self.report(_described(self.table, column.name, role, cells))
        for hint in _hints(self.table, column, cells, self.parts, self.options):
            self.report(f"    {hint}")
        self._warn_of_unusual(column, cells)
        return values

    def _warn_of_unusual(self, column: columns.Column, cells: value_tables.Cells) -> None:
        for part, rows in self.parts.items():
            if part == "train" or not (found := column.unusual(cells, rows)).size:
                continue
            what = f"become {columns.UNKNOWN}: the training part has no such category"
            if column.kind == columns.NUMBER:
                what = (
                    f"are far from those of the training part, {column.smallest:g} to "
                    f"{column.largest:g}"
                )
            logging.warning(
                "%s: %.2f%% of the cells of the column %r in %s %s; the first is %r in %s",
                self.options.input, 100 * found.size / len(rows), column.name,
                f"the part {part}" if part else "the input", what,
                self.table.example(column.name, found[0]), self.table.place(found[0]),
            )  # fmt: skip

    def _fit_label(self) -> dict[str, Any]:
        """Returns the column of labels, and what the manifest says of them."""
        options, training = self.options, self._training
        cells = self._cells(options.label)
        self._check_labels(cells)
        if cells.kind == value_tables.TEXT:
            column = columns.fit(options.label, cells, training, "none")
            self.report(_described(self.table, options.label, "label, a class", cells))
            counts = np.bincount(cells.values[training], minlength=len(cells.texts))
            for name, count in zip(cells.texts, counts, strict=True):
                self.report(f"    {name}: {count / len(training):.2%} of the training part")
            described = {"kind": "classes", "names": sorted(column.categories[1:])}
            return {"label": column, "described": described}
        column = columns.fit(options.label, cells, training, "standard")
        self.report(_described(self.table, options.label, "label, a number", cells))
        described = {"kind": "numbers", "names": [options.label]}
        described |= {"means": [column.mean], "deviations": [column.deviation]}
        return {"label": column, "described": described}

    def _check_labels(self, cells: value_tables.Cells) -> None:
        """Raises a ValueError if a label is empty, or is not of the kind of the others."""
        is_text = cells.kind == value_tables.TEXT
        is_empty = cells.values < 0 if is_text else np.isnan(cells.values)
        if (empty := np.flatnonzero(is_empty)).size:
            kind = "label" if is_text else cells.kind
            raise ValueError(
                f"{empty.size:,} rows of {self.options.input} have no {kind} in "
                f"{self.options.label!r}, the first {self.table.place(empty[0])}: leave these rows "
                "out"
            )

    def _labels_of(self, fitted: Fitted) -> np.ndarray | None:
        """Returns the label of each row; ValueError for a class that the training part has not."""
        column = fitted.label
        if not column or column.name not in self.table.names:
            return None
        cells = column.cells(self.table)
        self._check_labels(cells)
        if column.kind == columns.NUMBER:
            scaled = column.encoded(cells)
            if (beyond := np.flatnonzero(np.abs(cells.values) > _LARGEST)).size:
                raise ValueError(
                    f"the label {column.name!r} of {self.table.place(beyond[0])} is beyond float32"
                )
            return scaled.astype(np.float32)[:, None]
        unknown = column.unusual(cells, np.arange(len(self.table)))
        if unknown.size:
            raise ValueError(
                f"the training part has no row whose {column.name!r} is "
                f"{self.table.example(column.name, unknown[0])!r}, as in "
                f"{self.table.place(unknown[0])}"
            )
        places = {name: at for at, name in enumerate(fitted.described["names"])}
        by_code = np.array([-1, *(places[name] for name in column.categories[1:])], np.int32)
        return by_code[column.encoded(cells).astype(np.int64)]


_LARGEST = float(np.finfo(np.float32).max)


def build(options: Options, report: Report = lambda line: None) -> dict[str, records.Manifest]:
    """Writes the records of all parts, and returns their manifests.

    `report` is called with a line for each column.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if options and input do not fit, or a column has no value in the training part.
    """
    open_input = functools.partial(_Builder, report=report)
    return value_records.build(options, open_input, Fitted.restored)


def _names_of_cells(table: value_tables.Table, options: Options) -> list[str]:
    """Returns the columns that rows hold; ValueError for an option that names no column."""
    options_of = {
        "--leave_out": _names(options.leave_out),
        "--categories": _names(options.categories),
        "--part_column": [options.part_column] * bool(options.part_column),
        "--group_column": [options.group_column] * bool(options.group_column),
        "--label": [options.label] * bool(options.label),
    }
    for option, names in options_of.items():
        for name in names:
            table.check_column(name, option)
    options_of.pop("--categories")
    left_out = {name for names in options_of.values() for name in names}
    names = [name for name in table.names if name not in left_out]
    if not names:
        raise ValueError(f"all columns of {options.input} are left out")
    return names


def _described(table: value_tables.Table, name: str, role: str, cells: value_tables.Cells) -> str:
    """Returns a line about a column: its role, missing cells, different values, an example."""
    is_text = cells.kind == value_tables.TEXT
    is_there = cells.values >= 0 if is_text else ~np.isnan(cells.values)
    seen = cells.values[is_there]
    facts = [f"{1 - is_there.mean():.2%} missing", f"{len(np.unique(seen)):,} different"]
    if len(seen) and not is_text:
        rows = np.flatnonzero(is_there)
        smallest, largest = rows[np.argmin(seen)], rows[np.argmax(seen)]
        facts.append(f"{table.example(name, smallest)} to {table.example(name, largest)}")
    if len(seen):
        facts.append(f"such as {table.example(name, int(np.argmax(is_there)))!r:.40}")
    return f"  {name:24} {role}: {', '.join(facts)}"


def _hints(
    table: value_tables.Table,
    column: columns.Column,
    cells: value_tables.Cells,
    parts: Mapping[str, np.ndarray],
    options: Options,
) -> Iterator[str]:
    """Yields what may be wrong with a column of the training part."""
    training = parts.get("train", np.arange(0))
    is_text = cells.kind == value_tables.TEXT
    is_there = cells.values >= 0 if is_text else ~np.isnan(cells.values)
    training = training[is_there[training]]
    if not len(training):
        return
    seen = cells.values[training]
    is_whole = is_text or "." not in table.example(column.name, training[0])
    if seen.min() == seen.max():
        yield f"{column.name} is the same in all rows of the training part"
    if seen.min() == seen.max() or not is_whole:
        return
    distinct = len(np.unique(seen))
    if distinct == len(seen) and len(seen) > LEAST_GROUPS:
        yield f"all values differ: if it only names the row, give --leave_out={column.name}"
    elif (
        distinct >= LEAST_GROUPS
        and LEAST_ROWS_OF_GROUP <= len(seen) / distinct <= MOST_ROWS_OF_GROUP
        and not options.group_column
        and (is_text or cells.kind == value_tables.NUMBER)
    ):
        yield (
            f"{distinct:,} values of about {len(seen) / distinct:.0f} rows each, in several parts: "
            f"--group_column={column.name} keeps the rows of each in one part"
        )


def _warn_of_copies(values: np.ndarray, parts: Mapping[str, np.ndarray]) -> None:
    """Warns of rows that a model may have learnt by heart."""
    if "train" not in parts:
        return
    hashes = _hashes(values)
    for part in value_records.PARTS[1:]:
        rows = parts.get(part, np.arange(0))
        if copies := int(np.isin(hashes[rows], hashes[parts["train"]]).sum()):
            logging.warning(
                "%s of the %s rows of the part %s have all cells of a training row. If they are "
                "copies, drop them from the table, or keep them in one part with --group_column",
                f"{copies:,}", f"{len(rows):,}", part,
            )  # fmt: skip


def _hashes(values: np.ndarray) -> np.ndarray:
    """Returns a hash of 64 bits of each row."""
    hashes = np.zeros(len(values), np.uint64)
    for column in values.T:
        bits = np.ascontiguousarray(column).view(np.uint32).astype(np.uint64)
        hashes = (hashes ^ bits) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64's
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _parts(table: value_tables.Table, options: Options) -> np.ndarray:
    """Returns the number of the part of each row, -1 for none."""
    total = len(table)
    if options.part_column:
        return _named_parts(table, options.part_column)
    sizes = value_tables.part_sizes(options.parts or DEFAULT_PARTS, total, value_records.PARTS)
    if options.group_column:
        return _parts_of_groups(table, np.cumsum(sizes) / total, options)
    parts = np.repeat([*range(len(value_records.PARTS)), -1], [*sizes, total - sum(sizes)])
    return parts[np.argsort(np.random.default_rng(options.seed).permutation(total))]


def _named_parts(table: value_tables.Table, name: str) -> np.ndarray:
    """Returns the number of the part that a column names in each row."""
    table.check_column(name, "--part_column")
    cells = table.cells(name, as_text=True)
    known = [
        cells.texts[code] in value_records.PARTS if code >= 0 else False for code in cells.values
    ]
    if not all(known):
        row = known.index(False)
        raise ValueError(
            f"the column {name!r} of {table.place(row)} is {table.example(name, row)!r}; parts are "
            f"{', '.join(value_records.PARTS)}"
        )
    return np.array([value_records.PARTS.index(cells.texts[code]) for code in cells.values])


def _parts_of_groups(table: value_tables.Table, bounds: np.ndarray, options: Options) -> np.ndarray:
    """Returns the number of the part of each row, -1 for none, by a hash of its group.

    A row without a group is a group of its own.
    """
    name = options.group_column
    table.check_column(name, "--group_column")
    cells = table.cells(name, as_text=True)
    by_group = np.array([_place(it, options.seed) for it in cells.texts])
    places = np.append(by_group, 0.0)[cells.values]
    if (empty := np.flatnonzero(cells.values < 0)).size:
        logging.warning(
            "%s of %s rows (%.2f%%) have no %r, the first %s: each is a group of its own",
            f"{empty.size:,}", f"{len(table):,}", 100 * empty.size / len(table), name,
            table.place(empty[0]),
        )  # fmt: skip
        places[empty] = [_place(f"row {row}", options.seed) for row in empty]
    found = np.searchsorted(bounds, places, side="right")
    return np.where(found < len(value_records.PARTS), found, -1)


def _place(group: str, seed: int) -> float:
    """Returns a number in [0, 1) that is the group's own."""
    digest = hashlib.blake2b(f"{seed} {group}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


def main(options: Options) -> None:
    """Builds and prints the columns, and what was made."""
    manifests = build(options, command_line.print_report)
    for part, manifest in manifests.items():
        statistics = manifest.statistics
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} rows of "
            f"{manifest.max_seq_length - 1} columns; {statistics['unobserved_share']:.2%} of the "
            "cells are empty"
        )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
