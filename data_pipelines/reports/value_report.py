"""Records of values in words and pictures: columns, channels, labels, rows with hidden parts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator

from matplotlib import figure

from bertjax.data import records, value_pictures, value_statistics


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
            yield from (
                f"  {one['name']:24}{value_statistics.described(one)}" for one in facts[title]
            )
    if labels := facts.get("labels"):
        yield f"Labels: {value_statistics.described(labels)}"


def picture(record_set: records.RecordSet, rows: int) -> figure.Figure:
    """Returns the first rows with some positions hidden, as a training may hide them."""
    return value_pictures.draw(record_set.manifest, value_pictures.batch(record_set, rows))


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
