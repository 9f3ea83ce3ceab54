"""A decoder: it reads a target from left to right, and the states of an encoder.

A decoder layer is an encoder layer with a `CrossAttention` between its two halves: attention to the
left, attention to the source, feed-forward. The parts that the decoder shares with the encoder are
arguments of its calls. `generation` searches for texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import core
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bertjax.models import (
    attention,
    containers,
    encoder,
    encoder_layers,
    heads,
    layers,
    parts,
    placement,
    rotary,
    visibility,
)
from bertjax.models.encoder_config import REMAT_POLICIES, EncoderConfig
from bertjax.models.visibility import Visibility
from bertjax.options import faults

# The parts that a decoder shares with its encoder: nothing, the table of words, all embeddings, or
# embeddings and layers.
SHARED = ("none", "words", "embeddings", "layers")
_KEY = 1 << 21  # folded into the encoder's key; larger than the numbers of layers


class KeysAndValues(NamedTuple):
    """The keys and values of a layer by head, rotated to their positions.

    Each has the order of axes in which a product reads it, so that no step copies it.
    """

    keys: Float[Array, "rows heads head places"]
    values: Float[Array, "rows heads places head"]


class Memory(NamedTuple):
    """The keys and values that a step of generation reads: of the target so far, and of the source.

    `target` has a row for each target, `source` a row for each source.
    """

    target: tuple[KeysAndValues, ...]
    source: tuple[KeysAndValues, ...]
    visible: Visibility

    def with_room(self, places: int) -> Memory:
        """Returns the memory enlarged to targets of this number of tokens."""
        more = places - self.target[0].values.shape[2]
        widths = ((0, 0), (0, 0), (0, 0), (0, more)), ((0, 0), (0, 0), (0, more), (0, 0))
        target = (KeysAndValues(*map(jnp.pad, layer, widths)) for layer in self.target)
        return self._replace(target=tuple(target))


class CrossAttention(nnx.Module):
    """Attention to the encoder's states, and its norm."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.attention = encoder_layers.attention_of(config, rngs=rngs)
        self.norm = parts.norm(config, config.hidden_size)


class Decoder(nnx.Module):
    """Layers with attention to a target's left and to a source; the parts and sizes of an encoder.

    `shares` names the parts of the encoder that the decoder uses (`SHARED`). Shared layers have a
    cross-attention of the decoder. Source: Vaswani et al. 2017, section 3.1;
    Rothe et al. 2020, section 2 (BERT2BERT has layers of its own, BERTShare the encoder's). With
    shared words the decoder has its own positions and their norm, as in BART.

    Raises:
      ValueError: if the config's layers are applied more than once, or its embeddings have no
        words to share.
    """

    def __init__(self, config: EncoderConfig, *, shares: str = "embeddings", rngs: nnx.Rngs):
        if config.num_groups != config.num_hidden_layers or config.inner_group_num != 1:
            raise ValueError(
                f"num_hidden_groups is {config.num_hidden_groups} and inner_group_num "
                f"{config.inner_group_num}; a decoder has layers that are applied once: 0 and 1"
            )
        numbers = range(config.num_hidden_layers)
        make_layer = encoder.LAYERS[config.layer]
        self.shares = shares
        self.remat = config.remat
        is_open = config.layer in encoder.UNNORMALIZED
        if shares == "words" and config.embeddings != "learnt":
            raise faults.wrong("embeddings", config.embeddings, "'learnt' to share words")
        if shares in ("none", "words"):
            self.embeddings: Any = encoder.EMBEDDINGS[config.embeddings](config, rngs=rngs)
        if shares == "words":
            del self.embeddings.word
        if shares != "layers":
            stack = [make_layer(config, number=number, rngs=rngs) for number in numbers]
            self.layers = containers.List(stack)
            self.final_norm: Any = parts.norm(config, config.hidden_size) if is_open else None
        self.uses = tuple((number,) for number in numbers)  # as of an encoder
        self.cross = containers.List([CrossAttention(config, rngs=rngs) for _ in numbers])

    def __call__(
        self,
        inputs: layers.Inputs,
        states: Float[Array, "batch places hidden"],
        source: Visibility,
        *,
        encoder: encoder.Encoder,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the last layer's states of a target.

        `inputs` are `input_ids`, `input_mask` and optionally `positions`, as an encoder reads them.
        `states` are the encoder's; `source` says which of them all positions see.
        """
        key = layers.folded(key, _KEY)
        with jax.named_scope("embeddings"):
            embedded = self._embedded(inputs, encoder, layers.folded(key, 0))
        visible = visibility.of(inputs)
        return self.contextualize(embedded, visible, states, source, encoder=encoder, key=key)

    def contextualize(
        self,
        embedded: Float[Array, "batch length hidden"],
        visible: Visibility,
        states: Float[Array, "batch places hidden"],
        source: Visibility,
        *,
        encoder: encoder.Encoder,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the last layer's states of a target that is `embedded` already."""
        if not source.is_by_key:
            raise ValueError(
                "the source has a window, an order or packed rows; all of a target see it"
            )
        visible = dataclasses.replace(visible, left_to_right=True)
        stack, final_norm = self._stack(encoder)
        hidden = placement.constrain(embedded, placement.DATA)
        for number, (layer, cross) in enumerate(zip(stack, self.cross, strict=True), start=1):

            def apply(hidden, states, key, layer=layer, cross=cross):
                hidden = _applied(layer, cross, hidden, states, visible, source, key)
                return placement.constrain(hidden, placement.DATA)

            if self.remat != "none":
                apply = jax.checkpoint(apply, policy=REMAT_POLICIES[self.remat])
            with jax.named_scope("decoder"):
                hidden = apply(hidden, states, layers.folded(key, number))
        return hidden if final_norm is None else final_norm(hidden)

    def memory(
        self,
        states: Float[Array, "batch places hidden"],
        source: Visibility,
        *,
        rows: int,
        length: int,
        encoder: encoder.Encoder,
    ) -> Memory:
        """Returns the memory before the first step, for `rows` targets of at most `length`."""
        target, crossed = [], []
        for layer, cross in zip(self._stack(encoder)[0], self.cross, strict=True):
            of_source = _in_order(*cross.attention.keys_and_values(states))
            crossed.append(of_source)
            own_heads = layer.attention.num_heads
            shape = (rows, length, own_heads, states.shape[-1] // own_heads)
            empty = jnp.zeros(shape, of_source.keys.dtype)
            target.append(_in_order(empty, empty))
        return Memory(tuple(target), tuple(crossed), source)

    def step(
        self,
        ids: Int[Array, " rows"],
        at: Int[Array, ""],
        memory: Memory,
        *,
        encoder: encoder.Encoder,
    ) -> tuple[Float[Array, "rows hidden"], Memory]:
        """Returns the states of token `at` of all targets, and the memory that includes them.

        The targets of a source are consecutive rows.
        """
        stack, final_norm = self._stack(encoder)
        one = jnp.ones((len(ids), 1), jnp.int32)
        inputs = {"input_ids": ids[:, None], "input_mask": one, "positions": one * at}
        hidden, target = self._embedded(inputs, encoder), []
        for layer, cross, seen, crossed in zip(
            stack, self.cross, memory.target, memory.source, strict=True
        ):
            now: list[KeysAndValues] = []

            def attend(x, layer=layer, seen=seen, now=now):
                context, known = _next(layer.attention, x, seen, at)
                now.append(known)
                return context

            def attend_to_source(x, cross=cross, crossed=crossed):
                return _of_source(cross.attention, x, crossed, memory.visible)

            hidden = layer.residual(hidden, attend, layer.attention_norm, None)
            hidden = layer.residual(hidden, attend_to_source, cross.norm, None)
            hidden = layer.residual(hidden, layer.feed, layer.output_norm, None)
            target += now
        hidden = hidden if final_norm is None else final_norm(hidden)
        return hidden[:, 0], memory._replace(target=tuple(target))

    def _embedded(
        self, inputs: layers.Inputs, encoder: encoder.Encoder, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Returns the embedded target, by the decoder's embeddings or the encoder's."""
        if self.shares == "words":
            return self.embeddings(inputs, key=key, words=encoder.embeddings.word)
        embeddings = self.embeddings if self.shares == "none" else encoder.embeddings
        return embeddings(inputs, key=key)

    def _stack(self, encoder: encoder.Encoder) -> tuple[Sequence[Any], Any]:
        """Returns the layers and the last norm, the decoder's or the encoder's."""
        owner = encoder if self.shares == "layers" else self
        return owner.layers, owner.final_norm


def _applied(
    layer: Any,
    cross: CrossAttention,
    hidden: Array,
    states: Array,
    visible: Visibility,
    source: Visibility,
    key: PRNGKeyArray | None,
) -> Array:
    keys = layers.split(key, 5)

    def attend(x: Array) -> Array:
        return layer.attention(x, visible, key=keys[0])

    def attend_to_source(x: Array) -> Array:
        return cross.attention(x, source, key=keys[3], states=states)

    hidden = layer.residual(hidden, attend, layer.attention_norm, keys[1])
    hidden = layer.residual(hidden, attend_to_source, cross.norm, keys[4])
    return layer.residual(hidden, layer.feed, layer.output_norm, keys[2])


def _next(
    own: attention.SelfAttention, x: Float[Array, "rows 1 hidden"], seen: KeysAndValues, at: Array
) -> tuple[Float[Array, "rows 1 hidden"], KeysAndValues]:
    """Returns the attention output of token `at`, over the tokens up to it, and their keys."""
    query, (keys, values) = own.scaled_query(x), own.keys_and_values(x)
    places = jnp.full((len(x), 1), at, jnp.int32)
    query, keys = rotary.both_turned(query, keys, places, own.rotary_base)
    now = _in_order(keys, values)
    known = KeysAndValues(
        jax.lax.dynamic_update_slice_in_dim(seen.keys, now.keys, at, axis=3),
        jax.lax.dynamic_update_slice_in_dim(seen.values, now.values, at, axis=2),
    )
    place = jnp.arange(known.keys.shape[3])
    is_seen = visibility.within(at, place, window=own.window, left_to_right=True)
    return own.output(_context(query, known, jnp.asarray(is_seen)[None]).reshape(x.shape)), known


def _of_source(
    own: attention.SelfAttention,
    x: Float[Array, "rows 1 hidden"],
    crossed: KeysAndValues,
    visible: Visibility,
) -> Float[Array, "rows 1 hidden"]:
    """Returns the cross-attention output; targets of one source are batched as one row."""
    sources = len(crossed.keys)
    query = own.scaled_query(x.reshape(sources, -1, x.shape[-1]))
    context = _context(query, crossed, visible.is_real)
    return own.output(context.reshape(x.shape))


def _in_order(
    keys: Float[Array, "rows places heads head"], values: Float[Array, "rows places heads head"]
) -> KeysAndValues:
    return KeysAndValues(jnp.moveaxis(keys, 1, 3), jnp.moveaxis(values, 1, 2))


def _context(
    query: Float[Array, "rows queries heads head"],
    seen: KeysAndValues,
    is_seen: Bool[Array, "_ places"],
) -> Float[Array, "rows queries heads head"]:
    """Returns the same as `plain_attention.context`, for queries that all see the same keys."""
    scores = jnp.einsum("BLHK,BHKS->BHLS", query, seen.keys, preferred_element_type=jnp.float32)
    scores = jnp.where(is_seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    context = jnp.einsum(
        "BHLS,BHSK->BHLK", weights, seen.values, preferred_element_type=jnp.float32
    )
    return jnp.moveaxis(context, 1, 2).astype(query.dtype)


class EncoderDecoder(nnx.Module):
    """An encoder, a decoder, and a head that predicts the target's next token.

    The head is the one for masked tokens, with the decoder's table of words.

    Raises:
      ValueError: if the widths of the two differ; in a call, if `target_ids` are the `labels`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        decoder_config: EncoderConfig | None = None,
        *,
        shares: str = "embeddings",
        rngs: nnx.Rngs,
    ):
        decoder_config = decoder_config or config
        if decoder_config.hidden_size != config.hidden_size:
            must = f"{config.hidden_size}, as in the encoder"
            raise faults.wrong("the decoder's hidden_size", decoder_config.hidden_size, must)
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        self.decoder = Decoder(decoder_config, shares=shares, rngs=rngs)
        self.mlm_head = heads.MlmHead(decoder_config, rngs=rngs)

    def __call__(
        self, batch: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length vocab"]:
        """Returns float32 logits of the token after each of `target_ids` [batch, length].

        `target_mask` is 1 at tokens. The source has the features that an encoder reads. If the
        batch has a `source_mask`, the decoder sees its positions in place of `input_mask`.
        """
        if _are_same(batch["target_ids"], batch.get("labels")):
            raise ValueError(
                "target_ids are the labels, which a decoder would learn to copy; give the token "
                "before each label: the start token, then all labels but the last"
            )
        states = self.encoder(batch, key=key)
        inputs = target_inputs(batch)
        return self.logits(
            self.decoder(inputs, states, source_of(batch), encoder=self.encoder, key=key)
        )

    def logits(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length vocab"]:
        """Returns float32 logits of the decoder's states."""
        owner = self.decoder if self.decoder.shares == "none" else self.encoder
        with jax.named_scope("mlm_head"):
            return self.mlm_head(hidden, owner.embeddings.word.embedding[...])


def _are_same(inputs: Array, labels: Array | None) -> bool:
    """Returns whether two arrays are the same object or, if concrete, have the same values."""
    if labels is None or inputs.shape != labels.shape:
        return False
    if isinstance(inputs, core.Tracer) or isinstance(labels, core.Tracer):
        return inputs is labels
    return bool((inputs == labels).all())


def target_inputs(batch: layers.Inputs) -> layers.Inputs:
    """Returns the features of a batch that a decoder reads."""
    names = {
        "input_ids": "target_ids",
        "input_mask": "target_mask",
        "positions": "target_positions",
    }
    return {ours: batch[theirs] for ours, theirs in names.items() if theirs in batch}


def source_of(batch: layers.Inputs) -> Visibility:
    """Returns the positions of the source that a decoder sees."""
    return Visibility(batch.get("source_mask", batch["input_mask"]) != 0)


def forward_flops(config: EncoderConfig, length: int, source_length: int) -> float:
    """Returns the matrix-multiplication FLOPs of one target's forward pass without the head."""
    width = config.hidden_size
    projections = 2 * length * width * width + 2 * source_length * width * width
    products = 2 * length * source_length * width
    crossed = 2.0 * config.num_hidden_layers * (projections + products)
    return config.forward_flops(length) + crossed
