"""A vector for each text: the encoder and a pooling of its states, with nothing learnt between."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, parts
from bertjax.models import pooling as pooling_lib
from bertjax.models.encoder import EncoderConfig, make_encoder

_SMALLEST_LENGTH = 1e-12  # of a vector that is divided by its length, as in torch's normalize


class SentenceEncoder(nnx.Module):
    """The pooled states of a sequence, with length 1 if `normalize`; there is no pooler.

    With `num_labels` it has a `classifier` for pairs of vectors, which calling it does not use.
    Source: Reimers and Gurevych 2019, section 3.

    Raises:
      ValueError: if `pooling` is not one of `pooling.POOLINGS`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        pooling: str = "mean",
        normalize: bool = True,
        num_labels: int = 0,
        rngs: nnx.Rngs,
    ):
        if pooling not in pooling_lib.POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; known are {', '.join(pooling_lib.POOLINGS)}")
        self.encoder = make_encoder(config, rngs=rngs)
        self.pooling = pooling
        self.normalize = normalize
        width = 3 * config.hidden_size  # u, v, |u - v|
        self.classifier = (
            parts.classifier(config, width, num_labels, rngs=rngs) if num_labels else None
        )

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch hidden"]:
        """Returns float32 vectors, as the model answers them."""
        vectors = self.pooled(inputs, key=key)
        return unit(vectors) if self.normalize else vectors

    def pooled(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch hidden"]:
        """Returns float32 vectors of any length, as losses read them."""
        hidden = self.encoder(inputs, key=key)
        with jax.named_scope("pooling"):
            return pooling_lib.pool(hidden, inputs["input_mask"], self.pooling)


def unit(vectors: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
    """Returns the vectors with length 1; one of zeros stays so, with a finite gradient."""
    squares = (vectors**2).sum(axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _SMALLEST_LENGTH**2))
