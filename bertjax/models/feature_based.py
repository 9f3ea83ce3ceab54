"""Feature-based use of a frozen encoder: a bidirectional LSTM reads its last layers.

It is the paper's alternative to finetuning; all other heads are in `classification`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import containers, layers, lstm, parts
from bertjax.models.encoder import EncoderConfig, make_encoder

# Source: Devlin et al. 2019, section 5.3 and table 7. The paper does not say whether the 768 are
# for one direction or for both; here each direction has 768.
NUM_FEATURE_LAYERS = 4
NUM_LSTM_LAYERS = 2
LSTM_SIZE = 768


class FeatureBasedTagger(nnx.Module):
    """Logits for every token from the concatenated last layers of a frozen encoder.

    The encoder has no dropout and gets no gradient. If it has fewer than NUM_FEATURE_LAYERS layers,
    all are read. Source: Devlin et al. 2019, section 5.3.
    """

    def __init__(
        self, config: EncoderConfig, *, num_labels: int, lstm_size: int = LSTM_SIZE, rngs: nnx.Rngs
    ):
        self.encoder = make_encoder(config, rngs=rngs)
        self.num_feature_layers = min(NUM_FEATURE_LAYERS, config.num_hidden_layers)
        sizes = [self.num_feature_layers * config.hidden_size]
        sizes += [2 * lstm_size] * (NUM_LSTM_LAYERS - 1)
        self.lstm = containers.List(
            [lstm.BidirectionalLstm(size, lstm_size, rngs=rngs) for size in sizes]
        )
        self.classifier = parts.classifier(config, 2 * lstm_size, num_labels, rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length classes"]:
        """Returns float32 logits for all positions; `key` is for the dropout before each layer."""
        states = self.encoder.hidden_states(inputs, key=None)
        features = jnp.concatenate(states[-self.num_feature_layers :], axis=-1)
        outputs = jax.lax.stop_gradient(features).astype(jnp.float32)
        for index, layer in enumerate(self.lstm):
            outputs = layer(self._drop(outputs, key, index), inputs["input_mask"] != 0)
        return self.classifier(self._drop(outputs, key, NUM_LSTM_LAYERS))

    def _drop(
        self, inputs: Float[Array, "batch length in"], key: PRNGKeyArray | None, index: int
    ) -> Float[Array, "batch length in"]:
        return layers.dropout(inputs, self.dropout_rate, layers.folded(key, index))
