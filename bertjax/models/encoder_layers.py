"""The layers of an encoder: attention and a feed-forward, with residuals and normalization.

A kind of layer is a module, made from a config and the layer's number, that is called with hidden
states and their `Visibility`. The table of kinds is `encoder.LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import attention, feed_forwards, layers, parts
from bertjax.models.encoder_config import EncoderConfig
from bertjax.models.visibility import Visibility


def attention_of(
    config: EncoderConfig, *, rngs: nnx.Rngs, **restrictions: Any
) -> attention.SelfAttention:
    """Returns the attention of a layer; `restrictions` are its window, order and positions."""
    return attention.SelfAttention(
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
        use_bias=config.use_bias,
        num_terms=3 if config.relative == "disentangled" else 1,
        num_key_value_heads=config.num_key_value_heads,
        **restrictions,
    )


Part = Callable[[Array], Array]  # from states to states: attention or a feed-forward


class _Layer(nnx.Module):
    """The parts of both layers: attention, the dense layers of the feed-forward, dropout."""

    attention_norm: Any
    output_norm: Any

    def __init__(self, config: EncoderConfig, *, number: int, rngs: nnx.Rngs):
        self.attention = attention_of(
            config,
            rngs=rngs,
            window=config.window_of(number),
            left_to_right=config.left_to_right,
            rotary_base=config.rotary_base_of(number),
        )
        dense_layers = feed_forwards.FEED_FORWARDS[config.feed_forward].dense_layers(config, rngs)
        for name, dense in dense_layers.items():
            setattr(self, name, dense)
        self.feed_forward = config.feed_forward
        self.hidden_act = config.hidden_act
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
        terms_of: attention.TermsOf | None = None,
        **asked: Any,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the layer's output; `asked` are `states` and `at` of `SelfAttention`."""
        keys = layers.split(key, 3)

        def attend(x: Array) -> Array:
            return self.attention(x, visible, key=keys[0], terms_of=terms_of, **asked)

        hidden = self.residual(hidden, attend, self.attention_norm, keys[1])
        return self.residual(hidden, self.feed, self.output_norm, keys[2])

    def residual(
        self, hidden: Array, part: Part, norm: nnx.Module | None, key: PRNGKeyArray | None
    ) -> Array:
        """Returns `hidden` plus the output of a part of the layer; `norm` may be None."""
        raise NotImplementedError

    def feed(self, hidden: Array) -> Array:
        """Returns the output of the feed-forward, before residual and norm."""
        with jax.named_scope("feed_forward"):
            return feed_forwards.FEED_FORWARDS[self.feed_forward].apply(self, hidden)

    def attention_weights(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        terms_of: attention.TermsOf | None = None,
    ) -> Float[Array, "batch heads length length"]:
        """Returns `SelfAttention.weights` of the layer's input."""
        return self.attention.weights(self._attention_input(hidden), visible, terms_of)

    def _attention_input(self, hidden: Array) -> Array:
        return hidden


class PostNormLayer(_Layer):
    """norm(x + attention(x)), then norm(x + feed-forward(x)): Vaswani et al. 2017."""

    def __init__(self, config: EncoderConfig, *, number: int = 0, rngs: nnx.Rngs):
        super().__init__(config, number=number, rngs=rngs)
        self.attention_norm = parts.norm(config, config.hidden_size)
        self.output_norm = parts.norm(config, config.hidden_size)

    def residual(self, hidden: Array, part: Part, norm: Any, key: PRNGKeyArray | None) -> Array:
        return norm(hidden + layers.dropout(part(hidden), self.dropout_rate, key))


class PreNormLayer(_Layer):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Layer 0 has no norm before its attention if the embeddings end in one. The output is not
    normalized; the encoder ends in a norm. Source: Xiong et al. 2020, section 3.3; Warner
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
        is_normalized = number == 0 and has_normalized_input
        self.attention_norm = None if is_normalized else parts.norm(config, config.hidden_size)
        self.output_norm = parts.norm(config, config.hidden_size)

    def residual(self, hidden: Array, part: Part, norm: Any, key: PRNGKeyArray | None) -> Array:
        normalized = hidden if norm is None else norm(hidden)
        return hidden + layers.dropout(part(normalized), self.dropout_rate, key)

    def _attention_input(self, hidden: Array) -> Array:
        return hidden if self.attention_norm is None else self.attention_norm(hidden)
