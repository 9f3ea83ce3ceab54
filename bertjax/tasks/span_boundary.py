"""SpanBERT's objective: masked tokens are predicted from their context and from their span's edges.

It reads the same batches as masked language modelling: a span is a run of masked tokens without a
gap, as in the released code, which joins spans that touch before it looks for their neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, heads, layers, packed_rows
from bertjax.tasks import base, config_needs, pretraining


class Targets(NamedTuple):
    """For every masked position: its span's two neighbours, its number in the span, its weight."""

    left: Int[Array, "batch positions"]
    right: Int[Array, "batch positions"]
    offsets: Int[Array, "batch positions"]
    weights: Float[Array, "batch positions"]


def targets(
    positions: Int[Array, "batch positions"],
    weights: Float[Array, "batch positions"],
    sequence_ids: Int[Array, "batch length"],
) -> Targets:
    """Returns the targets of the boundary head for ascending masked positions.

    `sequence_ids` are 0 at padding; an `input_mask` serves for rows of one sequence. A span next to
    [CLS] or the last [SEP] of its sequence has weight zero, and so have its tokens after the first
    heads.MOST_OFFSETS. Source: facebookresearch/SpanBERT, fairseq/data/masking.py,
    span_masking, which masks a block before it has [CLS] and [SEP].
    """
    used, index = weights > 0, jnp.broadcast_to(jnp.arange(positions.shape[1]), positions.shape)
    goes_on = used[:, 1:] & used[:, :-1] & (positions[:, 1:] == positions[:, :-1] + 1)
    edge = jnp.zeros_like(used[:, :1])
    first = jax.lax.cummax(jnp.where(jnp.concatenate([edge, goes_on], axis=1), 0, index), axis=1)
    last = jax.lax.cummin(
        jnp.where(jnp.concatenate([goes_on, edge], axis=1), positions.shape[1], index),
        axis=1,
        reverse=True,
    )
    start = jnp.take_along_axis(positions, first, axis=1)
    left, right = start - 1, jnp.take_along_axis(positions, last, axis=1) + 1
    offsets = positions - start
    left, right = jnp.maximum(left, 0), jnp.minimum(right, sequence_ids.shape[1] - 1)
    is_edge = jnp.take_along_axis(packed_rows.is_first(sequence_ids), left, axis=1)
    is_edge |= jnp.take_along_axis(packed_rows.is_last(sequence_ids), right, axis=1)
    has_target = ~is_edge & (offsets < heads.MOST_OFFSETS)
    return Targets(
        left=left,
        right=right,
        offsets=jnp.minimum(offsets, heads.MOST_OFFSETS - 1),
        weights=jnp.where(has_target, weights, 0.0),
    )


class SpanBoundaryModel(pretraining.PretrainingModel):
    """BERT's model with the span-boundary head."""

    def __init__(self, config: encoder.EncoderConfig, *, pair_loss: str, rngs: nnx.Rngs):
        super().__init__(config, pair_loss=pair_loss, rngs=rngs)
        self.sbo_head = heads.SpanBoundaryHead(config, rngs=rngs)

    def boundary_logits(
        self, hidden: Float[Array, "batch length hidden"], targets: Targets
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of masked tokens, from the neighbours of their spans."""
        with jax.named_scope("sbo_head"):
            return self.sbo_head(
                layers.taken(hidden, targets.left),
                layers.taken(hidden, targets.right),
                targets.offsets,
                self.encoder.embeddings.word.embedding[...],
            )


@dataclasses.dataclass(frozen=True)
class SpanBoundary(pretraining.Pretraining):
    """BERT's task, and a second prediction of every masked token from the boundary of its span.

    The losses are the mean over masked tokens and the mean over those with a boundary, summed; the
    paper writes the sum of both losses of each masked token. The released code divides per worker,
    and the second by one more than there are. Source: Joshi et al. 2020, section 3.2 and equation
    3; facebookresearch/SpanBERT, fairseq/criterions/spanbert_loss.py.
    """

    @property
    def objectives(self) -> Mapping[str, float]:
        return {**super().objectives, "sbo_loss": 1.0}

    def init(self, rngs: nnx.Rngs) -> SpanBoundaryModel:
        return SpanBoundaryModel(self.encoder, pair_loss=self.pair_loss, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {**super().weights(batch), "sbo_loss": _targets(batch).weights.sum()}

    def loss(
        self, model: SpanBoundaryModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns what `Pretraining` does, and sbo_loss and sbo_accuracy."""
        hidden = model.encoder(batch, key=key)
        boundary, labels = _targets(batch), batch["masked_lm_ids"]
        logits = model.boundary_logits(hidden, boundary)
        return self.of_hidden(model, hidden, batch) | {
            "sbo_loss": base.weighted(base.cross_entropy(logits, labels), boundary.weights),
            "sbo_accuracy": base.accuracy(logits, labels, boundary.weights),
        }

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """As `Pretraining`, with the two dense layers and the vocabulary of the boundary head."""
        hidden, width = self.encoder.hidden_size, self.encoder.embedding_width
        products = (2 * hidden + heads.OFFSET_SIZE) * hidden
        products += width * (hidden + self.encoder.vocab_size)
        boundary = 3.0 * batch_size * 2.0 * predictions * products
        return super().train_flops(batch_size, length, predictions) + boundary


def _targets(batch: base.Batch) -> Targets:
    sequence_ids = batch.get("sequence_ids", batch["input_mask"])
    return targets(batch["masked_lm_positions"], batch["masked_lm_weights"], sequence_ids)


def of_options(sizes: encoder.EncoderConfig, options: Any) -> SpanBoundary:
    """Returns the task that config.pretraining asks for."""
    return SpanBoundary(sizes, pair_loss=options.pair_loss)


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for each option that does not fit this objective."""
    if config.pretraining.masking == "dynamic":
        reason = "it predicts whole spans from the tokens around them"
        needed = {"pretraining.mask_strategy": (("span",), reason)}
        yield from config_needs.faults(config, "span_boundary", needed)
