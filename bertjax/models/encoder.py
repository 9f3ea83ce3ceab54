"""An encoder made of parts: embeddings, layers, and in them a feed-forward and attention.

`EncoderConfig` chooses the parts, `make_encoder` puts them together. BERT's are the defaults:
Devlin et al. 2019, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import (
    attention,
    embeddings,
    encoder_layers,
    feed_forwards,
    fields,
    layers,
    pallas_attention,
    placement,
    visibility,
)

# Kind -> what makes it of a config. A kind of one's own is a module and a row here.
EMBEDDINGS: dict[str, Callable[..., nnx.Module]] = {"learnt": embeddings.LearntEmbeddings}
LAYERS: dict[str, Callable[..., nnx.Module]] = {"post_norm": encoder_layers.PostNormLayer}

# Of embeddings; if_needed: where they have another width than the layers.
EMBEDDING_PROJECTIONS = ("if_needed", "always")
DTYPES = ("float32", "bfloat16")  # of matrix products
GRADIENT_REDUCTION_DTYPES = ("float32", "compute")  # compute: `dtype`

# What a layer keeps for the backward pass; with "none" all, and nothing is computed again.
REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "none": jax.checkpoint_policies.everything_saveable,
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

# Field of EncoderConfig -> the largest that is believed. A damaged or hostile file would have the
# process build a model until it is killed.
MOST = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "embedding_size": 100_000,
    "num_hidden_layers": 1_000,
    "num_hidden_groups": 1_000,
    "inner_group_num": 1_000,
    "num_attention_heads": 10_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 10_000_000,
    "position_offset": 1_000,
    "type_vocab_size": 100_000,
}

# Field of EncoderConfig -> what it may be.
CHOICES: dict[str, Mapping[str, Any] | Sequence[str]] = {
    "embeddings": EMBEDDINGS,
    "embedding_projection": EMBEDDING_PROJECTIONS,
    "layer": LAYERS,
    "feed_forward": feed_forwards.FEED_FORWARDS,
    "attention": attention.IMPLEMENTATIONS,
    "hidden_act": layers.ACTIVATIONS,
    "initializer": layers.INITIALIZERS,
    "pooler_act": layers.POOLER_ACTIVATIONS,
    "dtype": DTYPES,
    "gradient_reduction_dtype": GRADIENT_REDUCTION_DTYPES,
    "remat": REMAT_POLICIES,
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig(fields.EncoderFields):
    """The parts and sizes of an encoder, sizes with the names of the original bert_config.json.

    `embeddings`, `layer` and `feed_forward` are kinds of parts, keys of the tables in CHOICES.
    `type_vocab_size` 0 is no embeddings of segments, 1 the same one for all tokens whatever their
    segment; `pooler_act` is the activation of a pooler.
    `position_offset` is the row of the first position, as in RoBERTa: the table has so many rows
    more, and the one before is that of padding, zero and never trained; so is that number's word.
    `embedding_size` is the width of the embeddings before they are projected up, as in ALBERT; 0 is
    `hidden_size`, without a projection unless `embedding_projection` is "always".
    (Where widths differ "always" becomes "if_needed", so that equal encoders have equal configs.)
    `num_hidden_groups` is how many groups of layers share parameters, as in ALBERT: 1 is one layer
    for all, 0 a layer for each (`layer_uses`); a group's layer is `inner_group_num` in a row.
    `dtype` is the type of the matrix multiplications
    (parameters, statistics, softmax and losses stay float32). With `gradient_reduction_dtype`
    "float32" the products that are gradients of kernels come out in float32, and so are their sums
    over devices; with "compute" in `dtype`. `remat` "none" saves all activations
    for the backward pass, "full" recomputes each layer from its input, "dots" recomputes all but
    the projections. `attention` is "xla" or "pallas", a kernel for TPU that computes the same
    (`pallas_attention`). With `left_to_right` a position sees itself and what lies on its left.

    Raises:
      ValueError: listing every field that does not fit.
    """

    def __post_init__(self):
        if self.embedding_width != self.hidden_size and self.embedding_projection == "always":
            object.__setattr__(self, "embedding_projection", "if_needed")
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))

    def _faults(self):
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; it must be at least 1"
        for name, most in MOST.items():
            if getattr(self, name) > most:
                yield f"{name} is {getattr(self, name)}; it must be at most {most:,}"
        if self.position_offset < 0:
            yield f"position_offset is {self.position_offset}; it must be at least 0 (as BERT)"
        if self.position_offset > max(self.vocab_size, 0):
            yield (
                f"position_offset is {self.position_offset}; the word before it is padding's, so "
                f"it must be at most vocab_size, {self.vocab_size}"
            )
        if self.type_vocab_size < 0:
            yield f"type_vocab_size is {self.type_vocab_size}; it must be at least 0 (no segments)"
        if not 0 <= self.num_hidden_groups <= max(self.num_hidden_layers, 0):
            yield (
                f"num_hidden_groups is {self.num_hidden_groups}; it must be from 0 (each layer its "
                f"own) to the {self.num_hidden_layers} of num_hidden_layers"
            )
        if self.inner_group_num < 1:
            yield f"inner_group_num is {self.inner_group_num}; it must be at least 1"
        if self.embedding_size < 0:
            yield f"embedding_size is {self.embedding_size}; it must be at least 0 (hidden_size)"
        if self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads:
            yield (
                f"hidden_size is {self.hidden_size}; it must be a multiple of the "
                f"{self.num_attention_heads} num_attention_heads"
            )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                yield f"{name} is {getattr(self, name)!r}; known are {', '.join(known)}"
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                yield f"{name} is {getattr(self, name)}; it must be in [0, 1)"
        head_size = self.hidden_size // max(self.num_attention_heads, 1)
        if self.attention == "pallas" and head_size not in pallas_attention.HEAD_SIZES:
            yield (
                f"attention is 'pallas', whose kernel takes heads of "
                f"{', '.join(map(str, pallas_attention.HEAD_SIZES))}; hidden_size / "
                f"num_attention_heads is {head_size}: set config.model.attention to 'xla'"
            )

    def forward_flops(self, length: int) -> float:
        """Returns the matrix-multiplication FLOPs of one sequence's forward pass.

        Two per multiply-add: the four projections, the two attention products over all `length`
        positions, the two dense layers, and the projection of factorized embeddings. Lookups,
        normalization and softmax are not counted.
        """
        projections = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        attention = 2 * length * self.hidden_size
        products = self.num_hidden_layers * self.inner_group_num * (projections + attention)
        if self.projects_embeddings:
            products += self.embedding_width * self.hidden_size
        return 2.0 * length * products


class Encoder(nnx.Module):
    """Embeddings and layers; BERT's Base size has 108.9 M parameters.

    `layers` are stored once, however often they are used. `uses` are the numbers of those that each
    layer of the depth applies, one after the other; None: each its own.
    """

    def __init__(
        self,
        embeddings: nnx.Module,
        layers: Sequence[nnx.Module],
        *,
        remat: str,
        uses: Sequence[Sequence[int]] | None = None,
    ):
        self.embeddings: Any = embeddings  # what it has beside its call is of its kind
        self.layers = nnx.List(layers)
        own = [(number,) for number in range(len(layers))]
        self.uses = tuple(map(tuple, own if uses is None else uses))
        self.remat = remat

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Returns the last layer's hidden states.

        The embeddings read what they know of `inputs`, `visibility.of` reads what may see what: as
        a rule `input_mask`, 1 at tokens and 0 at padding.
        """
        return self.hidden_states(inputs, key=key)[-1]

    def hidden_states(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "batch length hidden"]]:
        """Returns the embeddings' output and then every layer's, one more than the depth.

        Where a layer is several in a row it is the output of the last.
        """
        embedded = self.embed(inputs, key=key)
        return self.contextualize(embedded, visibility.of(inputs), key=key)

    def embed(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Returns what the layers start from."""
        with jax.named_scope("embeddings"):
            return self.embeddings(inputs, key=layers.folded(key, 0))

    def contextualize(
        self,
        embedded: Float[Array, "batch length hidden"],
        visible: visibility.Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> list[Float[Array, "batch length hidden"]]:
        """Returns `embedded` and then every layer's output; `key` is the one that `embed` has."""
        states = [placement.constrain(embedded, placement.DATA)]
        for number, used in enumerate(self.uses, start=1):

            def apply(hidden, key, used=used):
                keys = [key] if len(used) == 1 else layers.split(key, len(used))
                for layer, its_key in zip(used, keys, strict=True):
                    hidden = self.layers[layer](hidden, visible, key=its_key)
                return placement.constrain(hidden, placement.DATA)

            if self.remat != "none":
                apply = jax.checkpoint(apply, policy=REMAT_POLICIES[self.remat])
            with jax.named_scope("encoder"):
                states.append(apply(states[-1], layers.folded(key, number)))
        return states


def make_encoder(config: EncoderConfig, *, rngs: nnx.Rngs) -> Encoder:
    """Returns an encoder of the parts and sizes that the config chooses, freshly initialized."""
    made = EMBEDDINGS[config.embeddings](config, rngs=rngs)
    make_layer = LAYERS[config.layer]
    stored = config.num_groups * config.inner_group_num
    made_layers = [make_layer(config, rngs=rngs) for _ in range(stored)]
    return Encoder(made, made_layers, remat=config.remat, uses=config.layer_uses)


def make_bare(config: EncoderConfig, *, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a module that holds an `encoder` and nothing else: for weights without a head."""
    return nnx.Dict(encoder=make_encoder(config, rngs=rngs))
