"""Pretraining of an encoder with a decoder, which predicts the tokens hidden from the encoder.

MASS predicts a fragment that the encoder does not see, BART the whole row; the rows are made by
`data.sequence_rows`. The model is `models.decoder.EncoderDecoder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.data import sequence_rows
from bertjax.models import decoder, encoder, encoder_config
from bertjax.tasks import base, config_needs


@dataclasses.dataclass(frozen=True)
class MaskedSpansToSequence:
    """Predict each token of a target from those on its left and from the encoder's states.

    The decoder has the encoder's sizes and its embeddings. The loss is the mean cross-entropy over
    all tokens of the targets. Source: MASS, Song et al. 2019, section 3.1; BART, Lewis et al. 2020,
    section 2.2. `rows` is a key of `data.sequence_rows.SEQUENCE_ROWS`.
    """

    encoder: encoder.EncoderConfig
    rows: str = "mass"

    @property
    def objectives(self) -> Mapping[str, float]:
        return {"lm_loss": 1.0}

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> decoder.EncoderDecoder:
        return decoder.EncoderDecoder(self.encoder, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {"lm_loss": _weights(batch).sum()}

    def loss(
        self, model: decoder.EncoderDecoder, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns lm_loss and lm_accuracy over the tokens of the targets.

        Keys of `batch` are the keys of an `EncoderDecoder`, `target_labels` [batch, length], the
        tokens to predict at each of `target_ids`, and `example_weights` [batch].
        """
        logits, labels, weights = model(batch, key=key), batch["target_labels"], _weights(batch)
        return {
            "lm_loss": base.weighted(base.cross_entropy(logits, labels), weights),
            "lm_accuracy": base.accuracy(logits, labels, weights),
        }

    def evaluate(self, model: decoder.EncoderDecoder, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: decoder.EncoderDecoder, batch: base.Batch) -> dict[str, Array]:
        del model, batch
        return {}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: the encoder, the decoder, the head at every target."""
        del predictions
        target = sequence_rows.SEQUENCE_ROWS[self.rows].target_length(length)
        forward = self.encoder.forward_flops(length) + self.encoder.head_flops(target)
        forward += decoder.forward_flops(self.encoder, target, length)
        return 3.0 * batch_size * forward


def _weights(batch: base.Batch) -> Float[Array, "batch length"]:
    return (batch["target_mask"] != 0).astype(jnp.float32) * batch["example_weights"][:, None]


def of_options(sizes: encoder.EncoderConfig, options: Any) -> MaskedSpansToSequence:
    """Returns the task that config.pretraining asks for."""
    return MaskedSpansToSequence(sizes, rows=options.sequence_rows)


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for each option that does not fit this objective."""
    layers = config.model.num_hidden_layers
    of_tokens = encoder_config.OF_TOKENS
    needed: config_needs.Needs = {
        "pretraining.masking": (("dynamic",), "rows are made as they are read"),
        "pretraining.pair_loss": (("none",), "it learns nothing of pairs"),
        "model.embeddings": (of_tokens, "it predicts tokens"),
        "model.left_to_right": ((False,), "the decoder alone reads so"),
        "model.language_embeddings": ((0,), "a target has no language"),
        "model.inner_group_num": ((1,), "a decoder applies a layer once"),
        "model.num_hidden_groups": ((0, layers), "a decoder applies a layer once"),
    }
    if config.data.eval_dir:
        best = {"checkpoint.best_metric": (("lm_loss",), "its loss on held-out records")}
        needed = {**needed, **best}
    yield from config_needs.faults(config, "masked_spans_to_sequence", needed)
