"""The encoder of sentence embeddings: a pooling of states, and dense layers after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import activations, containers, layers, parts, sentence_vectors
from bertjax.models import pooling as pooling_lib
from bertjax.models.encoder import EncoderConfig, make_encoder
from bertjax.options import faults

_SMALLEST_LENGTH = 1e-12  # of a vector that is divided by its length, as in torch's normalize


class SentenceEncoder(nnx.Module):
    """An encoder, a pooling, the dense layers `projections`, and with `normalize` length 1.

    It has no pooler; `projections` is None without any. With `num_labels` it has a `classifier`
    for pairs of vectors, which a call does not use.
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
        projections: Sequence[sentence_vectors.Projection] = (),
        rngs: nnx.Rngs,
    ):
        if pooling not in pooling_lib.POOLINGS:
            raise faults.unknown("pooling", pooling, pooling_lib.POOLINGS)
        self.encoder = make_encoder(config, rngs=rngs)
        self.pooling = pooling
        self.normalize = normalize
        self.projections = _make_projections(config, projections, rngs=rngs)
        width = 3 * sentence_vectors.size_of(projections, config.hidden_size)  # u, v, |u - v|
        self.classifier = (
            parts.classifier(config, width, num_labels, rngs=rngs) if num_labels else None
        )

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch size"]:
        """Returns the float32 vectors of texts."""
        vectors = self.pooled(inputs, key=key)
        return unit(vectors) if self.normalize else vectors

    def pooled(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch size"]:
        """Returns float32 vectors before normalization, as losses read them."""
        hidden = self.encoder(inputs, key=key)
        with jax.named_scope("pooling"):
            vectors = pooling_lib.pool(hidden, inputs["input_mask"], self.pooling)
        return projected(vectors, self.projections)


class Projection(layers.Dense):
    """A dense layer in float32 with an activation."""

    def __init__(
        self,
        config: EncoderConfig,
        in_size: int,
        options: sentence_vectors.Projection,
        *,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            *(in_size, options.size),
            kernel_init=layers.INITIALIZERS[config.initializer](config.initializer_range),
            dtype=jnp.dtype("float32"),
            use_bias=options.use_bias,
            rngs=rngs,
        )
        self.activation = options.activation

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        return activations.PROJECTION_ACTIVATIONS[self.activation](super().__call__(x))


def _make_projections(
    config: EncoderConfig, projections: Sequence[sentence_vectors.Projection], *, rngs: nnx.Rngs
) -> Any:
    """Returns the list of modules, freshly initialized; None for no projections."""
    modules, size = [], config.hidden_size
    for options in projections:
        modules.append(Projection(config, size, options, rngs=rngs))
        size = options.size
    return containers.List(modules) if modules else None


def projected(
    vectors: Float[Array, "batch hidden"], projections: Iterable[Projection] | None
) -> Float[Array, "batch size"]:
    """Returns pooled vectors after the projections, if there are any."""
    with jax.named_scope("projections"):
        for projection in projections or ():
            vectors = projection(vectors)
    return vectors


def unit(vectors: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
    """Returns the vectors with length 1; one of zeros stays so, with a finite gradient."""
    squares = (vectors**2).sum(axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _SMALLEST_LENGTH**2))
