"""The models of finetuning: the encoder with a head over sequences, tokens, spans or choices.

As in the released BERT each is a dropout and one dense layer. The parameters of the encoder and the
pooler have the names they have in pretraining, so weights go from one to the other by name.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import heads, layers
from bertjax.models.encoder import EncoderConfig, make_encoder

# What stands for a whole sequence: the pooler on [CLS], as in the paper, or the mean or the largest
# value of the last layer over all real positions, [CLS] and [SEP] among them; or the last real
# position, which alone sees all where attention is to the left.
POOLINGS = ("cls", "mean", "max", "last")


class SequenceClassifier(nnx.Module):
    """One row of logits a sequence, or of sequences a pair: from the pooled [CLS].

    With `num_labels` 1 the number is a regression's. A `pooling` other than "cls" has no pooler.
    Source: google-research/bert, run_classifier.py, create_model.

    Raises:
      ValueError: if `pooling` is not one of POOLINGS.
    """

    def __init__(
        self, config: EncoderConfig, *, num_labels: int, pooling: str = "cls", rngs: nnx.Rngs
    ):
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; known are {', '.join(POOLINGS)}")
        self.encoder = make_encoder(config, rngs=rngs)
        if pooling == "cls":
            self.pooler = heads.Pooler(config, rngs=rngs)
        self.classifier = _dense(config, num_labels, rngs)
        self.pooling = pooling
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch classes"]:
        """Returns float32 logits."""
        encoder_key, head_key = layers.split(key, 2)
        hidden = self.encoder(inputs, key=encoder_key)
        if self.pooling == "cls":
            pooled = self.pooler(hidden)
        else:
            pooled = pool(hidden, inputs["input_mask"], self.pooling)
        pooled = layers.dropout(pooled, self.dropout_rate, head_key)
        return self.classifier(pooled.astype(jnp.float32))


class TokenClassifier(nnx.Module):
    """A row of logits for every token: part of speech, named entities.

    Source: Devlin et al. 2019, section 5.3.
    """

    def __init__(self, config: EncoderConfig, *, num_labels: int, rngs: nnx.Rngs):
        self.encoder = make_encoder(config, rngs=rngs)
        self.classifier = _dense(config, num_labels, rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length classes"]:
        """Returns float32 logits, at padding too."""
        encoder_key, head_key = layers.split(key, 2)
        hidden = self.encoder(inputs, key=encoder_key)
        hidden = layers.dropout(hidden, self.dropout_rate, head_key)
        return self.classifier(hidden.astype(jnp.float32))


class SpanClassifier(nnx.Module):
    """Two logits for every token: the answer starts here, the answer ends here.

    There is no dropout before the head. Source: Devlin et al. 2019, section 4.2;
    google-research/bert, run_squad.py, create_model.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(config, rngs=rngs)
        self.span_head = _dense(config, 2, rngs)

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"]]:
        """Returns the float32 logits of the start and of the end, at padding too."""
        hidden = self.encoder(inputs, key=key)
        logits = self.span_head(hidden.astype(jnp.float32))
        return logits[:, :, 0], logits[:, :, 1]


class MultipleChoice(nnx.Module):
    """A logit for each of some sequences, of which one is right: from its pooled [CLS].

    Source: Devlin et al. 2019, section 4.4 (SWAG).
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(config, rngs=rngs)
        self.pooler = heads.Pooler(config, rngs=rngs)
        self.classifier = _dense(config, 1, rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch choices"]:
        """Returns float32 logits, of inputs [batch, choices, length]."""
        batch, choices, _ = inputs["input_mask"].shape
        of_choices = {
            name: x.reshape(batch * choices, *x.shape[2:])
            for name, x in inputs.items()
            if x.ndim > 2 and x.shape[:2] == (batch, choices)
        }
        encoder_key, head_key = layers.split(key, 2)
        hidden = self.encoder(of_choices, key=encoder_key)
        pooled = layers.dropout(self.pooler(hidden), self.dropout_rate, head_key)
        return self.classifier(pooled.astype(jnp.float32)).reshape(batch, choices)


def pool(
    hidden: Float[Array, "batch length hidden"],
    input_mask: Int[Array, "batch length"],
    pooling: str,
) -> Float[Array, "batch hidden"]:
    """Returns the "mean" or "max" over real positions or the "last", in float32; 0 without any."""
    hidden = hidden.astype(jnp.float32)
    is_real = (input_mask != 0)[:, :, None]
    if pooling == "mean":
        count = jnp.maximum(is_real.sum(axis=1), 1)
        return jnp.where(is_real, hidden, 0.0).sum(axis=1) / count
    if pooling == "last":
        places = jnp.arange(hidden.shape[1])[None]
        is_last = places == jnp.where(is_real[:, :, 0], places, -1).max(axis=1, keepdims=True)
        return jnp.where(is_last[:, :, None], hidden, 0.0).sum(axis=1)
    highest = jnp.where(is_real, hidden, jnp.finfo(jnp.float32).min).max(axis=1)
    return jnp.where(is_real.any(axis=1), highest, 0.0)


def _dense(config: EncoderConfig, num_labels: int, rngs: nnx.Rngs) -> nnx.Linear:
    return layers.dense(
        config.hidden_size,
        num_labels,
        stddev=config.initializer_range,
        initializer=config.initializer,
        dtype=jnp.dtype("float32"),
        rngs=rngs,
    )
