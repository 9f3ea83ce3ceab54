r"""Series to records: windows of each channel, cut to patches, scaled by the training part.

    python -m data_pipelines.build_series --input=ETTh1.csv --time_column=date --output=DIR \
        --window=512 --patch=12 --parts=8640,2880,2880

DIR gets a record directory for each part: train, heldout and test, one after the other in time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertjax.cli import command_line
from bertjax.data import records
from bertjax.options import faults
from data_pipelines.values import value_records, value_tables

SCALINGS = ("standard", "none")
MOST_STEPS = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The input, and what a row is."""

    taken = ("window", "patch", "channels_together", "scaling", "season")
    kept = {"channels": "", "labels": "horizon"}

    input: str = command_line.option("a .csv, .parquet or .npy file: a row for each point in time")
    time_column: str = command_line.option(
        "the column of times, which must rise from row to row; unset: rows are one step apart",
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
        "steps, or shares, of the parts train, heldout and test, with commas between them",
        default="0.7,0.1,0.2",
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
    """Windows of `values` [steps, channels], nan where nothing was observed."""

    values: np.ndarray
    options: Options
    has_gaps: bool

    @property
    def _starts(self) -> np.ndarray:
        span = self.options.window + self.options.horizon
        return np.arange(0, len(self.values) - span + 1, self.options.stride)

    @property
    def length(self) -> int:
        """The number of patches of a row."""
        per_row = self.values.shape[1] if self.options.channels_together else 1
        return per_row * (self.options.window // self.options.patch)

    def __len__(self) -> int:
        per_window = 1 if self.options.channels_together else self.values.shape[1]
        return max(len(self._starts), 0) * per_window

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        options, channels = self.options, self.values.shape[1]
        length = options.window // options.patch
        skipped = options.window - length * options.patch
        starts = self._starts
        if options.channels_together:
            starts = starts[numbers]
        else:
            starts, chosen = starts[numbers // channels], numbers % channels
        steps = starts[:, None] + np.arange(skipped, options.window)[None]
        if options.channels_together:
            windows = self.values[steps]  # [rows, steps, channels]
            windows = windows.transpose(0, 2, 1).reshape(len(numbers), channels * length, -1)
        else:
            windows = self.values[steps, chosen[:, None]].reshape(len(numbers), length, -1)
        is_observed = ~np.isnan(windows)
        row: dict[str, np.ndarray] = {}
        row[records.VALUES_FEATURE] = np.where(is_observed, windows, 0).astype(np.float32)
        if self.has_gaps:
            row[records.OBSERVED_FEATURE] = is_observed.astype(np.int32)
        if options.horizon:
            steps = starts[:, None] + options.window + np.arange(options.horizon)[None]
            row[records.LABELS_FEATURE] = self.values[steps, chosen[:, None]].astype(np.float32)
        if options.channels_together:
            continues = np.tile(np.arange(length) > 0, channels).astype(np.int32)
            row[records.WORDS_FEATURE] = np.tile(continues, (len(numbers), 1))
        return row


def build(options: Options) -> dict[str, records.Manifest]:
    """Writes the records of all parts that have a window, and returns their manifests.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if options and input do not fit, or the training part has no window.
    """
    like, options = value_records.template(options)
    table = value_tables.read_numbers(
        options.input, time_column=options.time_column, columns=options.channels
    )
    has_gaps = bool(np.isnan(table.values).any())
    _check(options, has_gaps)
    sizes = [len(table.values)]
    if not like:
        sizes = value_tables.part_sizes(options.parts, sizes[0], value_records.PARTS)
    channels = _restored(like, table, options) if like else _fit(table, sizes[0], options)
    mean, deviation = (np.array([it[name] for it in channels]) for name in ("mean", "deviation"))
    scaled = (table.values - mean) / deviation
    _check_float32(scaled, table.names, options.input)
    parts, end = {}, 0
    for name, size in zip(value_records.PARTS if not like else [""], sizes, strict=True):
        begin, end = end, end + size
        reach = options.window if options.horizon else 0
        windows = Windows(scaled[max(begin - reach, 0) : end], options, has_gaps)
        if name and not len(windows):
            logging.warning("The part %s has %d steps, fewer than a window", name, size)
        parts[name] = windows, _statistics(scaled, begin, end, channels, options)
    return value_records.write_parts(options, parts)


def _check(options: Options, has_gaps: bool) -> None:
    """Raises a ValueError if the options do not fit each other, or the series."""
    if not 1 <= options.patch <= options.window or options.stride < 1:
        raise ValueError(
            f"--patch is {options.patch}, --window {options.window} and --stride {options.stride}; "
            "a window must have at least a patch, and both must be at least 1"
        )
    if not 0 <= options.season <= (steps := options.window // options.patch * options.patch):
        raise faults.wrong(
            "--season",
            options.season,
            f"from 0 to {steps}, the steps of a row",
            "a larger --window",
        )
    if options.horizon and (options.channels_together or has_gaps):
        raise ValueError(
            f"--horizon is {options.horizon}: forecasts are of a channel a row, without "
            "--channels_together, and of series without empty cells"
        )


def _check_float32(scaled: np.ndarray, names: Sequence[str], path: str) -> None:
    """Raises a ValueError where a scaled value is beyond the range of float32."""
    largest = np.finfo(np.float32).max
    if (places := np.argwhere(np.abs(scaled) > largest)).size:
        row, channel = places[0]
        raise ValueError(
            f"row {row + 1} of {path}, {names[channel]}: {scaled[row, channel]:.3g} after scaling "
            f"is beyond float32 ({largest:.2g}): give the values in another unit, or leave it out "
            "with --channels"
        )


def _fit(table: value_tables.Numbers, steps: int, options: Options) -> list[dict[str, Any]]:
    """Returns name, mean and deviation of each channel in the first steps, the training part."""
    train, names = table.values[:steps], np.array(table.names)
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
    return [
        {"name": name, "mean": float(m), "deviation": float(d)}
        for name, m, d in zip(table.names, mean, deviation, strict=True)
    ]


def _restored(
    like: Mapping[str, Any], table: value_tables.Numbers, options: Options
) -> list[dict[str, Any]]:
    """Returns what `_fit` returned when the records of `like` were made."""
    if (names := [it["name"] for it in like["channels"]]) != [*table.names]:
        raise ValueError(
            f"{options.input} has the channels {', '.join(table.names)}, but {options.like} "
            f"has {', '.join(names)}: choose them with --channels"
        )
    return like["channels"]


def _statistics(
    scaled: np.ndarray, begin: int, end: int, channels: list[dict[str, Any]], options: Options
) -> dict[str, Any]:
    """Returns what the manifest of a part keeps, {} of a part without steps."""
    if begin == end:
        return {}
    statistics = {
        "channels": channels,
        "steps": [begin, end],
        "unobserved_share": float(np.isnan(scaled[begin:end]).mean()),
        "variance": float(np.nanvar(scaled[begin:end])),
    }
    if options.horizon:
        labels = {"kind": "forecast", "horizon": options.horizon, "season": options.season}
        statistics["labels"] = labels
    return statistics


def main(options: Options) -> None:
    """Builds and prints what was made."""
    manifests = build(options)
    for part, manifest in manifests.items():
        begin, end = manifest.statistics["steps"]
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} rows of "
            f"{manifest.max_seq_length} patches of {manifest.arguments['patch']} steps, "
            f"from the steps {begin:,} to {end:,}; "
            f"{manifest.statistics['unobserved_share']:.2%} of the values were not observed"
        )
    for it in next(iter(manifests.values())).statistics["channels"]:
        command_line.print_report(
            f"  {it['name']:16} mean {it['mean']:.4g}, deviation {it['deviation']:.4g}"
        )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
