"""DeBERTa's enhanced mask decoder: masked tokens get their positions at the last layer.

Sources: He et al. 2021 (DeBERTa, arXiv:2006.03654), section 3.2; microsoft/DeBERTa,
apps/models/masked_language_model.py, EnhancedMaskDecoder.
"""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import layers, visibility
from bertjax.models.encoder import Encoder
from bertjax.models.encoder_config import REMAT_POLICIES, EncoderConfig

PASSES = 2


class MaskDecoder(nnx.Module):
    """A table of positions, with which masked tokens pass the encoder's last layer twice.

    Their queries and residuals begin as the sum of a position and the state before that layer.
    Keys and values are those states, in both passes. The layer's ordinary output is not used, so a
    compiled program does not compute it.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        init = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        rows, width = config.max_position_embeddings, config.hidden_size
        self.position = nnx.Embed(rows, width, embedding_init=init, rngs=rngs)

    def __call__(
        self,
        encoder: Encoder,
        inputs: layers.Inputs,
        positions: Int[Array, "batch positions"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch positions hidden"]:
        """Returns the states by which the tokens at `positions` of a batch are predicted."""
        states = encoder.hidden_states(inputs, key=key)[-2]
        visible, in_sequence = visibility.of(inputs), positions
        if visible.positions is not None:
            in_sequence = layers.taken(visible.positions, positions)
        table = self.position(in_sequence).astype(states.dtype)
        layer, terms_of = encoder.layers[encoder.uses[-1][-1]], encoder.terms_of()

        def decoded(hidden, key):
            context = {"states": states, "at": positions, "terms_of": terms_of}
            return layer(hidden, visible, key=key, **context)

        if encoder.remat != "none":
            decoded = jax.checkpoint(decoded, policy=REMAT_POLICIES[encoder.remat])
        hidden = layers.taken(states, positions) + table
        for number in range(PASSES):
            with jax.named_scope("mask_decoder"):
                hidden = decoded(hidden, layers.folded(key, len(encoder.uses) + 1 + number))
        return hidden
