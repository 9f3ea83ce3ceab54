"""What describes an encoder, as its parts read it.

`encoder.EncoderConfig` is the same and checks it against the tables of parts, which therefore
cannot import it.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EncoderFields:
    """The fields of `encoder.EncoderConfig`, which says what they mean; nothing is checked."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    position_offset: int = 0
    type_vocab_size: int = 2
    initializer: str = "truncated_normal"
    initializer_range: float = 0.02
    depth_scaled_init: bool = False
    norm: str = "layer_norm"
    layer_norm_eps: float = 1e-12
    use_bias: bool = True
    embedding_size: int = 0
    embedding_projection: str = "if_needed"
    num_hidden_groups: int = 0
    inner_group_num: int = 1
    embeddings: str = "learnt"
    position_embedding: str = "learnt"
    rotary_base: float = 10_000.0
    local_rotary_base: float = 0.0
    layer: str = "post_norm"
    feed_forward: str = "plain"
    dtype: str = "float32"
    gradient_reduction_dtype: str = "float32"
    remat: str = "none"
    attention: str = "xla"
    window: int = 0
    global_every: int = 1
    left_to_right: bool = False
    pooler: str = "dense"
    pooler_act: str = "tanh"

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
        return None if self.is_global(layer) else self.window

    def rotary_base_of(self, layer: int) -> float | None:
        """Returns the base of this layer's rotary positions, None without them."""
        if self.position_embedding != "rotary":
            return None
        is_own = self.local_rotary_base and not self.is_global(layer)
        return self.local_rotary_base if is_own else self.rotary_base

    @property
    def gradient_dtype(self) -> str:
        """The type of the products that are gradients of kernels."""
        return self.dtype if self.gradient_reduction_dtype == "compute" else "float32"
