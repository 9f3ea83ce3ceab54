"""Multi-head self-attention with dropout on the attention probabilities.

Our own, because neither `jax.nn.dot_product_attention` (no dropout) nor flax's attention (one
dropout mask shared over batch and heads, softmax in the compute dtype) is what BERT does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bertjax.models import layers


class SelfAttention(nnx.Module):
    """Attention of every position to every real position, before residual and LayerNorm.

    Source: Vaswani et al. 2017, section 3.2; Devlin et al. 2019, section 3.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout_rate: float,
        stddev: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate

        def dense() -> nnx.Linear:
            return layers.dense(hidden_size, hidden_size, stddev=stddev, dtype=dtype, rngs=rngs)

        self.query, self.key, self.value, self.output = dense(), dense(), dense(), dense()

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        is_real: Bool[Array, "batch length"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        batch, length, _ = hidden.shape
        by_head = (batch, length, self.num_heads, -1)
        query = self.query(hidden).reshape(by_head)
        context = attend(
            query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype),
            self.key(hidden).reshape(by_head),
            self.value(hidden).reshape(by_head),
            is_real,
            dropout_rate=self.dropout_rate,
            key=key,
        )
        return self.output(context.reshape(batch, length, -1))


def attend(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    is_real: Bool[Array, "batch length"],
    *,
    dropout_rate: float,
    key: PRNGKeyArray | None,
) -> Float[Array, "batch length heads head"]:
    """Returns the average of `values` over real positions, weighted by softmax in float32.

    `query` is scaled already. Padding keys get a weight of exactly zero (the released code adds
    -10000 to their scores, which in float32 comes to the same).
    """
    scores = jnp.einsum("BLHK,BSHK->BHLS", query, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(is_real[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    probabilities = layers.dropout(probabilities, dropout_rate, key)
    return jnp.einsum("BHLS,BSHK->BLHK", probabilities, values)
