"""Masked tokens in rows that see all, and in rows whose second segment sees its left alone.

In such a prefix row the first segment sees itself, a position of the second sees the first segment,
itself and what of the second is on its left.
Source: Dong et al. 2019, "Unified Language Model Pre-training", section 2.3: sequence-to-sequence.
"""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder
from bertjax.tasks import base, pretraining


@dataclasses.dataclass(frozen=True)
class PrefixRows(pretraining.Pretraining):
    """Predict masked tokens, in the last rows of a batch with a prefix alone in sight.

    `prefix_share` is the share of these rows. Each kind's mean counts with its share, as the
    authors' batches of one kind do. A pair loss is that of the other rows: the [CLS] of a prefix
    row does not see the second segment. Rows are evaluated as both.
    """

    prefix_share: float = 1 / 4
    readings: ClassVar[tuple[str, ...]] = ("whole", "order")

    @property
    def row_unit(self) -> int:
        """The smallest number of rows whose share is a whole number."""
        return fractions.Fraction(self.prefix_share).limit_denominator(1000).denominator

    @property
    def objectives(self) -> Mapping[str, float]:
        whole = {name: 1 - self.prefix_share for name in super().objectives}
        return whole | {"prefix_loss": self.prefix_share}

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        last = self._first_prefix(len(batch["input_ids"]))
        counted = {"prefix_loss": batch["masked_lm_weights"][last:].sum()}
        return super().weights(_rows(batch, slice(last))) | counted

    def loss(
        self, model: pretraining.PretrainingModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns mlm_loss, mlm_accuracy and the pair loss's two, prefix_loss and prefix_accuracy.

        The last two are of the masked tokens of prefix rows. Keys of `batch` are those of the
        records, and `example_weights` [batch].
        """
        rows = len(batch["input_ids"])
        last = self._first_prefix(rows)
        is_prefix = jnp.arange(rows)[:, None] >= last
        hidden = model.encoder({**batch, "order": jnp.where(is_prefix, order(batch), 0)}, key=key)
        whole = self.of_hidden(model, hidden[:last], _rows(batch, slice(last)))
        return whole | _of_prefix(model, hidden[last:], _rows(batch, slice(last, None)))

    def evaluate(self, model: pretraining.PretrainingModel, batch: base.Batch) -> base.Means:
        """Returns the means of `loss`, of all rows in both kinds."""
        prefix = model.encoder({**batch, "order": order(batch)})
        return super().loss(model, batch, key=None) | _of_prefix(model, prefix, batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Those of masked tokens; prefix rows have no pair loss."""
        prefix = round(self.prefix_share * batch_size)
        alone = pretraining.Pretraining(self.encoder, pair_loss="none")
        return super().train_flops(batch_size - prefix, length, predictions) + alone.train_flops(
            prefix, length, predictions
        )

    def _first_prefix(self, rows: int) -> int:
        """Returns the number of the first prefix row; they are the last rows of a batch.

        Micro-batches take every n-th row, so the last rows of each are the last rows of all.
        """
        return rows - round(self.prefix_share * rows)


def order(batch: base.Batch) -> Int[Array, "batch length"]:
    """Returns the `order` of prefix rows: 0 in a first segment, rising in the second."""
    places = jnp.arange(1, batch["segment_ids"].shape[1] + 1, dtype=jnp.int32)
    return jnp.where(batch["segment_ids"] == 0, 0, places)


def _rows(batch: base.Batch, which: slice) -> base.Batch:
    return {name: values[which] for name, values in batch.items()}


def _of_prefix(
    model: pretraining.PretrainingModel,
    hidden: Float[Array, "batch length hidden"],
    batch: base.Batch,
) -> base.Means:
    logits = model.mlm_logits(hidden, batch["masked_lm_positions"])
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    return {
        "prefix_loss": base.weighted(base.cross_entropy(logits, labels), weights),
        "prefix_accuracy": base.accuracy(logits, labels, weights),
    }


def of_options(sizes: encoder.EncoderConfig, options: Any) -> PrefixRows:
    """Returns the task that config.pretraining asks for."""
    return PrefixRows(sizes, pair_loss=options.pair_loss, prefix_share=options.prefix_share)


def faults(config: Any) -> Iterator[str]:
    """Yields what of a config does not go together with this objective."""
    share = config.pretraining.prefix_share
    if not 0 < share < 1:
        yield (
            f"config.pretraining.prefix_share is {share}; it must lie between 0 and 1 (UniLM: 1/3)"
        )
    for name, needed in (("window", 0), ("left_to_right", False)):
        if (value := config.model[name]) != needed:
            yield (
                f"config.model.{name} is {value!r}; with config.pretraining.objective="
                f"'prefix_rows' it must be {needed!r}: each row says what its positions see"
            )
