"""Rotary positions: pairs of numbers of a query and of a key are rotated by their positions.

A product of query and key then depends only on the distance of their positions, and no position is
a parameter. Source: Su et al. 2021 (RoFormer), equation 15, with the numbers paired as in GPT-NeoX:
number i of a head with number i + K / 2.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class RoundedBase:
    """A base with the angles of one position rounded to float16, as the released ESM-2 stores them.

    At position 1022 the angles are off by up to 0.16 radians.
    """

    base: float


Base = float | RoundedBase


def turned(
    x: Float[Array, "batch length heads head"],
    positions: Int[Array, "rows length"] | None,
    base: Base,
    *,
    back: bool = False,
) -> Float[Array, "batch length heads head"]:
    """Returns queries or keys rotated by their `positions`, None for their places in the row.

    With `back` they, or gradients, are rotated back.

    Pair i of K / 2 is rotated by position x base ** (-2 i / K) radians, in float32.

    The other number of each pair comes from a product with a matrix of ones and zeros, which is
    exact: exchanging halves of 64 lanes takes a TPU three times as long. Compilers compute a cosine
    inside of a loop over batch and heads again for each of them: so the angles' are constants, or
    behind a barrier (on CPU a ninth of the time).
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
    query: Array, keys: Array, positions: Array | None, base: Base | None, *, back: bool = False
) -> tuple[Array, Array]:
    """Returns queries and keys `turned`, or unchanged without a base."""
    if base is None:
        return query, keys
    return turned(query, positions, base, back=back), turned(keys, positions, base, back=back)


def tables(
    length: int, size: int, positions: Int[Array, "rows length"] | None, base: Base
) -> tuple[Float[Array, "rows length head"], Float[Array, "rows length head"]]:
    """Returns cosines, and sines with a minus in the first half, for each place and number.

    A number x of a pair (x, y) becomes x cos + y sin. Without positions there is one row for all.
    """
    cos, sin = _constants(length, size, base) if positions is None else _of(positions, size, base)
    sign = np.repeat(np.array([-1, 1], np.float32), size // 2)[None, None]
    return jnp.asarray(cos[:, :, 0]), jnp.asarray(sin[:, :, 0]) * sign


def _partners(size: int) -> np.ndarray:
    """Returns the matrix that puts number i + K / 2 with a minus in place i, and i in i + K / 2."""
    half = np.eye(size // 2)
    none = np.zeros_like(half)
    return np.block([[none, half], [-half, none]])


def angles_of_one(size: int, base: Base) -> np.ndarray:
    """Returns the radians by which position 1 rotates each of the K / 2 pairs of a head."""
    is_rounded = isinstance(base, RoundedBase)
    angles = float(base.base if is_rounded else base) ** (-np.arange(size // 2) / (size // 2))
    return angles.astype(np.float16).astype(np.float64) if is_rounded else angles


def _speeds(size: int, base: Base) -> np.ndarray:
    """Returns `angles_of_one` for each number of a head; both of a pair have the same."""
    return np.tile(angles_of_one(size, base), 2)


@functools.cache
def _constants(length: int, size: int, base: Base) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(length)[None, :, None, None] * _speeds(size, base)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _of(positions: Array, size: int, base: Base) -> tuple[Array, Array]:
    speeds = _speeds(size, base).astype(np.float32)[None, None, None]
    angles = positions[:, :, None, None].astype(jnp.float32) * speeds
    return jax.lax.optimization_barrier((jnp.cos(angles), jnp.sin(angles)))
