"""The models of finetuning: an encoder with a head over sequences, tokens, spans or choices.

As in the released BERT each head is a dropout and one dense layer. Encoder and pooler have the same
parameter names as in pretraining, so weights are exchanged by name.

Unless `bilstm_size` is 0, a bidirectional LSTM with that many units in each direction reads the
encoder's states, and the head reads the LSTM's. Source: Devlin et al. 2019, section 5.1, table 5.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import heads, layers, lstm, parts
from bertjax.models import pooling as pooling_lib
from bertjax.models.encoder import EncoderConfig, make_encoder
from bertjax.options import faults

# The vector of a whole sequence: from the pooler on [CLS], as in the paper, or another pooling.
# "late" is the mean of what the pooler makes of every token, as in EuroBERT.
LATE = "late"
POOLINGS = (*pooling_lib.POOLINGS, LATE)


def reads_pooler(config: EncoderConfig, pooling: str) -> bool:
    """Returns whether a pooler stands before a classifier of sequences with this pooling."""
    return pooling in ("cls", LATE) or config.pooler != "dense"


class _OnEncoder(nnx.Module):
    """An encoder, with a BiLSTM on it unless `bilstm_size` is 0: the states that a head reads.

    A "normed" pooler stands before heads of tokens as well.
    """

    def __init__(self, config: EncoderConfig, bilstm_size: int, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(config, rngs=rngs)
        self.width = config.hidden_size
        self.has_lstm = bilstm_size > 0
        if self.has_lstm:
            self.lstm = lstm.BidirectionalLstm(config.hidden_size, bilstm_size, rngs=rngs)
            self.width = 2 * bilstm_size

    def states(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None
    ) -> Float[Array, "batch length width"]:
        """Returns the states of every token; a BiLSTM's are float32, and 0 at padding."""
        hidden = self.encoder(inputs, key=key)
        if not self.has_lstm:
            return hidden
        with jax.named_scope("lstm"):
            return self.lstm(hidden.astype(jnp.float32), inputs["input_mask"] != 0)

    def make_pooler(self, config: EncoderConfig, *, is_needed: bool, rngs: nnx.Rngs) -> None:
        """Makes the pooler, if the head needs one or the config's stands before every head."""
        is_there = is_needed or config.pooler == "normed"
        self.pooler = heads.Pooler(config, rngs=rngs) if is_there and not self.has_lstm else None

    def pooled(self, states: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Returns the pooler's output, or without a pooler the states."""
        return states if self.pooler is None else self.pooler(states)


class SequenceClassifier(_OnEncoder):
    """Logits for a sequence, or a pair of sequences, from the pooled [CLS].

    With `num_labels` 1 the one output is a regression's. `reads_pooler` says which `pooling` has a
    pooler. With a BiLSTM there is none: "cls" and "last" are `ends`, and "late" is "mean".
    Source: google-research/bert, run_classifier.py, create_model.

    Raises:
      ValueError: if `pooling` is not one of POOLINGS.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_labels: int,
        pooling: str = "cls",
        bilstm_size: int = 0,
        rngs: nnx.Rngs,
    ):
        if pooling not in POOLINGS:
            raise faults.unknown("pooling", pooling, POOLINGS)
        super().__init__(config, bilstm_size, rngs=rngs)
        self.make_pooler(config, is_needed=reads_pooler(config, pooling), rngs=rngs)
        self.classifier = parts.classifier(config, self.width, num_labels, rngs=rngs)
        self.pooling = pooling
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch classes"]:
        """Returns float32 logits."""
        encoder_key, head_key = layers.split(key, 2)
        states, mask = self.states(inputs, key=encoder_key), inputs["input_mask"]
        if self.has_lstm and self.pooling in ("cls", "last"):
            pooled = ends(states, mask)
        elif self.pooling == "cls":
            pooled = self.pooled(states[:, 0])
        elif self.pooling == LATE:
            # As the mean of every token's logits, because the last layer is affine.
            pooled = pooling_lib.pool(self.pooled(states), mask, "mean")
        else:
            pooled = self.pooled(pooling_lib.pool(states, mask, self.pooling))
        pooled = layers.dropout(pooled, self.dropout_rate, head_key)
        return self.classifier(pooled.astype(jnp.float32))


class TokenClassifier(_OnEncoder):
    """Logits for every token: parts of speech, named entities.

    Source: Devlin et al. 2019, section 5.3.
    """

    def __init__(
        self, config: EncoderConfig, *, num_labels: int, bilstm_size: int = 0, rngs: nnx.Rngs
    ):
        super().__init__(config, bilstm_size, rngs=rngs)
        self.make_pooler(config, is_needed=False, rngs=rngs)
        self.classifier = parts.classifier(config, self.width, num_labels, rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length classes"]:
        """Returns float32 logits for all positions, including padding."""
        encoder_key, head_key = layers.split(key, 2)
        states = self.pooled(self.states(inputs, key=encoder_key))
        states = layers.dropout(states, self.dropout_rate, head_key)
        return self.classifier(states.astype(jnp.float32))


class SpanClassifier(_OnEncoder):
    """Two logits for every token: the answer starts here, the answer ends here.

    The head has no dropout before it. Source: Devlin et al. 2019, section 4.2;
    google-research/bert, run_squad.py, create_model.
    """

    def __init__(self, config: EncoderConfig, *, bilstm_size: int = 0, rngs: nnx.Rngs):
        super().__init__(config, bilstm_size, rngs=rngs)
        self.make_pooler(config, is_needed=False, rngs=rngs)
        self.span_head = parts.classifier(config, self.width, 2, rngs=rngs)

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"]]:
        """Returns the float32 logits of start and end for all positions, including padding."""
        states = self.pooled(self.states(inputs, key=key))
        logits = self.span_head(states.astype(jnp.float32))
        return logits[:, :, 0], logits[:, :, 1]


class MultipleChoice(_OnEncoder):
    """A logit for each of several sequences, of which one is right, from its pooled [CLS].

    With a BiLSTM there is no pooler, and the logit is computed from the `ends`.
    Source: Devlin et al. 2019, section 4.4 (SWAG).
    """

    def __init__(self, config: EncoderConfig, *, bilstm_size: int = 0, rngs: nnx.Rngs):
        super().__init__(config, bilstm_size, rngs=rngs)
        self.make_pooler(config, is_needed=True, rngs=rngs)
        self.classifier = parts.classifier(config, self.width, 1, rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch choices"]:
        """Returns float32 logits; inputs are [batch, choices, length]."""
        batch, choices, _ = inputs["input_mask"].shape
        of_choices = {
            name: x.reshape(batch * choices, *x.shape[2:])
            for name, x in inputs.items()
            if x.ndim > 2 and x.shape[:2] == (batch, choices)
        }
        encoder_key, head_key = layers.split(key, 2)
        states = self.states(of_choices, key=encoder_key)
        is_read = ends(states, of_choices["input_mask"]) if self.has_lstm else states[:, 0]
        pooled = layers.dropout(self.pooled(is_read), self.dropout_rate, head_key)
        return self.classifier(pooled.astype(jnp.float32)).reshape(batch, choices)


def ends(
    states: Float[Array, "batch length width"], input_mask: Int[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """Returns the final state of each direction of a BiLSTM: at the last token, and at [CLS].

    Only there has a direction read the whole row.
    """
    forward, backward = jnp.split(states, 2, axis=-1)
    return jnp.concatenate([pooling_lib.pool(forward, input_mask, "last"), backward[:, 0]], axis=-1)
