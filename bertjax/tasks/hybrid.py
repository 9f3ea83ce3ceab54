"""Masked rows and left-to-right rows in one batch, through one encoder and one head: GPT-BERT.

The logits of a masked token are read from the position before it, as those of a next token are. So
both kinds of rows ask the same of a position: which token follows.
Source: Charpentier and Samuel 2024, "GPT or BERT: why not both?", section 3.
"""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, layers
from bertjax.tasks import base, next_token, pretraining, replaced_tokens

# The values of config.pretraining.hybrid_mean.
MEANS = ("rows", "tokens")
# Folded into the key of left-to-right rows; layers count from 0.
_LEFT_TO_RIGHT = 2**30


class HybridModel(pretraining.PretrainingModel):
    """The encoder with one head, for masked tokens and for next tokens."""

    def __init__(self, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, pair_loss="none", rngs=rngs)

    def mlm_logits(
        self, hidden: Float[Array, "batch length hidden"], positions: Int[Array, "batch positions"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of the tokens at `positions`, from those before them."""
        return super().mlm_logits(hidden, jnp.maximum(positions - 1, 0))

    def next_logits(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns the vocabulary logits of what follows every position but the last."""
        with jax.named_scope("mlm_head"):
            return self.mlm_head(hidden[:, :-1], self.encoder.embeddings.word.embedding[...])


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """Predict masked tokens in most rows of a batch, every next token in the last of them.

    `causal_share` is the share of the last kind; in them attention is to the left alone, and the
    tokens are those that were there before masking. By a `mean` of "rows" the loss is the mean of
    masked tokens and that of next tokens, each times the share of its rows, as the authors' code
    has it (where devices have rows of one kind); by "tokens" it is the mean over all of them.
    Rows are evaluated as both. Source: Charpentier and Samuel 2024, section 3.
    """

    encoder: encoder.EncoderConfig
    causal_share: float = 1 / 16
    mean: str = "rows"
    sentence_rows: ClassVar[str] = "each_token_masked"
    readings: ClassVar[tuple[str, ...]] = ("whole", "left_to_right")

    @property
    def row_unit(self) -> int:
        """The smallest number of rows whose share is a whole number."""
        return fractions.Fraction(self.causal_share).limit_denominator(1000).denominator

    @property
    def objectives(self) -> Mapping[str, float]:
        if self.mean == "tokens":
            return {"hybrid_loss": 1.0}
        return {"mlm_loss": 1 - self.causal_share, "lm_loss": self.causal_share}

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> HybridModel:
        return HybridModel(self.encoder, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        masked, causal = self._parts(batch)
        weights = {**self._masked.weights(masked), **self._causal.weights(causal)}
        if self.mean == "rows":
            return weights
        return {"hybrid_loss": weights["mlm_loss"] + weights["lm_loss"]}

    def loss(
        self, model: HybridModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns mlm_loss and mlm_accuracy of the masked rows, lm_loss and lm_accuracy of others.

        By a mean of tokens there is the hybrid_loss of both, too. Keys of `batch` are those of the
        records, and `example_weights` [batch].
        """
        masked, causal = self._parts(batch)
        means = self._masked.loss(model, masked, key=key) | self._of_causal(
            model, causal, layers.folded(key, _LEFT_TO_RIGHT)
        )
        if self.mean == "rows":
            return means
        both = jax.tree.map(jnp.add, means["mlm_loss"], means["lm_loss"])
        return means | {"hybrid_loss": both}

    def evaluate(self, model: HybridModel, batch: base.Batch) -> base.Means:
        """Returns mlm_loss, mlm_accuracy, lm_loss and lm_accuracy of all rows."""
        masked = self._masked.evaluate(model, batch)
        return masked | self._of_causal(model, unmasked(batch), None)

    def predict(self, model: HybridModel, batch: base.Batch) -> dict[str, Array]:
        """Returns the "log_likelihood" [batch] of each row's masked tokens together, in nats."""
        return self._masked.predict(model, batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Those of the rows of either kind."""
        rows = round(self.causal_share * batch_size)
        return self._masked.train_flops(
            batch_size - rows, length, predictions
        ) + self._causal.train_flops(rows, length, predictions)

    @property
    def _masked(self) -> pretraining.Pretraining:
        return pretraining.Pretraining(self.encoder, pair_loss="none")

    @property
    def _causal(self) -> next_token.NextToken:
        return next_token.NextToken(self.encoder)

    def _of_causal(
        self, model: HybridModel, batch: base.Batch, key: PRNGKeyArray | None
    ) -> base.Means:
        hidden = model.encoder(batch, key=key, left_to_right=True)
        return self._causal.of_hidden(model, hidden, batch)

    def _parts(self, batch: base.Batch) -> tuple[base.Batch, base.Batch]:
        """Returns the masked rows of a batch, and the left-to-right rows behind them.

        Micro-batches take every n-th row, so the last rows of each are the last rows of all.
        """
        rows = len(batch["input_ids"])
        last = rows - round(self.causal_share * rows)
        masked = {name: values[:last] for name, values in batch.items()}
        return masked, unmasked({name: values[last:] for name, values in batch.items()})


def unmasked(batch: base.Batch) -> base.Batch:
    """Returns the batch with the tokens that were there before masking."""
    ids, _ = replaced_tokens.replaced(batch, batch["masked_lm_ids"])
    return {**batch, "input_ids": ids}


def faults(config: Any) -> Iterator[str]:
    """Yields what of a config does not go together with this objective."""
    options = config.pretraining
    if not 0 < options.causal_share < 1:
        yield (
            f"config.pretraining.causal_share is {options.causal_share}; it must lie between 0 and "
            "1 (GPT-BERT: 1/16): for one kind of rows alone there are the objectives masked_tokens "
            "and next_token"
        )
    if options.hybrid_mean not in MEANS:
        yield (
            f"config.pretraining.hybrid_mean is {options.hybrid_mean!r}; known are "
            f"{', '.join(MEANS)}"
        )
    required = {
        "model.left_to_right": (config.model.left_to_right, False),
        "pretraining.pair_loss": (options.pair_loss, "none"),
    }
    for name, (value, needed) in required.items():
        if value != needed:
            yield (
                f"config.{name} is {value!r}; with config.pretraining.objective='hybrid' it must "
                f"be {needed!r}"
            )


def of_options(sizes: encoder.EncoderConfig, options: Any) -> Hybrid:
    """Returns the task that config.pretraining asks for."""
    return Hybrid(sizes, causal_share=options.causal_share, mean=options.hybrid_mean)
