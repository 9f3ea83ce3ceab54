"""Masked language modelling with an optional sentence-pair loss: BERT's and ALBERT's.

The pair losses share labels, head and formula; what a label 1 means is the records' affair: a
random second segment (nsp) or, mostly, swapped segments (sop). The names of parameters and labels
come from next-sentence prediction for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, heads, layers, mask_decoder, packed_rows
from bertjax.tasks import base


class PretrainingModel(nnx.Module):
    """The encoder with the masked-token head and, with a pair loss, pooler and pair head."""

    def __init__(self, config: encoder.EncoderConfig, *, pair_loss: str, rngs: nnx.Rngs):
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        self.mlm_head = heads.MlmHead(config, rngs=rngs)
        if config.mask_decoder:
            self.mask_decoder = mask_decoder.MaskDecoder(config, rngs=rngs)
        if pair_loss != "none":
            self.pooler = heads.Pooler(config, rngs=rngs)
            self.nsp_head = heads.PairHead(config, rngs=rngs)

    def masked_logits(
        self,
        inputs: layers.Inputs,
        positions: Int[Array, "batch positions"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of a batch at `positions` only."""
        if not hasattr(self, "mask_decoder"):
            return self.mlm_logits(self.encoder(inputs, key=key), positions)
        decoded = self.mask_decoder(self.encoder, inputs, positions, key=key)
        with jax.named_scope("mlm_head"):
            return self.mlm_head(decoded, self.encoder.embeddings.word.embedding[...])

    def mlm_logits(
        self, hidden: Float[Array, "batch length hidden"], positions: Int[Array, "batch positions"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits at `positions` only."""
        with jax.named_scope("mlm_head"):
            gathered = layers.taken(hidden, positions)
            return self.mlm_head(gathered, self.encoder.embeddings.word.embedding[...])

    def pair_logits(
        self,
        hidden: Float[Array, "batch length hidden"],
        places: Int[Array, "batch sequences"] | None = None,
    ) -> Float[Array, "batch *sequences 2"]:
        """Returns the pair logits: 0 is "B follows A", 1 is random (nsp) or swapped (sop).

        Those of each row or, of rows with several sequences, of those that begin at `places`.
        """
        with jax.named_scope("pooler"):
            first = hidden[:, 0] if places is None else layers.taken(hidden, places)
            pooled = self.pooler(first)
        with jax.named_scope("nsp_head"):
            return self.nsp_head(pooled)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """BERT's task: predict masked tokens and, with a pair loss, whether B follows A.

    The loss is the mean cross-entropy over the batch's masked tokens plus that over its sequences.
    The released code normalizes per TPU core and adds 1e-5 to the weight sum; here the mean is
    exact over the global batch. Source: Devlin et al. 2019, section 3.1 and appendix A.2;
    sentence order (sop): ALBERT, Lan et al. 2020, section 3.1.
    A row of the batch may hold several sequences (`sequence_ids`); each has a pair label then.
    """

    encoder: encoder.EncoderConfig
    pair_loss: str = "nsp"
    sentence_rows: ClassVar[str] = "each_token_masked"

    @property
    def objectives(self) -> Mapping[str, float]:
        losses = {"mlm_loss": 1.0}
        return losses if self.pair_loss == "none" else losses | {f"{self.pair_loss}_loss": 1.0}

    def init(self, rngs: nnx.Rngs) -> PretrainingModel:
        return PretrainingModel(self.encoder, pair_loss=self.pair_loss, rngs=rngs)

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        mlm = {"mlm_loss": batch["masked_lm_weights"].sum()}
        if self.pair_loss == "none":
            return mlm
        return mlm | {f"{self.pair_loss}_loss": _pair_weights(batch).sum()}

    def loss(
        self, model: PretrainingModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns mlm_loss and mlm_accuracy over masked tokens, the pair loss's two over pairs.

        Those are nsp_loss and nsp_accuracy, or sop_loss and sop_accuracy. Keys of `batch` are
        the features of the records, and `example_weights` [batch].
        """
        if self.encoder.mask_decoder:
            logits = model.masked_logits(batch, batch["masked_lm_positions"], key=key)
            return of_masks(logits, batch)
        return self.of_hidden(model, model.encoder(batch, key=key), batch)

    def of_hidden(
        self,
        model: PretrainingModel,
        hidden: Float[Array, "batch length hidden"],
        batch: base.Batch,
    ) -> base.Means:
        """Returns `loss` of the encoder's last layer."""
        means = of_masks(model.mlm_logits(hidden, batch["masked_lm_positions"]), batch)
        if self.pair_loss == "none":
            return means
        labels, weights = batch["next_sentence_labels"], _pair_weights(batch)
        logits = model.pair_logits(hidden, _pair_places(batch))
        return means | {
            f"{self.pair_loss}_loss": base.weighted(base.cross_entropy(logits, labels), weights),
            f"{self.pair_loss}_accuracy": base.accuracy(logits, labels, weights),
        }

    def evaluate(self, model: PretrainingModel, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: PretrainingModel, batch: base.Batch) -> dict[str, Array]:
        """Returns the "log_likelihood" [batch] of each row's masked tokens together, in nats."""
        logits = model.masked_logits(batch, batch["masked_lm_positions"])
        losses = base.cross_entropy(logits, batch["masked_lm_ids"])
        return {"log_likelihood": -(losses * batch["masked_lm_weights"]).sum(axis=1)}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: encoder, masked-token head, a pair loss's pooler."""
        hidden = self.encoder.hidden_size
        forward = self.encoder.masked_flops(length, predictions)
        if self.pair_loss != "none":
            forward += 2.0 * hidden * (hidden + 2)
        return 3.0 * batch_size * forward


def of_masks(logits: Float[Array, "batch positions vocab"], batch: base.Batch) -> base.Means:
    """Returns mlm_loss and mlm_accuracy over a batch's masked tokens."""
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    return {
        "mlm_loss": base.weighted(base.cross_entropy(logits, labels), weights),
        "mlm_accuracy": base.accuracy(logits, labels, weights),
    }


def _pair_places(batch: base.Batch) -> Int[Array, "batch sequences"] | None:
    """Returns where the sequences of each row begin; None where a row is one."""
    if "sequence_ids" not in batch:
        return None
    most = batch["next_sentence_labels"].shape[1]
    return packed_rows.first_positions(batch["sequence_ids"], most)


def _pair_weights(batch: base.Batch) -> Float[Array, "*pairs"]:
    """Returns the weight of each pair: the weight of its row, 0 where a row has fewer sequences."""
    if "sequence_ids" not in batch:
        return batch["example_weights"]
    most = batch["next_sentence_labels"].shape[1]
    there = packed_rows.are_there(batch["sequence_ids"], most)
    return there * batch["example_weights"][:, None]


def of_options(sizes: encoder.EncoderConfig, options: Any) -> Pretraining:
    """Returns the task that config.pretraining asks for."""
    return Pretraining(sizes, pair_loss=options.pair_loss)
