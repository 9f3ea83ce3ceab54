"""Terms of scores by distance (`models.relative`) inside the attention kernels of short rows.

A block of TILE queries has its products with `length` + TILE rows of a table. The core then shifts
each row of the products one place further than the row above, and every key has the product of its
distance; keys and queries change places for the second term. A core shifts to the right alone:
distances fall in one table and rise in the other. For the gradients a block has its places in
reverse order, by a product with ones on the other diagonal, and tables have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bertjax.models.kernels.pallas_parts import dot
from bertjax.models.relative import TILE, Terms


def takes(terms: Terms) -> bool:
    """Returns whether there is code for the terms: for both tables, without a bias."""
    return terms.of_key is not None and terms.of_query is not None and terms.bias is None


def tables(terms: Terms | None, *, is_backward: bool) -> tuple[Array, ...]:
    """Returns what the kernels read, [2 x length, heads, head] each: for queries, and for keys.

    The backward pass also has both in reverse order.
    """
    if terms is None:
        return ()
    of_key, of_query = terms.of_key, terms.of_query
    assert of_key is not None and of_query is not None
    forward = _padded(of_key, before=1), _padded(of_query[::-1], before=1)
    if not is_backward:
        return forward
    return *forward, _padded(of_key[::-1], before=0), _padded(of_query, before=0)


def _padded(table: Array, *, before: int) -> Array:
    return jnp.pad(table, ((before, 1 - before), (0, 0), (0, 0)))


def of_tables(sums: list[Array], terms: Terms | None) -> Terms | None:
    """Returns the gradients of the terms; `sums` are by device and reversed table."""
    if terms is None:
        return None
    of_key, of_query = terms.of_key, terms.of_query
    assert of_key is not None and of_query is not None
    to_key, to_query = (x.sum(axis=0)[:-1] for x in sums)
    return Terms(to_key[::-1].astype(of_key.dtype), to_query.astype(of_query.dtype))


def scores(
    query: Float[Array, "queries lanes"],
    keys: Float[Array, "keys lanes"],
    of_key: Any,
    of_query: Any,
) -> Float[Array, "keys queries"]:
    """Returns the sum of both terms of a head; other heads' lanes of query and keys are zero."""
    return _by_row(query, of_key).T + _by_row(keys, of_query)


def gradients(
    grad: Float[Array, "keys queries"],
    query: Float[Array, "queries lanes"],
    keys: Float[Array, "keys lanes"],
    reversed_tables: Sequence[Any],
    to_tables: Sequence[Any],
) -> tuple[Float[Array, "queries lanes"], Float[Array, "keys lanes"]]:
    """Returns what the terms of a head add to the gradients of its query and keys.

    Other heads' lanes mean nothing. The gradients of the tables are added to `to_tables`.
    """
    (of_key, of_query), (to_key, to_query) = reversed_tables, to_tables
    return (
        _gradients_by_row(_reversed(grad, 0), query, of_key, to_key),
        _gradients_by_row(_reversed(grad, 1), keys, of_query, to_query),
    )


def _by_row(x: Array, table: Any) -> Array:
    """Returns the products of each row of `x` with the table, at the place of the distance."""
    length = len(x)

    def of_block(begin: int) -> Array:
        first = length - TILE - begin
        products = dot(x[begin : begin + TILE], table[first : first + length + TILE], (1, 1))
        return pltpu.roll(products, length, 1, stride=1, stride_axis=0)[:, :length]

    return jnp.concatenate([of_block(begin) for begin in range(0, length, TILE)])


def _gradients_by_row(grad: Array, x: Array, table: Any, to_table: Any) -> Array:
    """Returns the gradient of `x` in `_by_row`; `grad` is its result's, in reverse order."""
    length = len(x)

    def of_block(begin: int) -> Array:
        mine = jnp.pad(grad[begin : begin + TILE], ((0, 0), (0, TILE)))
        shifted = pltpu.roll(mine, 0, 1, stride=1, stride_axis=0).astype(x.dtype)
        rows = slice(begin, begin + length + TILE)
        to_table[rows] += dot(shifted, x[begin : begin + TILE], (0, 0))
        return dot(shifted, table[rows], (1, 0))

    return jnp.concatenate([of_block(begin) for begin in range(0, length, TILE)])


def _reversed(x: Array, axis: int) -> Array:
    """Returns `x` with the order of `axis` reversed and as the last."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (TILE, TILE), axis) for axis in (0, 1))
    ones = (row + column == TILE - 1).astype(x.dtype)
    begins = reversed(range(0, x.shape[axis], TILE))
    parts = [jax.lax.slice_in_dim(x, begin, begin + TILE, axis=axis) for begin in begins]
    return jnp.concatenate([dot(part, ones, (axis, 0)) for part in parts], axis=1)
