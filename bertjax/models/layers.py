"""What every module is made of: BERT's initializer, dense layer, LayerNorm, activation, dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

# BERT's released code calls the tanh form "gelu" since February 2019; before that, and in
# transformers, "gelu" is the exact one (erf). Here each name means one thing.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def truncated_normal(stddev: float) -> nnx.Initializer:
    """Returns an initializer whose values before truncation at two sigmas have `stddev`.

    Source: google-research/bert modeling.py, create_initializer. (`jax.nn.initializers` rescales
    to have `stddev` after truncation; the released code does not, so neither does this.)
    """

    def init(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return init


def dense(
    in_size: int, out_size: int, *, stddev: float, dtype: jnp.dtype, rngs: nnx.Rngs
) -> nnx.Linear:
    """Returns a linear layer with float32 parameters that computes in `dtype`."""
    return nnx.Linear(
        in_size, out_size, kernel_init=truncated_normal(stddev), dtype=dtype, rngs=rngs
    )


def layer_norm(size: int, *, epsilon: float, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Returns a LayerNorm with float32 statistics whose output is in `dtype`."""
    return nnx.LayerNorm(size, epsilon=epsilon, dtype=dtype, use_fast_variance=False, rngs=rngs)


def dropout(
    x: Float[Array, "*shape"], rate: float, key: PRNGKeyArray | None
) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    Every element has its own random bits. They are 16 bits wide: the rate is met to within 2**-17,
    and half the random numbers of the usual 32 bits are drawn.
    """
    if key is None or rate == 0.0:
        return x
    keep_threshold = round((1.0 - rate) * 2**16)
    keep = random_bits16(key, x.shape) < keep_threshold
    return jnp.where(keep, x * jnp.asarray(2**16 / keep_threshold, x.dtype), jnp.zeros((), x.dtype))


def random_bits16(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Returns uint16 random bits, two per generated 32-bit word along the last axis.

    `jax.random.bits(..., uint16)` would draw a whole word for each and throw half of it away.
    """
    *outer, last = shape
    words = jax.random.bits(key, (*outer, (last + 1) // 2), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16)
    return halves.reshape(*outer, -1)[..., :last]
