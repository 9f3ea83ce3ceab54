"""Rows of values as pictures: what is shown, what is hidden, and what a model predicts there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int
from matplotlib import figure

from bertjax.data import pictures, records, series_index, streams, value_masking, value_rows

SHARE = 0.4  # of the positions that are hidden


def batch(
    record_set: records.RecordSet,
    rows: int,
    options: value_masking.Options | None = None,
    donors: value_masking.Donors | None = None,
) -> dict[str, np.ndarray]:
    """Returns the first rows of records, of which some positions are hidden."""
    scaling = value_masking.scaling_of(record_set.manifest)
    draw = value_masking.drawer(options or value_masking.Options(SHARE), donors, scaling)
    return next(streams.evaluation_batches(record_set, batch_size=rows, draw_masks=draw))


def draw(
    manifest: records.Manifest,
    rows: Mapping[str, np.ndarray],
    predicted: Float[np.ndarray, "rows length width"] | None = None,
) -> figure.Figure:
    """Returns a picture of rows, and of what is predicted where they are hidden.

    Pictures stand above what is left of them, and that above what is predicted. Other values are
    curves over the row; what is hidden is shaded, and what was not observed has no curve.
    """
    values, hidden = rows["values"], rows["hidden"] != 0
    scaling = value_masking.scaling_of(manifest)
    if scaling is not None:
        channels = int(manifest.features[records.PIXELS_FEATURE].shape[-1])
        return _of_pixels(values, hidden, predicted, scaling, channels)
    observed = rows.get("observed", np.ones_like(values)) != 0
    drawn = figure.Figure(figsize=(10, 1.6 * len(values)), layout="constrained")
    width = values.shape[2]
    marker = "." if width == 1 else None
    for row, axes in enumerate(drawn.subplots(len(values), 1, squeeze=False)[:, 0]):
        curve = np.where(observed[row], values[row], np.nan).ravel()
        axes.plot(curve, marker=marker, linewidth=1, label="observed")
        if predicted is not None:
            there = np.where(hidden[row][:, None], predicted[row], np.nan).ravel()
            axes.plot(there, marker=marker, linewidth=1, label="predicted")
        for place in np.flatnonzero(hidden[row]):
            axes.axvspan(place * width - 0.5, (place + 1) * width - 0.5, alpha=0.2, color="tab:red")
        axes.set(xlim=(-0.5, curve.size - 0.5))
    if predicted is not None:
        drawn.axes[0].legend(fontsize=8)
    return drawn


def draw_forecasts(
    rows: value_rows.ForecastRows,
    chosen: Int[np.ndarray, " drawn"],
    forecasts: Float[np.ndarray, "drawn horizon"],
    naive: Float[np.ndarray, "drawn horizon"],
) -> figure.Figure:
    """Returns a picture of rows: past, truth, forecast and naive forecast in units, against time.

    Forecasts are scaled as the records are. Steps that were not observed have no curve.
    """
    columns, index = rows.columns, rows.index
    past = rows.values[chosen].reshape(len(chosen), -1)
    truth = np.full_like(forecasts, np.nan)
    if records.LABELS_FEATURE in columns:
        is_there = columns[records.LABELS_OBSERVED_FEATURE][chosen] != 0
        truth = np.where(is_there, columns[records.LABELS_FEATURE][chosen], np.nan)
    drawn = figure.Figure(figsize=(10, 2.2 * len(chosen)), layout="constrained")
    for place, axes in enumerate(drawn.subplots(len(chosen), 1, squeeze=False)[:, 0]):
        series, channel, step = (int(columns[it][chosen[place]]) for it in series_index.FEATURES)
        behind = step + np.arange(forecasts.shape[1])
        curves = {
            "past": (step - past.shape[1] + np.arange(past.shape[1]), past),
            "truth": (behind, truth),
            "forecast": (behind, forecasts),
            "last season": (behind, naive),
        }
        for label, (steps, values) in curves.items():
            (in_units,) = index.in_units(values[place][None], np.array([channel]))
            style = "--" if label == "last season" else "-"
            axes.plot(index.dates(series, steps), in_units, style, linewidth=1, label=label)
        axes.set_title(f"{index.series[series]} {index.channels[channel]}".strip(), fontsize=9)
    drawn.axes[0].legend(fontsize=8)
    return drawn


def _of_pixels(
    values: np.ndarray,
    hidden: np.ndarray,
    predicted: np.ndarray | None,
    scaling: pictures.Scaling,
    channels: int,
) -> figure.Figure:
    is_hidden = hidden[:, :, None]
    lines = [values, np.where(is_hidden, 0, values)]
    if predicted is not None:
        lines.append(np.where(is_hidden, predicted, values))
    drawn = figure.Figure(figsize=(1.4 * len(values), 1.5 * len(lines)), layout="constrained")
    grid = drawn.subplots(len(lines), len(values), squeeze=False)
    for axes_of_row, shown in zip(grid, lines, strict=True):
        for axes, pixels in zip(axes_of_row, scaling.pixels(shown, channels=channels), strict=True):
            axes.imshow(pixels[:, :, 0] if channels == 1 else pixels, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
    return drawn
