"""Multi-head self-attention with dropout on the attention probabilities.

Neither `jax.nn.dot_product_attention` (no dropout) nor flax's attention (one dropout mask for all
rows and heads, softmax in the compute dtype) computes what BERT does. `reference_attention` is the
definition. `plain_attention` has it in plain JAX ("xla"), `kernels` as Pallas kernels for TPU
("pallas") and by cuDNN's, without dropout of the weights ("cudnn").
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import layers, plain_attention, relative, rotary
from bertjax.models.kernels import cudnn_attention, pallas_attention, pallas_rows
from bertjax.models.visibility import Visibility

IMPLEMENTATIONS = ("auto", "xla", "pallas", "cudnn")
TPU, CUDA = "tpu", "cuda"  # JAX's names of platforms

# Makes the terms by distance of an attention, for rows of a length, with a key for dropout.
TermsOf = Callable[["SelfAttention", int, PRNGKeyArray | None], relative.Terms]
_OF_TABLE = 1  # folded into the key of an attention for its terms


class SelfAttention(nnx.Module):
    """Attention of every position to the positions that it sees, before residual and LayerNorm.

    `window` and `left_to_right` restrict this layer, as in `visibility.Visibility`. With a
    `rotary_base` queries and keys are rotated by their positions (`rotary`). `gradient_dtype` is as
    in `layers.Dense`. The output's kernel is initialized with `output_stddev`; None: `stddev`.
    Consecutive heads of queries share each of `num_key_value_heads` heads of keys and values;
    0: no head is shared. Source: Ainslie et al. 2023 (GQA), section 2.2.
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
        rotary_base: rotary.Base | None = None,
        use_bias: bool = True,
        output_stddev: float | None = None,
        num_terms: int = 1,
        num_key_value_heads: int = 0,
    ):
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.dropout_rate = dropout_rate
        self.implementation = implementation
        self.window = window
        self.left_to_right = left_to_right
        self.rotary_base = rotary_base
        self.num_terms = num_terms

        def dense(sigma: float = stddev, width: int = hidden_size) -> nnx.Linear:
            return layers.Dense(
                *(hidden_size, width),
                kernel_init=layers.INITIALIZERS[initializer](sigma),
                dtype=dtype,
                gradient_dtype=gradient_dtype,
                use_bias=use_bias,
                rngs=rngs,
            )

        narrow = hidden_size // num_heads * self.num_key_value_heads
        self.query, self.key, self.value = dense(), dense(width=narrow), dense(width=narrow)
        self.output = dense(stddev if output_stddev is None else output_stddev)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        *,
        key: PRNGKeyArray | None = None,
        states: Float[Array, "batch places hidden"] | None = None,
        at: Int[Array, "batch length"] | None = None,
        terms_of: TermsOf | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the attention output; keys and values come from `states` (default: `hidden`).

        `at` are the places of `hidden` among `states`, if not all are there. `terms_of` makes the
        terms by distance of this layer (`relative`).
        """
        batch, length, _ = hidden.shape
        with jax.named_scope("attention/projections"):
            query = self.scaled_query(hidden)
            keys, values = self.keys_and_values(hidden if states is None else states)
            query = query if at is None else _spread(query, at, keys.shape[1])
            terms = terms_of and terms_of(self, query.shape[1], layers.folded(key, _OF_TABLE))
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
                terms=terms,
            )
            context = context if at is None else layers.taken(context, at)
        with jax.named_scope("attention/projections"):
            return self.output(context.reshape(batch, length, -1))

    def weights(
        self,
        hidden: Float[Array, "batch length hidden"],
        visible: Visibility,
        terms_of: TermsOf | None = None,
    ) -> Float[Array, "batch heads length length"]:
        """Returns the attention weights of each position, for inspection.

        They sum to one over the last axis, or to zero where a position sees nothing. They are
        computed in plain JAX for any implementation, without dropout.
        """
        query, (keys, _) = self.scaled_query(hidden), self.keys_and_values(hidden)
        query, keys = rotary.both_turned(query, keys, visible.positions, self.rotary_base)
        terms = terms_of and terms_of(self, hidden.shape[1], None)
        return plain_attention.weights(query, keys, self._narrowed(visible), terms)

    def scaled_query(self, hidden: Array) -> Array:
        """Returns scaled queries [B, L, H, K] before rotary embedding."""
        query = self.query(hidden).reshape(*hidden.shape[:2], self.num_heads, -1)
        return query * jnp.asarray((self.num_terms * query.shape[-1]) ** -0.5, query.dtype)

    def keys_and_values(self, states: Array) -> tuple[Array, Array]:
        """Returns keys and values [B, S, H, K] before rotary embedding, shared ones repeated."""
        by_head = (*states.shape[:2], self.num_key_value_heads, -1)
        both = self.key(states).reshape(by_head), self.value(states).reshape(by_head)
        if self.num_key_value_heads == self.num_heads:
            return both
        # Head j of keys serves the queries' heads j * shared to j * shared + shared - 1.
        shared = self.num_heads // self.num_key_value_heads
        return jnp.repeat(both[0], shared, axis=2), jnp.repeat(both[1], shared, axis=2)

    def _narrowed(self, visible: Visibility) -> Visibility:
        return visible.narrowed(window=self.window, left_to_right=self.left_to_right)


def _spread(
    query: Float[Array, "batch queries heads head"], at: Int[Array, "batch queries"], length: int
) -> Float[Array, "batch length heads head"]:
    """Returns rows with each query at its place; queries at other places mean nothing."""
    places = jax.lax.broadcasted_iota(jnp.int32, (*at.shape, length), 2)
    return layers.taken(query, jnp.argmax(at[:, :, None] == places, axis=1))


def attend(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch places heads head"],
    values: Float[Array, "batch places heads head"],
    visible: Visibility,
    *,
    dropout_rate: float,
    key: PRNGKeyArray | None,
    implementation: str = "xla",
    rotary_base: rotary.Base | None = None,
    terms: relative.Terms | None = None,
) -> Float[Array, "batch length heads head"]:
    """Returns the average of the `values` that are seen, weighted by softmax in float32.

    `query` is scaled already. With a `rotary_base` queries and keys are rotated by their positions
    first. Keys may belong to other rows than queries; then all queries of a row see the same keys.
    Rows of two lengths have no kernels.
    Keys that are not seen get a weight of exactly zero (the released code adds -10000 to their
    scores, which gives the same in float32). Nothing of size length x length is kept for the
    backward pass, which computes scores, softmax and dropout mask again.

    "pallas" and "cudnn" give the same numbers except for rounding, for rows with a token. Rows that
    their kernels do not support (`kernel_platforms`) are computed by "xla", with a warning the
    first time. Programs for other platforms are computed by "xla" as well. "auto" tries both
    without the warning.
    """
    batch, length, heads, size = query.shape
    rate = 0.0 if key is None else dropout_rate
    is_one_row = keys.shape[1] == length
    kernels = kernel_platforms(implementation, length, size, query.dtype, rate, terms)
    kernels = kernels if is_one_row else ()
    if not kernels:
        if is_one_row and implementation in _TAKEN:
            _warn(implementation, length, has_terms=terms is not None)
        with jax.named_scope("rotary"):
            query, keys = rotary.both_turned(query, keys, visible.positions, rotary_base)
        rotary_base = None
    seeds = layers.mask_seeds(key, (batch, heads)) if key is not None and rate else None
    options = _Options(rate, kernels, rotary_base)
    return _attend(query, keys, values, terms, visible, seeds, options)


def kernel_platforms(
    implementation: str,
    length: int,
    head_size: int,
    dtype: jnp.dtype,
    rate: float,
    terms: relative.Terms | None = None,
) -> tuple[str, ...]:
    """Returns the platforms with kernels for rows of this length and heads of this size."""
    platforms = []
    if implementation in ("auto", "pallas") and pallas_attention.takes(length, head_size, terms):
        platforms.append(TPU)
    is_cudnn = implementation in ("auto", "cudnn") and rate == 0.0 and terms is None
    if is_cudnn and cudnn_attention.takes(length, head_size, dtype):
        platforms.append(CUDA)
    return tuple(platforms)


# The rows that each kernel supports, for a warning.
_TAKEN = {
    "pallas": f"{pallas_attention.MIN_LENGTH} to {pallas_attention.MAX_LENGTH} positions",
    "cudnn": (
        f"an even number of positions from {cudnn_attention.MIN_LENGTH} to "
        f"{cudnn_attention.MAX_LENGTH}, in bfloat16, without dropout of the weights, where JAX has "
        "cuDNN"
    ),
}


_NO_TERMS = (
    "scores without terms of distances (config.model.relative); on a TPU also for disentangled "
    f"ones in rows of {', '.join(map(str, pallas_rows.LENGTHS))} positions"
)


@functools.cache
def _warn(implementation: str, length: int, *, has_terms: bool = False) -> None:
    # Not an error: lengths also come from buckets, evaluation and users' texts, and the results are
    # the same.
    logging.warning(
        "attention=%r has kernels for %s; attention over %d positions is computed as with "
        "attention='xla', which is slower.",
        *(implementation, _NO_TERMS if has_terms else _TAKEN[implementation], length),
    )


class _Options(NamedTuple):
    """The static arguments of attention; `kernels` are the platforms that have a kernel."""

    rate: float
    kernels: tuple[str, ...]
    rotary_base: rotary.Base | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(
    query: Array,
    keys: Array,
    values: Array,
    terms: relative.Terms | None,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    options: _Options,
) -> Array:
    return _forward(query, keys, values, terms, visible, seeds, options)[0]


def _forward(
    query: Array,
    keys: Array,
    values: Array,
    terms: relative.Terms | None,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    options: _Options,
) -> tuple[Array, tuple[Any, ...]]:
    """Returns the context and the residuals for the backward pass (incl. softmax statistics)."""
    rate, kernels, base = options
    no_statistics = None
    if TPU in kernels:
        no_statistics = pallas_attention.no_statistics(query.shape, visible, terms)

    def plain(query, keys, values, visible, seeds, terms) -> tuple[Array, Array | None]:
        query, keys = rotary.both_turned(query, keys, visible.positions, base)
        arguments = (query, keys, values, visible, seeds, terms)
        return plain_attention.context(*arguments, rate=rate), no_statistics

    def cudnn(*arguments: Any) -> tuple[Array, Array | None]:
        return cudnn_attention.context(*arguments[:4], rotary_base=base), no_statistics

    def pallas(query, keys, values, visible, seeds, terms) -> tuple[Array, Array | None]:
        return pallas_attention.context(
            query, keys, values, visible, seeds, rate=rate, rotary_base=base, terms=terms
        )

    arguments = (query, keys, values, visible, seeds, terms)
    context, statistics = _by_platform(kernels, arguments, plain, pallas, cudnn)
    return context, (*arguments, context, statistics)


def _backward(options: _Options, saved: tuple[Any, ...], grad: Array) -> tuple[Any, ...]:
    rate, kernels, base = options

    def plain(query, keys, values, visible, seeds, terms, context, statistics, grad):
        turn = functools.partial(rotary.both_turned, positions=visible.positions, base=base)
        query, keys = turn(query, keys)
        of_query, of_keys, of_values, of_terms = plain_attention.gradients(
            query, keys, values, visible, seeds, context, grad, terms, rate=rate
        )
        return *turn(of_query, of_keys, back=True), of_values, of_terms

    def cudnn(query, keys, values, visible, seeds, terms, context, statistics, grad):
        gradients = cudnn_attention.gradients(query, keys, values, visible, grad, rotary_base=base)
        return *gradients, None

    def pallas(query, keys, values, visible, seeds, terms, *others):
        return pallas_attention.gradients(
            *(query, keys, values, visible, seeds, *others),
            rate=rate, rotary_base=base, terms=terms,
        )  # fmt: skip

    gradients = _by_platform(kernels, (*saved, grad), plain, pallas, cudnn)
    return *gradients, None, None


def _by_platform(
    kernels: tuple[str, ...],
    arguments: tuple[Any, ...],
    plain: Callable[..., Any],
    pallas: Callable[..., Any],
    cudnn: Callable[..., Any],
) -> Any:
    """Runs the kernel of the platform that the program is compiled for; plain JAX without one."""
    if not kernels:
        return plain(*arguments)
    functions = {TPU: pallas, CUDA: cudnn}
    chosen = {platform: functions[platform] for platform in kernels}
    return jax.lax.platform_dependent(*arguments, **chosen, default=plain)


_attend.defvjp(_forward, _backward)
