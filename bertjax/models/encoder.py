"""The BERT encoder: embeddings and post-norm Transformer layers (Devlin et al. 2019, section 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bertjax.models import attention, layers, pallas_attention, placement

DTYPES = ("float32", "bfloat16")  # of matrix products

# What a layer keeps for the backward pass; with "none" all, and nothing is computed again.
REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "none": jax.checkpoint_policies.everything_saveable,
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The sizes of an encoder, with the field names of the original bert_config.json.

    Ours are `dtype`, the type of the matrix multiplications (parameters, statistics, softmax and
    losses stay float32), and `remat`: "none" saves all activations for the backward pass, "full"
    recomputes each layer from its input, "dots" recomputes all but the projections. `attention` is
    "xla" or "pallas", a kernel for TPU that computes the same (`pallas_attention`).

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
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    dtype: str = "float32"
    remat: str = "none"
    attention: str = "xla"

    def __post_init__(self):
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))

    def _faults(self):
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; it must be at least 1"
        if self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads:
            yield (
                f"hidden_size is {self.hidden_size}; it must be a multiple of the "
                f"{self.num_attention_heads} num_attention_heads"
            )
        choices = {
            "hidden_act": layers.ACTIVATIONS,
            "dtype": DTYPES,
            "remat": REMAT_POLICIES,
            "attention": attention.IMPLEMENTATIONS,
        }
        for name, known in choices.items():
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
        positions, and the two dense layers. Lookups, normalization and softmax are not counted.
        """
        projections = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size
        attention = 2 * length * self.hidden_size
        return 2.0 * length * self.num_hidden_layers * (projections + attention)


class Embeddings(nnx.Module):
    """Sum of word, position and segment embeddings, LayerNorm, dropout (section 3, figure 2)."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        def table(rows: int) -> nnx.Embed:
            init = layers.truncated_normal(config.initializer_range)
            return nnx.Embed(rows, config.hidden_size, embedding_init=init, rngs=rngs)

        self.word = table(config.vocab_size)
        self.position = table(config.max_position_embeddings)
        self.segment = table(config.type_vocab_size)
        dtype = jnp.dtype(config.dtype)
        self.norm = layers.LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps, dtype=dtype)
        self.dropout_rate = config.hidden_dropout_prob
        self.type_vocab_size = config.type_vocab_size

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Reads `input_ids` and `segment_ids`; without those all is of segment 0."""
        input_ids = inputs["input_ids"]
        segment_ids = (
            inputs["segment_ids"] if "segment_ids" in inputs else jnp.zeros_like(input_ids)
        )
        length = input_ids.shape[1]
        positions = self.position.embedding[...]
        if length > positions.shape[0]:
            raise ValueError(
                f"the input has {length} positions; the model was made for at most "
                f"max_position_embeddings = {positions.shape[0]}"
            )
        # Segments as a product with one-hot rows: the gradient of a lookup would be a scatter of
        # every token into two rows.
        segments = jax.nn.one_hot(segment_ids, self.type_vocab_size) @ self.segment.embedding[...]
        summed = self.word(input_ids) + positions[:length][None] + segments
        return layers.dropout(self.norm(summed), self.dropout_rate, key)


class EncoderLayer(nnx.Module):
    """LayerNorm(x + attention(x)), then LayerNorm(x + feed-forward(x))."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        stddev = config.initializer_range
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.attention = attention.SelfAttention(
            hidden,
            config.num_attention_heads,
            dropout_rate=config.attention_probs_dropout_prob,
            stddev=stddev,
            dtype=dtype,
            rngs=rngs,
            implementation=config.attention,
        )
        self.intermediate = layers.dense(
            hidden, intermediate, stddev=stddev, dtype=dtype, rngs=rngs, kind=nnx.Linear
        )
        self.output = layers.dense(intermediate, hidden, stddev=stddev, dtype=dtype, rngs=rngs)
        norm = {"epsilon": config.layer_norm_eps, "dtype": dtype}
        self.attention_norm = layers.LayerNorm(hidden, **norm)
        self.output_norm = layers.LayerNorm(hidden, **norm)
        self.hidden_act = config.hidden_act
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        is_real: Bool[Array, "batch length"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        attention_key, projection_key, output_key = _split(key, 3)
        attended = self.attention(hidden, is_real, key=attention_key)
        attended = layers.dropout(attended, self.dropout_rate, projection_key)
        hidden = self.attention_norm(hidden + attended)
        with jax.named_scope("feed_forward"):
            output = self.output(layers.ACTIVATIONS[self.hidden_act](self.intermediate(hidden)))
        output = layers.dropout(output, self.dropout_rate, output_key)
        return self.output_norm(hidden + output)


class Encoder(nnx.Module):
    """Embeddings and `num_hidden_layers` layers; the Base size has 108.9 M parameters."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs=rngs)
        self.layers = nnx.List(
            [EncoderLayer(config, rngs=rngs) for _ in range(config.num_hidden_layers)]
        )
        self.remat = config.remat

    def __call__(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the last layer's hidden states.

        Of `inputs` it reads `input_mask`, 1 at tokens, 0 at padding; the embeddings read the rest.
        """
        return self.hidden_states(inputs, key=key)[-1]

    def hidden_states(
        self,
        inputs: layers.Inputs,
        *,
        key: PRNGKeyArray | None = None,
    ) -> list[Float[Array, "batch length hidden"]]:
        """Returns the embeddings' output and then every layer's, `num_hidden_layers` + 1 in all."""
        is_real = inputs["input_mask"] != 0
        keys = _split(key, len(self.layers) + 1)
        with jax.named_scope("embeddings"):
            embedded = self.embeddings(inputs, key=keys[0])
        states = [placement.constrain(embedded, placement.DATA)]
        for layer, layer_key in zip(self.layers, keys[1:], strict=True):

            def apply(hidden, key, layer=layer):
                return placement.constrain(layer(hidden, is_real, key=key), placement.DATA)

            if self.remat != "none":
                apply = jax.checkpoint(apply, policy=REMAT_POLICIES[self.remat])
            with jax.named_scope("encoder"):
                states.append(apply(states[-1], layer_key))
        return states


def _split(key: PRNGKeyArray | None, count: int) -> list[PRNGKeyArray | None]:
    # fold_in rather than split: a jax.vmap over rbg keys would repeat the first key's bits.
    if key is None:
        return [None] * count
    return [jax.random.fold_in(key, index) for index in range(count)]
