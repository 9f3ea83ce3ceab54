"""The parts and sizes of an encoder, each field with its meaning, and what makes a config wrong.

The field names are those of the original bert_config.json where it has them. BERT-base is the
default: Devlin et al. 2019, section 3.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from bertjax.models import activations, attention, layers, norms, rotary
from bertjax.models.kernels import pallas_attention

DTYPES = ("float32", "bfloat16")
GRADIENT_REDUCTION_DTYPES = ("float32", "compute")  # compute: `dtype`

# The values that a layer keeps for the backward pass; "none" keeps all and recomputes nothing.
REMAT_POLICIES: dict[str, Any] = {
    "none": jax.checkpoint_policies.everything_saveable,
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

# Field -> its largest value: a damaged or hostile file must not exhaust memory.
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
    "language_embeddings": 100_000,
    "value_width": 1_000_000,
}

OF_TOKENS = ("learnt", "token_dropout")  # embeddings that are a table of a vocabulary
VALUE_SIZES = {"patches": "value_width", "columns": "columns"}  # of the others, their sizes

# Field -> its values. `encoder` adds the tables of parts, which read this config.
CHOICES: dict[str, Any] = {  # a sequence of names, or a mapping from names to parts
    "embedding_projection": ("if_needed", "always"),
    "position_embedding": ("learnt", "rotary", "sines", "sines_of_grid", "none"),
    "hidden_input": ("vector", "zeros", "none"),
    "rotary_angles": ("exact", "float16"),
    "attention": attention.IMPLEMENTATIONS,
    "hidden_act": activations.ACTIVATIONS,
    "initializer": layers.INITIALIZERS,
    "norm": norms.NORMS,
    "pooler": ("dense", "normed"),
    "pooler_act": activations.POOLER_ACTIVATIONS,
    "dtype": DTYPES,
    "gradient_reduction_dtype": GRADIENT_REDUCTION_DTYPES,
    "remat": REMAT_POLICIES,
}


class FaultyConfigError(ValueError):
    """A config that makes no encoder; each of its `faults` begins with the name of a field."""

    def __init__(self, faults: Sequence[str]):
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The parts and sizes of an encoder.

    Fields that change nothing get one value, so that equal encoders have equal configs:
    `embedding_projection` "if_needed" where widths differ, `local_rotary_base` 0 where it is
    `rotary_base` or there is no window, `global_every` 1 without a window, `rotary_angles` "exact"
    without rotary positions, `mask_id` -1 where the embeddings read none.

    Raises:
      ValueError: listing every field that does not fit.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1  # dropout of the attention weights
    max_position_embeddings: int = 512  # rows of the position table without `position_offset`
    # The row of the first position; 2 in RoBERTa. The row before it is padding's, zero and never
    # trained, and so is the word of that number.
    position_offset: int = 0
    type_vocab_size: int = 2  # segments; 0: no segment embeddings, 1: one for all tokens
    language_embeddings: int = 0  # languages with an embedding each, as in XLM; 0: none
    initializer: str = "truncated_normal"  # of kernels and embeddings
    initializer_range: float = 0.02  # its standard deviation; xavier_uniform: of embeddings alone
    # Divides it by sqrt(2 num_hidden_layers) for kernels before a residual, as Megatron-LM.
    depth_scaled_init: bool = False
    norm: str = "layer_norm"
    layer_norm_eps: float = 1e-12
    use_bias: bool = True  # of dense layers; the last one of a head always has a bias
    embedding_size: int = 0  # width of the embeddings, as in ALBERT; 0: hidden_size
    embedding_projection: str = "if_needed"  # by a dense layer, or "always": even at equal widths
    num_hidden_groups: int = 0  # groups of layers that share parameters; 0: no layer shares
    inner_group_num: int = 1  # stored layers of a group, applied in a row
    embeddings: str = "learnt"  # a key of encoder.EMBEDDINGS
    position_embedding: str = "learnt"  # a table, or "rotary": queries and keys are rotated
    rotary_base: float = 10_000.0
    local_rotary_base: float = 0.0  # of layers with a window; 0: rotary_base
    rotary_angles: str = "exact"  # "float16": rounded to it, as the released ESM-2 has them
    value_width: int = 0  # of embeddings "patches": the values of a position
    # Of embeddings "columns": 0 for each column of numbers, else its number of categories.
    columns: Sequence[int] = ()  # kept as a tuple
    # For hidden positions: a learnt vector, "zeros" as values; "none": they are not read.
    hidden_input: str = "vector"
    partial_patches: bool = True  # a patch may lack some values: learnt vectors stand for them
    normalized_rows: bool = False  # each row of patches to the mean 0 and the variance 1
    mask_id: int = -1  # of embeddings "token_dropout": the id whose vectors are zero
    layer: str = "post_norm"  # a key of encoder.LAYERS
    feed_forward: str = "plain"  # a key of feed_forwards.FEED_FORWARDS
    dtype: str = "float32"  # of matrix products; parameters, softmax and losses stay float32
    # Type of the gradients of kernels and of their sums over devices; "compute": dtype.
    gradient_reduction_dtype: str = "float32"
    # "full" computes each layer again in the backward pass, "dots" all of it but the projections.
    remat: str = "none"
    # "xla", or kernels with the same result where they fit: "pallas" (TPU), "cudnn" (GPU), "auto".
    attention: str = "xla"
    window: int = 0  # positions to each side that a token sees; 0: all; -1: none, but itself
    global_every: int = 1  # layers 0, n, 2n, ... have no window; 0: all layers have it
    left_to_right: bool = False  # a token sees itself and what lies on its left
    pooler: str = "dense"  # "normed": with a norm, and before every head, as in ModernBERT
    pooler_act: str = "tanh"
    mlm_transform: bool = True  # dense layer, activation and norm before masked tokens' logits

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
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.embeddings != "patches":
            object.__setattr__(self, "value_width", 0)
        if faults := list(self._faults()):
            raise FaultyConfigError(faults)

    def _faults(self) -> Iterator[str]:
        at_least_1 = ["hidden_size", "num_hidden_layers", "num_attention_heads"]
        at_least_1 += ["intermediate_size", "max_position_embeddings"]
        at_least_1 += ["vocab_size"] if self.embeddings in OF_TOKENS else []
        for name in at_least_1:
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
        if self.language_embeddings < 0 or self.language_embeddings == 1:
            yield (
                f"language_embeddings is {self.language_embeddings}; it must be 0 (none) or the "
                "number of languages, at least 2"
            )
        if not 0 <= self.num_hidden_groups <= max(self.num_hidden_layers, 0):
            yield (
                f"num_hidden_groups is {self.num_hidden_groups}; it must be from 0 (each layer its "
                f"own) to the {self.num_hidden_layers} of num_hidden_layers"
            )
        if self.inner_group_num < 1:
            yield f"inner_group_num is {self.inner_group_num}; it must be at least 1"
        if self.embedding_size < 0:
            yield f"embedding_size is {self.embedding_size}; it must be at least 0 (hidden_size)"
        if not self.mlm_transform and self.embedding_width != self.hidden_size:
            yield (
                "mlm_transform is False, so the last states themselves meet the word embeddings; "
                f"embedding_size is {self.embedding_size}, it must be 0 or hidden_size, "
                f"{self.hidden_size}"
            )
        if self.num_attention_heads >= 1 and self.hidden_size % self.num_attention_heads:
            yield (
                f"hidden_size is {self.hidden_size}; it must be a multiple of "
                f"num_attention_heads, {self.num_attention_heads}"
            )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                yield f"{name} is {getattr(self, name)!r}; known are {', '.join(known)}"
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                yield f"{name} is {getattr(self, name)}; it must be in [0, 1)"
        if self.window < -1 or self.global_every < 0:
            yield (
                f"window is {self.window} and global_every is {self.global_every}; they must be at "
                "least -1 and 0"
            )
        if self.window and self.global_every == 1:
            yield (
                f"window is {self.window} and global_every is 1, so no layer has that window: set "
                "global_every to 0 (all have it) or above 1, or window to 0"
            )
        if self.position_embedding == "rotary":
            yield from self._rotary_faults()
        if self.embeddings == "token_dropout":
            yield from self._token_dropout_faults()
        yield from self._value_faults()
        if self.num_groups != self.num_hidden_layers or self.inner_group_num != 1:
            yield from self._sharing_faults()
        head_size = self.hidden_size // max(self.num_attention_heads, 1)
        if self.attention == "pallas" and head_size not in pallas_attention.HEAD_SIZES:
            yield (
                f"attention is 'pallas', whose kernel takes heads of "
                f"{', '.join(map(str, pallas_attention.HEAD_SIZES))}; hidden_size / "
                f"num_attention_heads is {head_size}: set attention='xla'"
            )

    def _rotary_faults(self) -> Iterator[str]:
        if self.rotary_base <= 0 or self.local_rotary_base < 0:
            yield (
                f"rotary_base is {self.rotary_base} and local_rotary_base is "
                f"{self.local_rotary_base}; the first must be above 0, the second at least 0 "
                "(rotary_base)"
            )
        head_size = self.hidden_size // max(self.num_attention_heads, 1)
        if head_size % 2:
            yield (
                "position_embedding is 'rotary', which turns pairs of numbers; hidden_size / "
                f"num_attention_heads is {head_size}, not even"
            )
        if self.position_offset:
            yield (
                f"position_offset is {self.position_offset}; it must be 0 with position_embedding "
                "'rotary': there is no table of positions"
            )

    @property
    def reads_values(self) -> bool:
        """Whether a position holds numbers, and no token."""
        return self.embeddings not in OF_TOKENS

    def _value_faults(self) -> Iterator[str]:
        name = VALUE_SIZES.get(self.embeddings)
        if name and not getattr(self, name):
            yield (
                f"{name} is {getattr(self, name)!r}; embeddings={self.embeddings!r} need it: "
                "records say it, and without them it must be given"
            )
        if min(self.columns, default=0) < 0 or sum(self.columns) > MOST["vocab_size"]:
            yield (
                f"columns is {self.columns!r:.60}; it must have 0 for each column of numbers and "
                "the number of categories for each other one"
            )
        if self.embeddings == "learnt" and self.position_embedding not in ("learnt", "rotary"):
            yield (
                f"position_embedding is {self.position_embedding!r}; with embeddings='learnt' it "
                "must be 'learnt' or 'rotary'"
            )

    def _token_dropout_faults(self) -> Iterator[str]:
        unread = {"type_vocab_size": 0, "language_embeddings": 0, "embedding_size": 0}
        for name, value in (unread | {"position_embedding": "rotary"}).items():
            if getattr(self, name) != value:
                yield (
                    f"{name} is {getattr(self, name)!r}; embeddings='token_dropout' are those of "
                    f"tokens alone: it must be {value!r}"
                )
        if not -1 <= self.mask_id < max(self.vocab_size, 1):
            yield (
                f"mask_id is {self.mask_id}; it must be the id of the mask, below vocab_size, "
                f"{self.vocab_size}, or -1 (no id is a mask)"
            )

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
        that a layer's window leaves of `length`, the dense layers, and the projection of factorized
        embeddings. Lookups, normalization and softmax are not counted.
        """
        products_of = CHOICES["feed_forward"][self.feed_forward].num_products
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

    def head_flops(self, positions: int) -> float:
        """Returns the FLOPs of the masked-token head's forward pass at this number of positions."""
        transform = self.hidden_size if self.mlm_transform else 0
        return 2.0 * positions * self.embedding_width * (transform + self.vocab_size)


# The type of a field's default -> what a value must be, and its name.
_KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a string"),
    tuple: (tuple | list, "a list of whole numbers"),
}


def type_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields those of the values, by the name of a field of EncoderConfig, of another type."""
    for field in dataclasses.fields(EncoderConfig):
        if field.name not in values:
            continue
        value, (kind, title) = values[field.name], _KINDS[type(field.default)]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            yield f"{field.name} is {value!r:.60}; it must be {title}"
