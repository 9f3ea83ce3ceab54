"""Rotary positions: pairs of numbers of a query and of a key turn with their places.

A product of query and key depends on the distance of their places alone then, and no position is a
parameter. Source: Su et al. 2021 (RoFormer), equation 15, with the numbers paired as in GPT-NeoX:
number i of a head with number i + K / 2.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def turned(
    x: Float[Array, "batch length heads head"],
    positions: Int[Array, "rows length"] | None,
    base: float,
) -> Float[Array, "batch length heads head"]:
    """Returns queries or keys turned to their `positions`, None for their places in the row.

    Pair i of K / 2 turns by position x base ** (-2 i / K) radians. Computed in float32.
    """
    length, half = x.shape[1], x.shape[-1] // 2
    if positions is None:
        positions = jnp.arange(length, dtype=jnp.int32)[None]
    speeds = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None].astype(jnp.float32) * speeds[None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    both = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(both, axis=-1).astype(x.dtype)
