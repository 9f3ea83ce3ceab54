"""What the parts of an encoder are made of, by the fields that describe it: dense layers, norms.

Every kernel of an encoder and of the heads on it starts, computes and sums its gradients as the
fields say; here that is read once.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from bertjax.models import layers, norms
from bertjax.models.fields import EncoderFields


def dense(
    config: EncoderFields,
    in_size: int,
    out_size: int,
    *,
    rngs: nnx.Rngs,
    kind: type[layers.Dense] = layers.Dense,
    is_output: bool = False,
) -> layers.Dense:
    """Returns a dense layer as the fields ask for; `is_output` is one that ends in a residual."""
    return layers.dense(
        *(in_size, out_size),
        stddev=config.output_initializer_range if is_output else config.initializer_range,
        initializer=config.initializer,
        dtype=jnp.dtype(config.dtype),
        gradient_dtype=jnp.dtype(config.gradient_dtype),
        kind=kind,
        use_bias=config.use_bias,
        rngs=rngs,
    )


def classifier(
    config: EncoderFields, in_size: int, out_size: int, *, rngs: nnx.Rngs
) -> layers.Dense:
    """Returns the last dense layer of a head: it computes in float32, and always has a bias."""
    return layers.dense(
        *(in_size, out_size),
        stddev=config.initializer_range,
        initializer=config.initializer,
        dtype=jnp.dtype("float32"),
        rngs=rngs,
    )


def norm(config: EncoderFields, size: int) -> norms.LayerNorm:
    """Returns a normalization over vectors of this size."""
    made = norms.NORMS[config.norm]
    return made(size, epsilon=config.layer_norm_eps, dtype=jnp.dtype(config.dtype))
