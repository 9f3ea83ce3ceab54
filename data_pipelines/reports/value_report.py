"""Records of values in words and pictures: columns, channels, labels, rows with hidden parts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib import figure

from bertjax.data import records, streams, value_masking

SHOWN_SHARE = 0.4  # of the positions, in pictures
NAMES_SHOWN = 8


def lines(manifest: records.Manifest) -> Iterator[str]:
    """Yields what the manifest says of records of values."""
    size = sum(shard.bytes for shard in manifest.shards)
    yield "Records"
    yield f"  rows                    {manifest.num_examples:,}"
    yield f"  positions of a row      {manifest.max_seq_length:,}"
    yield f"  shards                  {len(manifest.shards)}, {size / 1e6:.1f} MB"
    for name, feature in manifest.features.items():
        shape = " x ".join(map(str, feature.shape)) or "one number"
        yield f"  {name:24}{shape}, {feature.dtype}"
    facts = manifest.statistics
    if "unobserved_share" in facts:
        yield f"  not observed            {facts['unobserved_share']:.2%} of the values"
    for title in ("channels", "columns"):
        if title in facts:
            yield title.capitalize()
            yield from (f"  {one['name']:24}{_described(one)}" for one in facts[title])
    if labels := facts.get("labels"):
        yield f"Labels: {_described(labels)}"


def _described(facts: Mapping[str, Any]) -> str:
    parts = []
    for name, value in facts.items():
        if name in ("name", "quantiles"):
            continue
        if isinstance(value, list) and len(value) > NAMES_SHOWN:
            value = [*value[:NAMES_SHOWN], f"... {len(value):,} in all"]
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        parts.append(f"{name} {shown:.4g}" if isinstance(shown, float) else f"{name} {shown}")
    return "; ".join(parts)


def picture(record_set: records.RecordSet, rows: int) -> figure.Figure:
    """Returns the first rows with some positions hidden, as a training may hide them.

    Pictures stand beside what is left of them. Other values are curves over the row; what is
    hidden is shaded, and what was not observed has no curve.
    """
    manifest = record_set.manifest
    scaling = value_masking.scaling_of(manifest)
    draw = value_masking.drawer(value_masking.Options(SHOWN_SHARE), scaling=scaling)
    batch = next(streams.evaluation_batches(record_set, batch_size=rows, draw_masks=draw))
    values, hidden = batch["values"], batch["hidden"] != 0
    if scaling is not None:
        channels = int(manifest.features[records.PIXELS_FEATURE].shape[-1])
        return _pictures(values, hidden, scaling, channels)
    observed = batch.get("observed", np.ones_like(values)) != 0
    drawn = figure.Figure(figsize=(10, 1.6 * rows), layout="constrained")
    for row, axes in enumerate(drawn.subplots(rows, 1, squeeze=False)[:, 0]):
        width = values.shape[2]
        curve = np.where(observed[row], values[row], np.nan).ravel()
        axes.plot(curve, marker="." if width == 1 else None, linewidth=1)
        for place in np.flatnonzero(hidden[row]):
            axes.axvspan(place * width - 0.5, (place + 1) * width - 0.5, alpha=0.2, color="tab:red")
        axes.set(xlim=(-0.5, curve.size - 0.5))
    return drawn


def _pictures(values: np.ndarray, hidden: np.ndarray, scaling: Any, channels: int) -> figure.Figure:
    left = np.where(hidden[:, :, None], 0, values)
    drawn = figure.Figure(figsize=(1.4 * len(values), 3), layout="constrained")
    grid = drawn.subplots(2, len(values), squeeze=False)
    for axes_of_row, shown in zip(grid, (values, left), strict=True):
        for axes, pixels in zip(axes_of_row, scaling.pixels(shown, channels=channels), strict=True):
            axes.imshow(pixels[:, :, 0] if channels == 1 else pixels, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
    return drawn


def page(manifest: records.Manifest, drawn: figure.Figure) -> str:
    """Returns one HTML page with the report and the picture."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=100)
    encoded = base64.b64encode(file.getvalue()).decode()
    text = html.escape("\n".join(lines(manifest)))
    return (
        "<!doctype html><meta charset=utf-8><title>Records</title>"
        f'<pre>{text}</pre><img alt="rows, with hidden positions" '
        f'src="data:image/png;base64,{encoded}">\n'
    )
