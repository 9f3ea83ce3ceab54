"""The tables of distances that all layers of an encoder share: a kind is a module and a row.

A table is called once a pass, and makes the `relative.Terms` of each layer's attention.

Sources: He et al. 2021 (DeBERTa, arXiv:2006.03654) and microsoft/DeBERTa,
deberta/disentangled_attention.py; Raffel et al. 2020 (T5), section 2.1, as MPNet has it
(transformers, modeling_mpnet.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder_config, layers, parts, placement
from bertjax.models.encoder_config import EncoderConfig
from bertjax.models.relative import Terms

T5_BUCKETS, T5_SPAN = 32, 128  # MPNet computes with these, whatever its config says


def log_buckets(
    distances: Int[np.ndarray, " distances"], buckets: int, span: int
) -> Int[np.ndarray, " distances"]:
    """Returns DeBERTa's row of each distance query - key, of 2 x `buckets` rows.

    Up to half of `buckets` a distance has its own row, beyond it rows widen up to `span`.
    Source: microsoft/DeBERTa, disentangled_attention.py, make_log_bucket_position.
    """
    middle = buckets // 2
    far = np.maximum(np.abs(distances), middle + 1).astype(np.float64)
    steps = np.log(far / middle) / math.log((span - 1) / middle) * (middle - 1)
    widened = np.sign(distances) * (middle + np.ceil(steps).astype(np.int64))
    rows = np.where(np.abs(distances) <= middle, distances, widened)
    return np.clip(rows + buckets, 0, 2 * buckets - 1)


def t5_buckets(distances: Int[np.ndarray, " distances"]) -> Int[np.ndarray, " distances"]:
    """Returns T5's row of each distance query - key, of T5_BUCKETS rows in both directions."""
    each = T5_BUCKETS // 2
    exact = each // 2
    far = np.maximum(np.abs(distances), exact).astype(np.float64)
    steps = np.log(far / exact) / math.log(T5_SPAN / exact) * (each - exact)
    near = np.abs(distances)
    rows = np.where(near < exact, near, np.minimum(exact + steps.astype(np.int64), each - 1))
    return rows + np.where(distances < 0, each, 0)  # a key behind the query


def _distances(length: int) -> Int[np.ndarray, " distances"]:
    return np.arange(length - 1, -length, -1)


class DisentangledTable(nnx.Module):
    """DeBERTa's table of distances: one for all layers, normed, projected by each layer.

    Content to position and position to content both have the row of query - key, as all code has
    it (equation 4 of the paper has the other sign for the second).
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.buckets, self.span = config.relative_buckets, config.relative_span
        init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        rows = 2 * self.buckets
        self.table = nnx.Embed(rows, config.hidden_size, embedding_init=init, rngs=rngs)
        self.norm = parts.norm(config, config.hidden_size)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(self) -> Float[Array, "rows hidden"]:
        """Returns the normed table; each layer draws a dropout mask of it."""
        return self.norm(self.table.embedding[...])

    def terms(
        self,
        rows: Float[Array, "rows hidden"],
        attention: Any,
        length: int,
        key: PRNGKeyArray | None,
    ) -> Terms:
        """Returns the terms of a layer with its `SelfAttention`; queries are scaled there."""
        rows = layers.dropout(rows, self.dropout_rate, key)[None]
        of_query, (of_key, _) = attention.scaled_query(rows), attention.keys_and_values(rows)
        wanted = log_buckets(_distances(length), self.buckets, self.span)
        # Whole on each device: the compiler would send pieces around for every product.
        return Terms(*(placement.gathered(it[0][wanted]) for it in (of_key, of_query)))


class BiasTable(nnx.Module):
    """T5's table of a bias for each head and distance, shared by all layers; it is not scaled."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        heads = config.num_attention_heads
        self.table = nnx.Embed(T5_BUCKETS, heads, embedding_init=init, rngs=rngs)

    def __call__(self) -> Float[Array, "rows heads"]:
        return self.table.embedding[...]

    def terms(
        self,
        rows: Float[Array, "rows heads"],
        attention: Any,
        length: int,
        key: PRNGKeyArray | None,
    ) -> Terms:
        """Returns the terms of a layer, the same for all."""
        return Terms(bias=rows[t5_buckets(_distances(length))].T)


# Name -> the module, made from a config. A new kind is a module and a row here.
RELATIVE: dict[str, Callable[..., nnx.Module] | None] = {
    "none": None,
    "t5_bias": BiasTable,
    "disentangled": DisentangledTable,
}
encoder_config.CHOICES.update(relative=RELATIVE)
