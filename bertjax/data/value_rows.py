"""The rows of values in records, whole, in file order: what predictions and vectors are made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import records, series_index, streams, value_masking

READ_AT_ONCE = 1_024
COLUMNS = (
    records.VALUES_FEATURE,
    records.OBSERVED_FEATURE,
    records.LABELS_FEATURE,
    records.LABELS_OBSERVED_FEATURE,
    *series_index.FEATURES,
)


def check(record_set: records.RecordSet) -> None:
    """Raises a ValueError if records hold no values."""
    features = record_set.manifest.features
    if records.VALUES_FEATURE not in value_masking.features(record_set.manifest):
        raise ValueError(
            f"the records in {record_set.directory} hold {', '.join(features)}, and no values: "
            "give those of data_pipelines.build_series, build_tables or build_images"
        )


def columns(record_set: records.RecordSet) -> dict[str, np.ndarray]:
    """Returns `values` and `observed` [rows, length, width], and other COLUMNS if there are any."""
    check(record_set)
    draw = value_masking.shown(value_masking.scaling_of(record_set.manifest))
    kept: dict[str, list[np.ndarray]] = {}
    # A batch is filled up with rows that are drawn as well.
    size = min(READ_AT_ONCE, record_set.manifest.num_examples)
    batches = streams.evaluation_batches(record_set, batch_size=size, draw_masks=draw)
    for batch in batches:
        is_there = batch["example_weights"] > 0
        for name in COLUMNS:
            if name in batch:
                kept.setdefault(name, []).append(batch[name][is_there])
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def as_arrays(record_set: records.RecordSet) -> list[np.ndarray]:
    """Returns the values of each row [length, width], with nan where no value was observed."""
    return [*_with_nan(columns(record_set))]


def _with_nan(taken: Mapping[str, np.ndarray]) -> np.ndarray:
    seen = taken[records.OBSERVED_FEATURE] != 0
    return np.where(seen, taken[records.VALUES_FEATURE], np.nan)


@dataclasses.dataclass(frozen=True)
class ForecastRows:
    """Rows with a forecast each: their columns, and what these mean."""

    columns: Mapping[str, np.ndarray]
    index: series_index.SeriesIndex

    @classmethod
    def of(cls, record_set: records.RecordSet) -> ForecastRows:
        """Returns the rows of records; ValueError if these name no series and channels."""
        if not {*series_index.FEATURES} <= {*record_set.manifest.features}:
            raise ValueError(
                f"the rows in {record_set.directory} do not say what they forecast: build them "
                "with data_pipelines.build_series and --horizon, or --like"
            )
        return cls(columns(record_set), series_index.SeriesIndex.load(record_set.directory))

    @functools.cached_property
    def values(self) -> Float[np.ndarray, "rows length width"]:
        """The values of the rows, nan where not observed."""
        return _with_nan(self.columns)

    @property
    def last(self) -> Int[np.ndarray, " rows"]:
        """The last row of each series and channel."""
        series, channel, step = (self.columns[name] for name in series_index.FEATURES)
        order = np.lexsort((step, channel, series))
        is_last = np.diff(series[order], append=-1) | np.diff(channel[order], append=-1)
        return order[is_last != 0]

    def described(
        self, row: int, forecast: Float[np.ndarray, " horizon"], *, has_origin: bool
    ) -> list[dict[str, Any]]:
        """Returns a line for each step that a row forecasts, with the value in units.

        The origin is the time of the last step of the row.
        """
        series, channel, step = (int(self.columns[name][row]) for name in series_index.FEATURES)
        steps = np.arange(step - 1, step + len(forecast))
        origin, *times = series_index.written(self.index.dates(series, steps))
        names = {"series": self.index.series[series], "channel": self.index.channels[channel]}
        names |= {"origin": origin} if has_origin else {}
        (values,) = self.index.in_units(forecast[None].astype(np.float64), np.array([channel]))
        return [
            {**names, "time": time, "value": float(f"{value:.9g}")}
            for time, value in zip(times, values, strict=True)
        ]
