r"""Series to records: windows of each channel, cut to patches, scaled by the training part.

    python -m data_pipelines.build_series --input=ETTh1.csv --time_column=date --output=DIR \
        --window=512 --patch=12 --parts=8640,2880,2880

DIR gets a record directory for each part: train, heldout and test, one after the other in time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertjax.cli import command_line
from bertjax.data import records, series_index
from bertjax.options import faults
from data_pipelines.values import series, spellings, value_records, value_tables

SCALINGS = ("standard", "none")
MOST_STEPS = 1 << 30
Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_tables.Options):
    """The input, and what a row is."""

    taken = ("window", "patch", "horizon", "channels_together", "scaling", "season")
    kept = {"channels": "", "labels": "horizon"}

    input: str = command_line.option(
        "a .csv, .tsv, .parquet or .npy file: a row for each point in time"
    )
    time_column: str = command_line.option(
        "the column of times, which must rise from row to row; unset: the only one of times, if it "
        "rises, or rows are one step apart",
        default="",
    )
    series_column: str = command_line.option(
        "the column that names the series of a row, where the file has several: windows and parts "
        "are of one series, scaling is by channel over all",
        default="",
    )
    grid: str = command_line.option(
        "the step between rows, such as 15min or 1MS (s, min, h, D, W, MS: months), or auto, the "
        "median step: rows go to the nearest step, and missing steps become steps that were not "
        "observed; unset: rows follow each other as in the file",
        default="",
    )
    channels: str = command_line.option(
        "the columns to take, with commas between them; unset: all of numbers", default=""
    )
    window: int = command_line.option("steps of a row", default=512, at_least=1, at_most=MOST_STEPS)
    stride: int = command_line.option(
        "steps from a row to the next", default=1, at_least=1, at_most=MOST_STEPS
    )
    patch: int = command_line.option(
        "steps of a position; the first steps of a window that fill no patch are left out",
        default=12,
        at_least=1,
        at_most=MOST_STEPS,
    )
    channels_together: bool = command_line.option(
        "a row has the patches of all channels, one channel after the other; otherwise each "
        "channel is a row",
        default=False,
    )
    parts: str = command_line.option(
        "steps, or shares, of the parts train, heldout and test of each series, with commas "
        f"between them; unset: {series.DEFAULT_PARTS}, or with like one part",
        default="",
    )
    horizon: int = command_line.option(
        "steps behind a window that finetuning forecasts, of the same channel; windows of heldout "
        "and test then begin within the part before, so that all of their steps are forecast",
        default=0,
        at_least=0,
        at_most=MOST_STEPS,
    )
    season: int = command_line.option(
        "steps of a season, at most those of a row: the naive forecast repeats the last one; 0: "
        "the last value",
        default=0,
        at_least=0,
        at_most=MOST_STEPS,
    )
    scaling: str = command_line.option(
        "standard: each channel has the mean 0 and the variance 1 in the training part",
        choices=lambda: SCALINGS,
        default="standard",
    )


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of `values` [steps, channels], nan where nothing was observed.

    They are the steps of `pieces`, one after another: for each the number of its series, its first
    step there, and the number of its steps. No window crosses pieces; () is one series.
    """

    values: np.ndarray
    options: Options
    has_gaps: bool
    pieces: tuple[tuple[int, int, int], ...] = ()

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """The first step of each window in `values`, its series, and its first step there."""
        options, begin, found = self.options, 0, []
        for series_number, first, steps in self.pieces or ((0, 0, len(self.values)),):
            last = steps - options.window - options.horizon
            # New data end with the last step that can be forecast from.
            skipped = last % options.stride if options.like and last >= 0 else 0
            starts = np.arange(skipped, last + 1, options.stride)
            found.append([begin + starts, np.full_like(starts, series_number), first + starts])
            begin += steps
        return np.concatenate(found, axis=1)

    @property
    def length(self) -> int:
        """The number of patches of a row."""
        per_row = self.values.shape[1] if self.options.channels_together else 1
        return per_row * (self.options.window // self.options.patch)

    def __len__(self) -> int:
        per_window = 1 if self.options.channels_together else self.values.shape[1]
        return self._starts.shape[1] * per_window

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        options, channels = self.options, self.values.shape[1]
        length = options.window // options.patch
        skipped = options.window - length * options.patch
        windows = numbers if options.channels_together else numbers // channels
        starts, of_series, first = self._starts[:, windows]
        chosen = numbers % channels
        steps = starts[:, None] + np.arange(skipped, options.window)[None]
        if options.channels_together:
            values = self.values[steps]  # [rows, steps, channels]
            values = values.transpose(0, 2, 1).reshape(len(numbers), channels * length, -1)
        else:
            values = self.values[steps, chosen[:, None]].reshape(len(numbers), length, -1)
        is_observed = ~np.isnan(values)
        row: dict[str, np.ndarray] = {}
        row[records.VALUES_FEATURE] = np.where(is_observed, values, 0).astype(np.float32)
        if self.has_gaps:
            row[records.OBSERVED_FEATURE] = is_observed.astype(np.int32)
        if options.horizon:
            steps = starts[:, None] + options.window + np.arange(options.horizon)[None]
            labels = self.values[steps, chosen[:, None]]
            row[records.LABELS_FEATURE] = np.nan_to_num(labels).astype(np.float32)
            row[records.LABELS_OBSERVED_FEATURE] = (~np.isnan(labels)).astype(np.int32)
            of_row = np.stack([of_series, chosen, first + options.window]).astype(np.int32)
            row |= dict(zip(series_index.FEATURES, of_row, strict=True))
        if options.channels_together:
            continues = np.tile(np.arange(length) > 0, channels).astype(np.int32)
            row[records.WORDS_FEATURE] = np.tile(continues, (len(numbers), 1))
        return row


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Decisions of the training part: name, mean and deviation of each channel, and its range.

    `file` says how the file was read: the forms of its cells, its columns, and its step.
    """

    channels: list[dict[str, Any]]
    ranges: list[list[float]]
    file: dict[str, Any]

    @classmethod
    def restored(cls, statistics: Mapping[str, Any], path: str) -> Fitted:
        """Returns what the manifest of records describes."""
        try:
            ranges = [[float(least), float(most)] for least, most in statistics.get("ranges", [])]
            file = dict(statistics.get("file", {}))
            file["forms"] = dict(file.get("forms", {}))
            if unknown := set(file["forms"].values()) - spellings.FORMS.keys():
                raise ValueError(f"unknown forms {unknown}")
        except (TypeError, ValueError) as error:
            raise ValueError(f"statistics of {path} cannot be read: {error}") from error
        return cls(statistics["channels"], ranges, file)

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Returns values with the mean and the deviation of the training part."""
        mean, deviation = (
            np.array([it[name] for it in self.channels]) for name in ("mean", "deviation")
        )
        return (values - mean) / deviation

    def statistics(self, values: np.ndarray, options: Options) -> dict[str, Any]:
        """Returns what the manifest of a part keeps, {} of a part without steps."""
        if not len(values):
            return {}
        statistics = {
            "channels": self.channels,
            "ranges": self.ranges,
            "file": self.file,
            "unobserved_share": float(np.isnan(values).mean()),
        }
        if options.horizon:
            labels = {"kind": "forecast", "horizon": options.horizon, "season": options.season}
            statistics["labels"] = labels
        return statistics


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A series, and for each part the first of its steps and the one behind its last."""

    series: series.Series
    parts: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, it: series.Series, options: Options) -> Cut:
        """Returns the series with the parts that options name, or "" for all of new data."""
        if options.like and not options.parts:
            return cls(it, {"": (0, len(it.values))})
        ends = np.cumsum(series.part_sizes(len(it.values), options))
        bounds = zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        return cls(it, dict(zip(value_records.PARTS, bounds, strict=True)))

    def own(self, part: str) -> np.ndarray:
        """Returns the values of a part."""
        return self.series.values[slice(*self.parts[part])]

    def read(self, part: str, options: Options) -> tuple[int, int]:
        """Returns the steps that windows of a part read.

        With a horizon they begin in the part before, and end a horizon behind new data.
        """
        begin, end = self.parts[part]
        if not options.horizon:
            return begin, end
        return max(begin - options.window, 0), end + options.horizon * (not part)


class _Builder:
    """The series of an input, cut to parts."""

    def __init__(
        self, options: Options, known: Fitted | None = None, report: Report = lambda line: None
    ):
        _check(options)
        self.options = options
        self.file = series.read(options, known.file if known else {})
        for line in self.file.columns:
            report(line)
        self.cuts = _with_windows([Cut.of(it, options) for it in self.file.series], options)
        self.parts = tuple(self.cuts[0].parts)
        self._scaled: list[np.ndarray] = []

    def fit(self) -> Fitted:
        """Returns what the training part decides."""
        return self.adopt(_fit(self.file, self._own("train"), self.options))

    def adopt(self, fitted: Fitted) -> Fitted:
        """Returns what other records decided, and scales all steps by it."""
        _check_file(fitted, self.file, self.options)
        self._scaled = [fitted.scaled(it.series.values) for it in self.cuts]
        _check_float32(self._scaled, self.cuts, self.file)
        return fitted

    def rows(self, fitted: Fitted, part: str) -> tuple[Windows, dict[str, Any]]:
        """Returns the windows of a part, and what its manifest keeps."""
        own = self._own(part)
        statistics = fitted.statistics(own, self.options)
        if len(self.cuts) == 1 and statistics:
            statistics["steps"] = [*self.cuts[0].parts[part]]
        windows = _windows(self._scaled, self.cuts, part, self.options)
        if part and len(own) and not len(windows):
            logging.warning("The part %s has %d steps, fewer than a window", part, len(own))
        _warn_of_range(part, own, fitted)
        return windows, statistics

    def files(self, fitted: Fitted) -> value_records.Files:
        """Returns the file of the names and times of forecasts, nothing without a horizon."""
        if not self.options.horizon:
            return {}
        index = series_index.SeriesIndex(
            tuple(it.series.name for it in self.cuts),
            tuple(it["name"] for it in fitted.channels),
            np.array([it["mean"] for it in fitted.channels]),
            np.array([it["deviation"] for it in fitted.channels]),
            tuple(it.series.times for it in self.cuts),
        )
        return {series_index.FILE: index.arrays()}

    def _own(self, part: str) -> np.ndarray:
        return np.concatenate([it.own(part) for it in self.cuts])


def build(options: Options, report: Report = lambda line: None) -> dict[str, records.Manifest]:
    """Writes the records of all parts that have a window, and returns their manifests.

    `report` is called with a line for each column.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if options and input do not fit, or the training part has no window.
    """
    open_input = functools.partial(_Builder, report=report)
    return value_records.build(options, open_input, Fitted.restored)


def _check(options: Options) -> None:
    """Raises a ValueError if the options do not fit each other."""
    if options.patch > options.window:
        raise faults.wrong("--patch", options.patch, f"at most --window, {options.window}")
    if not 0 <= options.season <= (steps := options.window // options.patch * options.patch):
        raise faults.wrong(
            "--season",
            options.season,
            f"from 0 to {steps}, the steps of a row",
            "a larger --window",
        )
    if options.horizon and options.channels_together:
        raise ValueError(
            f"--horizon is {options.horizon}: forecasts are of a channel a row, without "
            "--channels_together"
        )


def _with_windows(cuts: Sequence[Cut], options: Options) -> list[Cut]:
    """Returns the series that have a window in a part; the others are counted."""
    span = options.window + options.horizon
    spans = {it: [it.read(part, options) for part in it.parts] for it in cuts}
    kept = [it for it in cuts if any(end - begin >= span for begin, end in spans[it])]
    if not kept:
        raise ValueError(
            f"{options.input} has no part of a series with {span} steps, those of a window and its "
            "forecast: give more data, or smaller windows"
        )
    if len(kept) < len(cuts):
        short = next(it.series.name for it in cuts if it not in kept)
        logging.warning(
            "%d of %d series of %s have no part with %d steps, as a window needs, and are left out;"
            " the first is %s", len(cuts) - len(kept), len(cuts), options.input, span, short,
        )  # fmt: skip
    return kept


def _fit(file: series.File, train: np.ndarray, options: Options) -> Fitted:
    """Returns mean, deviation and range of each channel in the training part."""
    names = np.array(file.channels)
    if (empty := names[np.isnan(train).all(axis=0)]).size:
        raise ValueError(
            f"{', '.join(empty)} of {options.input} has no value in the training part: leave it "
            "out with --channels"
        )
    least, most = np.nanmin(train, axis=0), np.nanmax(train, axis=0)
    is_constant = least == most
    if is_constant.any():
        logging.warning("%s does not change in the training part", ", ".join(names[is_constant]))
    if options.scaling == "none":
        mean, deviation = np.zeros_like(least), np.ones_like(least)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
        mean, deviation = np.where(is_constant, least, mean), np.where(is_constant, 1.0, deviation)
    if (odd := names[~(np.isfinite(deviation) & (deviation > 0))]).size:
        raise ValueError(
            f"the deviation of {', '.join(odd)} of {options.input} is beyond float64: give the "
            "values in another unit, or leave them out with --channels"
        )
    channels = [
        {"name": name, "mean": float(m), "deviation": float(d)}
        for name, m, d in zip(file.channels, mean, deviation, strict=True)
    ]
    return Fitted(channels, np.stack([least, most], axis=1).tolist(), dict(file.reading))


def _check_file(fitted: Fitted, file: series.File, options: Options) -> None:
    """Raises a ValueError if a file has other channels than records; warns of another step."""
    if (names := [it["name"] for it in fitted.channels]) != [*file.channels]:
        raise ValueError(
            f"{options.input} has the channels {', '.join(file.channels)}, but {options.like} "
            f"has {', '.join(names)}: choose them with --channels"
        )
    step, theirs = file.reading.get("step", ""), fitted.file.get("step", "")
    if step and theirs and step != theirs:
        logging.warning(
            "The usual step of %s is %s, and %s in %s: a row is as many steps, and another time",
            options.input, step, theirs, options.like,
        )  # fmt: skip


def _check_float32(scaled: Sequence[np.ndarray], cuts: Sequence[Cut], file: series.File) -> None:
    """Raises a ValueError where a scaled value is beyond the range of float32."""
    largest = np.finfo(np.float32).max
    for values, cut in zip(scaled, cuts, strict=True):
        if (places := np.argwhere(np.abs(values) > largest)).size:
            step, channel = places[0]
            row = file.place(int(cut.series.rows[step]))
            raise ValueError(
                f"{row}, {file.channels[channel]}: "
                f"{values[step, channel]:.3g} after scaling is beyond float32 ({largest:.2g}); "
                "give the values in another unit, or leave the column out with --channels"
            )


def _windows(
    scaled: Sequence[np.ndarray], cuts: Sequence[Cut], part: str, options: Options
) -> Windows:
    """Returns the windows of a part of all series."""
    spans = [it.read(part, options) for it in cuts]
    values = [
        np.pad(it[begin:end], ((0, max(end - len(it), 0)), (0, 0)), constant_values=np.nan)
        for it, (begin, end) in zip(scaled, spans, strict=True)
    ]
    has_gaps = any(np.isnan(it).any() for it in scaled)
    pieces = tuple((at, begin, end - begin) for at, (begin, end) in enumerate(spans))
    return Windows(np.concatenate(values), options, has_gaps, pieces)


def _warn_of_range(part: str, values: np.ndarray, fitted: Fitted) -> None:
    """Warns of values that are more than the range of the training part beyond it."""
    found = []
    for at, (smallest, largest) in enumerate(fitted.ranges):
        column, reach = values[:, at], largest - smallest
        beyond = column[(column < smallest - reach) | (column > largest + reach)]
        if beyond.size:
            share = f"{beyond.size / len(column):.2%}, such as {beyond[0]:g}"
            found.append(f"{fitted.channels[at]['name']} {share} ({smallest:g} to {largest:g})")
    if found:
        where = f"The part {part}" if part else "The input"
        logging.warning("%s has values far from the training part's: %s", where, "; ".join(found))


def main(options: Options) -> None:
    """Builds and prints the columns, and what was made."""
    manifests = build(options, command_line.print_report)
    for part, manifest in manifests.items():
        facts = manifest.statistics
        steps = " of all series"
        if "steps" in facts:
            steps = " from the steps {:,} to {:,}".format(*facts["steps"])
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} rows of "
            f"{manifest.max_seq_length} patches of {manifest.arguments['patch']} steps,{steps}; "
            f"{facts['unobserved_share']:.2%} of the values were not observed"
        )
    for it in next(iter(manifests.values())).statistics["channels"]:
        command_line.print_report(
            f"  {it['name']:16} mean {it['mean']:.4g}, deviation {it['deviation']:.4g}"
        )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
