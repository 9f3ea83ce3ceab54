"""Terms of attention scores that depend on the distance of query and key.

A term is made once a layer from a table of distances, and added to the scores by a skew: a product
with one row for each distance, whose rows are then shifted. Nothing of length x length x buckets is
made. `plain_attention` adds the terms; `relative_tables` has the tables.

Source of the shift: Dai et al. 2019 (Transformer-XL), appendix B.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

TILE = 128  # the rows and columns of a TPU's matrix unit
ROW_BLOCK = 128  # rows that have products with the same distances; measured on a CPU


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

    The terms have a row for each distance of these queries and keys, the largest first. On a TPU a
    shift of rows by different numbers is fast in a kernel alone (`kernels.pallas_terms`): for rows
    without one the products with tables are shifted by further products, tile by tile.
    """
    total: Any = 0.0
    rows, columns = query.shape[1], keys.shape[1]
    if terms.of_key is not None or terms.of_query is not None:
        total = jax.lax.platform_dependent(query, keys, terms, tpu=_tiled, default=_of_tables)
    if terms.bias is not None:
        shape = (1, len(terms.bias), rows, rows + columns - 1)
        by_row = jnp.broadcast_to(terms.bias[None, :, None].astype(jnp.float32), shape)
        total = total + _skewed(by_row, rows, columns)
    return jnp.broadcast_to(total, (len(query), *total.shape[1:]))


def _of_tables(query: Array, keys: Array, terms: Terms) -> Array:
    """Returns the terms of `of_key` and `of_query`, each by products and skews."""
    total: Any = 0.0
    if terms.of_key is not None:
        total = total + _of_rows(query, terms.of_key, keys.shape[1])
    if terms.of_query is not None:
        # With keys as rows distances rise.
        by_key = _of_rows(keys, terms.of_query[::-1], query.shape[1])
        total = total + jnp.swapaxes(by_key, -1, -2)
    return total


def _of_rows(
    x: Float[Array, "batch rows heads head"],
    table: Float[Array, "distances heads head"],
    columns: int,
) -> Float[Array, "batch heads rows columns"]:
    """Returns the product of each row with the table's entry for each column, in float32.

    A block of rows has products with the distances that it meets, fewer than all rows meet. Heads
    come first in a product: in the order of the result the compiler would put distances in columns.
    """
    rows = x.shape[1]
    blocks = []
    for begin in range(0, rows, ROW_BLOCK):
        block = x[:, begin : begin + ROW_BLOCK]
        end = begin + block.shape[1]
        met = table[rows - end : rows - begin + columns - 1]
        product = jnp.einsum("BLHK,DHK->HBLD", block, met, preferred_element_type=jnp.float32)
        blocks.append(_skewed(jnp.swapaxes(product, 0, 1), end - begin, columns))
    return jnp.concatenate(blocks, axis=2)


def _tiled(query: Array, keys: Array, terms: Terms) -> Array:
    """Returns the same as `_of_tables`, to the rounding of products to the type of `query`.

    A tile of queries and keys has 2 x TILE - 1 distances. For each query of a tile, a matrix of
    zeros and ones takes the products with its distances to the keys.
    """
    rows, columns = query.shape[1], keys.shape[1]
    query, keys = (_tiles(x, TILE) for x in (query, keys))
    shape = (TILE, 2 * TILE, TILE)
    at, distance, to = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in range(3))
    takes = (distance == TILE - 1 - at + to).astype(query.dtype)
    is_single = query.dtype == jnp.float32
    shifted = functools.partial(
        jnp.einsum,
        precision=jax.lax.Precision.HIGHEST if is_single else None,
        preferred_element_type=jnp.float32,
    )
    tiles_of = functools.partial(
        _distances_of_tiles, rows=rows, queries=query.shape[1], keys=keys.shape[1]
    )
    total: Any = 0.0
    if terms.of_key is not None:
        products = jnp.einsum("BaqHK,abDHK->qBHabD", query, tiles_of(terms.of_key))
        total = total + shifted("qBHabD,qDk->BHaqbk", products, takes)
    if terms.of_query is not None:
        products = jnp.einsum("BbkHK,abDHK->kBHabD", keys, tiles_of(terms.of_query))
        total = total + shifted("kBHabD,qDk->BHaqbk", products, takes)
    batch, heads, queries, _, of_keys, _ = total.shape
    whole = total.reshape(batch, heads, queries * TILE, of_keys * TILE)
    return whole[:, :, :rows, :columns]


def _tiles(x: Array, size: int) -> Array:
    """Returns [batch, length, ...] as [batch, tiles, size, ...], padded with zeros."""
    padded = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2))
    return padded.reshape(len(x), -1, size, *x.shape[2:])


def _distances_of_tiles(table: Array, *, rows: int, queries: int, keys: int) -> Array:
    """Returns the table's rows for each tile, [queries, keys, 2 x TILE, heads, head]."""
    padded = jnp.pad(table, [(TILE, 2 * TILE)] + [(0, 0)] * (table.ndim - 1))

    def of_tile(query: int, key: int) -> Array:
        start = rows + TILE * (key - query)
        return padded[start : start + 2 * TILE]

    return jnp.stack(
        [jnp.stack([of_tile(query, key) for key in range(keys)]) for query in range(queries)]
    )


def _skewed(x: Array, rows: int, columns: int) -> Array:
    """Returns y[..., r, c] = x[..., r, rows - 1 - r + c] of x [..., rows, rows + columns - 1]."""
    width = rows + columns
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
    flat = padded.reshape(*x.shape[:-2], rows * width)
    flat = flat[..., rows - 1 : rows - 1 + rows * (width - 1)]
    return flat.reshape(*x.shape[:-2], rows, width - 1)[..., :columns]
