"""An encoder made of parts: embeddings, and layers of attention and a feed-forward.

`EncoderConfig` chooses the parts, `make_encoder` builds it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import (
    attention,
    containers,
    embeddings,
    encoder_config,
    encoder_layers,
    feed_forwards,
    layers,
    parts,
    placement,
    relative_tables,
    values,
    visibility,
)
from bertjax.models.encoder_config import REMAT_POLICIES, EncoderConfig

# Name -> the module, made from a config. A new part is a module and a row here.
EMBEDDINGS: dict[str, Callable[..., nnx.Module]] = {
    "learnt": embeddings.LearntEmbeddings,
    "words": embeddings.BareWordEmbeddings,
    "token_dropout": embeddings.TokenDropoutEmbeddings,
    "patches": values.PatchEmbeddings,
    "columns": values.ColumnEmbeddings,
}
LAYERS: dict[str, Callable[..., nnx.Module]] = {
    "post_norm": encoder_layers.PostNormLayer,
    "pre_norm": encoder_layers.PreNormLayer,
    "full_pre_norm": functools.partial(encoder_layers.PreNormLayer, has_normalized_input=False),
}
# Layers with an output that is not normalized: a norm follows the last.
UNNORMALIZED = ("pre_norm", "full_pre_norm")
encoder_config.CHOICES.update(
    embeddings=EMBEDDINGS, layer=LAYERS, feed_forward=feed_forwards.FEED_FORWARDS
)


class Encoder(nnx.Module):
    """Embeddings and layers; BERT's Base size has 108.9 M parameters.

    `layers` are stored once, however often they are used. `uses` has for each layer of the depth
    the numbers of the stored layers that it applies in turn; None: each its own. A `final_norm`
    follows the last layer. `relative` is the table of distances that all layers read.
    """

    def __init__(
        self,
        embeddings: nnx.Module,
        layers: Sequence[nnx.Module],
        *,
        remat: str,
        uses: Sequence[Sequence[int]] | None = None,
        final_norm: nnx.Module | None = None,
        relative: nnx.Module | None = None,
    ):
        self.embeddings: Any = embeddings  # attributes depend on its kind
        self.layers = containers.List(layers)
        once_each = [(number,) for number in range(len(layers))]
        self.uses = tuple(map(tuple, once_each if uses is None else uses))
        self.remat = remat
        self.final_norm: Any = final_norm
        self.relative: Any = relative

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
        left_to_right: bool = False,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the last layer's hidden states.

        The embeddings use the keys they know; `visibility.of` builds the attention mask, usually
        from `input_mask`, 1 at tokens and 0 at padding. With `left_to_right` every layer attends to
        the left only, whatever its config says.
        """
        return self.hidden_states(inputs, key=key, left_to_right=left_to_right)[-1]

    def hidden_states(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
        left_to_right: bool = False,
    ) -> list[Float[Array, "batch length hidden"]]:
        """Returns the embeddings' output and then every layer's, one more than the depth.

        If a layer applies several stored layers, it is the output of the last. Only the last output
        has been through `final_norm`.
        """
        visible = visibility.of(inputs).narrowed(window=None, left_to_right=left_to_right)
        return self.contextualize(self.embed(inputs, key=key), visible, key=key)

    def attention_weights(
        self, inputs: layers.Inputs
    ) -> list[Float[Array, "batch heads length length"]]:
        """Returns the attention weights of each layer's heads.

        They sum to one over the last axis, or to zero where a position sees nothing. They are
        computed without dropout and in addition to the layers: memory grows with the square of the
        length. If a layer applies several stored layers, each has its weights.
        """
        hidden, visible, weights = self.embed(inputs), visibility.of(inputs), []
        terms_of = self.terms_of()
        for number in itertools.chain.from_iterable(self.uses):
            weights.append(self.layers[number].attention_weights(hidden, visible, terms_of))
            hidden = self.layers[number](hidden, visible, terms_of=terms_of)
        return weights

    def terms_of(self) -> attention.TermsOf | None:
        """Returns the function that makes a layer's terms by distance, None without a table."""
        return self.relative and functools.partial(self.relative.terms, self.relative())

    def embed(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Returns the output of the embeddings."""
        with jax.named_scope("embeddings"):
            return self.embeddings(inputs, key=layers.folded(key, 0))

    def contextualize(
        self,
        embedded: Float[Array, "batch length hidden"],
        visible: visibility.Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> list[Float[Array, "batch length hidden"]]:
        """Returns `embedded` and then every layer's output; `key` is the key given to `embed`."""
        states = [placement.constrain(embedded, placement.DATA)]
        terms_of = self.terms_of()
        for number, used in enumerate(self.uses, start=1):

            def apply(hidden, key, used=used):
                keys = [key] if len(used) == 1 else layers.split(key, len(used))
                for layer, its_key in zip(used, keys, strict=True):
                    hidden = self.layers[layer](hidden, visible, key=its_key, terms_of=terms_of)
                return placement.constrain(hidden, placement.DATA)

            if self.remat != "none":
                apply = jax.checkpoint(apply, policy=REMAT_POLICIES[self.remat])
            with jax.named_scope("encoder"):
                states.append(apply(states[-1], layers.folded(key, number)))
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        return states


def make_encoder(config: EncoderConfig, *, rngs: nnx.Rngs) -> Encoder:
    """Returns a freshly initialized encoder with the parts and sizes of the config."""
    embedding = EMBEDDINGS[config.embeddings](config, rngs=rngs)
    make_layer = LAYERS[config.layer]
    stored = config.num_groups * config.inner_group_num
    stack = [make_layer(config, number=number, rngs=rngs) for number in range(stored)]
    is_open = config.layer in UNNORMALIZED
    final_norm = parts.norm(config, config.hidden_size) if is_open else None
    make_table = relative_tables.RELATIVE[config.relative]
    return Encoder(
        embedding,
        stack,
        remat=config.remat,
        uses=config.layer_uses,
        final_norm=final_norm,
        relative=make_table and make_table(config, rngs=rngs),
    )


def make_bare(config: EncoderConfig, *, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a module with an `encoder` and nothing else, for weights without a head."""
    return containers.Dict(encoder=make_encoder(config, rngs=rngs))
