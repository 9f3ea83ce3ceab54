"""Two kinds of rows in a batch, through one encoder and one head: GPT-BERT and UniLM.

The first rows have masked tokens and see all. The last rows are read in another way: from left to
right (`Hybrid`), or with a whole first segment as a prefix (`PrefixRows`).
"""

from __future__ import annotations

import abc
import dataclasses
import fractions
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, layers
from bertjax.tasks import base, config_needs, next_token, pretraining, replaced_tokens

# Folded into the key of left-to-right rows; layers count from 0.
_LEFT_TO_RIGHT = 2**30

Hidden = Float[Array, "batch length hidden"]


@dataclasses.dataclass(frozen=True)
class MixedRows(pretraining.Pretraining, abc.ABC):
    """Predict masked tokens in most rows of a batch, and something else in the last of them.

    `share` is the share of the last rows; the mean of each kind of rows counts with its share. An
    evaluation reads all rows in both ways.
    """

    share: float = 1 / 4
    readings: ClassVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def last(self) -> pretraining.Pretraining | next_token.NextToken:
        """The task of the last rows; its means are named otherwise than the first rows'."""

    @abc.abstractmethod
    def as_last(self, batch: base.Batch) -> base.Batch:
        """Returns rows with the inputs that the last rows of a batch have."""

    @abc.abstractmethod
    def hidden(
        self, model: Any, batch: base.Batch, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "first length hidden"], Float[Array, "last length hidden"]]:
        """Returns the encoder's last layer of the first rows, and of the last rows."""

    def hidden_as_last(self, model: Any, batch: base.Batch, key: PRNGKeyArray | None) -> Hidden:
        """Returns the encoder's last layer of rows that are read as the last rows are."""
        return model.encoder(self.as_last(batch), key=key)

    @property
    def row_unit(self) -> int:
        """The smallest number of rows whose share is a whole number."""
        return fractions.Fraction(self.share).limit_denominator(1000).denominator

    @property
    def objectives(self) -> Mapping[str, float]:
        first = dict.fromkeys(super().objectives, 1 - self.share)
        return first | dict.fromkeys(self.last.objectives, self.share)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        first, last = self.split(batch)
        return super().weights(first) | self.last.weights(last)

    def loss(self, model: Any, batch: base.Batch, *, key: PRNGKeyArray | None) -> base.Means:
        """Returns loss and accuracy of each kind of rows, and of the pairs of the first rows.

        Keys of `batch` are the features of the records, and `example_weights` [batch].
        """
        first, last = self.split(batch)
        of_first, of_last = self.hidden(model, batch, key)
        means = self.of_hidden(model, of_first, first)
        return means | self.last.of_hidden(model, of_last, self.as_last(last))

    def evaluate(self, model: Any, batch: base.Batch) -> base.Means:
        """Returns the means of `loss`, each over all rows."""
        hidden = self.hidden_as_last(model, batch, None)
        means = super().loss(model, batch, key=None)
        return means | self.last.of_hidden(model, hidden, self.as_last(batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        last = round(self.share * batch_size)
        first = super().train_flops(batch_size - last, length, predictions)
        return first + self.last.train_flops(last, length, predictions)

    def split(self, batch: base.Batch) -> tuple[base.Batch, base.Batch]:
        """Returns the first rows and the last rows of a batch."""
        border = self.border(batch)
        first = {name: values[:border] for name, values in batch.items()}
        return first, {name: values[border:] for name, values in batch.items()}

    def border(self, batch: base.Batch) -> int:
        """Returns the place of the first of the last rows.

        Micro-batches take every n-th row, so the last rows of each are the last rows of all.
        """
        rows = len(batch["input_ids"])
        return rows - round(self.share * rows)


class HybridModel(pretraining.PretrainingModel):
    """The encoder with one head, for masked tokens and for next tokens."""

    def __init__(self, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, pair_loss="none", rngs=rngs)

    def mlm_logits(
        self, hidden: Hidden, positions: Int[Array, "batch positions"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of the tokens at `positions`, from those before them."""
        return super().mlm_logits(hidden, jnp.maximum(positions - 1, 0))

    def next_logits(self, hidden: Hidden) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of what follows every position but the last."""
        with jax.named_scope("mlm_head"):
            return self.mlm_head(hidden[:, :-1], self.encoder.embeddings.word.embedding[...])


@dataclasses.dataclass(frozen=True)
class Hybrid(MixedRows):
    """Predict masked tokens in most rows of a batch, every next token in the last of them.

    The last rows are read from left to right, without masks. The logits of a masked token are read
    from the position before it, as the logits of a next token are: both kinds of rows ask a
    position which token follows. With a `mean` of "rows" the mean of each kind counts with its
    share, as in the authors' code (whose devices have rows of one kind); with "tokens" the loss is
    the mean over the tokens of both kinds.
    Source: Charpentier and Samuel 2024, "GPT or BERT: why not both?", section 3.
    """

    pair_loss: str = "none"
    share: float = 1 / 16
    mean: str = "rows"
    readings: ClassVar[tuple[str, ...]] = ("whole", "left_to_right")

    @property
    def last(self) -> next_token.NextToken:
        return next_token.NextToken(self.encoder)

    @property
    def objectives(self) -> Mapping[str, float]:
        return super().objectives if self.mean == "rows" else {"hybrid_loss": 1.0}

    def init(self, rngs: nnx.Rngs) -> HybridModel:
        return HybridModel(self.encoder, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        weights = super().weights(batch)
        if self.mean == "rows":
            return weights
        return {"hybrid_loss": weights["mlm_loss"] + weights["lm_loss"]}

    def loss(
        self, model: HybridModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns loss and accuracy of each kind of rows; hybrid_loss too, for a mean of tokens."""
        means = super().loss(model, batch, key=key)
        if self.mean == "rows":
            return means
        return means | {"hybrid_loss": jax.tree.map(jnp.add, means["mlm_loss"], means["lm_loss"])}

    def as_last(self, batch: base.Batch) -> base.Batch:
        """Returns the batch with the tokens that were there before masking."""
        ids, _ = replaced_tokens.replaced(batch, batch["masked_lm_ids"])
        return {**batch, "input_ids": ids}

    def hidden(
        self, model: Any, batch: base.Batch, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "first length hidden"], Float[Array, "last length hidden"]]:
        first, last = self.split(batch)
        of_first = model.encoder(first, key=key)
        return of_first, self.hidden_as_last(model, last, layers.folded(key, _LEFT_TO_RIGHT))

    def hidden_as_last(self, model: Any, batch: base.Batch, key: PRNGKeyArray | None) -> Hidden:
        return model.encoder(self.as_last(batch), key=key, left_to_right=True)


@dataclasses.dataclass(frozen=True)
class PrefixRows(MixedRows):
    """Predict masked tokens, in the last rows of a batch with a prefix alone in sight.

    In a prefix row the first segment sees itself. A position of the second segment sees the first
    segment, itself and the positions of its segment on its left. A pair loss reads the first rows
    alone: the [CLS] of a prefix row does not see the second segment.
    Source: Dong et al. 2019, "Unified Language Model Pre-training", section 2.3:
    sequence-to-sequence; its batches have rows of one kind.
    """

    readings: ClassVar[tuple[str, ...]] = ("whole", "order")

    @property
    def last(self) -> PrefixTokens:
        return PrefixTokens(self.encoder, pair_loss="none")

    def as_last(self, batch: base.Batch) -> base.Batch:
        """Returns the batch with an `order`: 0 in a first segment, rising in the second."""
        places = jnp.arange(1, batch["segment_ids"].shape[1] + 1, dtype=jnp.int32)
        return {**batch, "order": jnp.where(batch["segment_ids"] == 0, 0, places)}

    def hidden(
        self, model: Any, batch: base.Batch, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "first length hidden"], Float[Array, "last length hidden"]]:
        border = self.border(batch)
        is_last = jnp.arange(len(batch["input_ids"]))[:, None] >= border
        order = jnp.where(is_last, self.as_last(batch)["order"], 0)
        hidden = model.encoder({**batch, "order": order}, key=key)
        return hidden[:border], hidden[border:]


@dataclasses.dataclass(frozen=True)
class PrefixTokens(pretraining.Pretraining):
    """Predict the masked tokens of prefix rows: prefix_loss and prefix_accuracy."""

    @property
    def objectives(self) -> Mapping[str, float]:
        return _renamed(super().objectives)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return _renamed(super().weights(batch))

    def of_hidden(self, model: Any, hidden: Hidden, batch: base.Batch) -> base.Means:
        return _renamed(super().of_hidden(model, hidden, batch))


def _renamed(means: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("mlm_", "prefix_"): mean for name, mean in means.items()}


def hybrid(sizes: encoder.EncoderConfig, options: Any) -> Hybrid:
    """Returns the task that config.pretraining asks for."""
    return Hybrid(sizes, share=options.causal_share, mean=options.hybrid_mean)


def prefix_rows(sizes: encoder.EncoderConfig, options: Any) -> PrefixRows:
    """Returns the task that config.pretraining asks for."""
    return PrefixRows(sizes, pair_loss=options.pair_loss, share=options.prefix_share)


def hybrid_faults(config: Any) -> Iterator[str]:
    """Yields the options of a config that do not fit the objective 'hybrid'."""
    needed = {
        "model.left_to_right": ((False,), "its rows say what they see"),
        "pretraining.pair_loss": (("none",), "it learns nothing of pairs"),
    }
    yield from config_needs.faults(config, "hybrid", needed)


def prefix_rows_faults(config: Any) -> Iterator[str]:
    """Yields the options of a config that do not fit the objective 'prefix_rows'."""
    reason = "its rows say what they see"
    needed = {"model.window": ((0,), reason), "model.left_to_right": ((False,), reason)}
    yield from config_needs.faults(config, "prefix_rows", needed)
