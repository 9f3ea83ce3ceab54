"""The layers of an encoder: attention and a feed-forward, with residuals and normalization.

A kind of layer is a module, made of a config and of its number, that is called with hidden states
and with what may see what. The table of kinds is `encoder.LAYERS`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import attention, feed_forwards, layers, parts
from bertjax.models.encoder_config import EncoderConfig
from bertjax.models.visibility import Visibility


class _Layer(nnx.Module):
    """The parts of both layers: attention, the dense layers of the feed-forward, dropout."""

    def __init__(self, config: EncoderConfig, *, number: int, rngs: nnx.Rngs):
        self.attention = attention.SelfAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout_rate=config.attention_probs_dropout_prob,
            stddev=config.initializer_range,
            output_stddev=config.output_initializer_range,
            initializer=config.initializer,
            dtype=jnp.dtype(config.dtype),
            gradient_dtype=jnp.dtype(config.gradient_dtype),
            rngs=rngs,
            implementation=config.attention,
            window=config.window_of(number),
            left_to_right=config.left_to_right,
            rotary_base=config.rotary_base_of(number),
            use_bias=config.use_bias,
        )
        dense_layers = feed_forwards.FEED_FORWARDS[config.feed_forward].dense_layers(config, rngs)
        for name, dense in dense_layers.items():
            setattr(self, name, dense)
        self.feed_forward = config.feed_forward
        self.hidden_act = config.hidden_act
        self.dropout_rate = config.hidden_dropout_prob

    def attention_weights(
        self, hidden: Float[Array, "batch length hidden"], visible: Visibility
    ) -> Float[Array, "batch heads length length"]:
        """Returns `SelfAttention.weights` of the layer's input."""
        return self.attention.weights(self._attention_input(hidden), visible)

    def _attention_input(self, hidden: Array) -> Array:
        return hidden

    def _attended(
        self, hidden: Array, visible: Visibility, keys: list[PRNGKeyArray | None]
    ) -> Array:
        attended = self.attention(hidden, visible, key=keys[0])
        return layers.dropout(attended, self.dropout_rate, keys[1])

    def _fed(self, hidden: Array, keys: list[PRNGKeyArray | None]) -> Array:
        with jax.named_scope("feed_forward"):
            output = feed_forwards.FEED_FORWARDS[self.feed_forward].apply(self, hidden)
        return layers.dropout(output, self.dropout_rate, keys[2])


class PostNormLayer(_Layer):
    """norm(x + attention(x)), then norm(x + feed-forward(x)): Vaswani et al. 2017."""

    def __init__(self, config: EncoderConfig, *, number: int = 0, rngs: nnx.Rngs):
        super().__init__(config, number=number, rngs=rngs)
        self.attention_norm = parts.norm(config, config.hidden_size)
        self.output_norm = parts.norm(config, config.hidden_size)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        keys = layers.split(key, 3)
        hidden = self.attention_norm(hidden + self._attended(hidden, visible, keys))
        return self.output_norm(hidden + self._fed(hidden, keys))


class PreNormLayer(_Layer):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Layer 0 has no norm before its attention where it reads embeddings that end in one. The output
    is not normalized; the encoder ends in a norm. Source: Xiong et al. 2020, section 3.3; Warner
    et al. 2024 (ModernBERT), section 2.1.1.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        number: int = 0,
        rngs: nnx.Rngs,
        has_normalized_input: bool = True,
    ):
        super().__init__(config, number=number, rngs=rngs)
        self.is_normalized = number == 0 and has_normalized_input
        if not self.is_normalized:
            self.attention_norm = parts.norm(config, config.hidden_size)
        self.output_norm = parts.norm(config, config.hidden_size)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        keys = layers.split(key, 3)
        hidden = hidden + self._attended(self._attention_input(hidden), visible, keys)
        return hidden + self._fed(self.output_norm(hidden), keys)

    def _attention_input(self, hidden: Array) -> Array:
        return hidden if self.is_normalized else self.attention_norm(hidden)
