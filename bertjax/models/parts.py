"""The dense layers and norms of an encoder and its heads, made from its config."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from bertjax.models import layers, norms
from bertjax.models.encoder_config import EncoderConfig


def dense(
    config: EncoderConfig,
    in_size: int,
    out_size: int,
    *,
    rngs: nnx.Rngs,
    kind: type[layers.Dense] = layers.Dense,
    is_output: bool = False,
    is_of_head: bool = False,
) -> layers.Dense:
    """Returns a dense layer; `is_output`: its output is added to a residual."""
    stddev = config.output_initializer_range if is_output else config.initializer_range
    return kind(
        *(in_size, out_size),
        kernel_init=layers.INITIALIZERS[config.initializer](stddev),
        dtype=jnp.dtype(config.dtype),
        gradient_dtype=jnp.dtype(config.gradient_dtype),
        use_bias=config.use_bias or (is_of_head and config.head_bias),
        rngs=rngs,
    )


def classifier(
    config: EncoderConfig, in_size: int, out_size: int, *, rngs: nnx.Rngs
) -> layers.Dense:
    """Returns the last dense layer of a head, in float32 and with a bias."""
    kernel_init = layers.INITIALIZERS[config.initializer](config.initializer_range)
    dtype = jnp.dtype("float32")
    return layers.Dense(in_size, out_size, kernel_init=kernel_init, dtype=dtype, rngs=rngs)


def norm(config: EncoderConfig, size: int) -> norms.LayerNorm:
    """Returns a normalization over vectors of this size."""
    kind = norms.NORMS[config.norm]
    return kind(size, epsilon=config.layer_norm_eps, dtype=jnp.dtype(config.dtype))
