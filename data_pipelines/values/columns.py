"""Columns of tables as their training part has them: kinds, scales and categories."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from bertjax.options import faults
from data_pipelines.values import spellings, value_tables

UNKNOWN = "[UNK]"
NUMBER, CATEGORY = "number", "category"
QUANTILES = 1_000
MOST_CATEGORIES = 10_000
# Source: scikit-learn, QuantileTransformer, output_distribution="normal".
CLIPPED = 1e-7
_BOOLEANS = {"true", "false"}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column as the training part has it.

    A number, spelt in `form`, becomes `place`d between `quantiles`, or less `mean` and over
    `deviation`; a text its place in `categories`: the first is for those that the training part has
    not, the others begin with the most frequent one. `smallest` and `largest` are of the training
    part. Times are numbers of seconds.
    """

    name: str
    kind: str
    form: str = spellings.PLAIN
    mean: float = 0.0
    deviation: float = 1.0
    quantiles: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    smallest: float = 0.0
    largest: float = 0.0

    def cells(self, table: value_tables.Table) -> value_tables.Cells:
        """Returns the cells of the column in another table; ValueError if their type differs."""
        table.check_column(self.name, "--like")
        if self.kind == CATEGORY:
            cells = table.cells(self.name, as_text=True)
            fits = cells.type in self._types
            kind = "texts"
        else:
            cells = table.cells(self.name, form=self.form)
            kind = f"{spellings.FORMS[self.form].kind}s such as {self.form}"
            fits = cells.kind == spellings.FORMS[self.form].kind or cells.type == "null"
        if not fits:
            raise ValueError(
                f"the column {self.name!r} of {table.path} holds {cells.type}, and in the training "
                f"records {kind}: write it as there"
            )
        return cells

    @property
    def _types(self) -> tuple[str, ...]:
        """The types of columns that have categories by their value."""
        named = self.categories[1:]
        if {it.lower() for it in named} <= _BOOLEANS:
            return (value_tables.TEXT, "bool", "null")
        if all(re.fullmatch("-?(0|[1-9][0-9]*)", it) for it in named):
            return (value_tables.TEXT, "null", *value_tables.WHOLE_TYPES)
        return (value_tables.TEXT, "null")

    def encoded(self, cells: value_tables.Cells) -> np.ndarray:
        """Returns the values of cells in float64, nan where there is none."""
        if self.kind == CATEGORY:
            places = {name: code for code, name in enumerate(self.categories)}
            if {*self.categories[1:]} <= _BOOLEANS:
                by_text = [places.get(text.lower(), 0) for text in cells.texts]
            else:
                by_text = [places.get(text, 0) for text in cells.texts]
            return np.array([*by_text, np.nan], np.float64)[cells.values]
        if not self.quantiles:
            return (cells.values - self.mean) / self.deviation
        return _normal_quantiles(cells.values, np.array(self.quantiles))

    def unusual(self, cells: value_tables.Cells, rows: np.ndarray) -> np.ndarray:
        """Returns the rows, of `rows`, whose cell the training part has nothing like.

        These are categories that it has not, and numbers more than its range beyond its smallest
        and largest.
        """
        values = cells.values[rows]
        if self.kind == CATEGORY:
            return rows[self.encoded(dataclasses.replace(cells, values=values)) == 0]
        reach = self.largest - self.smallest
        is_beyond = (values < self.smallest - reach) | (values > self.largest + reach)
        return rows[is_beyond]

    @classmethod
    def restored(cls, fields: Mapping[str, Any]) -> Column:
        """Returns the column that a manifest describes."""
        known = {field.name for field in dataclasses.fields(cls)}
        lists: dict[str, Any] = {
            name: tuple(it) if isinstance(it, list) else it
            for name, it in fields.items()
            if name in known
        }
        for field, allowed in (("kind", (NUMBER, CATEGORY)), ("form", spellings.FORMS)):
            if lists.get(field, spellings.PLAIN) not in allowed:
                raise faults.unknown(f"{field} of {fields['name']}", lists.get(field), allowed)
        return cls(**lists)

    def described(self) -> dict[str, Any]:
        """Returns the fields for the manifest, without those at their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


def fit(name: str, cells: value_tables.Cells, training: np.ndarray, scaling: str) -> Column:
    """Returns the column of these cells in the rows `training`."""
    seen = cells.values[training]
    if cells.kind == value_tables.TEXT:
        counts = np.bincount(seen[seen >= 0], minlength=len(cells.texts))
        order = sorted(np.flatnonzero(counts), key=lambda at: (-counts[at], cells.texts[at]))
        if len(order) > MOST_CATEGORIES:
            raise ValueError(
                f"the column {name!r} has {len(order):,} different texts, more than "
                f"{MOST_CATEGORIES:,}: leave it out with --leave_out"
            )
        if not order:
            raise _without_value(name)
        return Column(name, CATEGORY, categories=(UNKNOWN, *(cells.texts[at] for at in order)))
    seen = seen[~np.isnan(seen)]
    if not len(seen):
        raise _without_value(name)
    smallest, largest = float(seen.min()), float(seen.max())
    column = Column(name, NUMBER, cells.form, smallest=smallest, largest=largest)
    if scaling == "none":
        return column
    if scaling == "standard":
        mean, deviation = moments(seen)
        return dataclasses.replace(column, mean=mean, deviation=deviation)
    shares = np.linspace(0, 1, min(QUANTILES, len(seen)))
    quantiles = tuple(np.quantile(seen, shares).tolist())
    return dataclasses.replace(column, quantiles=quantiles)


def moments(values: np.ndarray) -> tuple[float, float]:
    """Returns mean and deviation of numbers; 1.0 for the deviation of a constant."""
    if values.min() == values.max():
        return float(values[0]), 1.0
    return float(values.mean()), float(values.std())


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
