"""Attention by its definition, with all pairs of positions at once: slow, and easy to check.

The tests compare every other path with it, forward and, by autodiff, backward: plain JAX, kernels,
windows, packed rows, left-to-right, dropout. No model uses it.
Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def attend(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    seen: Bool[Array, "batch _ keys"],
    kept: Float[Array, "*#mask"],
) -> Float[Array, "batch length heads head"]:
    """Returns softmax(query keys^T) values over the keys seen; 0 where a query sees none.

    `query` is scaled already. `kept` [batch, heads, queries, keys] is dropout's mask divided by
    the share that it keeps, or 1.
    """
    scores = jnp.einsum("BLHK,BSHK->BHLS", query, keys)
    scores = jnp.where(seen[:, None], scores, -1e30)
    exponentials = jnp.exp(scores - scores.max(axis=-1, keepdims=True)) * seen[:, None]
    weights = exponentials / jnp.maximum(exponentials.sum(axis=-1, keepdims=True), 1e-30)
    return jnp.einsum("BHLS,BSHK->BLHK", weights * kept, values)


def seen(
    sequence_ids: Int[Array, "batch length"],
    positions: Int[Array, "batch length"],
    *,
    window: int | None,
    left_to_right: bool,
) -> Bool[Array, "batch queries keys"]:
    """Returns whether a query sees a key: one of its sequence, within window and order.

    Sequence 0 is padding, which sees nothing and is not seen.
    """
    query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
    is_seen = (query == key) & (key != 0)
    query, key = positions[:, :, None], positions[:, None, :]
    if window is not None:
        is_seen &= jnp.abs(query - key) <= window
    if left_to_right:
        is_seen &= key <= query
    return is_seen
