"""Terms of attention scores that depend on the distance of query and key.

A term is made once a layer from a table of distances, and added to the scores by a skew: a product
with one row for each distance, whose rows are then shifted. Nothing of length x length x buckets is
made. `plain_attention` adds the terms; `relative_tables` has the tables.

Source of the shift: Dai et al. 2019 (Transformer-XL), appendix B.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Terms(NamedTuple):
    """The rows of one layer by the distance of query - key, from the largest to the smallest.

    `of_key` meet queries and `of_query` meet keys, both [distances, heads, head]; `bias` is
    [heads, distances] and added as it is. None: no such term. Distances go from `length` - 1 to
    1 - `length`, as many as a row has.
    """

    of_key: Float[Array, "distances heads head"] | None = None
    of_query: Float[Array, "distances heads head"] | None = None
    bias: Float[Array, "heads distances"] | None = None

    @property
    def length(self) -> int:
        """The number of positions of the rows that the terms are for."""
        tables = (self.of_key, self.of_query, None if self.bias is None else self.bias.T)
        return (next(len(it) for it in tables if it is not None) + 1) // 2


def between(terms: Terms, first: Any, queries: int, keys: int) -> Terms:
    """Returns the terms of a block of queries with a block of keys.

    `first` is the distance of the first query and the first key; it may be traced. Distances
    beyond a row are padded with zeros, for places outside of it.
    """
    size, length = queries + keys - 1, terms.length
    widest = max(queries, keys)

    def rows(table: Array | None, axis: int) -> Array | None:
        if table is None:
            return None
        widths = [(0, 0)] * table.ndim
        widths[axis] = (widest + length, widest + length)
        padded = jnp.pad(table, widths)
        # Entry 0 of the block has the largest distance, first + queries - 1.
        begin = widest + length + (length - 1) - (first + queries - 1)
        return jax.lax.dynamic_slice_in_dim(padded, begin, size, axis)

    return Terms(rows(terms.of_key, 0), rows(terms.of_query, 0), rows(terms.bias, 1))


def scores(
    query: Float[Array, "batch queries heads head"],
    keys: Float[Array, "batch keys heads head"],
    terms: Terms,
) -> Float[Array, "batch heads queries keys"]:
    """Returns the sum of the terms for each pair, in float32.

    The terms have a row for each distance of these queries and keys, the largest first.
    """
    total: Any = 0.0
    rows, columns = query.shape[1], keys.shape[1]
    if terms.of_key is not None:
        products = jnp.einsum(
            "BLHK,DHK->BHLD", query, terms.of_key, preferred_element_type=jnp.float32
        )
        total = total + _skewed(products, rows, columns)
    if terms.of_query is not None:
        # With keys as rows distances rise.
        products = jnp.einsum(
            "BSHK,DHK->BHSD", keys, terms.of_query[::-1], preferred_element_type=jnp.float32
        )
        total = total + jnp.swapaxes(_skewed(products, columns, rows), -1, -2)
    if terms.bias is not None:
        shape = (1, len(terms.bias), rows, rows + columns - 1)
        by_row = jnp.broadcast_to(terms.bias[None, :, None].astype(jnp.float32), shape)
        total = total + _skewed(by_row, rows, columns)
    return jnp.broadcast_to(total, (len(query), *total.shape[1:]))


def _skewed(x: Array, rows: int, columns: int) -> Array:
    """Returns y[..., r, c] = x[..., r, rows - 1 - r + c] of x [..., rows, rows + columns - 1]."""
    width = rows + columns
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
    flat = padded.reshape(*x.shape[:-2], rows * width)
    flat = flat[..., rows - 1 : rows - 1 + rows * (width - 1)]
    return flat.reshape(*x.shape[:-2], rows, width - 1)[..., :columns]
