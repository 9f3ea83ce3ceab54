r"""Series to records: windows of each channel, cut to patches, scaled by the training part.

    python -m data_pipelines.build_series --input=ETTh1.csv --time_column=date --output=DIR \
        --window=512 --patch=12 --parts=8640,2880,2880

DIR gets a record directory for each part: train, heldout and test, one after the other in time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bertjax.cli import command_line
from bertjax.data import records
from data_pipelines.values import value_records, value_tables

SCALINGS = ("standard", "none")


@dataclasses.dataclass(frozen=True)
class Options:
    """The input, and what a row is."""

    input: str = command_line.option("a .csv, .parquet or .npy file: a row for each point in time")
    output: str = command_line.option("the directory for the records of each part")
    time_column: str = command_line.option(
        "the column of times, which must rise from row to row; unset: rows are one step apart",
        default="",
    )
    channels: str = command_line.option(
        "the columns to take, with commas between them; unset: all of numbers", default=""
    )
    window: int = command_line.option("steps of a row", default=512)
    stride: int = command_line.option("steps from a row to the next", default=1)
    patch: int = command_line.option(
        "steps of a position; the first steps of a window that fill no patch are left out",
        default=12,
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
    )
    season: int = command_line.option(
        "steps of a season: the naive forecast repeats the last one; 0: the last value", default=0
    )
    scaling: str = command_line.option(
        "standard: each channel has the mean 0 and the variance 1 in the training part",
        choices=lambda: SCALINGS,
        default="standard",
    )
    like: str = command_line.option(value_records.LIKE, default="")
    seed: int = command_line.option("seed of the shuffle", default=12345)
    overwrite: bool = command_line.option("replace the records in output", default=False)


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
        windows = self.values[steps]  # [rows, steps, channels]
        if options.channels_together:
            windows = windows.transpose(0, 2, 1).reshape(len(numbers), channels * length, -1)
        else:
            windows = np.take_along_axis(windows, chosen[:, None, None], axis=2)
            windows = windows.reshape(len(numbers), length, -1)
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
    if options.like:
        _, options = value_records.template(
            options, ("window", "patch", "channels_together", "scaling", "season")
        )
    table = value_tables.read_numbers(
        options.input, time_column=options.time_column, columns=options.channels
    )
    if not 1 <= options.patch <= options.window or options.stride < 1:
        raise ValueError(
            f"--patch is {options.patch}, --window {options.window} and --stride {options.stride}; "
            "a window must have at least a patch, and both must be at least 1"
        )
    if options.horizon and (options.channels_together or np.isnan(table.values).any()):
        raise ValueError(
            f"--horizon is {options.horizon}: forecasts are of a channel a row, without "
            "--channels_together, and of series without empty cells"
        )
    if options.like:
        return {"": _build_like(options, table)}
    ends = np.cumsum(value_tables.part_sizes(options.parts, len(table.values), value_records.PARTS))
    train = table.values[: ends[0]]
    with np.errstate(invalid="ignore"):
        mean, deviation = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    if empty := [name for name, it in zip(table.names, mean, strict=True) if np.isnan(it)]:
        raise ValueError(
            f"{', '.join(empty)} of {options.input} has no value in the training part: leave it "
            "out with --channels"
        )
    if flat := [name for name, it in zip(table.names, deviation, strict=True) if it == 0]:
        logging.warning("%s does not change in the training part", ", ".join(flat))
    deviation = np.where(deviation == 0, 1.0, deviation)
    if options.scaling == "none":
        mean, deviation = np.zeros_like(mean), np.ones_like(deviation)
    scaled = (table.values - mean) / deviation
    channels = [
        {"name": name, "mean": float(m), "deviation": float(d)}
        for name, m, d in zip(table.names, mean, deviation, strict=True)
    ]
    has_gaps = bool(np.isnan(table.values).any())
    arguments: dict[str, Any] = dataclasses.asdict(options)
    manifests = {}
    for part, begin, end in zip(value_records.PARTS, [0, *ends[:-1]], ends, strict=True):
        reach = options.window if options.horizon and begin else 0
        windows = Windows(scaled[max(begin - reach, 0) : end], options, has_gaps)
        if not len(windows) and part != "train":
            logging.warning(
                "The part %s has %d steps, fewer than a window: it is left out", part, end - begin
            )
            continue
        manifests[part] = value_records.write(
            epath.Path(options.output) / part,
            windows,
            seed=options.seed,
            arguments={**arguments, "part": part},
            statistics={
                "channels": channels,
                "steps": [int(begin), int(end)],
                "unobserved_share": float(np.isnan(scaled[begin:end]).mean()),
                "variance": float(np.nanvar(scaled[begin:end])),
                **_labels(options),
            },
            overwrite=options.overwrite,
        )
    return manifests


def _build_like(options: Options, table: value_tables.Numbers) -> records.Manifest:
    """Returns the manifest of all windows, scaled as other records are."""
    channels = records.Manifest.load(options.like).statistics["channels"]
    if (names := [it["name"] for it in channels]) != [*table.names]:
        raise ValueError(
            f"{options.input} has the channels {', '.join(table.names)}; those of {options.like} "
            f"are {', '.join(names)}"
        )
    mean, deviation = (np.array([it[name] for it in channels]) for name in ("mean", "deviation"))
    scaled = (table.values - mean) / deviation
    return value_records.write(
        options.output,
        Windows(scaled, options, has_gaps=bool(np.isnan(scaled).any())),
        seed=None,
        arguments=dataclasses.asdict(options),
        statistics={
            "channels": channels,
            "steps": [0, len(scaled)],
            "unobserved_share": float(np.isnan(scaled).mean()),
            "variance": float(np.nanvar(scaled)),
            **_labels(options),
        },
        overwrite=options.overwrite,
    )


def _labels(options: Options) -> dict[str, Any]:
    if not options.horizon:
        return {}
    described = {"kind": "forecast", "horizon": options.horizon, "season": options.season}
    return {"labels": described}


def main(options: Options) -> None:
    """Builds and prints what was made."""
    for part, manifest in build(options).items():
        begin, end = manifest.statistics["steps"]
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} rows of "
            f"{manifest.max_seq_length} patches of {manifest.arguments['patch']} steps, "
            f"from the steps {begin:,} to {end:,}; "
            f"{manifest.statistics['unobserved_share']:.2%} of the values were not observed"
        )
    first = next(iter(manifest.statistics["channels"] for manifest in [manifest]))
    command_line.print_report(
        *(
            f"  {it['name']:16} mean {it['mean']:.4g}, deviation {it['deviation']:.4g}"
            for it in first
        )
    )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
