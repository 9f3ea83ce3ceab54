"""An encoder's config: what its fields mean together, and what makes a config wrong.

The fields stand in `options.encoder`, each with its default, its meaning and its range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from bertjax.models import activations, attention, layers, norms, rotary
from bertjax.models.kernels import pallas_attention
from bertjax.options import encoder as fields
from bertjax.options import faults, schema

# The values that a layer keeps for the backward pass; "none" keeps all and recomputes nothing.
REMAT_POLICIES: dict[str, Any] = {
    "none": jax.checkpoint_policies.everything_saveable,
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

OF_TOKENS = ("learnt", "words", "token_dropout")  # embeddings that are a table of a vocabulary
VALUE_SIZES = {"patches": "value_width", "columns": "columns"}  # of the others, their sizes

# Field -> its values. `encoder` adds the tables of parts, which read this config.
CHOICES: dict[str, Any] = {  # a sequence of names, or a mapping from names to parts
    **{name: row.choices for name, row in fields.ROWS.items() if row.choices},
    "attention": attention.IMPLEMENTATIONS,
    "hidden_act": activations.ACTIVATIONS,
    "initializer": layers.INITIALIZERS,
    "norm": norms.NORMS,
    "pooler_act": activations.POOLER_ACTIVATIONS,
    "remat": REMAT_POLICIES,
}


class FaultyConfigError(ValueError):
    """A config that makes no encoder; each of its `faults` begins with the name of a field."""

    def __init__(self, faults: Sequence[str | ValueError]):
        self.faults = tuple(map(str, faults))
        super().__init__("; ".join(self.faults))


@dataclasses.dataclass(frozen=True)
class EncoderConfig(fields.EncoderFields):
    """The parts and sizes of an encoder.

    Fields that change nothing get one value, so that equal encoders have equal configs:
    `embedding_projection` "if_needed" where widths differ, `local_rotary_base` 0 where it is
    `rotary_base` or there is no window, `global_every` 1 without a window, `rotary_angles` "exact"
    without rotary positions, `mask_id` -1 where the embeddings read none, `num_key_value_heads` 0
    where no head is shared. `columns` is a tuple.

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
        if self.position_embedding != "rotary" and self.rotary_angles == "float16":
            object.__setattr__(self, "rotary_angles", "exact")
        if self.embeddings != "token_dropout":
            object.__setattr__(self, "mask_id", -1)
        if self.num_key_value_heads == self.num_attention_heads:
            object.__setattr__(self, "num_key_value_heads", 0)
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.embeddings != "patches":
            object.__setattr__(self, "value_width", 0)
        if faults := list(self._faults()):
            raise FaultyConfigError(faults)

    def _faults(self) -> Iterator[str | ValueError]:
        for name, row in fields.ROWS.items():
            yield from row.wrong(name, getattr(self, name), CHOICES.get(name))
        for name, must, holds in self._requirements():
            if not holds:
                yield faults.wrong(name, getattr(self, name), must)
        if self.window and self.global_every == 1:
            yield (
                f"window is {self.window} and global_every is 1, so no layer has that window: set "
                "global_every to 0 (all have it) or above 1, or window to 0"
            )
        if self.num_groups != self.num_hidden_layers or self.inner_group_num != 1:
            yield from self._sharing_faults()
        if self.attention == "pallas" and self._head_size not in pallas_attention.HEAD_SIZES:
            yield (
                f"attention is 'pallas', whose kernel takes heads of "
                f"{', '.join(map(str, pallas_attention.HEAD_SIZES))}; hidden_size / "
                f"num_attention_heads is {self._head_size}: set attention='xla'"
            )

    @property
    def _head_size(self) -> int:
        return self.hidden_size // max(self.num_attention_heads, 1)

    @property
    def reads_values(self) -> bool:
        """Whether a position holds numbers, and no token."""
        return self.embeddings not in OF_TOKENS

    def _requirements(self) -> Iterator[tuple[str, str, bool]]:
        """Yields a field, what it must be by the other fields, and whether it is."""
        vocabulary, layers = self.vocab_size, self.num_hidden_layers
        heads = self.num_attention_heads
        yield "vocab_size", "at least 1", vocabulary >= 1 or self.reads_values
        yield (
            "position_offset",
            f"at most vocab_size, {vocabulary}: the word before it is for padding",
            self.position_offset <= max(vocabulary, 0),
        )
        yield (
            "language_embeddings",
            "0 (none) or the number of languages, at least 2",
            self.language_embeddings != 1,
        )
        yield (
            "num_hidden_groups",
            f"at most num_hidden_layers, {layers}; 0: each layer is its own",
            self.num_hidden_groups <= max(layers, 0),
        )
        yield (
            "embedding_size",
            f"0 or hidden_size, {self.hidden_size}, with mlm_transform=False, where the last "
            "states themselves meet the word embeddings",
            self.mlm_transform or self.embedding_width == self.hidden_size,
        )
        yield (
            "hidden_size",
            f"a multiple of num_attention_heads, {heads}",
            heads < 1 or self.hidden_size % heads == 0,
        )
        yield (
            "num_key_value_heads",
            f"0 or a divisor of num_attention_heads, {heads}",
            not self.num_key_value_heads or heads % self.num_key_value_heads == 0,
        )
        yield from self._position_requirements()
        yield from self._embedding_requirements()

    def _position_requirements(self) -> Iterator[tuple[str, str, bool]]:
        if self.position_embedding == "rotary":
            yield "rotary_base", "above 0", self.rotary_base > 0
            yield (
                "hidden_size",
                f"an even multiple of num_attention_heads, {self.num_attention_heads}, with "
                "position_embedding='rotary', which turns pairs of numbers",
                self._head_size % 2 == 0,
            )
            yield (
                "position_offset",
                "0 with position_embedding='rotary': there is no table of positions",
                self.position_offset == 0,
            )
        if self.mask_decoder:
            yield (
                "mask_decoder",
                "False unless relative is not 'none', position_embedding is 'none', layer "
                "'post_norm' and inner_group_num 1: it adds positions at the last layer",
                self.relative != "none"
                and self.position_embedding == "none"
                and self.layer == "post_norm"
                and self.inner_group_num == 1,
            )
        if self.relative == "disentangled":
            yield (
                "relative_span",
                f"above relative_buckets / 2 + 1, {self.relative_buckets // 2 + 1}: farther "
                "distances share rows",
                self.relative_span > self.relative_buckets // 2 + 1,
            )

    def _embedding_requirements(self) -> Iterator[tuple[str, str, bool]]:
        if name := VALUE_SIZES.get(self.embeddings):
            must = f"given with embeddings={self.embeddings!r}, unless records say it"
            yield name, must, bool(getattr(self, name))
        yield (
            "columns",
            "0 for each column of numbers and the number of categories for each other one, "
            f"{fields.LARGEST_VOCABULARY:,} in all",
            min(self.columns, default=0) >= 0 and sum(self.columns) <= fields.LARGEST_VOCABULARY,
        )
        yield (
            "position_embedding",
            "'learnt' or 'rotary' with embeddings='learnt', or 'none' with terms of distances "
            "(relative)",
            self.embeddings != "learnt"
            or self.position_embedding in ("learnt", "rotary")
            or (self.position_embedding == "none" and self.relative != "none"),
        )
        if self.embeddings in ("words", "token_dropout"):
            of_tokens = {"type_vocab_size": 0, "language_embeddings": 0, "embedding_size": 0}
            of_tokens |= {"embedding_projection": "if_needed", "position_embedding": "rotary"}
            for name, value in of_tokens.items():
                must = f"{value!r} with embeddings={self.embeddings!r}, which embed tokens alone"
                yield name, must, getattr(self, name) == value
        if self.embeddings == "token_dropout":
            must = f"the id of the mask, below vocab_size, {self.vocab_size}, or -1 (no mask)"
            yield "mask_id", must, -1 <= self.mask_id < max(self.vocab_size, 1)

    def _sharing_faults(self) -> Iterator[str]:
        remedy = (
            "of layers that share parameters: set num_hidden_groups to 0 and inner_group_num to 1"
        )
        if self.layer == "pre_norm":  # "full_pre_norm" has layers that are alike
            yield f"layer is 'pre_norm', whose first layer differs, {remedy}"
        if self.window and self.global_every > 1:
            yield f"global_every is {self.global_every}, which makes layers differ, {remedy}"

    @property
    def embedding_width(self) -> int:
        """The numbers of an embedding: `embedding_size`, or where that is 0 `hidden_size`."""
        return self.embedding_size or self.hidden_size

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer stands between the embeddings and the layers."""
        is_needed = self.embedding_width != self.hidden_size
        return is_needed or self.embedding_projection == "always"

    @property
    def num_groups(self) -> int:
        """The groups of layers that share parameters: as many as layers where none shares."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def layer_uses(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the stored layers that each of the `num_hidden_layers` applies, in order.

        Layer i is of group int(i / (layers / groups)), and applies the group's `inner_group_num`
        layers. Source: transformers, modeling_albert.py, AlbertTransformer; google-research/albert,
        modeling.py, has int(i / layers * groups), the same but for rounding where that is exact.
        """
        each = self.num_hidden_layers / self.num_groups
        groups = (int(layer / each) for layer in range(self.num_hidden_layers))
        inner = range(self.inner_group_num)
        return tuple(tuple(g * self.inner_group_num + i for i in inner) for g in groups)

    @property
    def output_initializer_range(self) -> float:
        """The standard deviation of kernels whose product is added to a residual.

        There are two of them in a layer. Source: Shoeybi et al. 2019 (Megatron-LM), section 4.2.
        """
        if not self.depth_scaled_init:
            return self.initializer_range
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    def is_global(self, layer: int) -> bool:
        """Returns whether the attention of this layer, counted from 0, has no window."""
        return not self.window or bool(self.global_every) and layer % self.global_every == 0

    def window_of(self, layer: int) -> int | None:
        """Returns the window of this layer's attention, None without one."""
        return None if self.is_global(layer) else max(self.window, 0)

    def rotary_base_of(self, layer: int) -> rotary.Base | None:
        """Returns the base of this layer's rotary positions, None without them."""
        if self.position_embedding != "rotary":
            return None
        is_own = self.local_rotary_base and not self.is_global(layer)
        base = self.local_rotary_base if is_own else self.rotary_base
        return rotary.RoundedBase(base) if self.rotary_angles == "float16" else base

    @property
    def gradient_dtype(self) -> str:
        """The type of the products that are gradients of kernels."""
        return self.dtype if self.gradient_reduction_dtype == "compute" else "float32"

    def forward_flops(self, length: int) -> float:
        """Returns the matrix-multiplication FLOPs of one sequence's forward pass.

        Two per multiply-add: the four projections, the two attention products over the positions
        that a layer's window leaves of `length`, the terms by distance, the dense layers, and the
        projection of factorized embeddings. Lookups, normalization and softmax are not counted, nor
        the projections of a table of distances, once a batch.
        """
        layers = range(self.num_hidden_layers)
        products = sum(self._attended(length, layer) for layer in layers)
        narrow = self._head_size * (self.num_key_value_heads or self.num_attention_heads)
        keys_and_values = 2 * self.hidden_size * narrow
        products += self.num_hidden_layers * (self._dense + keys_and_values)
        products *= self.inner_group_num
        if self.projects_embeddings:
            products += self.embedding_width * self.hidden_size
        return 2.0 * length * products

    @property
    def _dense(self) -> int:
        """The multiply-adds of a layer for a position, but for keys, values and attention."""
        products_of = CHOICES["feed_forward"][self.feed_forward].num_products
        return self.hidden_size * (2 * self.hidden_size + products_of * self.intermediate_size)

    def _attended(self, length: int, layer: int) -> int:
        """Returns the multiply-adds of the products with keys, values and distances a position."""
        window = self.window_of(layer)
        seen = length if window is None else min(length, 2 * window + 1)
        by_distance = 2 * length - 1 if self.relative == "disentangled" else 0
        return 2 * (seen + by_distance) * self.hidden_size

    def masked_flops(self, length: int, positions: int) -> float:
        """Returns the FLOPs of predicting the tokens at this number of a sequence's positions.

        With a `mask_decoder` these positions pass the last layer twice; products with keys are
        computed for all.
        """
        forward = self.forward_flops(length) + self.head_flops(positions)
        if not self.mask_decoder:
            return forward
        attended = self._attended(length, self.num_hidden_layers - 1)
        return forward + 2.0 * (length * attended + (2 * positions - length) * self._dense)

    def head_flops(self, positions: int) -> float:
        """Returns the FLOPs of the masked-token head's forward pass at this number of positions."""
        transform = self.hidden_size if self.mlm_transform else 0
        return 2.0 * positions * self.embedding_width * (transform + self.vocab_size)


def type_faults(values: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yields the fields of EncoderConfig whose value is of another type than their default."""
    for name, row in fields.ROWS.items():
        if name in values:
            yield from schema.faults(values[name], schema.of(row.default), name)
