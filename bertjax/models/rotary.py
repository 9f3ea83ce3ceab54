"""Rotary positions: pairs of numbers of a query and of a key turn with their places.

A product of query and key depends on the distance of their places alone then, and no position is a
parameter. Source: Su et al. 2021 (RoFormer), equation 15, with the numbers paired as in GPT-NeoX:
number i of a head with number i + K / 2.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def turned(
    x: Float[Array, "batch length heads head"],
    positions: Int[Array, "rows length"] | None,
    base: float,
    *,
    back: bool = False,
) -> Float[Array, "batch length heads head"]:
    """Returns queries or keys turned to their `positions`, None for their places in the row.

    If `back`, what was turned is turned back; so are gradients.

    Pair i of K / 2 turns by position x base ** (-2 i / K) radians. Computed in float32.

    The other number of each pair comes by a product with a matrix of ones and zeros, which is
    exact: halves of 64 lanes that change places take a TPU three times as long. And compilers that
    find a cosine in a loop over batch and heads compute it there, for each of them anew: the
    angles' are constants, or stand behind a barrier (on CPU a ninth of the time).
    """
    size = x.shape[-1]
    cos, sin = (
        _constants(x.shape[1], size, base) if positions is None else _of(positions, size, base)
    )
    if back:
        sin = -sin
    others = jnp.einsum(
        "BLHK,KJ->BLHJ",
        x,
        jnp.asarray(_partners(size), x.dtype),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return (x.astype(jnp.float32) * cos + others * sin).astype(x.dtype)


def both_turned(
    query: Array, keys: Array, positions: Array | None, base: float | None, *, back: bool = False
) -> tuple[Array, Array]:
    """Returns queries and keys `turned`; without a base as they are."""
    if base is None:
        return query, keys
    return turned(query, positions, base, back=back), turned(keys, positions, base, back=back)


def tables(
    length: int, size: int, positions: Int[Array, "rows length"] | None, base: float
) -> tuple[Float[Array, "rows length head"], Float[Array, "rows length head"]]:
    """Returns cosines, and sines that have a minus in the first half, of each place and number.

    A number x of a pair whose other is y becomes x cos + y sin. One row for all without positions.
    """
    cos, sin = _constants(length, size, base) if positions is None else _of(positions, size, base)
    sign = np.repeat(np.array([-1, 1], np.float32), size // 2)[None, None]
    return jnp.asarray(cos[:, :, 0]), jnp.asarray(sin[:, :, 0]) * sign


def _partners(size: int) -> np.ndarray:
    """Returns the matrix that puts number i + K / 2 with a minus in place i, and i behind it."""
    half = np.eye(size // 2)
    none = np.zeros_like(half)
    return np.block([[none, half], [-half, none]])


def _speeds(size: int, base: float) -> np.ndarray:
    """Returns the radians of a step of each number of a head; both of a pair have the same."""
    speeds = float(base) ** (-np.arange(size // 2) / (size // 2))
    return np.concatenate([speeds, speeds])


@functools.cache
def _constants(length: int, size: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(length)[None, :, None, None] * _speeds(size, base)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _of(positions: Array, size: int, base: float) -> tuple[Array, Array]:
    speeds = _speeds(size, base).astype(np.float32)[None, None, None]
    angles = positions[:, :, None, None].astype(jnp.float32) * speeds
    return jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
