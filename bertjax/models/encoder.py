"""An encoder made of parts: embeddings, layers, and in them a feed-forward and attention.

`EncoderConfig` chooses the parts, `make_encoder` puts them together. BERT's are the defaults:
Devlin et al. 2019, section 3.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import (
    activations,
    attention,
    containers,
    embeddings,
    encoder_layers,
    feed_forwards,
    fields,
    layers,
    norms,
    parts,
    placement,
    visibility,
)
from bertjax.models.kernels import pallas_attention

# Kind -> what makes it of a config. A kind of one's own is a module and a row here.
EMBEDDINGS: dict[str, Callable[..., nnx.Module]] = {"learnt": embeddings.LearntEmbeddings}
LAYERS: dict[str, Callable[..., nnx.Module]] = {
    "post_norm": encoder_layers.PostNormLayer,
    "pre_norm": encoder_layers.PreNormLayer,
}
# The kinds whose last layer returns what is not normalized.
UNNORMALIZED = ("pre_norm",)

POSITION_EMBEDDINGS = ("learnt", "rotary")
POOLERS = ("dense", "normed")

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
    "window": 10_000_000,
    "global_every": 1_000,
    "type_vocab_size": 100_000,
}

# Field of EncoderConfig -> what it may be.
CHOICES: dict[str, Mapping[str, Any] | Sequence[str]] = {
    "embeddings": EMBEDDINGS,
    "embedding_projection": EMBEDDING_PROJECTIONS,
    "position_embedding": POSITION_EMBEDDINGS,
    "layer": LAYERS,
    "feed_forward": feed_forwards.FEED_FORWARDS,
    "attention": attention.IMPLEMENTATIONS,
    "hidden_act": activations.ACTIVATIONS,
    "initializer": layers.INITIALIZERS,
    "norm": norms.NORMS,
    "pooler": POOLERS,
    "pooler_act": activations.POOLER_ACTIVATIONS,
    "dtype": DTYPES,
    "gradient_reduction_dtype": GRADIENT_REDUCTION_DTYPES,
    "remat": REMAT_POLICIES,
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig(fields.EncoderFields):
    """The parts and sizes of an encoder, sizes with the names of the original bert_config.json.

    `embeddings`, `layer`, `feed_forward` and `norm` are kinds of parts, keys of the tables in
    CHOICES. Without `use_bias` no dense layer of encoder and heads has a bias, but for the last one
    of a head. `depth_scaled_init` starts the kernels before a residual smaller by
    sqrt(2 x num_hidden_layers), as Megatron-LM.
    `position_embedding` "rotary" has no table: queries and keys turn by their positions, with the
    base `rotary_base`, in layers with a window `local_rotary_base` (0: the same).
    With a `window` w, not 0, a position sees those at most w away, but in every `global_every`-th
    layer, from the first on; 0: in none.
    `pooler` "normed" ends in a norm and stands before every head of finetuning, as in ModernBERT.
    `type_vocab_size` 0 is no embeddings of segments, 1 the same one for all tokens whatever their
    segment; `pooler_act` is the activation of a pooler.
    `position_offset` is the row of the first position, as in RoBERTa: the table has so many rows
    more, and the one before is that of padding, zero and never trained; so is that number's word.
    `embedding_size` is the width of the embeddings before they are projected up, as in ALBERT; 0 is
    `hidden_size`, without a projection unless `embedding_projection` is "always".
    (Where widths differ "always" becomes "if_needed", so that equal encoders have equal configs; so
    do a `local_rotary_base` and a `global_every` that change nothing become 0 and 1.)
    `num_hidden_groups` is how many groups of layers share parameters, as in ALBERT: 1 is one layer
    for all, 0 a layer for each (`layer_uses`); a group's layer is `inner_group_num` in a row.
    `dtype` is the type of the matrix multiplications
    (parameters, statistics, softmax and losses stay float32). With `gradient_reduction_dtype`
    "float32" the products that are gradients of kernels come out in float32, and so are their sums
    over devices; with "compute" in `dtype`. `remat` "none" saves all activations
    for the backward pass, "full" recomputes each layer from its input, "dots" recomputes all but
    the projections. `attention` is "xla", or kernels that compute the same: "pallas" for TPU,
    "cudnn" for GPU, "auto" both, where they take the rows (`attention.kernel_platforms`). With
    `left_to_right` a position sees itself and what lies on its left.

    Raises:
      ValueError: listing every field that does not fit.
    """

    def __post_init__(self):
        if self.embedding_width != self.hidden_size and self.embedding_projection == "always":
            object.__setattr__(self, "embedding_projection", "if_needed")
        if self.local_rotary_base == self.rotary_base or not self.window:
            object.__setattr__(self, "local_rotary_base", 0.0)
        if self.window == self.global_every == 0:
            object.__setattr__(self, "global_every", 1)
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
        if min(self.global_every, self.window) < 0:
            yield (
                f"window is {self.window} and global_every is {self.global_every}; both must be at "
                "least 0"
            )
        if self.window and self.global_every == 1:
            yield (
                f"window is {self.window} and global_every is 1, so no layer has that window: set "
                "global_every to 0 (all have it) or above 1, or window to 0"
            )
        if self.position_embedding == "rotary":
            yield from self._rotary_faults()
        if self.num_groups != self.num_hidden_layers or self.inner_group_num != 1:
            yield from self._sharing_faults()
        head_size = self.hidden_size // max(self.num_attention_heads, 1)
        if self.attention == "pallas" and head_size not in pallas_attention.HEAD_SIZES:
            yield (
                f"attention is 'pallas', whose kernel takes heads of "
                f"{', '.join(map(str, pallas_attention.HEAD_SIZES))}; hidden_size / "
                f"num_attention_heads is {head_size}: set config.model.attention to 'xla'"
            )

    def _rotary_faults(self):
        if self.rotary_base <= 0 or self.local_rotary_base < 0:
            yield (
                f"rotary_base is {self.rotary_base} and local_rotary_base is "
                f"{self.local_rotary_base}; the first must be above 0, the second at least 0 "
                "(rotary_base)"
            )
        if self.hidden_size // max(self.num_attention_heads, 1) % 2:
            yield (
                "position_embedding is 'rotary', which turns pairs of numbers; hidden_size / "
                f"num_attention_heads is {self.hidden_size // self.num_attention_heads}, not even"
            )
        if self.position_offset:
            yield (
                f"position_offset is {self.position_offset}; it must be 0 with position_embedding "
                "'rotary': there is no table of positions"
            )

    def _sharing_faults(self):
        own = "of layers that share parameters: set num_hidden_groups to 0 and inner_group_num to 1"
        if self.layer == "pre_norm":
            yield f"layer is 'pre_norm', whose first layer differs, {own}"
        if self.window and self.global_every > 1:
            yield f"global_every is {self.global_every}, which makes layers differ, {own}"

    def forward_flops(self, length: int) -> float:
        """Returns the matrix-multiplication FLOPs of one sequence's forward pass.

        Two per multiply-add: the four projections, the two attention products over the positions
        that a layer's window leaves of `length`, the dense layers, and the projection of factorized
        embeddings. Lookups, normalization and softmax are not counted.
        """
        products_of = feed_forwards.FEED_FORWARDS[self.feed_forward].num_products
        dense = products_of * self.intermediate_size
        projections = self.hidden_size * (4 * self.hidden_size + dense)
        products = 0
        for layer in range(self.num_hidden_layers):
            window = self.window_of(layer)
            seen = length if window is None else min(length, 2 * window + 1)
            attention = 2 * seen * self.hidden_size
            products += self.inner_group_num * (projections + attention)
        if self.projects_embeddings:
            products += self.embedding_width * self.hidden_size
        return 2.0 * length * products


class Encoder(nnx.Module):
    """Embeddings and layers; BERT's Base size has 108.9 M parameters.

    `layers` are stored once, however often they are used. `uses` are the numbers of those that each
    layer of the depth applies, one after the other; None: each its own. A `final_norm` stands
    behind the last.
    """

    def __init__(
        self,
        embeddings: nnx.Module,
        layers: Sequence[nnx.Module],
        *,
        remat: str,
        uses: Sequence[Sequence[int]] | None = None,
        final_norm: nnx.Module | None = None,
    ):
        self.embeddings: Any = embeddings  # what it has beside its call is of its kind
        self.layers = containers.List(layers)
        own = [(number,) for number in range(len(layers))]
        self.uses = tuple(map(tuple, own if uses is None else uses))
        self.remat = remat
        self.final_norm: Any = final_norm

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

        Where a layer is several in a row it is the output of the last. The last output alone has
        been through `final_norm`.
        """
        embedded = self.embed(inputs, key=key)
        return self.contextualize(embedded, visibility.of(inputs), key=key)

    def attention_weights(
        self, inputs: layers.Inputs
    ) -> list[Float[Array, "batch heads length length"]]:
        """Returns what each layer's heads look at: how much a position takes of each other one.

        Over the last axis they sum to one, or to zero where a position sees nothing. Without
        dropout, and computed a second time beside the layers: memory grows with the square of the
        length. Where a layer is several in a row, each of them has its own.
        """
        hidden, visible, found = self.embed(inputs), visibility.of(inputs), []
        for number in itertools.chain.from_iterable(self.uses):
            found.append(self.layers[number].attention_weights(hidden, visible))
            hidden = self.layers[number](hidden, visible)
        return found

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
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        return states


def make_encoder(config: EncoderConfig, *, rngs: nnx.Rngs) -> Encoder:
    """Returns an encoder of the parts and sizes that the config chooses, freshly initialized."""
    made = EMBEDDINGS[config.embeddings](config, rngs=rngs)
    make_layer = LAYERS[config.layer]
    stored = config.num_groups * config.inner_group_num
    made_layers = [make_layer(config, number=number, rngs=rngs) for number in range(stored)]
    is_open = config.layer in UNNORMALIZED
    final_norm = parts.norm(config, config.hidden_size) if is_open else None
    uses = config.layer_uses
    return Encoder(made, made_layers, remat=config.remat, uses=uses, final_norm=final_norm)


def make_bare(config: EncoderConfig, *, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a module that holds an `encoder` and nothing else: for weights without a head."""
    return containers.Dict(encoder=make_encoder(config, rngs=rngs))
