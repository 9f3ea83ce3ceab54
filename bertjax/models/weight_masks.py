"""The dropout masks of attention weights: in plain JAX and, equal to the bit, in kernels.

A mask is a function of its plane's two random words (`layers.mask_seeds`) and of the places of
query and key. Two keys that are PAIRED places apart each use one half of a hash: on a TPU that is
two registers for one hash. So the probability to keep a weight is a multiple of 2^-16.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer, UInt32

from bertjax.models import layers

PAIRED = 8  # the rows of a register
VERSION = 2  # of the masks; in version 1 each key had its own hash


def kept(
    seeds: layers.MaskSeeds, shape: tuple[int, int, int, int], rate: float
) -> Bool[Array, "batch heads queries keys"]:
    """Returns the mask of `shape`, each element True with probability 1 - `rate`."""
    query, key = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (2, 3))
    first, second = (word[:, :, None, None] for word in seeds)
    return kept_at((first, second), query, key, shape[3], rate)


def kept_at(
    seeds: tuple[Array, Array],
    queries: UInt32[Array, "*#shape"],
    keys: UInt32[Array, "*#shape"],
    num_keys: int,
    rate: float,
) -> Bool[Array, "*shape"]:
    """Returns the elements of `kept` at these places of planes with `num_keys` keys.

    Seeds, queries and keys are broadcast.
    """
    bits = layers.hashed(seeds, _places(queries, keys & ~jnp.uint32(PAIRED), num_keys))
    # `_low_half` for every second group of keys; a `where` took longer on a CPU.
    return _is_kept((bits ^ (bits >> 16)) << ((keys & PAIRED) * (16 // PAIRED)), rate)


def kept_block(
    seeds: tuple[Array, Array],
    first: tuple[Integer[Array, ""] | int, Integer[Array, ""] | int],
    shape: tuple[int, ...],
    num_keys: int,
    rate: float,
) -> Bool[Array, "keys queries"]:
    """Returns a part of one plane, transposed, with half the hashes of `kept_at`.

    It begins at the key and query of `first`; the key is a multiple of 2 PAIRED.
    """
    pairs = (shape[0] // (2 * PAIRED), PAIRED, shape[1])
    pair, within, query = (jax.lax.broadcasted_iota(jnp.int32, pairs, axis) for axis in range(3))
    key = pair * (2 * PAIRED) + within + first[0]
    queries, keys = (x.astype(jnp.uint32) for x in (query + first[1], key))
    bits = layers.hashed(seeds, _places(queries, keys, num_keys))
    both = jnp.stack([bits, _low_half(bits)], axis=1)
    return _is_kept(both.reshape(shape), rate)


def _places(queries: Array, keys: Array, num_keys: int) -> Array:
    return queries * jnp.uint32(num_keys) + keys


def _low_half(bits: Array) -> Array:
    """Returns the low half in place of the high half, after the last step of lowbias32."""
    return (bits << 16) ^ (bits & jnp.uint32(0xFFFF0000))


def _is_kept(bits: Array, rate: float) -> Array:
    return layers.below(bits, round((1.0 - rate) * 2**16) * 2**16)
