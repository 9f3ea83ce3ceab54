"""Multi-head self-attention with dropout on the attention probabilities.

Our own, because neither `jax.nn.dot_product_attention` (no dropout) nor flax's attention (one
dropout mask shared over batch and heads, softmax in the compute dtype) is what BERT does.
`plain_attention` has it in plain JAX ("xla"), `pallas_attention` as TPU kernels ("pallas"), and
`cudnn_attention` by those of cuDNN where dropout leaves the weights alone ("cudnn").
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, plain_attention, rotary
from bertjax.models.kernels import cudnn_attention, pallas_attention
from bertjax.models.visibility import Visibility

IMPLEMENTATIONS = ("auto", "xla", "pallas", "cudnn")
TPU, CUDA = "tpu", "cuda"  # JAX's names of what a program is compiled for


class SelfAttention(nnx.Module):
    """Attention of every position to those that it sees, before residual and LayerNorm.

    `window` and `left_to_right` narrow what this layer sees, as in `visibility.Visibility`. With a
    `rotary_base` queries and keys turn with their positions (`rotary`). `gradient_dtype` is that of
    `layers.Dense`; the output's kernel starts with `output_stddev`, None for `stddev`.
    Source: Vaswani et al. 2017, section 3.2; Devlin et al. 2019, section 3.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout_rate: float,
        stddev: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        gradient_dtype: jnp.dtype | None = None,
        initializer: str = "truncated_normal",
        implementation: str = "xla",
        window: int | None = None,
        left_to_right: bool = False,
        rotary_base: float | None = None,
        use_bias: bool = True,
        output_stddev: float | None = None,
    ):
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.implementation = implementation
        self.window = window
        self.left_to_right = left_to_right
        self.rotary_base = rotary_base

        def dense(sigma: float = stddev) -> nnx.Linear:
            return layers.dense(
                *(hidden_size, hidden_size),
                stddev=sigma,
                initializer=initializer,
                dtype=dtype,
                gradient_dtype=gradient_dtype,
                use_bias=use_bias,
                rngs=rngs,
            )

        self.query, self.key, self.value = dense(), dense(), dense()
        self.output = dense(stddev if output_stddev is None else output_stddev)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        batch, length, _ = hidden.shape
        with jax.named_scope("attention/projections"):
            query, keys = self._query_and_keys(hidden)
            values = self.value(hidden).reshape(keys.shape)
        with jax.named_scope("attention/scores"):
            context = attend(
                query,
                keys,
                values,
                self._narrowed(visible),
                dropout_rate=self.dropout_rate,
                key=key,
                implementation=self.implementation,
                rotary_base=self.rotary_base,
            )
        with jax.named_scope("attention/projections"):
            return self.output(context.reshape(batch, length, -1))

    def weights(
        self, hidden: Float[Array, "batch length hidden"], visible: Visibility
    ) -> Float[Array, "batch heads length length"]:
        """Returns how much each position takes of each that it sees: to look at, not to train by.

        They sum to one over the last axis, or to zero where a position sees nothing. Computed in
        plain JAX, whatever the implementation, without dropout, all at once.
        """
        query, keys = self._query_and_keys(hidden)
        query, keys = rotary.both_turned(query, keys, visible.positions, self.rotary_base)
        return plain_attention.weights(query, keys, self._narrowed(visible))

    def _query_and_keys(self, hidden: Array) -> tuple[Array, Array]:
        """Returns the scaled query and the keys, by head, before they turn."""
        by_head = (*hidden.shape[:2], self.num_heads, -1)
        query = self.query(hidden).reshape(by_head)
        query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        return query, self.key(hidden).reshape(by_head)

    def _narrowed(self, visible: Visibility) -> Visibility:
        return visible.narrowed(window=self.window, left_to_right=self.left_to_right)


def attend(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    visible: Visibility,
    *,
    dropout_rate: float,
    key: PRNGKeyArray | None,
    implementation: str = "xla",
    rotary_base: float | None = None,
) -> Float[Array, "batch length heads head"]:
    """Returns the average of the `values` that are seen, weighted by softmax in float32.

    `query` is scaled already. With a `rotary_base` queries and keys turn by their positions first.
    What is not seen gets a weight of exactly zero (the released code adds -10000 to its scores,
    which in float32 comes to the same). Nothing of size length x length is kept for the backward
    pass, which computes scores, softmax and dropout mask again.

    "pallas" and "cudnn" give the same numbers but for rounding, where a row has a token at all.
    What their kernels do not take (`kernel_platforms`) is computed by "xla", with a warning the
    first time, and so is whatever is compiled for another platform. "auto" is both of them without
    the warning.
    """
    batch, length, heads, size = query.shape
    rate = 0.0 if key is None else dropout_rate
    kernels = kernel_platforms(implementation, length, size, query.dtype, rate)
    if not kernels:
        if implementation in _TAKEN:
            _warn(implementation, length)
        with jax.named_scope("rotary"):
            query, keys = rotary.both_turned(query, keys, visible.positions, rotary_base)
        rotary_base = None
    how = _How(rate, kernels, rotary_base)
    seeds = layers.mask_seeds(key, (batch, heads)) if key is not None and rate else None
    return _attend(query, keys, values, visible, seeds, how)


def kernel_platforms(
    implementation: str, length: int, head_size: int, dtype: jnp.dtype, rate: float
) -> tuple[str, ...]:
    """Returns for which platforms there are kernels of rows of so many positions, such heads."""
    found = []
    if implementation in ("auto", "pallas") and pallas_attention.takes(length, head_size):
        found.append(TPU)
    is_cudnn = implementation in ("auto", "cudnn") and rate == 0.0
    if is_cudnn and cudnn_attention.takes(length, head_size, dtype):
        found.append(CUDA)
    return tuple(found)


# What each of the kernels takes, for a warning.
_TAKEN = {
    "pallas": f"{pallas_attention.MIN_LENGTH} to {pallas_attention.MAX_LENGTH} positions",
    "cudnn": (
        f"an even number of positions from {cudnn_attention.MIN_LENGTH} to "
        f"{cudnn_attention.MAX_LENGTH}, in bfloat16, without dropout of the weights, where JAX has "
        "cuDNN"
    ),
}


@functools.cache
def _warn(implementation: str, length: int) -> None:
    # Not an error: lengths come from buckets, from evaluation and from users' texts as well, and
    # the model is the same either way.
    logging.warning(
        "config.model.attention is %r, whose kernels take %s; attention over %d positions is "
        "computed as with 'xla', which is slower.",
        *(implementation, _TAKEN[implementation], length),
    )


class _How(NamedTuple):
    """What is known when attention is compiled."""

    rate: float
    kernels: tuple[str, ...]
    rotary_base: float | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    how: _How,
) -> Array:
    return _context(query, keys, values, visible, seeds, how)[0]


def _context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    how: _How,
) -> tuple[Array, Array | None]:
    """Returns the context, and the kernel's statistics for its backward pass."""
    arguments = (query, keys, values, visible, seeds)
    nothing = None
    if TPU in how.kernels:
        nothing = pallas_attention.no_statistics(query.shape, visible)
    if not how.kernels:
        return plain_attention.context(*arguments, rate=how.rate), nothing

    def plain(*arguments: Any) -> tuple[Array, Array | None]:
        return _plain_context(*arguments, how=how), nothing

    def of_cudnn(*arguments: Any) -> tuple[Array, Array | None]:
        return cudnn_attention.context(*arguments[:4], rotary_base=how.rotary_base), nothing

    kernels = {
        TPU: functools.partial(
            pallas_attention.context, rate=how.rate, rotary_base=how.rotary_base
        ),
        CUDA: of_cudnn,
    }
    taken = {platform: kernels[platform] for platform in how.kernels}
    return jax.lax.platform_dependent(*arguments, **taken, default=plain)


def _plain_context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    *,
    how: _How,
) -> Array:
    query, keys = rotary.both_turned(query, keys, visible.positions, how.rotary_base)
    return plain_attention.context(query, keys, values, visible, seeds, rate=how.rate)


def _forward(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    how: _How,
) -> tuple[Any, tuple[Any, ...]]:
    arguments = (query, keys, values, visible, seeds)
    context, statistics = _context(*arguments, how)
    return context, (*arguments, context, statistics)


def _backward(how: _How, saved: tuple[Any, ...], grad: Array) -> tuple[Array | None, ...]:
    saved = (*saved, grad)
    if not how.kernels:
        return *_plain_gradients(*saved, how=how), None, None

    def of_cudnn(
        query: Array, keys: Array, values: Array, visible: Visibility, *rest: Any
    ) -> tuple[Array, Array, Array]:
        grad = rest[-1]
        return cudnn_attention.gradients(
            query, keys, values, visible, grad, rotary_base=how.rotary_base
        )

    kernels = {
        TPU: functools.partial(
            pallas_attention.gradients, rate=how.rate, rotary_base=how.rotary_base
        ),
        CUDA: of_cudnn,
    }
    taken = {platform: kernels[platform] for platform in how.kernels}
    plain = functools.partial(_plain_gradients, how=how)
    return *jax.lax.platform_dependent(*saved, **taken, default=plain), None, None


def _plain_gradients(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    context: Array,
    statistics: Array | None,
    grad: Array,
    *,
    how: _How,
) -> tuple[Array, Array, Array]:
    """Returns the gradients; the statistics are the kernel's, and nothing to plain JAX."""
    turn = functools.partial(rotary.both_turned, positions=visible.positions, base=how.rotary_base)
    query, keys = turn(query, keys)
    of_query, of_keys, of_values = plain_attention.gradients(
        query, keys, values, visible, seeds, context, grad, rate=how.rate
    )
    return *turn(of_query, of_keys, back=True), of_values


_attend.defvjp(_forward, _backward)
