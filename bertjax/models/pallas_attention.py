"""Attention with dropout inside as one TPU kernel for the forward and one for the backward pass.

`bertjax.models.attention` has the same formulas in plain JAX, chooses between the two, and says
what they mean. In plain JAX every elementwise pass over the scores (batch x heads x length x
length in float32) goes through memory. Here a head's scores never leave the core: a grid step
takes the heads that fill 128 lanes of one example, with whole rows of scores, which bounds the
length. The dropout masks are those of plain JAX, bit for bit. Not yet run on a TPU.

XLA counts no cycles for kernels. In their place the bundles (instructions of one cycle each) that
libtpu 0.0.42 made for a grid step of BERT-base, bfloat16, with dropout, on v5e; a step is one row
of 512 tokens or four of 128, and two heads. Stalls are not in it (benchmarks/kernel_bundles.py).

  length  pass      bundles  matrix  vector  memory  a layer, 8192 tokens
     512  forward     3,612   1,896   2,723     960    96 steps:  347,000
     512  backward    6,790   3,897   4,080   1,920    96 steps:  652,000
     128  forward     1,602     460   1,054     960    96 steps:  154,000
     128  backward    3,158     933   1,531   1,920    96 steps:  303,000

matrix, vector: the fewest cycles for the instructions of these units (four slots each). memory:
counted by hand, four or eight blocks of 128 KiB over 546 bytes per cycle (819 GB/s at 1.5 GHz; both
from memory, not looked up).
In plain JAX the compiler estimates 3.77 M cycles for the same at length 512, matrix products
included. On v6e at length 512 the bundles are 2,906 and 4,919, on v4 18,028 and 21,802.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from bertjax import sharding
from bertjax.models import layers

LANES = 128
MAX_LENGTH = 512
LENGTHS = (128, 256, 384, MAX_LENGTH)
HEAD_SIZES = (32, 64, 128)


def context(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    is_real: Bool[Array, "batch length"],
    seeds: layers.MaskSeeds | None,
    *,
    rate: float,
    interpret: bool = False,
) -> Float[Array, "batch length heads head"]:
    """Returns what `attention.attend` does, for LENGTHS and HEAD_SIZES.

    Compiled for TPU, each device works on its own rows and heads. With `interpret` it runs on any
    platform, slowly, as the tests do.
    """
    tensors = (query, keys, values)
    (found,) = _run(_forward_kernel, 1, tensors, is_real, seeds, rate, interpret)
    return found


def gradients(
    query: Array,
    keys: Array,
    values: Array,
    is_real: Array,
    seeds: layers.MaskSeeds | None,
    found: Array,
    grad: Array,
    *,
    rate: float,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of query, keys and values, given `found`, the context, and its own."""
    tensors = (query, keys, values, found, grad)
    grad_query, grad_keys, grad_values = _run(
        _backward_kernel, 3, tensors, is_real, seeds, rate, interpret
    )
    return grad_query, grad_keys, grad_values


def _run(
    kernel: Callable[..., None],
    num_outputs: int,
    tensors: tuple[Array, ...],
    is_real: Array,
    seeds: layers.MaskSeeds | None,
    rate: float,
    interpret: bool,
) -> list[Array]:
    """Runs `kernel` on each device's rows and heads: the compiler cannot split a kernel."""
    masks: tuple[Array, ...] = () if seeds is None else seeds
    by_head = P(sharding.DATA, None, sharding.TENSOR)
    in_specs = [by_head] * len(tensors) + [P(sharding.DATA)]
    in_specs += [P(sharding.DATA, sharding.TENSOR)] * len(masks)

    def on_device(*arrays: Array) -> list[Array]:
        tensors, (is_real, *seeds) = arrays[: -1 - len(masks)], arrays[-1 - len(masks) :]
        return _on_device(kernel, num_outputs, tensors, is_real, seeds, rate, interpret)

    arguments = (*tensors, is_real, *masks)
    return sharding.per_device(on_device, arguments, in_specs, [by_head] * num_outputs)


def _on_device(
    kernel: Callable[..., None],
    num_outputs: int,
    tensors: tuple[Array, ...],
    is_real: Array,
    seeds: list[Array],
    rate: float,
    interpret: bool,
) -> list[Array]:
    batch, length, heads, size = tensors[0].shape
    heads_per_step = LANES // size
    if heads % heads_per_step:
        heads_per_step = heads
    # Short rows several at a time: the core works on one while another waits for its products.
    rows_per_step = math.gcd(batch, MAX_LENGTH // length)
    groups = heads // heads_per_step
    arrays = [x.reshape(batch, length, heads * size) for x in tensors]
    arrays += [is_real.astype(jnp.int32)[:, None, :]]
    arrays += [x.reshape(batch, groups, 1, heads_per_step) for x in seeds]
    wide = (rows_per_step, length, heads_per_step * size)
    by_lanes = pl.BlockSpec(wide, lambda row, group: (row, 0, group))
    by_row = pl.BlockSpec((rows_per_step, 1, length), lambda row, group: (row, 0, 0))
    scalars = (rows_per_step, 1, 1, heads_per_step)
    by_group = pl.BlockSpec(scalars, lambda row, group: (row, group, 0, 0), memory_space=pltpu.SMEM)

    def step(*refs: Any) -> None:
        for index in range(rows_per_step):
            kernel(*(ref.at[index] for ref in refs), size=size, rate=rate)

    run = pl.pallas_call(
        step,
        grid=(batch // rows_per_step, groups),
        in_specs=[by_lanes] * len(tensors) + [by_row] + [by_group] * len(seeds),
        out_specs=[by_lanes] * num_outputs,
        out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * num_outputs,
        cost_estimate=_cost(arrays, num_outputs, heads, size),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 2),
        interpret=interpret,
    )
    return [x.reshape(tensors[0].shape) for x in run(*arrays)]


def _cost(arrays: list[Array], num_outputs: int, heads: int, size: int) -> pl.CostEstimate:
    batch, length, _ = arrays[0].shape
    scores = batch * heads * length * length
    products = 2 if num_outputs == 1 else 5  # scores, context; scores again and four gradients
    return pl.CostEstimate(
        flops=2 * products * scores * size,
        transcendentals=scores,
        bytes_accessed=sum(x.nbytes for x in arrays) + num_outputs * arrays[0].nbytes,
    )


def _forward_kernel(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    real_ref: Any,
    *refs: Any,
    size: int,
    rate: float,
) -> None:
    *seeds, context_ref = refs
    query, keys, values = query_ref[...], keys_ref[...], values_ref[...]
    context = jnp.zeros(query.shape, jnp.float32)
    for head, lanes in _heads(query.shape, size):
        weights, total = _exponentials(_only(lanes, query), keys, real_ref[...])
        weights = _masked(weights, seeds, head, rate).astype(values.dtype)
        context = jnp.where(
            lanes, _dot(weights, values, (1, 0)) * (1 / (1 - rate) / total), context
        )
    context_ref[...] = context.astype(context_ref.dtype)


def _backward_kernel(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    context_ref: Any,
    grad_ref: Any,
    real_ref: Any,
    *refs: Any,
    size: int,
    rate: float,
) -> None:
    *seeds, grad_query_ref, grad_keys_ref, grad_values_ref = refs
    query, keys, values, grad = query_ref[...], keys_ref[...], values_ref[...], grad_ref[...]
    products = grad.astype(jnp.float32) * context_ref[...].astype(jnp.float32)
    # Products with the transposed scores are taken transposed: [head, length] is cheap to turn
    # round, [length, length] is not.
    turned_query, turned_grad = query.T, grad.T
    grad_query, grad_keys, grad_values = jnp.zeros(query.shape, jnp.float32), [], []
    for head, lanes in _heads(query.shape, size):
        rows = slice(head * size, (head + 1) * size)
        exponentials, total = _exponentials(_only(lanes, query), keys, real_ref[...])
        # Scaled for dropout here, once: each gradient has the probabilities as a factor.
        probabilities = exponentials * (1 / (1 - rate) / total)
        weights = _masked(probabilities, seeds, head, rate).astype(values.dtype)
        grad_weights = _dot(_only(lanes, grad), values, (1, 1))
        sums = jnp.sum(_only(lanes, products), axis=1, keepdims=True) * (1 - rate)
        grad_scores = probabilities * (_masked(grad_weights, seeds, head, rate) - sums)
        grad_scores = grad_scores.astype(query.dtype)
        grad_query = jnp.where(lanes, _dot(grad_scores, keys, (1, 0)), grad_query)
        grad_keys.append(_dot(turned_query[rows], grad_scores, (1, 0)))
        grad_values.append(_dot(turned_grad[rows], weights, (1, 0)))
    grad_query_ref[...] = grad_query.astype(grad_query_ref.dtype)
    grad_keys_ref[...] = jnp.concatenate(grad_keys).T.astype(grad_keys_ref.dtype)
    grad_values_ref[...] = jnp.concatenate(grad_values).T.astype(grad_values_ref.dtype)


def _heads(shape: tuple[int, ...], size: int) -> Iterator[tuple[int, Array]]:
    """Yields each head of a block and a mask of the lanes that it lies in.

    A product with the other heads' lanes at zero is free where the core's matrix unit is 128 deep,
    and moves nothing between lanes, as slicing would.
    """
    lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    for head in range(shape[1] // size):
        yield head, (lane >= head * size) & (lane < (head + 1) * size)


def _only(lanes: Array, x: Array) -> Array:
    return jnp.where(lanes, x, jnp.zeros((), x.dtype))


def _dot(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _exponentials(query: Array, keys: Array, is_real: Array) -> tuple[Array, Array]:
    """Returns the softmax's numerators and their sums over keys."""
    scores = jnp.where(is_real != 0, _dot(query, keys, (1, 1)), jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials, exponentials.sum(axis=1, keepdims=True)


def _masked(x: Array, seeds: list[Any], head: int, rate: float) -> Array:
    if not seeds:
        return x
    first, second = (ref[0, 0, head] for ref in seeds)
    return jnp.where(layers.keep_mask((first, second), x.shape, rate), x, 0.0)
