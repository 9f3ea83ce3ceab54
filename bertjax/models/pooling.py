"""Poolings: from the states of a sequence's tokens to one vector.

A pooling reads only real positions, including [CLS] and [SEP]. An empty sequence has a vector of 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.options import faults


def pool(
    hidden: Float[Array, "batch length hidden"],
    input_mask: Int[Array, "batch length"],
    pooling: str,
) -> Float[Array, "batch hidden"]:
    """Returns the vector of each sequence, in float32, by one of POOLINGS.

    Raises:
      ValueError: if the pooling is unknown.
    """
    if pooling not in POOLINGS:
        raise faults.unknown("pooling", pooling, POOLINGS)
    return POOLINGS[pooling](hidden.astype(jnp.float32), (input_mask != 0)[:, :, None])


def _first(hidden: Float[Array, "B L D"], is_real: Bool[Array, "B L 1"]) -> Float[Array, "B D"]:
    return jnp.where(is_real[:, 0], hidden[:, 0], 0.0)


def _mean(hidden: Float[Array, "B L D"], is_real: Bool[Array, "B L 1"]) -> Float[Array, "B D"]:
    count = jnp.maximum(is_real.sum(axis=1), 1)
    return jnp.where(is_real, hidden, 0.0).sum(axis=1) / count


def _max(hidden: Float[Array, "B L D"], is_real: Bool[Array, "B L 1"]) -> Float[Array, "B D"]:
    highest = jnp.where(is_real, hidden, jnp.finfo(jnp.float32).min).max(axis=1)
    return jnp.where(is_real.any(axis=1), highest, 0.0)


def _weighted(hidden: Float[Array, "B L D"], is_real: Bool[Array, "B L 1"]) -> Float[Array, "B D"]:
    """The mean with weights 1, 2, 3, ... by position.

    Source: Muennighoff 2022, SGPT, equation 2; sentence-transformers' `weightedmean`.
    """
    weights = jnp.where(is_real, jnp.arange(1, hidden.shape[1] + 1)[None, :, None], 0)
    total = jnp.maximum(weights.sum(axis=1), 1)
    return (jnp.where(is_real, hidden, 0.0) * weights).sum(axis=1) / total


def _last(hidden: Float[Array, "B L D"], is_real: Bool[Array, "B L 1"]) -> Float[Array, "B D"]:
    places = jnp.arange(hidden.shape[1])[None, :, None]
    is_last = places == jnp.where(is_real, places, -1).max(axis=1, keepdims=True)
    return jnp.where(is_last & is_real, hidden, 0.0).sum(axis=1)


# In a left-to-right model only "last" has seen the whole text.
POOLINGS: dict[str, Callable[[Array, Array], Array]] = {
    "cls": _first,
    "mean": _mean,
    "max": _max,
    "weighted": _weighted,
    "last": _last,
}
