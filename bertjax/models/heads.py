"""The pooler, and the heads of masked and replaced tokens, spans and pairs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.models import activations, layers, packed_rows, parts, placement
from bertjax.models.encoder import EncoderConfig
from bertjax.models.placement import DATA

# The span-boundary head: the longest span in tokens, and the width of a place in it. Source:
# Joshi et al. 2020, section 3.2 (200); facebookresearch/SpanBERT, pretraining/README.md (15).
MOST_OFFSETS = 15
OFFSET_SIZE = 200


class Pooler(nnx.Module):
    """A dense layer and `pooler_act` (tanh in BERT) on vectors, usually of [CLS].

    If `pooler` is "every_pooling", its vectors may be of any pooling, as in EuroBERT.
    If it is "normed", a norm follows, as in ModernBERT, where it stands before all
    classifiers.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        is_normed = config.pooler == "normed"
        of_head: Any = {"is_output": is_normed, "is_of_head": True}
        self.dense = parts.dense(
            config, config.hidden_size, config.hidden_size, **of_head, rngs=rngs
        )
        self.act = config.pooler_act
        self.norm = parts.norm(config, config.hidden_size) if is_normed else None

    def __call__(self, vectors: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        pooled = activations.POOLER_ACTIVATIONS[self.act](self.dense(vectors))
        return pooled if self.norm is None else self.norm(pooled)


class MlmHead(nnx.Module):
    """Dense, activation, LayerNorm, then the tied word embeddings and a bias.

    With factorized embeddings the dense layer projects to their width. With a normed pooler the
    activation is the pooler's. Without `mlm_transform` nothing stands before the embeddings, as in
    XLM. Without `tie_word_embeddings` the head has its own table, and no bias, as in EuroBERT.
    The embedding table is an argument, not a member: the tie is visible where it is made.
    Source: google-research/bert run_pretraining.py, get_masked_lm_output.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.has_transform = config.mlm_transform
        if self.has_transform:
            of_head: Any = {"is_output": True, "is_of_head": True}
            self.dense = parts.dense(
                config, config.hidden_size, config.embedding_width, **of_head, rngs=rngs
            )
            self.norm = parts.norm(config, config.embedding_width)
        if config.tie_word_embeddings:
            self.output, self.bias = None, nnx.Param(jnp.zeros(config.vocab_size))
        else:
            init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
            shape = (config.vocab_size, config.embedding_width)
            self.output, self.bias = nnx.Embed(*shape, embedding_init=init, rngs=rngs), None
        self.hidden_act = config.pooler_act if config.pooler == "normed" else config.hidden_act
        self.gradient_dtype = jnp.dtype(config.gradient_dtype)

    def __call__(
        self,
        hidden: Float[Array, "batch positions hidden"],
        embedding: Float[Array, "*devices vocab width"],
    ) -> Float[Array, "batch positions vocab"]:
        """Returns float32 logits."""
        if self.has_transform:
            hidden = self.norm(activations.ACTIVATIONS[self.hidden_act](self.dense(hidden)))
        table = embedding if self.output is None else self.output.embedding[...]
        bias = None if self.bias is None else self.bias[...]
        return _vocabulary_logits(hidden, table, bias, self.gradient_dtype)


def _vocabulary_logits(
    vectors: Float[Array, "batch positions width"],
    embedding: Float[Array, "*devices vocab width"],
    bias: Float[Array, " vocab"] | None,
    gradient_dtype: jnp.dtype,
) -> Float[Array, "batch positions vocab"]:
    """Returns float32 logits: products with the rows of a table, or of its copies."""
    if placement.has_own_entries(embedding, vectors.shape[0] * vectors.shape[1]):
        return _logits_of_own_entries(vectors, embedding, bias, gradient_dtype)

    def products(table: Array, vectors: Array) -> Array:
        return layers.einsum(
            *("BME,VE->BMV", vectors, table),
            dtype=jnp.dtype("float32"),
            gradient_dtype=gradient_dtype,
        )

    logits = placement.with_own_copy(products, embedding, vectors)
    return logits if bias is None else layers.add_bias(logits, bias)


def _logits_of_own_entries(
    vectors: Float[Array, "batch positions width"],
    embedding: Float[Array, "vocab width"],
    bias: Float[Array, " vocab"] | None,
    gradient_dtype: jnp.dtype,
) -> Float[Array, "batch positions vocab"]:
    """Returns the logits of all rows; each device computes the logits of its own entries.

    The vectors and their gradients go over the devices; the table and its gradient do not.
    """
    products = layers.einsum(
        *("BME,VE->BMV", placement.gathered(vectors), placement.constrain(embedding, DATA)),
        dtype=jnp.dtype("float32"),
        gradient_dtype=gradient_dtype,
        is_gathered=False,
    )
    logits = placement.constrain(products, None, None, DATA)
    return logits if bias is None else layers.add_bias(logits, bias)


class PairHead(nnx.Module):
    """Two logits of a sentence pair from the pooled output: 0 is next, 1 is random (NSP)."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.dense = parts.classifier(config, config.hidden_size, 2, rngs=rngs)

    def __call__(self, pooled: Float[Array, "*batch hidden"]) -> Float[Array, "*batch 2"]:
        return self.dense(pooled.astype(jnp.float32))


class ReplacedHead(nnx.Module):
    """A logit for every token that it was replaced: dense, activation, dense.

    The last layer starts from Glorot's uniform numbers, TensorFlow's default. With `replaced_head`
    "with_first" a norm of the sum with the state of the sequence's first token comes before all,
    and the last layer starts as the others.
    Sources: google-research/electra run_pretraining.py, _get_discriminator_output;
    microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.dense = parts.dense(
            config, config.hidden_size, config.hidden_size, is_of_head=True, rngs=rngs
        )
        if config.replaced_head == "with_first":
            self.norm = parts.norm(config, config.hidden_size)
            self.output = parts.classifier(config, config.hidden_size, 1, rngs=rngs)
        else:
            self.norm = None
            self.output = layers.Dense(
                *(config.hidden_size, 1),
                kernel_init=nnx.initializers.glorot_uniform(),
                dtype=jnp.dtype("float32"),
                rngs=rngs,
            )
        self.hidden_act = config.hidden_act

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        sequence_ids: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch length"]:
        """Returns float32 logits for all positions, including padding.

        `sequence_ids` tell the sequences of a row apart, as in a batch.
        """
        if self.norm is not None:
            first = hidden[:, :1]
            if sequence_ids is not None:
                first = layers.taken(hidden, packed_rows.first_of_each(sequence_ids))
            hidden = self.norm(hidden + first)
        transformed = activations.ACTIVATIONS[self.hidden_act](self.dense(hidden))
        return self.output(transformed.astype(jnp.float32))[:, :, 0]


class SpanBoundaryHead(nnx.Module):
    """Predicts a token of a span from the hidden states around the span and its place in it.

    The states and an embedding of the place go through two dense layers, each with the activation
    and a LayerNorm, then the tied word embeddings and a bias.
    Source: Joshi et al. 2020, section 3.2; facebookresearch/SpanBERT, fairseq/models/pair_bert.py,
    BertPairTargetPredictionHead.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        width = config.embedding_width
        init = layers.truncated_normal(config.initializer_range)
        self.offset = nnx.Embed(MOST_OFFSETS, OFFSET_SIZE, embedding_init=init, rngs=rngs)
        joined = 2 * config.hidden_size + OFFSET_SIZE
        self.dense = parts.dense(config, joined, config.hidden_size, is_of_head=True, rngs=rngs)
        self.norm = parts.norm(config, config.hidden_size)
        self.second_dense = parts.dense(
            config, config.hidden_size, width, is_of_head=True, rngs=rngs
        )
        self.second_norm = parts.norm(config, width)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))
        self.hidden_act = config.hidden_act
        self.gradient_dtype = jnp.dtype(config.gradient_dtype)

    def __call__(
        self,
        left: Float[Array, "batch positions hidden"],
        right: Float[Array, "batch positions hidden"],
        offsets: Int[Array, "batch positions"],
        embedding: Float[Array, "*devices vocab width"],
    ) -> Float[Array, "batch positions vocab"]:
        """Returns float32 logits."""
        activation = activations.ACTIVATIONS[self.hidden_act]
        # A product with one-hot rows, as of segments: the gradient of a lookup is a scatter.
        table = self.offset.embedding[...]
        number = (jax.nn.one_hot(offsets, MOST_OFFSETS) @ table).astype(left.dtype)
        joined = jnp.concatenate([left, right, number], axis=-1)
        inner = self.norm(activation(self.dense(joined)))
        transformed = self.second_norm(activation(self.second_dense(inner)))
        return _vocabulary_logits(transformed, embedding, self.bias[...], self.gradient_dtype)
