"""Figures of attention, records, embeddings and the curves of a run.

Each function returns a Figure of matplotlib. A notebook shows it (after `%matplotlib inline`), and
`savefig("name.svg")` or `.png` writes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Float
from matplotlib import figure

from bertjax import inference, predict
from bertjax.data import record_files, records, value_masking, value_pictures, value_rows
from bertjax.finetuning import values as value_tasks
from bertjax.interactive import fonts
from bertjax.training import writers
from bertjax.workdirs import reader, scalars

__all__ = [
    "attention_heads",
    "curves",
    "embeddings",
    "forecast",
    "hidden_values",
    "record_lengths",
]

HEADS_IN_A_ROW = 4
INCHES = 3.2  # width and height of the map of a head


def curves(workdir: epath.PathLike) -> figure.Figure:
    """Returns loss, accuracy, learning rate and speed of a run against its steps.

    Raises:
      FileNotFoundError: if there is no run.
    """
    path = epath.Path(workdir) / scalars.FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the workdir of a run that has begun")
    return writers.draw_curves(scalars.read(path))


def hidden_values(
    workdir: epath.PathLike, directory: epath.PathLike, *, rows: int = 4
) -> figure.Figure:
    """Returns rows of records of values, some positions hidden, and what a run predicts there.

    The share of masked tokens is the one of the run's training.

    Raises:
      FileNotFoundError: if there is no run, or no records.
      ValueError: if one of both is not of values.
    """
    model, described = inference.load(workdir), reader.describe(workdir)
    if model.sizes is None or not model.sizes.reads_values or described is None:
        raise ValueError(f"{workdir} is not a run on values: give one of patchtst, tables or mae")
    record_set = records.open(directory)
    value_rows.check(record_set)
    options = described.config.pretraining
    chosen = value_masking.Options(options.masked_lm_prob, options.mask_strategy)
    batch = value_pictures.batch(record_set, rows, chosen)
    predicted = {}
    if model.task is not None:
        predicted = model.task.predict(model.module(), jax.tree.map(jnp.asarray, batch))
    values = np.asarray(predicted["values"]) if "values" in predicted else None
    return value_pictures.draw(record_set.manifest, batch, values)


def forecast(workdir: epath.PathLike, directory: epath.PathLike, *, rows: int = 4) -> figure.Figure:
    """Returns the last windows of records of series, with what a run forecasts and the last season.

    It is in the units of the input, for the first `rows` pairs of a series and a channel.

    Raises:
      FileNotFoundError: if there is no run, or no records.
      ValueError: if the run makes no forecasts, or the records are of other channels or scaling.
    """
    model = inference.load_finetuned(workdir)
    if not value_tasks.is_forecast(model.options):
        raise ValueError(
            f"{workdir} does not forecast: finetune a run on records of "
            "data_pipelines.build_series with --horizon"
        )
    record_set = records.open(directory)
    value_masking.check(model.value_meaning, record_set)
    of_records = value_rows.ForecastRows.of(record_set)
    chosen = of_records.last[:rows]
    lines = [{"values": of_records.values[row]} for row in chosen]
    forecasts = np.array([it["numbers"] for it in predict.predict(model, lines)])
    columns = {name: column[chosen] for name, column in of_records.columns.items()}
    task: Any = model.task
    naive = value_tasks.naive_forecast(columns, task.labels)
    return value_pictures.draw_forecasts(of_records, chosen, forecasts, naive)


def attention_heads(
    tokens: Sequence[str], weights: Float[np.ndarray, "heads length length"]
) -> figure.Figure:
    """Returns a map for each head of a layer; the row of a token holds its attention weights.

    `bertjax.Model.attention` returns the tokens and the weights of all layers.

    Raises:
      ValueError: if the weights do not have the shape of one layer and these tokens.
    """
    if weights.ndim != 3 or weights.shape[1:] != (len(tokens), len(tokens)):
        raise ValueError(
            f"weights has the shape {weights.shape}; {len(tokens)} tokens need (heads, "
            f"{len(tokens)}, {len(tokens)}): give one layer, such as attention.weights[0]"
        )
    columns = min(HEADS_IN_A_ROW, len(weights))
    rows = math.ceil(len(weights) / columns)
    picture = figure.Figure(figsize=(INCHES * columns, INCHES * rows), layout="constrained")
    grid = [*picture.subplots(rows, columns, squeeze=False).flat]
    style = {"fontsize": "x-small", "fontfamily": fonts.families(tokens)}
    for number, axes in enumerate(grid):
        if number >= len(weights):
            axes.remove()
            continue
        axes.imshow(weights[number], vmin=0, vmax=1, cmap="magma")
        axes.set(title=f"head {number}", xticks=range(len(tokens)), yticks=range(len(tokens)))
        axes.set_xticklabels(tokens, rotation=90, **style)
        axes.set_yticklabels(tokens, **style)
    return picture


def record_lengths(directory: epath.PathLike, *, examples: int = 10_000) -> figure.Figure:
    """Returns histograms over the first `examples` of records: their tokens and masked tokens.

    Records whose masks are drawn during training have the first histogram alone.

    Raises:
      FileNotFoundError, ValueError: as `records.open`.
    """
    record_set = records.open(directory)
    batch = _first(record_set, examples)
    counts = {"tokens of an example": batch["input_mask"].sum(axis=1)}
    if record_set.manifest.has_static_masks:
        counts["masked tokens of an example"] = batch["masked_lm_weights"].sum(axis=1)
    picture = figure.Figure(figsize=(5 * len(counts), 3), layout="constrained")
    for axes, (title, values) in zip(
        picture.subplots(1, len(counts), squeeze=False).flat, counts.items(), strict=True
    ):
        axes.hist(values, bins=min(40, int(np.ptp(values)) + 1))
        axes.set(title=title, xlabel=f"mean {np.mean(values):.1f}", ylabel="examples")
    return picture


def _first(record_set: records.RecordSet, examples: int) -> dict[str, np.ndarray]:
    """Returns the first records, as a batch."""
    tf = records.import_tensorflow()
    shards = map(record_files.serialized, record_set.shard_paths)
    first = itertools.islice(itertools.chain.from_iterable(shards), examples)
    parsed = records.parse_batch(tf.stack([*first]), record_set.manifest)
    return {name: value.numpy() for name, value in parsed.items()}


def embeddings(
    vectors: Float[np.ndarray, "texts size"],
    *,
    labels: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
) -> figure.Figure:
    """Returns vectors as points in the two directions of their largest variance.

    `labels` choose the colours of the points, `texts` are written next to them.

    Raises:
      ValueError: if there are fewer than three vectors, or not one label or text for each.
    """
    for name, values in (("labels", labels), ("texts", texts)):
        if values is not None and len(values) != len(vectors):
            raise ValueError(f"{name} has {len(values)} items; give one for each of the "
                             f"{len(vectors)} vectors")  # fmt: skip
    points, shares = two_dimensions(vectors)
    picture = figure.Figure(figsize=(7, 5), layout="constrained")
    axes = picture.subplots()
    names = list(dict.fromkeys(labels)) if labels is not None else [None]
    for name in names:
        has_name = [labels is None or label == name for label in labels or [None] * len(points)]
        axes.scatter(*points[np.array(has_name)].T, s=18, label=name)
    families = fonts.families([*(labels or ()), *(texts or ())])
    for point, text in zip(points, texts or [], strict=False):
        axes.annotate(text, point, fontsize="x-small", fontfamily=families, alpha=0.8)
    axes.set(xlabel=f"{shares[0]:.0%} of the variance", ylabel=f"{shares[1]:.0%}")
    if labels is not None:
        axes.legend(prop={"size": "small", "family": families})
    return picture


def two_dimensions(
    vectors: Float[np.ndarray, "texts size"],
) -> tuple[Float[np.ndarray, "texts 2"], Float[np.ndarray, " 2"]]:
    """Returns the first two principal components of vectors, and their shares of the variance.

    Raises:
      ValueError: if there are fewer than three vectors, or all are equal.
    """
    if len(vectors) < 3:
        raise ValueError(f"there are {len(vectors)} vectors; a plane needs at least three")
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    if not sizes[0] > 0:
        raise ValueError("the vectors are all the same; there is nothing to draw")
    return left[:, :2] * sizes[:2], sizes[:2] ** 2 / np.sum(sizes**2)
