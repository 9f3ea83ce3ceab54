"""How vectors are stored: as they are, a byte for each number, or a bit for each number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, Shaped

LEVELS = 255  # steps between the least and the greatest number of a dimension


@dataclasses.dataclass(frozen=True)
class Code:
    """One way to store vectors.

    `store` takes vectors [texts, size] and the ranges of their dimensions, [2, size]. `scores`
    takes queries [queries, size], stored vectors, ranges, and whether lengths count (dot) or not
    (cosine), and returns [queries, texts]: greater is nearer. `has_ranges` says whether the ranges
    are read. `width` is how many numbers of `dtype` store a vector of so many dimensions.
    """

    dtype: type[np.generic]
    width: Callable[[int], int]
    store: Callable[[np.ndarray, np.ndarray], np.ndarray]
    scores: Callable[[Array, Array, Array, bool], Array]
    has_ranges: bool = False


def ranges(sample: Float[np.ndarray, "texts size"]) -> Float[np.ndarray, "2 size"]:
    """Returns the least and the greatest number of each dimension.

    Source: sentence-transformers, util/quantization.py, `quantize_embeddings`.
    """
    return np.stack([sample.min(axis=0), sample.max(axis=0)]).astype(np.float32)


def _bytes_of(
    vectors: Float[np.ndarray, "texts size"], limits: Float[np.ndarray, "2 size"]
) -> np.ndarray:
    """Returns int8: what lies outside the ranges is at their ends. Source: as `ranges`."""
    steps = _steps(limits)
    levels = np.clip(np.floor((vectors - limits[0]) / steps), 0, LEVELS)
    return (levels - 128).astype(np.int8)


def _steps(limits: np.ndarray) -> np.ndarray:
    """Returns how far two levels of each dimension lie apart; 1 where all numbers are the same."""
    steps = (limits[1] - limits[0]) / np.float32(LEVELS)
    return np.where(steps == 0, np.float32(1), steps)


def _bits_of(vectors: Float[np.ndarray, "texts size"], limits: np.ndarray) -> np.ndarray:
    """Returns uint8, the signs of eight numbers in each. Source: as `ranges`, "ubinary"."""
    del limits
    return np.packbits(vectors > 0, axis=-1)


def _of_floats(queries: Array, stored: Array, limits: Array, is_dot: bool) -> Array:
    del limits
    stored = stored.astype(jnp.float32)
    if not is_dot:
        queries, stored = _unit(queries), _unit(stored)
    return jnp.einsum("QD,ND->QN", queries, stored, precision=jax.lax.Precision.HIGHEST)


def _of_bytes(queries: Array, stored: Array, limits: Array, is_dot: bool) -> Array:
    """The query is not quantized; the stored numbers are taken for the bottoms of their steps."""
    least, greatest = limits[:1], limits[1:]
    steps = jnp.where(greatest == least, 1.0, (greatest - least) / LEVELS)
    numbers = (stored.astype(jnp.float32) + 128) * steps + least
    return _of_floats(queries, numbers, limits, is_dot)


def _of_bits(queries: Array, stored: Array, limits: Array, is_dot: bool) -> Array:
    """The share of equal signs less that of unequal ones: 1 - 2 Hamming / size."""
    del limits, is_dot
    size = queries.shape[1]
    signs = jnp.packbits(queries > 0, axis=-1)
    differing = jax.lax.population_count(signs[:, None] ^ stored[None]).astype(jnp.float32)
    return 1 - 2 * differing.sum(axis=-1) / size


def _unit(vectors: Num[Array, "N D"]) -> Float[Array, "N D"]:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


CODES: dict[str, Code] = {
    "float32": Code(
        dtype=np.float32,
        width=lambda size: size,
        store=lambda vectors, limits: vectors.astype(np.float32, copy=False),
        scores=_of_floats,
    ),
    "int8": Code(
        dtype=np.int8,
        width=lambda size: size,
        store=_bytes_of,
        scores=_of_bytes,
        has_ranges=True,
    ),
    "binary": Code(
        dtype=np.uint8,
        width=lambda size: -(-size // 8),
        store=_bits_of,
        scores=_of_bits,
    ),
}


def scores(
    queries: Float[Array, "queries size"],
    stored: Shaped[Array, "texts width"],
    limits: Float[Array, "2 size"],
    *,
    code: str,
    is_dot: bool,
) -> Float[Array, "queries texts"]:
    """Returns how near each stored vector is to each query."""
    return CODES[code].scores(queries, stored, limits, is_dot)
