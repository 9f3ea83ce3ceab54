"""The layers of an encoder: attention and a feed-forward, with residuals and LayerNorm.

A kind of layer is a module, made of a config, that is called with hidden states and with what may
see what. The table of kinds is `encoder.LAYERS`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import attention, feed_forwards, layers
from bertjax.models.fields import EncoderFields
from bertjax.models.visibility import Visibility


class PostNormLayer(nnx.Module):
    """LayerNorm(x + attention(x)), then LayerNorm(x + feed-forward(x)): Vaswani et al. 2017."""

    def __init__(self, config: EncoderFields, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        self.attention = attention.SelfAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout_rate=config.attention_probs_dropout_prob,
            stddev=config.initializer_range,
            initializer=config.initializer,
            dtype=dtype,
            gradient_dtype=jnp.dtype(config.gradient_dtype),
            rngs=rngs,
            implementation=config.attention,
            left_to_right=config.left_to_right,
        )
        made = feed_forwards.FEED_FORWARDS[config.feed_forward].dense_layers(config, rngs)
        for name, dense in made.items():
            setattr(self, name, dense)
        norm = {"epsilon": config.layer_norm_eps, "dtype": dtype}
        self.attention_norm = layers.LayerNorm(config.hidden_size, **norm)
        self.output_norm = layers.LayerNorm(config.hidden_size, **norm)
        self.feed_forward = config.feed_forward
        self.hidden_act = config.hidden_act
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        attention_key, projection_key, output_key = layers.split(key, 3)
        attended = self.attention(hidden, visible, key=attention_key)
        attended = layers.dropout(attended, self.dropout_rate, projection_key)
        hidden = self.attention_norm(hidden + attended)
        with jax.named_scope("feed_forward"):
            output = feed_forwards.FEED_FORWARDS[self.feed_forward].apply(self, hidden)
        output = layers.dropout(output, self.dropout_rate, output_key)
        return self.output_norm(hidden + output)
