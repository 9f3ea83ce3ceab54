"""Feature-based use of an encoder: frozen, its last layers read by a bidirectional LSTM.

The alternative to finetuning that the paper compares with; all else that stands on an encoder is in
`classification`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bertjax.models import layers
from bertjax.models.encoder import EncoderConfig, make_encoder

# Source: Devlin et al. 2019, section 5.3 and table 7. The paper does not say whether the 768 are
# those of one direction or of both together; here each direction has them.
NUM_FEATURE_LAYERS = 4
NUM_LSTM_LAYERS = 2
LSTM_SIZE = 768


class FeatureBasedTagger(nnx.Module):
    """A row of logits for every token, from the concatenation of a frozen encoder's last layers.

    The encoder has no dropout and gets no gradient. An encoder of fewer layers than
    NUM_FEATURE_LAYERS gives all that it has. Source: Devlin et al. 2019, section 5.3.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_labels: int,
        lstm_size: int = LSTM_SIZE,
        rngs: nnx.Rngs,
    ):
        self.encoder = make_encoder(config, rngs=rngs)
        self.num_feature_layers = min(NUM_FEATURE_LAYERS, config.num_hidden_layers)
        sizes = [self.num_feature_layers * config.hidden_size]
        sizes += [2 * lstm_size] * (NUM_LSTM_LAYERS - 1)
        self.lstm = nnx.List([BidirectionalLstm(size, lstm_size, rngs=rngs) for size in sizes])
        self.classifier = layers.dense(
            2 * lstm_size,
            num_labels,
            stddev=config.initializer_range,
            initializer=config.initializer,
            dtype=jnp.dtype("float32"),
            rngs=rngs,
        )
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length classes"]:
        """Returns float32 logits, at padding too; `key` is for the dropout before each layer."""
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


class BidirectionalLstm(nnx.Module):
    """Two LSTMs, one from the first to the last real position, one back; outputs concatenated."""

    def __init__(self, in_size: int, lstm_size: int, *, rngs: nnx.Rngs):
        self.forward = Lstm(in_size, lstm_size, rngs=rngs)
        self.backward = Lstm(in_size, lstm_size, rngs=rngs)

    def __call__(
        self, inputs: Float[Array, "batch length in"], is_real: Bool[Array, "batch length"]
    ) -> Float[Array, "batch length out"]:
        both = (self.forward(inputs, is_real), self.backward(inputs, is_real, reverse=True))
        return jnp.concatenate(both, axis=-1)


class Lstm(nnx.Module):
    """A long short-term memory without peepholes; gates in the order input, forget, cell, output.

    Source: Gers et al. 2000. One is added to the forget gate (Jozefowicz et al. 2015, section 2.2),
    so that a new network remembers.
    """

    def __init__(self, in_size: int, lstm_size: int, *, rngs: nnx.Rngs):
        gates = 4 * lstm_size
        self.input = nnx.Linear(
            in_size, gates, kernel_init=nnx.initializers.glorot_uniform(), rngs=rngs
        )
        self.recurrent = nnx.Linear(
            lstm_size, gates, use_bias=False, kernel_init=nnx.initializers.orthogonal(), rngs=rngs
        )
        self.lstm_size = lstm_size

    def __call__(
        self,
        inputs: Float[Array, "batch length in"],
        is_real: Bool[Array, "batch length"],
        *,
        reverse: bool = False,
    ) -> Float[Array, "batch length out"]:
        """Returns the outputs, 0 at padding.

        The state passes over padding unchanged, so `reverse` begins at each row's last real
        position whatever its length.
        """
        projected = self.input(inputs)
        start = jnp.zeros((inputs.shape[0], self.lstm_size), projected.dtype)

        def step(carry: tuple[Array, Array], now: tuple[Array, Array]):
            hidden, cell = carry
            gates, here = now
            new_hidden, new_cell = _gated(gates + self.recurrent(hidden), cell)
            carry = jnp.where(here, new_hidden, hidden), jnp.where(here, new_cell, cell)
            return carry, jnp.where(here, new_hidden, 0.0)

        by_time = jnp.swapaxes(projected, 0, 1), jnp.swapaxes(is_real, 0, 1)[:, :, None]
        _, outputs = jax.lax.scan(step, (start, start), by_time, reverse=reverse)
        return jnp.swapaxes(outputs, 0, 1)


def _gated(
    gates: Float[Array, "batch gates"], cell: Float[Array, "batch out"]
) -> tuple[Float[Array, "batch out"], Float[Array, "batch out"]]:
    """Returns the next output and cell."""
    write, forget, candidate, read = jnp.split(gates, 4, axis=-1)
    kept = jax.nn.sigmoid(forget + 1.0) * cell
    cell = kept + jax.nn.sigmoid(write) * jnp.tanh(candidate)
    return jax.nn.sigmoid(read) * jnp.tanh(cell), cell
