"""The series of a file: channels, times, and the column that says to which one a row belongs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertjax.data import time_steps
from bertjax.files import opening
from bertjax.options import faults
from data_pipelines.values import irregular_steps, value_records, value_tables
from data_pipelines.values.value_tables import NUMBER, TEXT, TIME

AUTO = "auto"
DEFAULT_PARTS = "0.7,0.1,0.2"
MOST_OF_ROWS = 10  # steps of a grid for each row of the file
MOST_SHOWN = 10  # sentences about times


@dataclasses.dataclass(frozen=True)
class Series:
    """The steps of a series, one after another.

    rows: the row of the file that each step comes from, -1 for none
    values: [steps, channels] in float64, nan where nothing was observed
    times: the time of each step; empty where the file has none that rise
    """

    name: str
    rows: np.ndarray
    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    times: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(frozen=True)
class File:
    """The series of a file, and the place of a row for messages.

    `reading` is what new data are read by: the forms of cells, the columns of times and series, the
    grid and the usual `step`, "" for none. `columns` has a line for each column.
    """

    channels: tuple[str, ...]
    series: tuple[Series, ...]
    place: Callable[[int], str]
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: tuple[str, ...] = ()


def part_sizes(steps: int, options: Any) -> list[int]:
    """Returns the numbers of steps of the parts of a series."""
    return value_tables.part_sizes(options.parts or DEFAULT_PARTS, steps, value_records.PARTS)


def read(options: Any, like: Mapping[str, Any]) -> File:
    """Returns the series of the input, read as the `File.reading` of other records says.

    Without these, the training part decides which columns are numbers, and how they are spelt.
    """
    if options.input.endswith(".npy"):
        for name in ("time_column", "series_column", "grid", "channels"):
            if given := getattr(options, name):
                raise faults.unread(f"--{name}", given, "an array has no names of columns", "")
        return _of_array(options.input)
    # Where no column names times or series, a row of empty cells is a step without values.
    named = ("time_column", "series_column")
    empty_rows = not any(getattr(options, name) or like.get(name) for name in named)
    reading = dataclasses.replace(options.reading, empty_rows=empty_rows)
    table = value_tables.Table(options.input, reading)
    options = _as_before(options, like, table)
    _check_columns(table, options)
    series = tuple(Series(name, rows) for name, rows in _by_series(table, options).items())
    file, cells = _timed(File((), series, table.place), table, options, like)
    time_column = file.reading.get("time_column", "")
    names = _channels(cells, {time_column, options.series_column}, options)
    file = _with_values(file, names, cells)
    kept = {name: cells[name].form for name in (*names, *filter(None, [time_column]))}
    reading = {**file.reading, "forms": kept, "series_column": options.series_column}
    file = dataclasses.replace(file, reading=reading)
    for name in names if not time_column else ():
        steps = np.diff(cells[name].values)
        if steps.size > 1 and steps[0] > 0 and (steps == steps[0]).all():
            logging.warning(
                "%s of %s rises by the same step in every row; if it is the time, give "
                "--time_column=%s", name, options.input, name,
            )  # fmt: skip
    lines = (_described(table, name, cells.get(name), file, options) for name in table.names)
    return dataclasses.replace(file, columns=tuple(lines))


def _timed(
    file: File, table: value_tables.Table, options: Any, like: Mapping[str, Any]
) -> tuple[File, dict[str, value_tables.Cells]]:
    """Returns the series with their times if there are any, and the cells of all columns."""
    needed, forms = _needed(table, options), like.get("forms", {})
    decides_later = options.grid and not like  # the training part is known once the times are
    if decides_later:
        cells = _cells(table, options, {}, None, needed=[options.time_column])
    else:
        training = None if like else _training(file.series, options)
        cells = _cells(table, options, forms, training, needed=needed)
    if column := _time_column(cells, options):
        file = _with_times(file, column, cells, options)
    elif options.grid:
        raise faults.unread("--grid", options.grid, f"{options.input} has no column of times", "")
    if decides_later:
        forms, training = {column: cells[column].form}, _training(file.series, options)
        cells = _cells(table, options, forms, training, needed=needed)
    return file, cells


def _of_array(path: str) -> File:
    array = opening.open_array(path)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} has the shape {array.shape} of {array.dtype}; it must be numbers [steps] or "
            "[steps, channels]"
        )
    values = array.reshape(len(array), -1).astype(np.float64)
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values).any(axis=1))[0])
        raise ValueError(f"row {row + 1} of {path} holds an infinite number; make it nan")
    names = tuple(f"channel_{at}" for at in range(values.shape[1]))
    series = (Series("", np.arange(len(values)), values),)
    return File(names, series, lambda row: f"{path}, row {row + 1}")


def _as_before(options: Any, like: Mapping[str, Any], table: value_tables.Table) -> Any:
    """Returns options with the columns and the grid of other records, unless they are given."""
    kept = {
        name: it
        for name in ("time_column", "series_column")
        if (it := like.get(name, "")) in table.names and not getattr(options, name)
    }
    if not options.grid and (options.time_column or "time_column" in kept):
        kept["grid"] = str(like.get("grid", ""))
    return dataclasses.replace(options, **kept)


def _check_columns(table: value_tables.Table, options: Any) -> None:
    """Raises a ValueError for an option that names no column."""
    for option, names in (
        ("--channels", _chosen(options)),
        ("--time_column", [options.time_column]),
        ("--series_column", [options.series_column]),
    ):
        for name in filter(None, names):
            table.check_column(name, option)


def _training(series: Sequence[Series], options: Any) -> np.ndarray | None:
    """Returns the rows of the training part, None if it has none."""
    rows = np.concatenate([it.rows[: part_sizes(len(it.rows), options)[0]] for it in series])
    rows = rows[rows >= 0]
    return rows if rows.size else None


def _needed(table: value_tables.Table, options: Any) -> list[str]:
    """Returns the columns that must be whole: the chosen ones, or all."""
    chosen = _chosen(options)
    return [*chosen, options.time_column] if chosen else [*table.names]


def _cells(
    table: value_tables.Table,
    options: Any,
    forms: Mapping[str, str],
    training: np.ndarray | None,
    *,
    needed: Sequence[str],
) -> dict[str, value_tables.Cells]:
    """Returns the cells of all columns, but for faulty ones that are not needed."""
    cells = {}
    for name in table.names:
        as_text, form = name == options.series_column, forms.get(name)
        try:
            cells[name] = table.cells(name, training=training, form=form, as_text=as_text)
        except ValueError:
            if name in needed:
                raise
    return cells


def _chosen(options: Any) -> list[str]:
    return [name for name in options.channels.split(",") if name]


def _time_column(cells: Mapping[str, value_tables.Cells], options: Any) -> str:
    """Returns the column of times: the named one, or the only one of its kind."""
    if options.time_column:
        if (kind := cells[options.time_column].kind) not in (NUMBER, TIME):
            raise ValueError(
                f"the column {options.time_column!r} of {options.input} holds {kind}; times must "
                "be numbers, or dates such as 2026-01-31 12:00. Without --time_column rows are "
                "taken in their order"
            )
        return options.time_column
    found = [name for name, it in cells.items() if it.kind == TIME]
    if len(found) > 1:
        raise ValueError(
            f"{options.input} has several columns of times, {', '.join(found)}: choose the one "
            "that orders the rows, --time_column=NAME"
        )
    return "".join(found)


def _channels(cells: Mapping[str, value_tables.Cells], others: set[str], options: Any) -> list[str]:
    """Returns the names of the channels; ValueError if one does not hold numbers."""
    is_number = {name: it.kind == NUMBER and name not in others for name, it in cells.items()}
    names = _chosen(options) or [name for name, it in is_number.items() if it]
    for name in names:
        if not is_number[name]:
            kind = "the times or the series" if name in others else cells[name].kind
            raise ValueError(
                f"the column {name!r} of {options.input} holds {kind}; a channel must hold numbers"
            )
    if not names:
        raise ValueError(f"{options.input} has no column of numbers: {', '.join(is_number)}")
    return names


def _by_series(table: value_tables.Table, options: Any) -> dict[str, np.ndarray]:
    """Returns the rows of each series by its name, in the order of their first rows."""
    column = options.series_column
    if not column:
        return {"": np.arange(len(table))}
    cells = table.cells(column, as_text=True)
    codes = cells.values
    if (empty := np.flatnonzero(codes < 0)).size:
        raise ValueError(
            f"{empty.size:,} rows of {table.path} have no {column!r}, the first "
            f"{table.place(int(empty[0]))}: name their series, or leave these rows out"
        )
    order = np.argsort(codes, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    rows.sort(key=lambda it: int(it[0]))
    return {cells.texts[int(codes[it[0]])]: it for it in rows}


def _with_values(file: File, names: Sequence[str], cells: Mapping[str, value_tables.Cells]) -> File:
    """Returns the series with the values of the channels `names`."""
    values = np.stack([cells[name].values for name in names], axis=1)
    made = []
    for it in file.series:
        taken = values[it.rows]
        taken[it.rows < 0] = np.nan
        made.append(dataclasses.replace(it, values=taken))
    return dataclasses.replace(file, channels=tuple(names), series=tuple(made))


def _with_times(
    file: File, column: str, cells: Mapping[str, value_tables.Cells], options: Any
) -> File:
    """Returns the series with their times, on a grid if options have one.

    Where the times of a column that no option names do not rise, the file stays as it is.
    """
    times = cells[column].values
    if cells[column].kind == TIME:
        micros = np.rint(np.nan_to_num(times) * 1e6).astype(np.int64)
        times = np.where(np.isnan(times), np.datetime64("NaT"), micros.view("datetime64[us]"))
    is_empty = [it.values < 0 if it.kind == TEXT else np.isnan(it.values) for it in cells.values()]
    rows = [it.rows[~np.all(is_empty, axis=0)[it.rows]] for it in file.series]
    series = tuple(
        dataclasses.replace(it, rows=kept, times=times[kept])
        for it, kept in zip(file.series, rows, strict=True)
    )
    timed = dataclasses.replace(file, series=series)
    if fault := _fault(timed, column, cells, options):
        if options.time_column or options.grid:
            raise ValueError(fault)
        logging.warning("%s. Rows are taken in the order of the file", fault)
        return file
    step = time_steps.Step.usual([it.times for it in series])
    if step:
        _warn_of_steps(timed, step, column, options)
    if step and options.grid:
        step = _grid(step, options)
        timed = _filled(timed, step)
    grid = str(step) if options.grid else ""
    reading = {**file.reading, "time_column": column, "step": str(step or ""), "grid": grid}
    return dataclasses.replace(timed, reading=reading)


def _fault(file: File, column: str, cells: Mapping[str, value_tables.Cells], options: Any) -> str:
    """Returns why times cannot be used: some are empty, or do not rise; "" if they can."""
    seconds, rows = cells[column].values, np.concatenate([it.rows for it in file.series])
    if (empty := np.sort(rows[np.isnan(seconds[rows])])).size:
        first = file.place(int(empty[0]))
        return f"the column {column!r} has {empty.size:,} empty cells, the first in {first}"
    falls = ((it, np.flatnonzero(np.diff(seconds[it.rows]) <= 0)) for it in file.series)
    it, found = next(((it, found) for it, found in falls if found.size), (None, []))
    if it is None:
        return ""
    before, after = (time_steps.said(time) for time in it.times[found[0] : found[0] + 2])
    remedy = "sort the file by it"
    if irregular_steps.is_hour_twice(it.times, found[0]):
        remedy = "an hour comes twice, as where clocks are set back; write the times in UTC"
    elif not options.series_column and (others := _series_columns(cells, column)):
        remedy = (
            f"{others[0]} changes, and under each of its values the times rise; if these are "
            f"series of their own, give --series_column={others[0]}"
        )
    row = file.place(int(it.rows[found[0] + 1]))
    return f"the column {column!r} does not rise at {row}, where {after} follows {before}: {remedy}"


def _series_columns(cells: Mapping[str, value_tables.Cells], times: str) -> list[str]:
    """Returns the columns of text or whole numbers under whose values the times rise."""
    found = []
    for name, it in cells.items():
        if it.kind in (TEXT, NUMBER) and name != times and (it.values == np.rint(it.values)).all():
            order = np.argsort(it.values, kind="stable")
            is_same = np.diff(it.values[order]) == 0
            steps = np.diff(cells[times].values[order])[is_same]
            if steps.size and not is_same.all() and (steps > 0).all():
                found.append(name)
    return sorted(found, key=lambda name: cells[name].kind != TEXT)


def _warn_of_steps(file: File, step: time_steps.Step, column: str, options: Any) -> None:
    """Warns of what breaks the usual step of times."""
    found = [
        f"{it.name}: {sentence}".removeprefix(": ")
        for it in file.series
        if len(it.rows) > 1
        for sentence in irregular_steps.irregularities(it.times, step)
    ]
    if found:
        shown = found[:MOST_SHOWN] + ["..."] * (len(found) > MOST_SHOWN)
        then = "Missing steps are put in as not observed"
        if not options.grid:
            then = f"Windows go across as if all steps were equal. With --grid=auto: {then.lower()}"
        logging.warning(
            "Times %r of %s:\n  %s\n%s", column, options.input, "\n  ".join(shown), then
        )


def _grid(usual: time_steps.Step, options: Any) -> time_steps.Step:
    """Returns the step that --grid names, which must have a unit where times are dates."""
    if options.grid == AUTO:
        return usual
    step = time_steps.Step.parsed("--grid", options.grid)
    if bool(step.unit) != bool(usual.unit):
        must = f"auto, or as the times of {options.input} are, whose usual step is {usual}"
        raise faults.wrong("--grid", options.grid, must)
    return step


def _filled(file: File, step: time_steps.Step) -> File:
    """Returns series on a grid: each row at its nearest step, and none at the others."""
    grids = [step.places(it.times) for it in file.series]
    steps, rows = sum(int(it[-1]) + 1 for _, it in grids), sum(len(it.rows) for it in file.series)
    if steps > MOST_OF_ROWS * rows:
        gaps = [np.diff(numbers, append=numbers[-1]) for _, numbers in grids]
        it, gap = max(zip(file.series, gaps, strict=True), key=lambda it: it[1].max())
        before, after = (time_steps.said(it.times[gap.argmax() + at]) for at in (0, 1))
        raise ValueError(
            f"--grid={step} makes {steps:,} steps from {rows:,} rows; the longest gap is from "
            f"{before} to {after}, {file.place(int(it.rows[gap.argmax()]))}: mend these times, or "
            "give a longer step"
        )
    made = []
    for it, (first, numbers) in zip(file.series, grids, strict=True):
        if (twice := np.flatnonzero(np.diff(numbers) == 0)).size:
            before, after = (time_steps.said(it.times[twice[0] + at]) for at in (0, 1))
            raise ValueError(
                f"{file.place(int(it.rows[twice[0] + 1]))}: {before} and {after} are in one step "
                f"of --grid={step}; give a shorter one, or one row a step"
            )
        rows_of = np.full(int(numbers[-1]) + 1, -1)
        rows_of[numbers] = it.rows
        times = step.times(first, np.arange(len(rows_of)))
        made.append(dataclasses.replace(it, rows=rows_of, times=times))
    logging.info("%d of %d steps of the grid have no row", steps - rows, steps)
    return dataclasses.replace(file, series=tuple(made))


def _described(
    table: value_tables.Table, name: str, cells: value_tables.Cells | None, file: File, options: Any
) -> str:
    """Returns a line about a column: what it holds, an example, and what it has become."""
    if cells is None:
        return f"  {name:24} left out: not in --channels"
    is_there = cells.values >= 0 if cells.kind == TEXT else ~np.isnan(cells.values)
    example = table.example(name, int(np.argmax(is_there))) if is_there.any() else ""
    there = cells.values[is_there]
    what = f"{len(np.unique(there)):,} values"
    if cells.kind == TIME and there.size:
        ends = (np.datetime64(round(it * 1e6), "us") for it in (there.min(), there.max()))
        what = f"{' to '.join(map(time_steps.said, ends))}, {what}"
    elif cells.kind != TEXT and there.size:
        what = f"{there.min():g} to {there.max():g}, {what}"
    becomes = "left out: not a number" if cells.kind != NUMBER else "left out: not in --channels"
    if name in file.channels:
        becomes = "channel"
    elif name == options.series_column:
        becomes = "names the series"
    elif name == file.reading.get("time_column"):
        becomes = f"times of the rows, a step of {file.reading['step']}"
    elif cells.kind == TIME:
        becomes = "left out: times that do not rise"
    missing = f"{1 - is_there.mean():.2%} missing"
    return f"  {name:24} {becomes}; {cells.kind}, {what}; {missing}; for example {example!r:.40}"
