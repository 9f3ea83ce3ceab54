r"""Tables to records: a row of the table is a row of cells, numbers scaled and categories numbered.

    python -m data_pipelines.build_tables --input=housing.csv --output=DIR --leave_out=price

DIR gets a record directory for each part: train, heldout and test. The first position of a row is
[CLS], which holds nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
from absl import logging
from scipy import special

from bertjax.cli import command_line
from bertjax.data import records, value_masking
from data_pipelines.values import value_records, value_tables

SCALINGS = ("quantile", "standard", "none")
CLS, UNKNOWN = "[CLS]", "[UNK]"
QUANTILES = 1_000
MOST_DONORS = 1 << 16  # training rows that are stored to exchange cells with
MOST_CATEGORIES = 10_000
# Source: scikit-learn, QuantileTransformer, output_distribution="normal".
CLIPPED = 1e-7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The input, and what a cell is."""

    taken = ("label", "scaling")

    input: str = command_line.option("a .csv or .parquet file with the names of its columns")
    leave_out: str = command_line.option(
        "columns that no row holds, with commas between them",
        default="",
    )
    label: str = command_line.option(
        "the column that finetuning predicts, which no cell holds: a number, or a class", default=""
    )
    categories: str = command_line.option(
        "columns of whole numbers that are categories, with commas between them; text and "
        "true or false always are",
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
        "dealt at random",
        default="0.8,0.1,0.1",
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
    seed: int = command_line.option("seed of parts and shuffle", default=12345)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column as the training part has it.

    A number becomes `place`d between `quantiles`, or less `mean` and over `deviation`; a text its
    place in `categories`: the first is for those that the training part has not, the others begin
    with the most frequent one.
    """

    name: str
    kind: str
    mean: float = 0.0
    deviation: float = 1.0
    quantiles: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()

    def encoded(self, cells: np.ndarray) -> np.ndarray:
        """Returns the values of cells, nan where there is none."""
        if self.kind == "category":
            codes = {name: code for code, name in enumerate(self.categories)}
            return np.array([np.nan if it is None else codes.get(it, 0) for it in cells], float)
        if not self.quantiles:
            return (cells - self.mean) / self.deviation
        return _normal_quantiles(cells, np.array(self.quantiles))

    @classmethod
    def restored(cls, fields: Mapping[str, Any]) -> Column:
        """Returns the column that a manifest describes."""
        lists: dict[str, Any] = {
            name: tuple(it) if isinstance(it, list) else it for name, it in fields.items()
        }
        return cls(**lists)

    def described(self) -> dict[str, Any]:
        """Returns the fields for the manifest, without those at their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


@dataclasses.dataclass(frozen=True)
class Cells:
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
        cells = np.concatenate([np.full((len(numbers), 1), np.nan), self.values[numbers]], axis=1)
        is_observed = ~np.isnan(cells)
        of_rows = {} if self.labels is None else {records.LABELS_FEATURE: self.labels[numbers]}
        return {
            records.VALUES_FEATURE: np.where(is_observed, cells, 0)[:, :, None].astype(np.float32),
            records.OBSERVED_FEATURE: is_observed[:, :, None].astype(np.int32),
            **of_rows,
        }


def build(options: Options) -> dict[str, records.Manifest]:
    """Writes the records of all parts, and returns their manifests.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if options and input do not fit, or a column has no value in the training part.
    """
    like, options = value_records.template(options)
    table = value_tables.read(options.input)
    columns = [Column.restored(it) for it in like["columns"][1:]] if like else []
    if like:
        categories = [it.name for it in columns if it.kind == "category"]
        options = dataclasses.replace(options, categories=",".join(categories))
        parts = {"": np.arange(table.num_rows)}
    else:
        parts = value_records.by_part(_parts(table, options))
    names = [it.name for it in columns] or _names_of_cells(table, options)
    for name in names:
        value_tables.column(table, name, options.input, "--like")
    cells = {name: _cells(table, name, options) for name in names}
    _check_kinds(columns, cells, options)
    training = parts.get("train", np.arange(0))
    if not like:
        if not len(training):
            raise ValueError(f"no row of {options.input} is in the part train")
        columns = [_column(name, it[training], options) for name, it in cells.items()]
    labels, described = _labels(table, training, like, options)
    encoded = np.stack([it.encoded(cells[it.name]) for it in columns], axis=1)
    made = {}
    for part, numbers in parts.items():
        values = encoded[numbers]
        statistics = _statistics(columns, values) | described
        _warn(part, statistics, values, encoded[training])
        made[part] = Cells(values, None if labels is None else labels[numbers]), statistics
    donors = None if like else _donors(encoded[training], options.seed)
    return value_records.write_parts(options, made, donors)


def _names_of_cells(table: pyarrow.Table, options: Options) -> list[str]:
    """Returns the columns that rows hold; ValueError for an option that names no column."""
    left_out = {*_names(options.leave_out), options.part_column, options.group_column}
    left_out = (left_out | {options.label}) - {""}
    for name in (*left_out, *_names(options.categories)):
        value_tables.column(table, name, options.input, "an option")
    names = [name for name in table.column_names if name not in left_out]
    if not names:
        raise ValueError(f"all columns of {options.input} are left out")
    return names


def _check_kinds(
    columns: Sequence[Column], cells: Mapping[str, np.ndarray], options: Options
) -> None:
    """Raises a ValueError if a restored column of numbers has texts."""
    for column in columns:
        if (cells[column.name].dtype == object) != (column.kind == "category"):
            raise ValueError(
                f"the column {column.name!r} of {options.input} holds texts, and in {options.like} "
                "it holds numbers"
            )


def _statistics(columns: Sequence[Column], values: np.ndarray) -> dict[str, Any]:
    """Returns what the manifest of a part keeps, {} of a part without rows."""
    if not len(values):
        return {}
    described = [{"name": CLS, "kind": "none"}, *(column.described() for column in columns)]
    statistics = {"columns": described, "unobserved_share": float(np.isnan(values).mean())}
    unseen = _unseen(columns, values)
    return statistics | ({"unseen_categories": unseen} if unseen else {})


def _warn(
    part: str, statistics: Mapping[str, Any], values: np.ndarray, training: np.ndarray
) -> None:
    """Warns of categories without a training row, and of rows a model may have by heart."""
    if part in ("", "train"):
        return
    if unseen := statistics.get("unseen_categories"):
        logging.warning(
            "The part %s has categories that the training part has not, which become %s: %s",
            part, UNKNOWN, ", ".join(f"{name} {share:.2%}" for name, share in unseen.items()),
        )  # fmt: skip
    known = {row.tobytes() for row in training}
    if copies := sum(row.tobytes() in known for row in values):
        logging.warning(
            "%s of the %s rows of the part %s have all cells of a training row. If they are "
            "copies, drop them from the table, or keep them in one part with --group_column",
            f"{copies:,}", f"{len(values):,}", part,
        )  # fmt: skip


def _known_labels(cells: np.ndarray, described: Mapping[str, Any], options: Options) -> np.ndarray:
    """Returns labels as the manifest describes them; ValueError for a class that it has not."""
    if described["kind"] == "numbers":
        scaled = (cells - described["means"][0]) / described["deviations"][0]
        return scaled.astype(np.float32)[:, None]
    names = list(described["names"])
    if unknown := sorted({*cells} - {*names}):
        raise ValueError(f"the training part has no row whose {options.label!r} is {unknown[0]!r}")
    return np.array([names.index(it) for it in cells], np.int32)


def _label_cells(table: pyarrow.Table, options: Options) -> np.ndarray:
    """Returns the cells of the column of labels; ValueError if one is empty."""
    cells = _cells(table, options.label, options)
    is_class = cells.dtype == object
    is_empty = np.array([it is None for it in cells]) if is_class else np.isnan(cells)
    if is_empty.any():
        raise ValueError(
            f"{int(is_empty.sum()):,} rows of {options.input} have no {options.label!r}: leave "
            "these rows out"
        )
    return cells


def _labels(
    table: pyarrow.Table, training: np.ndarray, like: Mapping[str, Any], options: Options
) -> tuple[np.ndarray | None, dict[str, Any]]:
    """Returns the label of each row, and what the manifest says of them."""
    if not options.label or (like and options.label not in table.column_names):
        return None, {}
    cells = _label_cells(table, options)
    described = like["labels"] if like else _described_labels(cells[training], options)
    return _known_labels(cells, described, options), {"labels": described}


def _described_labels(cells: np.ndarray, options: Options) -> dict[str, Any]:
    """Returns what the manifest says of labels with these cells in the training part."""
    if cells.dtype == object:
        return {"kind": "classes", "names": sorted({*cells})}
    mean, deviation = float(cells.mean()), float(cells.std()) or 1.0
    described: dict[str, Any] = {"kind": "numbers", "names": [options.label]}
    return described | {"means": [mean], "deviations": [deviation]}


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _parts(table: pyarrow.Table, options: Options) -> np.ndarray:
    """Returns the number of the part of each row, -1 for none."""
    total = table.num_rows
    if options.part_column:
        named = value_tables.column(table, options.part_column, options.input, "--part_column")
        said = named.to_pylist()
        if unknown := sorted({str(it) for it in said} - {*value_records.PARTS}):
            raise ValueError(
                f"the column {options.part_column!r} of {options.input} says {unknown[0]!r}; parts "
                f"are {', '.join(value_records.PARTS)}"
            )
        return np.array([value_records.PARTS.index(it) for it in said])
    sizes = value_tables.part_sizes(options.parts, total, value_records.PARTS)
    if options.group_column:
        groups = value_tables.column(table, options.group_column, options.input, "--group_column")
        bounds = np.cumsum(sizes) / total
        places = [_place(str(it), options.seed) for it in value_tables.cells(groups)]
        found = np.searchsorted(bounds, places, side="right")
        return np.where(found < len(value_records.PARTS), found, -1)
    parts = np.repeat([*range(len(value_records.PARTS)), -1], [*sizes, total - sum(sizes)])
    return parts[np.argsort(np.random.default_rng(options.seed).permutation(total))]


def _place(group: str, seed: int) -> float:
    """Returns a number in [0, 1) that is the group's own."""
    digest = hashlib.blake2b(f"{seed} {group}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


def _cells(table: pyarrow.Table, name: str, options: Options) -> np.ndarray:
    """Returns the cells of a column: texts, None where empty; or numbers, nan where empty."""
    column, kind = table.column(name), table.schema.field(name).type
    is_whole = pyarrow.types.is_integer(kind)
    if name in _names(options.categories) or pyarrow.types.is_boolean(kind):
        if not (is_whole or pyarrow.types.is_boolean(kind) or pyarrow.types.is_string(kind)):
            raise ValueError(
                f"--categories names {name!r}, which holds {kind}; categories are text, whole "
                "numbers, or true and false"
            )
        column, kind = column.cast(pyarrow.string()), pyarrow.string()
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        stripped = (it.strip() if it is not None else None for it in column.to_pylist())
        return np.array([it or None for it in stripped], object)
    if pyarrow.types.is_temporal(kind):
        column = column.cast(pyarrow.timestamp("s")).cast(pyarrow.int64())
    elif not (is_whole or pyarrow.types.is_floating(kind) or pyarrow.types.is_null(kind)):
        raise ValueError(
            f"the column {name!r} of {options.input} holds {kind}; it must hold numbers, text, "
            "times, or true and false: leave it out with --leave_out"
        )
    if pyarrow.types.is_null(kind):
        return np.full(table.num_rows, np.nan)
    numbers = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    return value_tables.finite(numbers, options.input)


def _column(name: str, cells: np.ndarray, options: Options) -> Column:
    if cells.dtype == object:
        counts = collections.Counter(it for it in cells if it is not None)
        found = sorted(counts, key=lambda it: (-counts[it], it))
        if len(found) > MOST_CATEGORIES:
            raise ValueError(
                f"the column {name!r} has {len(found):,} different texts, more than "
                f"{MOST_CATEGORIES:,}: leave it out with --leave_out"
            )
        if not found:
            raise _without_value(name)
        return Column(name, "category", categories=(UNKNOWN, *found))
    seen = cells[~np.isnan(cells)]
    if not len(seen):
        raise _without_value(name)
    if options.scaling == "none":
        return Column(name, "number")
    if options.scaling == "standard":
        return Column(name, "number", float(seen.mean()), float(seen.std()) or 1.0)
    shares = np.linspace(0, 1, min(QUANTILES, len(seen)))
    quantiles = tuple(np.quantile(seen, shares).tolist())
    return Column(name, "number", quantiles=quantiles)


def _without_value(name: str) -> ValueError:
    return ValueError(
        f"the column {name!r} has no value in the training part: leave it out with --leave_out"
    )


def _normal_quantiles(cells: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Returns the normal quantiles of numbers, in the middle of those that are equal.

    Source: scikit-learn, QuantileTransformer; there the least and the greatest are 5.2 deviations
    off, however many there are.
    """
    shares = np.linspace(0, 1, len(quantiles))
    below = np.interp(cells, quantiles, shares)
    above = 1 - np.interp(-cells, -quantiles[::-1], shares)
    places = np.clip((below + above) / 2, CLIPPED, 1 - CLIPPED)
    return np.where(np.isnan(cells), np.nan, special.ndtri(places))


def _donors(values: np.ndarray, seed: int) -> value_masking.Donors:
    chosen = np.random.default_rng(seed).permutation(len(values))[:MOST_DONORS]
    taken = Cells(values).take(chosen)
    return taken[records.VALUES_FEATURE], taken[records.OBSERVED_FEATURE]


def _unseen(columns: Sequence[Column], values: np.ndarray) -> Mapping[str, float]:
    """Returns by column the share of cells with a category that is not known."""
    shares = {
        column.name: float((values[:, at] == 0).mean())
        for at, column in enumerate(columns)
        if column.kind == "category"
    }
    return {name: share for name, share in shares.items() if share}


def main(options: Options) -> None:
    """Builds and prints the kinds of the columns, and what was made."""
    manifests = build(options)
    columns = next(iter(manifests.values())).statistics["columns"][1:]
    for column in columns:
        kinds = len(column.get("categories", ())) - 1
        what = f"category, {kinds:,} values" if column["kind"] == "category" else "number"
        command_line.print_report(f"  {column['name']:24} {what}")
    for part, manifest in manifests.items():
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} rows of {len(columns)} columns; "
            f"{manifest.statistics['unobserved_share']:.2%} of the cells are empty"
        )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
