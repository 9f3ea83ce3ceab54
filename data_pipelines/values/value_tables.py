"""Tables of numbers and categories, as columns in memory; and how they are cut into parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from absl import logging
from pyarrow import csv, parquet

from bertjax.files import opening, tables

LONGER_STEP = 1.5  # times the median step: months have 28 to 31 days


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Columns of numbers: `values` [rows, columns] in float64, nan where a cell is empty."""

    names: tuple[str, ...]
    values: np.ndarray


def read(path: str) -> pyarrow.Table:
    """Returns the table of a .csv or .parquet file, compressed or not."""
    opening.check_regular(path)
    is_parquet = opening.suffixes(path)[0] == ".parquet"
    try:
        with opening.opened(path) as file:
            table = parquet.read_table(file) if is_parquet else csv.read_csv(file)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has two columns of one name: {', '.join(names)}")
    if not len(table):
        raise ValueError(f"{path} has no rows under its header, {', '.join(names)}")
    return table


def read_numbers(path: str, *, time_column: str = "", columns: str = "") -> Numbers:
    """Returns the columns of numbers of a file in the order of time."""
    if path.endswith(".npy"):
        return _of_array(path)
    table = read(path)
    if time_column:
        _check_times(path, column(table, time_column, path, "--time_column"), time_column)
    is_number = {
        field.name: pyarrow.types.is_integer(field.type) or pyarrow.types.is_floating(field.type)
        for field in table.schema
        if field.name != time_column
    }
    names = columns.split(",") if columns else [name for name, it in is_number.items() if it]
    for name in names:
        column(table, name, path, "--channels")
        if not is_number[name]:
            raise ValueError(
                f"the column {name!r} of {path} holds {table.schema.field(name).type}; it must "
                "hold numbers"
            )
    if not names:
        raise ValueError(f"{path} has no column of numbers: {', '.join(table.column_names)}")
    values = [
        table.column(name).cast(pyarrow.float64()).to_numpy(zero_copy_only=False) for name in names
    ]
    return Numbers(tuple(names), finite(np.stack(values, axis=1), path))


def part_sizes(text: str, total: int, names: Sequence[str]) -> list[int]:
    """Returns the numbers of rows of parts, given as numbers or as shares of all."""
    try:
        numbers = [float(it) for it in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= len(names) or min(numbers) < 0 or not numbers[0]:
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


def _of_array(path: str) -> Numbers:
    array = opening.open_array(path)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} has the shape {array.shape} of {array.dtype}; it must be numbers [steps] or "
            "[steps, channels]"
        )
    values = array.reshape(len(array), -1).astype(np.float64)
    return Numbers(tuple(f"channel_{at}" for at in range(values.shape[1])), finite(values, path))


def finite(values: np.ndarray, path: str) -> np.ndarray:
    """Returns the values of a file; ValueError if one is infinite."""
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values).any(axis=1))[0])
        raise ValueError(
            f"row {row + 1} of {path} holds an infinite number; leave such cells empty"
        )
    return values


def column(table: pyarrow.Table, name: str, path: str, option: str) -> Any:
    """Returns the column of a file that an option names; ValueError if there is none."""
    if name not in table.column_names:
        raise ValueError(
            f"{option} names {name!r}, which {path} does not have: {', '.join(table.column_names)}"
        )
    return table.column(name)


def cells(column: Any) -> list[Any]:
    """Returns the values of a column in Python, whatever packages are installed."""
    return tables.in_microseconds(column).to_pylist()


def _check_times(path: str, times: pyarrow.ChunkedArray, name: str) -> None:
    """Checks that times rise, and warns of steps that are longer than most."""
    kind = times.type
    if pyarrow.types.is_date(kind):
        times = times.cast(pyarrow.timestamp("s"))
    elif pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        times = times.cast(pyarrow.float64())
    elif not pyarrow.types.is_timestamp(kind):
        raise ValueError(
            f"the column {name!r} of {path} holds {kind}; times must be numbers, or dates such as "
            "2026-01-31 12:00. Without --time_column rows are taken in their order"
        )
    if times.null_count:
        raise ValueError(f"the column {name!r} of {path} has {times.null_count:,} empty cells")
    steps = np.diff(times.to_numpy())
    if (falls := np.flatnonzero(steps <= np.zeros((), steps.dtype))).size:
        raise ValueError(
            f"the column {name!r} of {path} does not rise at row {falls[0] + 2}: sort the file by "
            "it, and keep series of several things in a column each"
        )
    usual = np.median(steps.astype(np.float64))
    if (longer := np.flatnonzero(steps.astype(np.float64) > LONGER_STEP * usual)).size:
        at = longer[0]
        logging.warning(
            "In the column %r of %s, %s of %s steps are longer than most, the first from row %d "
            "(%s) to the next (%s). Windows go across them as if no time was missing; add rows "
            "with empty cells there",
            name, path, f"{longer.size:,}", f"{steps.size:,}", at + 1, times[at], times[at + 1],
        )  # fmt: skip
