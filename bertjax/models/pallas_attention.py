"""Attention with dropout inside as one TPU kernel for the forward and one for the backward pass.

`bertjax.models.attention` has the same formulas in plain JAX, chooses between the two, and says
what they mean. In plain JAX every elementwise pass over the scores (batch x heads x length x
length in float32) goes through memory. Here a head's scores never leave the core: a grid step
takes the heads that fill 128 lanes of one example, or of several short ones, with whole rows of
scores, which bounds the length. The dropout masks are those of plain JAX, bit for bit. Not yet run
on a TPU.

Scores are [keys, queries], so that the softmax's sums go over sublanes, as cheap as any addition,
and its factors lie along lanes. Every step is done for all rows and heads of a block before the
next: a product or a reduction is long on its way, and the others fill the wait.

XLA counts no cycles for kernels. In their place the bundles (instructions of one cycle each) that
libtpu 0.0.42 made for a grid step of BERT-base, bfloat16, with dropout, on v5e; a step is one row
of 512 tokens or sixteen of 128, and two heads. Stalls are not in it (benchmarks/kernel_bundles.py).

  length  pass      bundles  matrix  vector  memory  a layer, 8192 tokens
     512  forward     3,589   1,396   2,327     960    96 steps:  345,000
     512  backward    7,202   4,139   3,867   1,680    96 steps:  691,000
     128  forward     5,004   1,513   2,887   3,840    24 steps:  120,000
     128  backward    8,382   4,396   4,621   6,720    24 steps:  201,000

matrix, vector: the fewest cycles for the instructions of these units (four slots each). memory:
counted by hand, four or seven blocks of 128 or 512 KiB over 546 bytes per cycle (819 GB/s at
1.5 GHz; both from memory, not looked up).
In plain JAX the compiler estimates 3.77 M cycles for the same at length 512, matrix products
included. On v6e at length 512 the bundles are 3,078 and 5,668, on v4 17,870 and 22,679.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from bertjax.models import layers, placement, visibility
from bertjax.models.visibility import Visibility

LANES = 128
MAX_LENGTH = 512
LENGTHS = (128, 256, 384, MAX_LENGTH)
HEAD_SIZES = (32, 64, 128)
# A grid step takes the heads that fill LANES or, where they do not divide the heads, all of them.
# So many fit into the core's memory at every length; with 7 of 64 at length 512, and with 9 at 128,
# the compiler is out of memory (libtpu 0.0.42.1 for v5e, bfloat16, 2026-11-22).
MOST_HEADS_AT_ONCE = 6
LOWEST = jnp.finfo(jnp.float32).min


def context(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    visible: Visibility,
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
    (found,) = _run(_forward_kernel, 1, tensors, visible, seeds, rate, interpret)
    return found


def gradients(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    grad: Array,
    *,
    rate: float,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of query, keys and values, given the context's."""
    tensors = (query, keys, values, grad)
    grad_query, grad_keys, grad_values = _run(
        _backward_kernel, 3, tensors, visible, seeds, rate, interpret
    )
    return grad_query, grad_keys, grad_values


def _run(
    kernel: Callable[..., None],
    num_outputs: int,
    tensors: tuple[Array, ...],
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
    interpret: bool,
) -> list[Array]:
    """Runs `kernel` on each device's rows and heads: the compiler cannot split a kernel."""
    sight = Sight.of(visible)
    rows = [visible.is_real if visible.sequence_ids is None else visible.sequence_ids]
    rows += [visible.positions] if sight.has_positions else []
    masks: tuple[Array, ...] = () if seeds is None else seeds
    by_head = P(placement.DATA, None, placement.TENSOR)
    in_specs = [by_head] * len(tensors) + [P(placement.DATA)] * len(rows)
    in_specs += [P(placement.DATA, placement.TENSOR)] * len(masks)
    run = functools.partial(kernel, sight=sight, rate=rate)

    first, second = len(tensors), len(tensors) + len(rows)

    def on_device(*arrays: Array) -> list[Array]:
        parts = arrays[:first], arrays[first:second], arrays[second:]
        return _on_device(run, num_outputs, parts, interpret)

    arguments = (*tensors, *rows, *masks)
    return placement.per_device(on_device, arguments, in_specs, [by_head] * num_outputs)


def takes_heads(heads: int, size: int) -> bool:
    """Returns whether the core's memory is enough for so many heads of a device."""
    return size not in HEAD_SIZES or heads % (LANES // size) == 0 or heads <= MOST_HEADS_AT_ONCE


def _on_device(
    kernel: Callable[..., None],
    num_outputs: int,
    parts: tuple[tuple[Array, ...], ...],
    interpret: bool,
) -> list[Array]:
    tensors, rows, seeds = parts
    batch, length, heads, size = tensors[0].shape
    heads_per_step = LANES // size
    if heads % heads_per_step:
        heads_per_step = heads
    block_rows = rows_per_step(batch, length, tensors[0].dtype)
    groups = heads // heads_per_step
    arrays = [x.reshape(batch, length, heads * size) for x in tensors]
    arrays += [x.astype(jnp.int32)[:, None, :] for x in rows]
    arrays += [x[:, None, :] for x in seeds]
    wide = (block_rows, length, heads_per_step * size)
    by_lanes = pl.BlockSpec(wide, lambda row, group: (row, 0, group))
    by_row = pl.BlockSpec((block_rows, 1, length), lambda row, group: (row, 0, 0))
    scalars = (block_rows, 1, heads)
    all_heads = pl.BlockSpec(scalars, lambda row, group: (row, 0, 0), memory_space=pltpu.SMEM)
    run = pl.pallas_call(
        functools.partial(kernel, size=size),
        grid=(batch // block_rows, groups),
        in_specs=[by_lanes] * len(tensors) + [by_row] * len(rows) + [all_heads] * len(seeds),
        out_specs=[by_lanes] * num_outputs,
        out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * num_outputs,
        cost_estimate=_cost(arrays, num_outputs, heads, size),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 2),
        interpret=interpret,
    )
    return [x.reshape(tensors[0].shape) for x in run(*arrays)]


def rows_per_step(batch: int, length: int, dtype: jnp.dtype) -> int:
    """Returns how many rows a grid step takes: as many as have the scores of one of MAX_LENGTH.

    In float32 half as many, for which the core's memory is enough.
    """
    rows = MAX_LENGTH**2 * 2 // (length**2 * jnp.dtype(dtype).itemsize)
    return math.gcd(batch, max(rows, 1))


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
    *refs: Any,
    size: int,
    sight: Sight,
    rate: float,
) -> None:
    *others, context_ref = refs
    rows, seeds = sight.parted(others)
    units = _units(query_ref.shape, size)
    turned_values = [values_ref[row].T for row in range(query_ref.shape[0])]
    barred = sight.barred(rows)
    exponentials, totals = _exponentials(query_ref, keys_ref, barred, units)
    weights = _masked(exponentials, seeds, units, rate)
    turned_context = [
        _dot(turned_values[u.row][u.of_head], x.astype(keys_ref.dtype), (1, 0))
        * _scale(u, barred, total, rate)
        for u, x, total in zip(units, weights, totals, strict=True)
    ]
    _write_turned(context_ref, units, turned_context)


def _backward_kernel(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    grad_ref: Any,
    *refs: Any,
    size: int,
    sight: Sight,
    rate: float,
) -> None:
    *others, grad_query_ref, grad_keys_ref, grad_values_ref = refs
    rows, seeds = sight.parted(others)
    dtype, units = query_ref.dtype, _units(query_ref.shape, size)
    turned_keys = [keys_ref[row].T for row in range(query_ref.shape[0])]
    barred = sight.barred(rows)
    exponentials, totals = _exponentials(query_ref, keys_ref, barred, units)
    # Scaled for dropout here, once: each gradient has the probabilities as a factor.
    probabilities = [
        x * _scale(u, barred, t, rate) for u, x, t in zip(units, exponentials, totals, strict=True)
    ]
    weights = [x.astype(dtype) for x in _masked(probabilities, seeds, units, rate)]
    grad_values = [_dot(x, grad_ref[u.row], (1, 0)) for u, x in zip(units, weights, strict=True)]
    grad_weights = [_dot(values_ref[u.row], _only(u.lanes, grad_ref[u.row]), (1, 1)) for u in units]
    grad_weights = _masked(grad_weights, seeds, units, rate)
    products = [p * x for p, x in zip(probabilities, grad_weights, strict=True)]
    sums = [x.sum(axis=0, keepdims=True) * (1 - rate) for x in products]
    grad_scores = [
        (x - p * s).astype(dtype) for x, p, s in zip(products, probabilities, sums, strict=True)
    ]
    turned_grad_query = [
        _dot(turned_keys[u.row][u.of_head], x, (1, 0))
        for u, x in zip(units, grad_scores, strict=True)
    ]
    grad_keys = [_dot(x, query_ref[u.row], (1, 0)) for u, x in zip(units, grad_scores, strict=True)]
    _write_turned(grad_query_ref, units, turned_grad_query)
    _write(grad_keys_ref, units, grad_keys)
    _write(grad_values_ref, units, grad_values)


class _Unit(NamedTuple):
    """A head of a row in a block: its place among the transposed lanes, and a mask of the lanes.

    A product with the other heads' lanes at zero is free where the core's matrix unit is 128 deep,
    and moves nothing between lanes, as slicing would.
    """

    row: int
    head: int
    of_head: slice
    lanes: Array


def _units(shape: tuple[int, int, int], size: int) -> list[_Unit]:
    rows, length, lanes = shape
    lane = jax.lax.broadcasted_iota(jnp.int32, (length, lanes), 1)
    starts = range(0, lanes, size)
    of_head = [(lane >= start) & (lane < start + size) for start in starts]
    return [
        _Unit(row, head, slice(start, start + size), of_head[head])
        for row in range(rows)
        for head, start in enumerate(starts)
    ]


def _write(ref: Any, units: list[_Unit], by_unit: list[Array]) -> None:
    """Writes each unit's lanes of its array [length, lanes]."""
    for row in range(ref.shape[0]):
        mine = [(u.lanes, x) for u, x in zip(units, by_unit, strict=True) if u.row == row]
        whole = mine[0][1]
        for lanes, x in mine[1:]:
            whole = jnp.where(lanes, x, whole)
        ref[row] = whole.astype(ref.dtype)


def _write_turned(ref: Any, units: list[_Unit], by_unit: list[Array]) -> None:
    """Writes arrays [head, length]: to turn these round is cheap, [length, length] is not."""
    for row in range(ref.shape[0]):
        mine = [x.astype(ref.dtype) for u, x in zip(units, by_unit, strict=True) if u.row == row]
        ref[row] = jnp.concatenate(mine).T


def _only(lanes: Array, x: Array) -> Array:
    return jnp.where(lanes, x, jnp.zeros((), x.dtype))


def _dot(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


class Sight(NamedTuple):
    """What a kernel knows of a `Visibility` when it is compiled."""

    is_by_key: bool
    has_positions: bool
    window: int | None
    left_to_right: bool

    @classmethod
    def of(cls, visible: Visibility) -> Sight:
        is_narrow = visible.window is not None or visible.left_to_right
        has_positions = is_narrow and visible.positions is not None
        return cls(visible.is_by_key, has_positions, visible.window, visible.left_to_right)

    def parted(self, refs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the numbers of sequences (or 1 and 0) and the positions; and the seeds."""
        count = 1 + self.has_positions
        return refs[:count], refs[count:]

    def barred(self, rows: list[Any]) -> list[_Barred]:
        """Returns, for each row of a block, what bars queries from keys."""
        numbers_ref = rows[0]
        if self.is_by_key:
            every = range(numbers_ref.shape[0])
            return [_Barred(_by_key(numbers_ref[row]), None) for row in every]
        return [self._of_pairs([ref[row] for ref in rows]) for row in range(numbers_ref.shape[0])]

    def _of_pairs(self, row: list[Array]) -> _Barred:
        """Takes the numbers, and the positions if there are, [1, length] in int32."""
        by_query = [x.astype(jnp.float32) for x in row]  # exact up to 2^24
        by_key = [_turned(x) for x in by_query]
        seen = (by_key[0] == by_query[0]) & (by_key[0] != 0)
        query, key = by_query[-1], by_key[-1]
        if not self.has_positions:
            key, query = (jax.lax.broadcasted_iota(jnp.int32, seen.shape, axis) for axis in (0, 1))
        seen &= visibility.within(query, key, window=self.window, left_to_right=self.left_to_right)
        added = jnp.where(seen, 0.0, LOWEST)
        return _Barred(added, added.max(axis=0, keepdims=True) < 0)


class _Barred(NamedTuple):
    """`added` to scores [keys, queries]; `sees_nothing` [1, queries], None: not to be looked at."""

    added: Array
    sees_nothing: Array | None


def _scale(unit: _Unit, barred: list[_Barred], total: Array, rate: float) -> Array:
    """Returns what makes weights of exponentials, [1, queries]: 0 for a query that sees nothing."""
    scale, sees_nothing = 1 / (1 - rate) / total, barred[unit.row].sees_nothing
    return scale if sees_nothing is None else jnp.where(sees_nothing, 0.0, scale)


def _exponentials(
    query_ref: Any, keys_ref: Any, barred: list[_Barred], units: list[_Unit]
) -> tuple[list[Array], list[Array]]:
    """Returns the softmax's numerators, [keys, queries], and their sums over keys."""
    scores = [
        _dot(keys_ref[u.row], _only(u.lanes, query_ref[u.row]), (1, 1)) + barred[u.row].added
        for u in units
    ]
    exponentials = [jnp.exp(x - x.max(axis=0, keepdims=True)) for x in scores]
    return exponentials, [x.sum(axis=0, keepdims=True) for x in exponentials]


def _by_key(is_real: Array) -> Array:
    """Returns what to add to the scores of a key, [keys, 1], from 1 and 0, [1, keys]."""
    return _turned(jnp.where(is_real != 0, 0.0, LOWEST))


def _turned(row: Array) -> Array:
    """Returns a row [1, length] as a column."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


def _masked(by_unit: list[Array], seeds: list[Any], units: list[_Unit], rate: float) -> list[Array]:
    """Returns arrays [keys, queries] with what is dropped at zero."""
    if not seeds:
        return by_unit
    first = pl.program_id(1) * (1 + units[-1].head)
    words = [tuple(ref[u.row, 0, first + u.head] for ref in seeds) for u in units]
    return [
        jnp.where(layers.keep_mask(pair, x.shape, rate, turned=True), x, 0.0)
        for pair, x in zip(words, by_unit, strict=True)
    ]
