"""Fast sums for TPU: products with ones, on its matrix unit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def column_sums(
    x: Float[Array, "*rows columns"], precision: jax.lax.Precision | None = None
) -> Float[Array, " columns"]:
    """Returns the float32 sums over all axes but the last, as a product with rows of ones.

    There are eight rows, a TPU's register: the compiler would turn a single row into a sum again.
    """
    ones = jnp.ones((8, *x.shape[:-1]), x.dtype)
    axes = tuple(range(x.ndim - 1))
    contracted = (tuple(axis + 1 for axis in axes), axes)
    return jax.lax.dot_general(
        ones, x, (contracted, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )[0]


def row_sums(x: Float[Array, "*rows columns"]) -> Float[Array, "*rows"]:
    """Returns the float32 sums over the last axis; on TPU as a product with columns of ones.

    The product is in three passes of bfloat16, and costs about half of a sum if `x` is computed on
    the way.
    """
    x = x.astype(jnp.float32)
    return jax.lax.platform_dependent(x, tpu=row_sums_by_product, default=_row_sums)


def row_sums_by_product(x: Float[Array, "*rows columns"]) -> Float[Array, "*rows"]:
    """Returns the sums over the last axis as a product with eight columns of ones."""
    ones = jnp.ones((x.shape[-1], 8), x.dtype)
    return jnp.einsum("...C,CO->...O", x, ones, precision=jax.lax.Precision.HIGH)[..., 0]


def _row_sums(x: Array) -> Array:
    return x.sum(axis=-1)


def global_norm(tree: Any) -> Float[Array, ""]:
    """Returns the square root of the sum of all squares, in float32.

    On TPU the squares of a matrix are summed over its rows by a product with ones
    (`column_sums`), in three passes of bfloat16: that costs about a third of a sum.
    """
    squares = [jnp.square(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree)]
    sums = [
        jax.lax.platform_dependent(leaf, tpu=_sum_by_product, default=jnp.sum)
        if leaf.ndim == 2
        else leaf.sum()
        for leaf in squares
    ]
    return jnp.sqrt(jnp.stack(sums).sum())


def _sum_by_product(x: Float[Array, "rows columns"]) -> Float[Array, ""]:
    return column_sums(x, jax.lax.Precision.HIGH).sum()
