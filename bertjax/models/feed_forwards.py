"""The feed-forward of a layer: dense layers and an activation, applied to each position.

A kind is two functions rather than a module, because the dense layers belong to the layer: in every
checkpoint they are called `layers.7.intermediate` and `layers.7.output`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float

from bertjax.models import activations, layers, parts
from bertjax.models.encoder_config import EncoderConfig


class FeedForward(NamedTuple):
    """A kind of feed-forward: `dense_layers` makes a layer's dense layers, `apply` applies them.

    `num_products` is the number of matrices of hidden_size x intermediate_size, to count FLOPs.
    """

    dense_layers: Callable[[EncoderConfig, nnx.Rngs], dict[str, nnx.Linear]]
    apply: Callable[[Any, Array], Array]
    num_products: int = 2


def _plain_layers(config: EncoderConfig, rngs: nnx.Rngs) -> dict[str, nnx.Linear]:
    hidden, wide = config.hidden_size, config.intermediate_size
    summed = layers.SummedBiasDense
    return {
        "intermediate": parts.dense(config, hidden, wide, kind=summed, rngs=rngs),
        "output": parts.dense(config, wide, hidden, is_output=True, rngs=rngs),
    }


def _plain(
    layer: Any, hidden: Float[Array, "batch length hidden"]
) -> Float[Array, "batch length hidden"]:
    return layer.output(activations.ACTIVATIONS[layer.hidden_act](layer.intermediate(hidden)))


def _gated_layers(config: EncoderConfig, rngs: nnx.Rngs) -> dict[str, nnx.Linear]:
    hidden, wide = config.hidden_size, config.intermediate_size
    return {
        "intermediate": parts.dense(config, hidden, wide, rngs=rngs),
        "gate": parts.dense(config, hidden, wide, rngs=rngs),
        "output": parts.dense(config, wide, hidden, is_output=True, rngs=rngs),
    }


def _gated(
    layer: Any, hidden: Float[Array, "batch length hidden"]
) -> Float[Array, "batch length hidden"]:
    activated = activations.ACTIVATIONS[layer.hidden_act](layer.intermediate(hidden))
    return layer.output(activated * layer.gate(hidden))


# Source of "plain": Vaswani et al. 2017, section 3.3, with BERT's activation. Source of "gated":
# Shazeer 2020, section 2, equation 6: GeGLU with gelu, SwiGLU with silu; `intermediate_size` is the
# width of each of the two products.
FEED_FORWARDS: dict[str, FeedForward] = {
    "plain": FeedForward(_plain_layers, _plain),
    "gated": FeedForward(_gated_layers, _gated, num_products=3),
}
