"""Attention by the kernels of cuDNN, for NVIDIA GPUs, through `jax.nn.dot_product_attention`.

`bertjax.models.attention` chooses them. They take bfloat16 or float16 and any visibility, but no
dropout of the weights: it would differ from the dropout of plain JAX. The visibility is a bias on
the scores, a number for each pair of positions, so memory grows with the square of the length,
without the factor of heads. A window saves no work. The kernels have not been run on a GPU yet.
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from bertjax.models import placement, rotary, visibility
from bertjax.models.visibility import Visibility

Implementation = Literal["cudnn", "xla"]
MIN_LENGTH, MAX_LENGTH = 64, 4096
MAX_HEAD_SIZE = 128
_TENSORS = P(placement.DATA, None, placement.TENSOR)
_ROWS = P(placement.DATA)


def takes(length: int, head_size: int, dtype: jnp.dtype) -> bool:
    """Returns whether the kernels are installed and take rows and heads of these sizes."""
    fits = MIN_LENGTH <= length <= MAX_LENGTH and length % 2 == 0
    fits &= head_size % 8 == 0 and head_size <= MAX_HEAD_SIZE
    return fits and jnp.dtype(dtype).itemsize == 2 and is_there()


@functools.cache
def is_there() -> bool:
    """Returns whether this JAX has cuDNN, which it looks for while tracing."""
    rows = jax.ShapeDtypeStruct((1, MIN_LENGTH, 1, 64), jnp.bfloat16)
    try:
        jax.eval_shape(functools.partial(_attended, seen=None, implementation="cudnn"), *[rows] * 3)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def context(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    visible: Visibility,
    *,
    rotary_base: rotary.Base | None = None,
    implementation: Implementation = "cudnn",
) -> Float[Array, "batch length heads head"]:
    """Returns the same as `attention.attend` without dropout.

    With a `rotary_base` queries and keys are rotated by their positions first. The
    `implementation` "xla" runs on any platform, for tests.
    """
    query, keys = rotary.both_turned(query, keys, visible.positions, rotary_base)
    run = functools.partial(_attended, implementation=implementation)
    arguments = (query, keys, values, visibility.pairs(visible))
    specs = [_TENSORS] * 3 + [_ROWS]
    return placement.per_device(lambda *x: [run(*x)], arguments, specs, [_TENSORS])[0]


def gradients(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    grad: Array,
    *,
    rotary_base: rotary.Base | None = None,
    implementation: Implementation = "cudnn",
) -> tuple[Array, Array, Array]:
    """Returns the gradients of query, keys and values; the forward kernel runs again for them."""
    turn = functools.partial(rotary.both_turned, positions=visible.positions, base=rotary_base)
    run = functools.partial(_attended, implementation=implementation)

    def on_device(*x: Array) -> list[Array]:
        *tensors, seen, grad = x
        _, backward = jax.vjp(functools.partial(run, seen=seen), *tensors)
        return list(backward(grad))

    arguments = (*turn(query, keys), values, visibility.pairs(visible), grad)
    specs = [_TENSORS] * 3 + [_ROWS, _TENSORS]
    of_query, of_keys, of_values = placement.per_device(on_device, arguments, specs, [_TENSORS] * 3)
    return *turn(of_query, of_keys, back=True), of_values


def _attended(
    query: Array, keys: Array, values: Array, seen: Array | None, *, implementation: Implementation
) -> Array:
    """Returns the context, with zeros for a query that sees nothing unless all see the same.

    `seen` [batch, 1, length or 1, length] is from `visibility.pairs`.
    """
    mask = seen
    if seen is not None:  # cuDNN wants a number for each pair of positions
        mask = jnp.broadcast_to(seen, (seen.shape[0], 1, query.shape[1], keys.shape[1]))
    context = jax.nn.dot_product_attention(
        query, keys, values, mask=mask, scale=1.0, implementation=implementation
    )
    if seen is None or seen.shape[2] == 1:
        return context
    sees = jnp.swapaxes(seen.any(axis=-1, keepdims=True), 1, 2)
    return jnp.where(sees, context, jnp.zeros((), context.dtype))
