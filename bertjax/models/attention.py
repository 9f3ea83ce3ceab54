"""Multi-head self-attention with dropout on the attention probabilities.

Our own, because neither `jax.nn.dot_product_attention` (no dropout) nor flax's attention (one
dropout mask shared over batch and heads, softmax in the compute dtype) is what BERT does.
`plain_attention` has it in plain JAX ("xla"), `pallas_attention` as TPU kernels ("pallas").
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, pallas_attention, plain_attention, rotary
from bertjax.models.visibility import Visibility

IMPLEMENTATIONS = ("auto", "xla", "pallas")


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

    "pallas" gives the same numbers but for rounding, where a row has a token at all. What its
    kernels do not take is computed by "xla": lengths that `pallas_attention.takes` denies, with a
    warning the first time, and whatever is compiled for another platform than TPU. "auto" is
    "pallas" without the warning.
    """
    batch, length, heads, _ = query.shape
    if implementation != "xla" and not pallas_attention.takes(length, query.shape[3]):
        if implementation == "pallas":
            _warn_of_length(length)
        implementation = "xla"
    if implementation == "xla":
        with jax.named_scope("rotary"):
            query, keys = rotary.both_turned(query, keys, visible.positions, rotary_base)
        rotary_base = None
    how = _How(dropout_rate, implementation, rotary_base)
    if key is None or dropout_rate == 0.0:
        return _attend(query, keys, values, visible, None, how._replace(rate=0.0))
    seeds = layers.mask_seeds(key, (batch, heads))
    return _attend(query, keys, values, visible, seeds, how)


@functools.cache
def _warn_of_length(length: int) -> None:
    # Not an error: lengths come from buckets, from evaluation and from users' texts as well, and
    # the model is the same either way.
    logging.warning(
        "config.model.attention is 'pallas', whose kernels take %d to %d positions; attention over "
        "%d positions is computed as with 'xla', which is slower.",
        pallas_attention.MIN_LENGTH,
        pallas_attention.MAX_LENGTH,
        length,
    )


class _How(NamedTuple):
    """What is known when attention is compiled."""

    rate: float
    implementation: str
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
    if how.implementation == "xla":
        return plain_attention.context(*arguments, rate=how.rate), None

    def plain(*arguments: Any) -> tuple[Array, Array | None]:
        nothing = pallas_attention.no_statistics(query.shape, visible)
        return _plain_context(*arguments, how=how), nothing

    kernel = functools.partial(pallas_attention.context, rate=how.rate, rotary_base=how.rotary_base)
    return jax.lax.platform_dependent(*arguments, tpu=kernel, default=plain)


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
    if how.implementation == "xla":
        return *_plain_gradients(*saved, how=how), None, None
    kernel = functools.partial(
        pallas_attention.gradients, rate=how.rate, rotary_base=how.rotary_base
    )
    plain = functools.partial(_plain_gradients, how=how)
    return *jax.lax.platform_dependent(*saved, tpu=kernel, default=plain), None, None


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
