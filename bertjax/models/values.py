"""Embeddings and heads of values: patches of series and images, columns of tables.

A batch has `values` [batch, length, width] and may have `observed` of the same shape, 1 at observed
values; `hidden` [batch, length], 1 at positions to predict; and `shown_values`, which are read in
place of `values`. A missing value is never read: a learnt vector of its place is added, or replaces
a position without any value. A position that never has a value serves as [CLS].
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, parts
from bertjax.models.encoder_config import EncoderConfig

# Added to the variance of a row. Source: Kim et al. 2022 (RevIN); yuqinie98/PatchTST, RevIN.py.
EPSILON = 1e-5

Values = Float[Array, "batch length width"]


class PatchEmbeddings(nnx.Module):
    """A dense layer over the values of a position, plus the position's embedding.

    A hidden position has a learnt vector, or with `hidden_input` "zeros" values of zero before the
    dense layer, as in PatchTST (Nie et al. 2023). With `normalized_rows` the observed values of
    each row, including hidden ones, get the mean 0 and the variance 1 (Kim et al. 2022); no
    gradient goes through mean and variance.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        draw = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        width, hidden = config.value_width, config.hidden_size
        self.patches = parts.dense(config, width, hidden, rngs=rngs)
        self.has_partial = config.partial_patches
        if self.has_partial:
            self.missing = nnx.Embed(width, hidden, embedding_init=draw, rngs=rngs)
        self.empty = nnx.Embed(1, hidden, embedding_init=draw, rngs=rngs)
        if config.hidden_input == "vector":
            self.hidden_vector = nnx.Embed(1, hidden, embedding_init=draw, rngs=rngs)
        self.positions, self.grid_rows = config.position_embedding, config.grid_rows
        if self.positions == "learnt":
            rows = config.max_position_embeddings
            self.position = nnx.Embed(rows, hidden, embedding_init=draw, rngs=rngs)
        self.normalized_rows = config.normalized_rows
        self.hidden_input = config.hidden_input
        self.dropout_rate = config.hidden_dropout_prob

    def targets(self, inputs: layers.Inputs) -> Values:
        """Returns the values to predict, normalized if the model normalizes rows."""
        values = inputs["values"]
        if not self.normalized_rows:
            return values
        mean, deviation = row_moments(values, observed(inputs))
        return (values - mean) / deviation

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        values, is_observed = self.targets(inputs), observed(inputs)
        hidden = _hidden(inputs)
        has_any = is_observed.max(axis=2, keepdims=True) > 0
        values, missing = values * is_observed, 1.0 - is_observed
        if hidden is not None and self.hidden_input == "zeros":
            is_shown = 1.0 - hidden[:, :, None]
            values, missing = values * is_shown, missing * is_shown
        embedded = self.patches(values)
        if self.has_partial:
            embedded = embedded + missing @ self.missing.embedding[...]
        embedded = jnp.where(has_any, embedded, self.empty.embedding[...][None])
        if hidden is not None and self.hidden_input == "vector":
            vector = self.hidden_vector.embedding[...][None]
            embedded = jnp.where(hidden[:, :, None] != 0, vector, embedded)
        embedded = embedded + self._places(embedded.shape[1], embedded.shape[2])
        return layers.dropout(embedded, self.dropout_rate, key)

    def _places(self, length: int, size: int) -> Float[Array, "1 length hidden"]:
        if self.positions == "learnt":
            table = self.position.embedding[...]
            if length > len(table):
                raise ValueError(
                    f"the input has {length} positions; the model was made for at most "
                    f"max_position_embeddings = {len(table)}"
                )
            return table[:length][None]
        if self.positions in PLACES:
            return jnp.asarray(PLACES[self.positions](length, size, self.grid_rows))[None]
        return jnp.zeros((1, 1, size))


class ColumnEmbeddings(nnx.Module):
    """The cells of a table's row: a scale and a bias of each column, or a row of each category.

    `config.columns` has 0 for a column of numbers, else the number of categories, whose codes are
    the values. Source: Gorishniy et al. 2021 (FT-Transformer), section 3.3. A missing cell has a
    learnt vector of its column. A hidden cell has one vector for all columns plus its column's
    bias.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        draw = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        columns, hidden = len(config.columns), config.hidden_size

        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, hidden, embedding_init=draw, rngs=rngs)

        self.scale = nnx.Param(draw(rngs.params(), (columns, hidden)))
        self.bias = nnx.Param(draw(rngs.params(), (columns, hidden)))
        self.missing = table(columns)
        self.categories = table(max(sum(config.columns), 1))
        self.hidden_vector = table(1)
        self.columns = config.columns
        self.dropout_rate = config.hidden_dropout_prob

    def targets(self, inputs: layers.Inputs) -> Values:
        """Returns the values."""
        return inputs["values"]

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        values = inputs.get("shown_values", inputs["values"])[:, :, 0]
        counts, first = np.array(self.columns), np.cumsum(self.columns) - self.columns
        codes = jnp.clip(values, 0, np.maximum(counts - 1, 0)[None]).astype(jnp.int32)
        of_category = jnp.take(self.categories.embedding[...], codes + first[None], axis=0)
        of_number = values[:, :, None] * self.scale[...][None]
        embedded = jnp.where((counts > 0)[None, :, None], of_category, of_number)
        embedded = embedded + self.bias[...][None]
        is_observed = observed(inputs)[:, :, :1] != 0
        embedded = jnp.where(is_observed, embedded, self.missing.embedding[...][None])
        hidden = _hidden(inputs)
        if hidden is not None and "shown_values" not in inputs:
            vector = self.hidden_vector.embedding[...][None] + self.bias[...][None]
            embedded = jnp.where(hidden[:, :, None] != 0, vector, embedded)
        return layers.dropout(embedded, self.dropout_rate, key)


class ValueHead(nnx.Module):
    """A dense layer from the state of a position to its values."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.dense = parts.classifier(config, config.hidden_size, config.value_width, rngs=rngs)

    def __call__(self, hidden: Float[Array, "batch length hidden"]) -> Values:
        return self.dense(hidden.astype(jnp.float32))


class ColumnHead(nnx.Module):
    """A dense layer for each column: to a number, or to the logits of its categories.

    The logits of all columns are concatenated: `outputs` [batch, sum of max(1, categories)].
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        draw = layers.INITIALIZERS[config.initializer](config.initializer_range)
        self.sizes = tuple(max(1, count) for count in config.columns)
        total = sum(self.sizes)
        self.kernel = nnx.Param(draw(rngs.params(), (config.hidden_size, total)))
        self.bias = nnx.Param(jnp.zeros(total))

    def __call__(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> list[Float[Array, "batch outputs"]]:
        """Returns the outputs of each column."""
        kernel, bias, first, outputs = self.kernel[...], self.bias[...], 0, []
        for column, size in enumerate(self.sizes):
            rows = slice(first, first + size)
            state = hidden[:, column].astype(jnp.float32)
            outputs.append(state @ kernel[:, rows] + bias[rows][None])
            first += size
        return outputs


def observed(inputs: layers.Inputs) -> Values:
    """Returns 1.0 at observed values, 0.0 elsewhere and at padding."""
    values = inputs["values"]
    is_real = (inputs["input_mask"] != 0)[:, :, None]
    if "observed" in inputs:
        is_real = is_real & (inputs["observed"] != 0)
    return jnp.broadcast_to(is_real, values.shape).astype(jnp.float32)


def row_moments(values: Values, is_observed: Values) -> tuple[Array, Array]:
    """Returns mean and deviation [batch, 1, 1] of each row's observed values, without gradient."""
    values, weights = jax.lax.stop_gradient(values), jax.lax.stop_gradient(is_observed)
    count = jnp.maximum(weights.sum(axis=(1, 2), keepdims=True), 1.0)
    mean = (values * weights).sum(axis=(1, 2), keepdims=True) / count
    variance = (weights * (values - mean) ** 2).sum(axis=(1, 2), keepdims=True) / count
    return mean, jnp.sqrt(variance + EPSILON)


def _hidden(inputs: layers.Inputs) -> Float[Array, "batch length"] | None:
    return inputs["hidden"].astype(jnp.float32) if "hidden" in inputs else None


@functools.cache
def sines(length: int, size: int, grid_rows: int = 0) -> np.ndarray:
    """Returns the sines and cosines of Vaswani et al. 2017, section 3.5."""
    del grid_rows
    return _waves(np.arange(length), size)


@functools.cache
def sines_of_grid(length: int, size: int, grid_rows: int = 0) -> np.ndarray:
    """Returns the sines and cosines of a grid of patches, after a first position with zeros.

    The grid is a square without `grid_rows`.

    The first half of the numbers encodes the column, the second the row, each with sines before
    cosines. Source: facebookresearch/mae, util/pos_embed.py, where the names of the two are
    exchanged; all released weights are in this order.
    """
    height = grid_rows or round((length - 1) ** 0.5)
    width = (length - 1) // max(height, 1)
    if height * width != length - 1 or not grid_rows and height != width:
        raise ValueError(
            f"the input has {length} positions; with position_embedding 'sines_of_grid' it must "
            f"have one and {grid_rows or 'a square'} rows of patches (grid_rows is {grid_rows})"
        )
    rows, columns = np.divmod(np.arange(length - 1), width)
    halves = [_halves(places, size // 2) for places in (columns, rows)]
    return np.concatenate([np.zeros((1, size)), np.concatenate(halves, axis=1)]).astype(np.float32)


def _waves(places: np.ndarray, size: int) -> np.ndarray:
    table = np.zeros((len(places), size))
    angles = places[:, None] / 10_000 ** (np.arange(0, size, 2) / size)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : size // 2]
    return table.astype(np.float32)


def _halves(places: np.ndarray, size: int) -> np.ndarray:
    angles = places[:, None] / 10_000 ** (np.arange(size // 2) / (size / 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


# A computed position_embedding -> its table for numbers of positions, of values and of grid rows.
PLACES = {"sines": sines, "sines_of_grid": sines_of_grid}
