"""Rows that hold several sequences: the first positions of the sequences, for heads over sequences.

`visibility` applies `sequence_ids` to attention and positions. The consecutive sequences of a row
are numbered 1, 2, ...; padding at its end is 0. All shapes are static: a row has a place for each
of the most sequences that it may hold.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def first_positions(
    sequence_ids: Int[Array, "batch length"], most: int
) -> Int[Array, "batch sequences"]:
    """Returns the positions of [CLS] of the first `most` sequences of each row; 0 if missing.

    A sequence follows the tokens of the sequences before it.
    """
    numbers = jnp.arange(1, most + 1, dtype=sequence_ids.dtype)[None, :, None]
    ids = sequence_ids[:, None, :]
    starts = ((ids > 0) & (ids < numbers)).sum(axis=2, dtype=jnp.int32)
    return jnp.where(are_there(sequence_ids, most), starts, 0)


def are_there(
    sequence_ids: Int[Array, "batch length"], most: int
) -> Bool[Array, "batch sequences"]:
    """Returns which of a row's first `most` sequences exist."""
    return jnp.arange(most, dtype=sequence_ids.dtype)[None] < sequence_ids.max(
        axis=1, keepdims=True
    )


def is_first(sequence_ids: Int[Array, "batch length"]) -> Bool[Array, "batch length"]:
    """Returns which positions are the first of a sequence."""
    return jnp.diff(sequence_ids, axis=1, prepend=0) > 0


def is_last(sequence_ids: Int[Array, "batch length"]) -> Bool[Array, "batch length"]:
    """Returns which positions are the last of a sequence."""
    return (jnp.diff(sequence_ids, axis=1, append=0) != 0) & (sequence_ids != 0)


def first_of_each(sequence_ids: Int[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Returns for each position the first position of its sequence; padding counts as one."""
    places = jax.lax.broadcasted_iota(jnp.int32, sequence_ids.shape, 1)
    begins = jnp.diff(sequence_ids, axis=1, prepend=sequence_ids[:, :1]) != 0
    return jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
