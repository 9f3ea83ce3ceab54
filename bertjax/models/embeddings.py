"""From the features of a batch to the vectors that the layers work on.

A kind of embeddings is a module, made of a config, that is called with the batch and returns
[batch, length, hidden]. It alone knows which features those are, so what is no text needs nothing
else. The table of kinds is `encoder.EMBEDDINGS`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, visibility
from bertjax.models.fields import EncoderFields


class LearntEmbeddings(nnx.Module):
    """Sum of word, position and segment embeddings, LayerNorm, dropout (section 3, figure 2).

    Without segments, where `type_vocab_size` is 0: `segment_ids` of a batch are not read then, so
    records and texts in pairs are read as those of one segment. DistilBERT has none.

    Where their width is not `hidden_size`, or by `embedding_projection`, a dense layer follows.
    Source of that: ALBERT, Lan et al. 2020, section 3.1; ELECTRA has the same.
    """

    def __init__(self, config: EncoderFields, *, rngs: nnx.Rngs):
        width, dtype = config.embedding_width, jnp.dtype(config.dtype)

        def table(rows: int) -> nnx.Embed:
            init = layers.truncated_normal(config.initializer_range)
            return nnx.Embed(rows, width, embedding_init=init, rngs=rngs)

        self.word = table(config.vocab_size)
        self.position = table(config.max_position_embeddings)
        if config.type_vocab_size:
            self.segment = table(config.type_vocab_size)
        self.norm = layers.LayerNorm(width, epsilon=config.layer_norm_eps, dtype=dtype)
        self.is_projected = config.projects_embeddings
        if self.is_projected:
            self.projection = layers.dense(
                *(width, config.hidden_size),
                stddev=config.initializer_range,
                dtype=dtype,
                gradient_dtype=jnp.dtype(config.gradient_dtype),
                rngs=rngs,
            )
        self.dropout_rate = config.hidden_dropout_prob
        self.type_vocab_size = config.type_vocab_size

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Reads `input_ids`; `segment_ids`, without which all is of segment 0; and positions."""
        summed = self.word(inputs["input_ids"]) + self._positions(inputs)
        if self.type_vocab_size:
            summed = summed + self._segments(inputs)
        embedded = layers.dropout(self.norm(summed), self.dropout_rate, key)
        return self.projection(embedded) if self.is_projected else embedded

    def _segments(self, inputs: layers.Inputs) -> Float[Array, "batch length width"]:
        segment_ids = inputs.get("segment_ids", jnp.zeros_like(inputs["input_ids"]))
        # As a product with one-hot rows: the gradient of a lookup would be a scatter of every token
        # into two rows.
        return jax.nn.one_hot(segment_ids, self.type_vocab_size) @ self.segment.embedding[...]

    def _positions(self, inputs: layers.Inputs) -> Float[Array, "rows length width"]:
        positions = visibility.positions(inputs)
        if positions is not None:  # A position that the table lacks gives NaN.
            return self.position(positions)
        table, length = self.position.embedding[...], inputs["input_ids"].shape[1]
        if length > table.shape[0]:
            raise ValueError(
                f"the input has {length} positions; the model was made for at most "
                f"max_position_embeddings = {table.shape[0]}"
            )
        return table[:length][None]
