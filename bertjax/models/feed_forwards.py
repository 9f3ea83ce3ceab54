"""What a layer does with each position by itself: dense layers and an activation between them.

A kind is two functions rather than a module, because its dense layers are the layer's own: in every
checkpoint they are called `layers.7.intermediate` and `layers.7.output`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bertjax.models import layers
from bertjax.models.fields import EncoderFields


class FeedForward(NamedTuple):
    """`dense_layers` are what a layer has for it, by name; `apply` computes with that layer."""

    dense_layers: Callable[[EncoderFields, nnx.Rngs], dict[str, nnx.Linear]]
    apply: Callable[[Any, Array], Array]


def _plain_layers(config: EncoderFields, rngs: nnx.Rngs) -> dict[str, nnx.Linear]:
    hidden, wide = config.hidden_size, config.intermediate_size
    options = {
        "stddev": config.initializer_range,
        "initializer": config.initializer,
        "dtype": jnp.dtype(config.dtype),
        "gradient_dtype": jnp.dtype(config.gradient_dtype),
        "rngs": rngs,
    }
    return {
        "intermediate": layers.dense(hidden, wide, kind=layers.SummedBiasDense, **options),
        "output": layers.dense(wide, hidden, **options),
    }


def _plain(
    layer: Any, hidden: Float[Array, "batch length hidden"]
) -> Float[Array, "batch length hidden"]:
    return layer.output(layers.ACTIVATIONS[layer.hidden_act](layer.intermediate(hidden)))


# Source of "plain": Vaswani et al. 2017, section 3.3, with BERT's activation.
FEED_FORWARDS: dict[str, FeedForward] = {"plain": FeedForward(_plain_layers, _plain)}
