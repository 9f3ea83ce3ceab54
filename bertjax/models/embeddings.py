"""Embeddings: from the features of a batch to the input of the first layer.

A kind of embeddings is a module, made from a config, that maps a batch to [batch, length, hidden].
Nothing else knows which features it reads, so inputs may be other than text. The table of kinds is
`encoder.EMBEDDINGS`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bertjax.models import layers, parts, placement, visibility
from bertjax.models.encoder_config import EncoderConfig
from bertjax.models.placement import DATA

# The share of masks that ESM-2 was trained with: 15% of the tokens, 80% of them as [MASK].
# Source: facebookresearch/esm, esm/model/esm2.py, forward.
TRAINED_MASK_SHARE = 0.15 * 0.8


class WordEmbeddings(nnx.Embed):
    """A table of embeddings, or one copy of it for each device (`placement.copied`)."""

    def __call__(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        """Returns the rows of `ids`; an id that the table lacks gives NaN."""
        table = self.embedding[...]
        if table.ndim == 2 and len(table) >= placement.LARGE_TABLE:
            is_shared = placement.has_own_entries(table, ids.size)
            table = placement.constrain(table, DATA) if is_shared else placement.gathered(table)
        return placement.with_own_copy(lambda table, ids: jnp.take(table, ids, axis=0), table, ids)


class LearntEmbeddings(nnx.Module):
    """Sum of word, position and segment embeddings, LayerNorm, dropout (section 3, figure 2).

    With a `type_vocab_size` of 0 there are no segments, as in DistilBERT, and `segment_ids` are not
    read. With 1 all tokens have one segment, whatever the batch says.

    With a `position_offset` positions are RoBERTa's: the first position is that row of the table.
    Padding has the row before it, which is zero and never trained, and so has its word. Source:
    fairseq, modules/learned_positional_embedding.py. There a position counts the real tokens before
    it. Here rows are padded at their ends, where that is the place in the row; other batches give
    `positions`.

    With rotary positions there is no position table; attention applies them.

    With `language_embeddings` the embedding of the row's or the token's language is added, as in
    XLM (Conneau and Lample 2019, section 3.4): `language` of a batch is [batch] or [batch, length].

    A dense layer follows if the width is not `hidden_size`, or by `embedding_projection`. Source:
    ALBERT, Lan et al. 2020, section 3.1; ELECTRA has the same.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        width, offset = config.embedding_width, config.position_offset

        def table(
            rows: int, *, has_padding: bool = False, kind: type[nnx.Embed] = nnx.Embed
        ) -> nnx.Embed:
            init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
            init = layers.with_zero_row(init, offset - 1) if has_padding else init
            return kind(rows, width, embedding_init=init, rngs=rngs)

        self.word = table(config.vocab_size, has_padding=offset > 0, kind=WordEmbeddings)
        self.has_positions = config.position_embedding == "learnt"
        if self.has_positions:
            self.position = table(config.max_position_embeddings + offset, has_padding=offset > 0)
        if config.type_vocab_size:
            self.segment = table(config.type_vocab_size)
        if config.language_embeddings:
            self.language = table(config.language_embeddings)
        self.norm = parts.norm(config, width)
        self.is_projected = config.projects_embeddings
        if self.is_projected:
            self.projection = parts.dense(config, width, config.hidden_size, rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob
        self.type_vocab_size = config.type_vocab_size
        self.language_embeddings = config.language_embeddings
        self.default_language: int | None = None  # of batches without the feature `language`
        self.position_offset = offset

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
        words: nnx.Embed | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Reads `input_ids`, positions, and `segment_ids`, by default 0.

        `words` is another module's table, for embeddings that have none.
        """
        summed = self._placed_words(inputs, self.word if words is None else words)
        if self.type_vocab_size:
            summed = summed + self._segments(inputs)
        if self.language_embeddings:
            summed = summed + self._languages(inputs)
        embedded = layers.dropout(self.norm(summed), self.dropout_rate, key)
        return self.projection(embedded) if self.is_projected else embedded

    def _segments(self, inputs: layers.Inputs) -> Float[Array, "rows places width"]:
        if self.type_vocab_size == 1:
            return self.segment.embedding[...][None]
        segment_ids = inputs.get("segment_ids", jnp.zeros_like(inputs["input_ids"]))
        # As a product with one-hot rows: the gradient of a lookup would be a scatter of every token
        # into two rows.
        return jax.nn.one_hot(segment_ids, self.type_vocab_size) @ self.segment.embedding[...]

    def _languages(self, inputs: layers.Inputs) -> Float[Array, "batch places width"]:
        if "language" in inputs:
            languages = inputs["language"]
        elif self.default_language is not None:
            languages = jnp.full_like(inputs["input_ids"], self.default_language)
        else:
            raise ValueError(
                f"the model has embeddings of {self.language_embeddings} languages "
                "(config.model.language_embeddings), but the batch has no feature `language`: "
                "add it, int32 [batch] or [batch, length]"
            )
        if languages.ndim == 1:  # one for all tokens of a row
            languages = languages[:, None]
        is_known = (languages >= 0) & (languages < self.language_embeddings)
        rows = jax.nn.one_hot(languages, self.language_embeddings)
        # A product, as for segments; an unknown language gives NaN.
        return jnp.where(is_known[:, :, None], rows, jnp.nan) @ self.language.embedding[...]

    def _placed_words(
        self, inputs: layers.Inputs, table: Callable[[Array], Array]
    ) -> Float[Array, "batch length width"]:
        words = table(inputs["input_ids"])
        if not self.has_positions:
            return words
        placed = words + self._positions(inputs)
        if not self.position_offset:
            return placed
        is_real = visibility.of(inputs).is_real[:, :, None]
        padding = words + self.position.embedding[...][self.position_offset - 1][None, None]
        return jnp.where(is_real, placed, jax.lax.stop_gradient(padding))

    def _positions(self, inputs: layers.Inputs) -> Float[Array, "rows length width"]:
        positions, first = visibility.positions(inputs), self.position_offset
        if positions is not None:  # A position that the table lacks gives NaN.
            return self.position(positions + first)
        table, length = self.position.embedding[...], inputs["input_ids"].shape[1]
        if length > table.shape[0] - first:
            raise ValueError(
                f"the input has {length} positions; the model was made for at most "
                f"max_position_embeddings = {table.shape[0] - first}"
            )
        return table[first : first + length][None]


class BareWordEmbeddings(nnx.Module):
    """EuroBERT's embeddings: of words alone, without norm or dropout."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        self.word = WordEmbeddings(
            config.vocab_size, config.hidden_size, embedding_init=init, rngs=rngs
        )
        self.dtype = jnp.dtype(config.dtype)

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Reads `input_ids`."""
        del key
        return self.word(inputs["input_ids"]).astype(self.dtype)


class TokenDropoutEmbeddings(BareWordEmbeddings):
    """ESM-2's embeddings: of words alone, zero for masks and padding, without norm or dropout.

    A sequence with m masks among its n tokens, including special ones, is multiplied by
    0.88 / (1 - m/n), as in dropout, so that the scale of all sequences is as in training, also
    without masks. Source: facebookresearch/esm, esm/model/esm2.py, forward. Only `mask_id` counts
    as a mask, not other tokens that are predicted.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.mask_id = config.mask_id

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Reads `input_ids` and the features of `visibility.of`."""
        del key
        ids, visible = inputs["input_ids"], visibility.of(inputs)
        is_mask = (ids == self.mask_id) & visible.is_real
        kept = jnp.where(is_mask | ~visible.is_real, 0.0, 1.0)
        masks, tokens = (_in_sequence(it, visible) for it in (is_mask, visible.is_real))
        # A sequence of masks alone is zero, whatever its factor is.
        unmasked = jnp.maximum(tokens - masks, 1.0) / jnp.maximum(tokens, 1.0)
        factors = kept * (1 - TRAINED_MASK_SHARE) / unmasked
        return (self.word(ids) * factors[:, :, None]).astype(self.dtype)


def _in_sequence(
    is_counted: Bool[Array, "batch length"], visible: visibility.Visibility
) -> Float[Array, "batch places"]:
    """Returns for each position the number of counted positions in its sequence."""
    counted = is_counted.astype(jnp.float32)
    if visible.sequence_ids is None:
        return counted.sum(axis=1, keepdims=True)
    numbers = visible.sequence_ids
    is_same = numbers[:, :, None] == numbers[:, None, :]
    return jnp.where(is_same, counted[:, None, :], 0.0).sum(axis=2)
