"""Attention over long rows and over windows, as one TPU kernel for each pass.

`pallas_attention` has the kernels for short rows and says how all of them are built. Here a grid
step takes blocks of queries of the heads that fill 128 lanes, and the keys that they see: a chunk
after the other, with the running maximum and sum of the softmax, where they see a whole row; one
chunk around each block where they see a window. Scores stay in the core, so memory grows with the
length, and chunks that no query of a block sees are passed over: of other sequences, of padding,
beyond a window.

Besides the context the forward pass gives the logarithm of each query's sum of exponentials, from
which the backward pass has the probabilities at once.
Source: Dao et al. 2022 (FlashAttention), algorithms 1 and 4; Dao 2023, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bertjax.models import layers, pallas_parts
from bertjax.models.pallas_parts import LANES, LOWEST, Sight

# Queries and keys whose scores are made at once; rows are padded to a multiple of the one that
# needs the least padding.
BLOCKS = (512, 384, 256)
# A window's chunk is no longer than this; wider windows walk over chunks.
MOST_WINDOW_KEYS = 512
SCORES_PER_STEP = 2 * 512 * 512
VMEM_LIMIT = 96 * 2**20
MAX_LENGTH = 16384


class Tiles(NamedTuple):
    """How a row is cut: `block` queries share a chunk of `chunk` keys, `blocks` of them a step."""

    length: int
    block: int
    chunk: int
    blocks: int
    is_windowed: bool

    @property
    def steps(self) -> int:
        return self.length // (self.block * self.blocks)

    @property
    def chunks(self) -> int:
        """How many chunks a block of queries may walk over."""
        return 1 if self.is_windowed else self.length // self.chunk

    def begin(self, block: Any) -> Any:
        """Returns where the chunk of a window's block begins; it ends inside the row."""
        before = (self.chunk - self.block) // 2
        return jnp.clip(block * self.block - before, 0, self.length - self.chunk)


def tiles(length: int, window: int | None) -> Tiles:
    """Returns how rows of `length` positions are cut."""
    if window is not None:
        block = max(1, -(-2 * window // LANES)) * LANES
        chunk = block + 2 * (-(-window // 64) * 64)
        padded = -(-length // block) * block
        if chunk <= min(padded, MOST_WINDOW_KEYS):
            most = max(SCORES_PER_STEP // (block * chunk), 1)
            return Tiles(padded, block, chunk, _divisor(padded // block, most), True)
    padded, block = min((-(-length // size) * size, -size) for size in BLOCKS)
    return Tiles(padded, -block, -block, 1, False)


def _divisor(number: int, most: int) -> int:
    """Returns the largest one that is not above `most`."""
    return max(x for x in range(1, min(number, most) + 1) if number % x == 0)


def context(
    tensors: tuple[Array, ...],
    statistics: tuple[()],
    rows: tuple[Array, ...],
    seeds: tuple[Array, ...],
    *,
    sight: Sight,
    rate: float,
    interpret: bool,
) -> list[Array]:
    """Returns the context of query, keys and values, and the statistics.

    The first are [batch, length, heads, head] each, the last [batch, heads, padded length]. `rows`
    are those of `sight`; `heads` fill the lanes of whole grid steps. A row without any token has a
    context of zeros.
    """
    run = _Run.of(tensors[0], sight, rate, interpret)
    out = [run.by_block(tensors[0].dtype), run.statistics()]
    made, found = run(_forward_kernel, tensors, (), rows, seeds, out, [], 2)
    return [run.unpadded(made), found.reshape(found.shape[0], -1, found.shape[3])]


def gradients(
    tensors: tuple[Array, ...],
    statistics: tuple[Array, ...],
    rows: tuple[Array, ...],
    seeds: tuple[Array, ...],
    *,
    sight: Sight,
    rate: float,
    interpret: bool,
) -> list[Array]:
    """Returns the gradients of the first three `tensors`; the others: context and its gradient."""
    run = _Run.of(tensors[0], sight, rate, interpret)
    dtype = tensors[0].dtype
    out = [run.by_block(dtype), run.whole(dtype), run.whole(dtype)]
    scratch = [pltpu.VMEM((run.tiles.length, LANES), jnp.float32)] * 2
    found = run(_backward_kernel, tensors, statistics, rows, seeds, out, scratch, 5)
    return [run.unpadded(x) for x in found]


class _Spec(NamedTuple):
    block: pl.BlockSpec
    shape: Any


@dataclasses.dataclass(frozen=True)
class _Run:
    """One call of a kernel: shapes, and where each grid step finds its part."""

    shape: tuple[int, ...]
    tiles: Tiles
    sight: Sight
    rate: float
    interpret: bool

    @classmethod
    def of(cls, query: Array, sight: Sight, rate: float, interpret: bool) -> _Run:
        return cls(query.shape, tiles(query.shape[1], sight.window), sight, rate, interpret)

    @property
    def heads(self) -> int:
        """How many a grid step takes."""
        return LANES // self.shape[3]

    @property
    def groups(self) -> int:
        return self.shape[2] // self.heads

    def __call__(
        self,
        kernel: Any,
        tensors: tuple[Array, ...],
        statistics: tuple[Array, ...],
        rows: tuple[Array, ...],
        seeds: tuple[Array, ...],
        out: list[_Spec],
        scratch: list[Any],
        products: int,
    ) -> list[Array]:
        batch, dtype = self.shape[0], tensors[0].dtype
        arrays = [self.padded(x) for x in tensors]
        specs = [self.by_block(dtype), self.whole(dtype), self.whole(dtype)]
        specs += [self.by_block(dtype)] * (len(tensors) - 3)
        arrays += [x.reshape(self.statistics().shape.shape) for x in statistics]
        specs += [self.statistics()] * len(statistics)
        widths = ((0, 0), (0, self.tiles.length - self.shape[1]))
        rows = tuple(jnp.pad(x, widths) for x in rows)
        for x in rows:
            of_blocks, of_chunks = self.cut(x)
            arrays += [of_blocks, of_chunks]
            specs += [self.row(of_blocks, True), self.row(of_chunks, self.tiles.is_windowed)]
        bounds = () if self.tiles.is_windowed else (_bounds(rows[0], self.tiles, self.sight),)
        for x in (*bounds, *seeds):
            arrays.append(x.reshape(batch, 1, -1))
            specs.append(_of_row(arrays[-1]))
        run = pl.pallas_call(
            functools.partial(kernel, run=self),
            grid=(batch, self.groups, self.tiles.steps),
            in_specs=[spec.block for spec in specs],
            out_specs=[spec.block for spec in out],
            out_shape=[spec.shape for spec in out],
            scratch_shapes=scratch,
            cost_estimate=self.cost(arrays, products),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"),
                vmem_limit_bytes=VMEM_LIMIT,
            ),
            interpret=self.interpret,
        )
        return list(run(*arrays))

    def padded(self, x: Array) -> Array:
        batch, length, heads, size = x.shape
        flat = x.reshape(batch, length, heads * size)
        return jnp.pad(flat, ((0, 0), (0, self.tiles.length - length), (0, 0)))

    def unpadded(self, x: Array) -> Array:
        return x[:, : self.shape[1]].reshape(self.shape)

    def by_block(self, dtype: Any) -> _Spec:
        """Queries, and what has their shape: the blocks of a step."""
        block = (1, self.tiles.blocks * self.tiles.block, LANES)
        return _Spec(
            pl.BlockSpec(block, lambda row, group, step: (row, step, group)), self._array(dtype)
        )

    def whole(self, dtype: Any) -> _Spec:
        """Keys, and what has their shape: the whole row."""
        block = (1, self.tiles.length, LANES)
        return _Spec(
            pl.BlockSpec(block, lambda row, group, step: (row, 0, group)), self._array(dtype)
        )

    def _array(self, dtype: Any) -> Any:
        batch, _, heads, size = self.shape
        return jax.ShapeDtypeStruct((batch, self.tiles.length, heads * size), dtype)

    def statistics(self) -> _Spec:
        queries = self.tiles.blocks * self.tiles.block
        shape = (self.shape[0], self.groups, self.heads, self.tiles.length)
        block = pl.BlockSpec(
            (1, 1, self.heads, queries), lambda row, group, step: (row, group, 0, step)
        )
        return _Spec(block, jax.ShapeDtypeStruct(shape, jnp.float32))

    def row(self, x: Array, is_by_step: bool) -> _Spec:
        block = (1, 1, *x.shape[2:])
        index = lambda row, group, step: (row, step if is_by_step else 0, 0, 0)  # noqa: E731
        return _Spec(pl.BlockSpec(block, index), None)

    def cut(self, x: Array) -> tuple[Array, Array]:
        """Returns [batch, steps, blocks, block], and the same of each block's chunk of keys.

        Where blocks walk over all chunks these are [batch, 1, chunks, chunk].
        """
        batch, cut = x.shape[0], self.tiles
        of_blocks = x.reshape(batch, cut.steps, cut.blocks, cut.block)
        if not cut.is_windowed:
            return of_blocks, x.reshape(batch, 1, cut.chunks, cut.chunk)
        begins = [
            min(max(number * cut.block - (cut.chunk - cut.block) // 2, 0), cut.length - cut.chunk)
            for number in range(cut.length // cut.block)
        ]
        near = jnp.stack([x[:, begin : begin + cut.chunk] for begin in begins], axis=1)
        return of_blocks, near.reshape(batch, cut.steps, cut.blocks, cut.chunk)

    def cost(self, arrays: list[Array], products: int) -> pl.CostEstimate:
        batch, _, heads, size = self.shape
        scores = batch * heads * self.tiles.length * self.tiles.chunks * self.tiles.chunk
        return pl.CostEstimate(
            flops=2 * products * scores * size,
            transcendentals=scores,
            bytes_accessed=sum(x.nbytes for x in arrays) + arrays[0].nbytes * (products // 2),
        )


def _of_row(x: Array) -> _Spec:
    """Numbers that a kernel reads one by one, [batch, 1, n]: those of the row."""
    block = (1, 1, x.shape[2])
    index = lambda row, group, step: (row, 0, 0)  # noqa: E731
    return _Spec(pl.BlockSpec(block, index, memory_space=pltpu.SMEM), None)


def _bounds(numbers: Array, cut: Tiles, sight: Sight) -> Array:
    """Returns the first chunk and the one behind the last that each block sees, [batch, 2 blocks].

    A chunk is seen where the ranges of numbers overlap, and places are within window and order.
    """
    batch = numbers.shape[0]
    blocks = numbers.reshape(batch, -1, cut.block)
    highest = blocks.max(axis=2)
    if sight.is_by_key:
        seen = jnp.broadcast_to((highest != 0)[:, None], (batch, highest.shape[1], cut.chunks))
    else:
        lowest = jnp.where(blocks == 0, jnp.iinfo(jnp.int32).max, blocks).min(axis=2)
        seen = lowest[:, :, None] <= highest[:, None]
        seen &= lowest[:, None] <= highest[:, :, None]
    first = jnp.arange(cut.chunks, dtype=jnp.int32) * cut.chunk
    last = first + cut.chunk - 1
    if sight.window is not None:
        seen &= (first[:, None] - sight.window <= last[None])[None]
        seen &= (first[None] - sight.window <= last[:, None])[None]
    if sight.left_to_right:
        seen &= (first[None] <= last[:, None])[None]
    numbered = jnp.arange(cut.chunks, dtype=jnp.int32)
    begin = jnp.where(seen, numbered, cut.chunks).min(axis=2)
    end = jnp.where(seen, numbered + 1, 0).max(axis=2)
    return jnp.stack([jnp.minimum(begin, end), end], axis=2).reshape(batch, -1)


class _Unit(NamedTuple):
    """A head of a block of queries."""

    block: int
    head: int
    of_head: slice
    rows: slice  # of the step's queries


class _Step:
    """What both kernels read of a grid step, by names."""

    def __init__(self, run: _Run, refs: list[Any]):
        cut, sight = run.tiles, run.sight
        self.run, self.cut = run, cut
        count = 1 + sight.has_positions
        self.own, self.near = refs[0 : 2 * count : 2], refs[1 : 2 * count : 2]
        others = refs[2 * count :]
        if not cut.is_windowed:
            self.bounds, *others = others
        self.seeds = others
        self.number = pl.program_id(2)
        self.first_head = pl.program_id(1) * run.heads
        size = run.shape[3]
        self.units = [
            _Unit(
                block,
                head,
                slice(head * size, (head + 1) * size),
                slice(block * cut.block, (block + 1) * cut.block),
            )
            for block in range(cut.blocks)
            for head in range(run.heads)
        ]

    def walk(self, body: Any, carry: Any) -> Any:
        """Runs `body(chunk, carry)` over the chunks that the step's block sees."""
        if self.cut.is_windowed:
            return body(None, carry)
        first, end = (self.bounds[0, 0, 2 * self.number + i] for i in (0, 1))
        return jax.lax.fori_loop(first, end, body, carry)

    def begins(self, chunk: Any) -> list[Any]:
        """Returns where the keys of each block begin."""
        cut = self.cut
        if not cut.is_windowed:
            return [pl.multiple_of(chunk * cut.chunk, cut.chunk)]
        found = [cut.begin(self.number * cut.blocks + block) for block in range(cut.blocks)]
        return [pl.multiple_of(x, min(64, cut.chunk)) for x in found]

    def added(self, chunk: Any, begins: list[Any]) -> list[Array]:
        found = []
        for block, begin in enumerate(begins):
            own = [ref[0, 0, block : block + 1] for ref in self.own]
            at = slice(block, block + 1) if chunk is None else pl.ds(chunk, 1)
            near = [ref[0, 0, at] for ref in self.near]
            first = (self.number * self.cut.blocks + block) * self.cut.block
            found.append(self.run.sight.added(own, near, (first, begin)))
        return found

    def masked(self, by_unit: list[Array], begins: list[Any]) -> list[Array]:
        """Returns arrays [keys, queries] with what is dropped at zero."""
        if not self.seeds:
            return by_unit
        found = []
        for unit, x in zip(self.units, by_unit, strict=True):
            words = tuple(ref[0, 0, self.first_head + unit.head] for ref in self.seeds)
            query = (self.number * self.cut.blocks + unit.block) * self.cut.block
            at = [
                (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) + begin).astype(jnp.uint32)
                for axis, begin in ((1, query), (0, begins[unit.block]))
            ]
            kept = layers.keep_at(words, *at, self.run.shape[1], self.run.rate)
            found.append(jnp.where(kept, x, 0.0))
        return found


def _forward_kernel(query_ref: Any, keys_ref: Any, values_ref: Any, *refs: Any, run: _Run) -> None:
    *others, context_ref, stats_ref = refs
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.shape[3]
    of_head = pallas_parts.lanes_of_heads(cut.block, LANES, size)
    queries = [pallas_parts.only(of_head[u.head], query_ref[0, u.rows]) for u in units]

    def body(chunk: Any, carry: Any) -> Any:
        begins = step.begins(chunk)
        keys, values = _chunks(begins, cut.chunk, keys_ref, values_ref)
        values = [x.T for x in values]
        added = step.added(chunk, begins)
        scores = [
            pallas_parts.dot(keys[u.block], x, (1, 1)) + added[u.block]
            for u, x in zip(units, queries, strict=True)
        ]
        highest = [x.max(axis=0, keepdims=True) for x in scores]
        if carry is not None:
            highest = [jnp.maximum(m, x) for m, x in zip(carry[0], highest, strict=True)]
        weights = [jnp.exp(x - m) for x, m in zip(scores, highest, strict=True)]
        totals = [x.sum(axis=0, keepdims=True) for x in weights]
        weights = step.masked(weights, begins)
        sums = [
            pallas_parts.dot(values[u.block][u.of_head], x.astype(keys_ref.dtype), (1, 0))
            for u, x in zip(units, weights, strict=True)
        ]
        if carry is not None:
            fading = [jnp.exp(old - m) for old, m in zip(carry[0], highest, strict=True)]
            totals = [t + f * old for t, f, old in zip(totals, fading, carry[1], strict=True)]
            sums = [s + f * old for s, f, old in zip(sums, fading, carry[2], strict=True)]
        return highest, totals, sums

    carry = None
    if not cut.is_windowed:
        none = jnp.zeros((1, cut.block), jnp.float32)
        carry = (
            [none + LOWEST for _ in units],
            [none for _ in units],
            [jnp.zeros((size, cut.block), jnp.float32) for _ in units],
        )
    highest, totals, sums = step.walk(body, carry)
    blind = [x <= LOWEST / 2 for x in highest]
    scales = [
        jnp.where(b, 0.0, 1 / (1 - run.rate) / jnp.where(b, 1.0, t))
        for b, t in zip(blind, totals, strict=True)
    ]
    turned = [x * s for x, s in zip(sums, scales, strict=True)]
    # Of what sees nothing: exp(LOWEST - 0) is 0.
    stats = [
        jnp.where(b, 0.0, m + jnp.log(jnp.where(b, 1.0, t)))
        for b, m, t in zip(blind, highest, totals, strict=True)
    ]
    _write_turned(context_ref, step, turned)
    for unit, x in zip(units, stats, strict=True):
        stats_ref[0, 0, unit.head : unit.head + 1, unit.rows] = x


def _backward_kernel(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    context_ref: Any,
    grad_ref: Any,
    stats_ref: Any,
    *refs: Any,
    run: _Run,
) -> None:
    *others, grad_query_ref, grad_keys_ref, grad_values_ref, sum_keys, sum_values = refs
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.shape[3]
    dtype = query_ref.dtype
    of_head, of_key = (
        pallas_parts.lanes_of_heads(rows, LANES, size) for rows in (cut.block, cut.chunk)
    )
    queries = [pallas_parts.only(of_head[u.head], query_ref[0, u.rows]) for u in units]
    grads = [pallas_parts.only(of_head[u.head], grad_ref[0, u.rows]) for u in units]
    stats = [stats_ref[0, 0, u.head : u.head + 1, u.rows] for u in units]
    deltas = _deltas(step, context_ref, grad_ref)

    @pl.when(step.number == 0)
    def _() -> None:
        sum_keys[...] = jnp.zeros_like(sum_keys)
        sum_values[...] = jnp.zeros_like(sum_values)

    def body(chunk: Any, carry: Any) -> Any:
        begins = step.begins(chunk)
        keys, values = _chunks(begins, cut.chunk, keys_ref, values_ref)
        turned_keys = [x.T for x in keys]
        added = step.added(chunk, begins)
        probabilities = [
            jnp.exp(pallas_parts.dot(keys[u.block], x, (1, 1)) + added[u.block] - s)
            for u, x, s in zip(units, queries, stats, strict=True)
        ]
        weights = [x.astype(dtype) for x in step.masked(probabilities, begins)]
        grad_values = [
            pallas_parts.dot(x, grad_ref[0, u.rows], (1, 0))
            for u, x in zip(units, weights, strict=True)
        ]
        grad_weights = [
            pallas_parts.dot(values[u.block], x, (1, 1)) for u, x in zip(units, grads, strict=True)
        ]
        grad_weights = step.masked(grad_weights, begins)
        scale = 1 / (1 - run.rate)
        grad_scores = [
            (p * (x * scale - d)).astype(dtype)
            for p, x, d in zip(probabilities, grad_weights, deltas, strict=True)
        ]
        grad_keys = [
            pallas_parts.dot(x, query_ref[0, u.rows], (1, 0))
            for u, x in zip(units, grad_scores, strict=True)
        ]
        for block, begin in enumerate(begins):
            at = pl.ds(begin, cut.chunk)
            sum_keys[at] += _joined(grad_keys, of_key, units, block)
            sum_values[at] += _joined(grad_values, of_key, units, block)
        turned = [
            pallas_parts.dot(turned_keys[u.block][u.of_head], x, (1, 0))
            for u, x in zip(units, grad_scores, strict=True)
        ]
        if carry is not None:
            turned = [old + x for old, x in zip(carry, turned, strict=True)]
        return turned

    carry = None
    if not cut.is_windowed:
        carry = [jnp.zeros((size, cut.block), jnp.float32) for _ in units]
    _write_turned(grad_query_ref, step, step.walk(body, carry))

    @pl.when(step.number == cut.steps - 1)
    def _() -> None:
        grad_keys_ref[0] = sum_keys[...].astype(dtype)
        grad_values_ref[0] = (sum_values[...] * (1 / (1 - run.rate))).astype(dtype)


def _chunks(begins: list[Any], chunk: int, *refs: Any) -> list[list[Array]]:
    return [[ref[0, pl.ds(begin, chunk)] for begin in begins] for ref in refs]


def _deltas(step: _Step, context_ref: Any, grad_ref: Any) -> list[Array]:
    """Returns the softmax's sum over keys of weight x gradient, [1, queries] of each unit."""
    lanes = [
        x.astype(jnp.float32) for x in pallas_parts.lanes_of_heads(8, LANES, step.run.shape[3])
    ]
    found = []
    for unit in step.units:
        product = context_ref[0, unit.rows].astype(jnp.float32) * grad_ref[0, unit.rows].astype(
            jnp.float32
        )
        sums = jax.lax.dot_general(
            lanes[unit.head],
            product,
            (((1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        found.append(sums[:1])
    return found


def _joined(by_unit: list[Array], lanes: list[Array], units: list[_Unit], block: int) -> Array:
    """Returns each head's lanes of its array [keys, lanes]."""
    mine = [(u.head, x) for u, x in zip(units, by_unit, strict=True) if u.block == block]
    whole = mine[0][1]
    for head, x in mine[1:]:
        whole = jnp.where(lanes[head], x, whole)
    return whole


def _write_turned(ref: Any, step: _Step, by_unit: list[Array]) -> None:
    for block in range(step.cut.blocks):
        mine = [
            (u.rows, x.astype(ref.dtype))
            for u, x in zip(step.units, by_unit, strict=True)
            if u.block == block
        ]
        ref[0, mine[0][0]] = jnp.concatenate([x for _, x in mine]).T
