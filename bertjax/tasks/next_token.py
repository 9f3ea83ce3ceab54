"""Left-to-right language modelling: every position predicts the token after it.

The ablation "LTR & No NSP" of Devlin et al. 2019, section 5.1, on BERT's own architecture and data:
attention to the left alone (config.model.left_to_right), no masks, no pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, heads, packed_rows
from bertjax.tasks import base, config_needs


class NextTokenModel(nnx.Module):
    """The encoder with a head over the vocabulary, made as the head of masked tokens is."""

    def __init__(self, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        self.lm_head = heads.MlmHead(config, rngs=rngs)

    def next_logits(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of what follows every position but the last."""
        with jax.named_scope("lm_head"):
            return self.lm_head(hidden[:, :-1], self.encoder.embeddings.word.embedding[...])


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Predict each token of a sequence, [SEP] too, from those on its left.

    The loss is the mean cross-entropy over all predicted tokens of the batch.
    Source: Devlin et al. 2019, section 5.1.
    """

    encoder: encoder.EncoderConfig
    sentence_rows: ClassVar[str] = "whole"

    @property
    def objectives(self) -> Mapping[str, float]:
        return {"lm_loss": 1.0}

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> NextTokenModel:
        return NextTokenModel(self.encoder, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {"lm_loss": _targets(batch)[1].sum()}

    def loss(
        self, model: NextTokenModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns lm_loss and lm_accuracy over the tokens that have one on their left.

        Keys of `batch` are the features of records without masks, and `example_weights` [batch].
        """
        return self.of_hidden(model, model.encoder(batch, key=key), batch)

    def of_hidden(
        self, model: Any, hidden: Float[Array, "batch length hidden"], batch: base.Batch
    ) -> base.Means:
        """Returns `loss` of the encoder's last layer; the model has `next_logits`."""
        logits = model.next_logits(hidden)
        labels, weights = _targets(batch)
        return {
            "lm_loss": base.weighted(base.cross_entropy(logits, labels), weights),
            "lm_accuracy": base.accuracy(logits, labels, weights),
        }

    def evaluate(self, model: NextTokenModel, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: NextTokenModel, batch: base.Batch) -> dict[str, Array]:
        """Returns the "log_likelihood" [batch] of each row, [SEP] included, in nats."""
        logits = model.next_logits(model.encoder(batch))
        labels, weights = _targets(batch)
        return {"log_likelihood": -(base.cross_entropy(logits, labels) * weights).sum(axis=1)}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: the encoder, and the head at every position but one."""
        del predictions
        forward = self.encoder.forward_flops(length) + self.encoder.head_flops(length - 1)
        return 3.0 * batch_size * forward


def _targets(
    batch: base.Batch,
) -> tuple[Int[Array, "batch positions"], Float[Array, "batch positions"]]:
    """Returns what follows each position but the last, and 1 where that is of its sequence."""
    follows = batch["input_mask"][:, 1:] != 0
    if "sequence_ids" in batch:
        follows &= ~packed_rows.is_first(batch["sequence_ids"])[:, 1:]
    weights = follows.astype(jnp.float32)
    return batch["input_ids"][:, 1:], weights * batch["example_weights"][:, None]


def of_options(sizes: encoder.EncoderConfig, options: Any) -> NextToken:
    """Returns the task that config.pretraining asks for."""
    del options
    return NextToken(sizes)


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for each option that does not fit this objective."""
    reason = "each token is predicted from the tokens on its left, without masks and pairs"
    needed: dict[str, tuple[Any, ...]] = {
        "model.left_to_right": (True,),
        "pretraining.masking": ("none",),
        "pretraining.pair_loss": ("none",),
    }
    if config.data.eval_dir:
        needed["checkpoint.best_metric"] = ("lm_loss",)
    needs_of = {name: (values, reason) for name, values in needed.items()}
    yield from config_needs.faults(config, "next_token", needs_of)
