"""Attention over long rows and over windows, as one TPU kernel for each pass.

`pallas_attention` says how the kernels are built. A grid step takes blocks of queries of the heads
that fill 128 lanes, and the keys that they see: chunk after chunk, with the running maximum and sum
of the softmax, where they see a whole row; one chunk around each block where they see a window.
Scores stay in the core, so memory grows with the length. Chunks that no query of a block sees are
skipped: other sequences, padding, and keys beyond a window.

The kernel may apply rotary positions, to a row's keys once, in its first step: outside of it they
would go through memory twice more in each pass. The forward pass also returns the logarithm of each
query's sum of exponentials, from which the backward pass gets the probabilities at once.
Source: Dao et al. 2022 (FlashAttention), algorithms 1 and 4; Dao 2023, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bertjax.models import weight_masks
from bertjax.models.kernels import pallas_parts
from bertjax.models.kernels.pallas_parts import LANES, LOWEST, MaskRule, Operands

# Bytes of the core's memory, for keys, values and sums of a whole row.
VMEM_LIMIT = 96 * 2**20
MAX_LENGTH = 16384  # for which that is enough, in float32 too
# The number of queries and keys of a block; the size with the least padding is chosen.
BLOCKS = (512, 384, 256)
# A window's chunk is no longer than this; wider windows walk over chunks.
MOST_WINDOW_KEYS = 512
# A chunk reaches a multiple of this number of positions to each side of its block.
WINDOW_UNIT = 64
SCORES_PER_STEP = 2 * 512 * 512
# Rows that are rotated, cleared and written at once.
_PART = 1024


def context(operands: Operands, *, rule: MaskRule, rate: float, interpret: bool) -> list[Array]:
    """Returns the context, and the statistics [batch, heads, padded length].

    A row without any token has a context of zeros.
    """
    run = _Run.of(operands, rule, rate, interpret)
    context, stats = run(forward, operands, [run.by_block(), run.statistics()], [], products=2)
    return [run.unpadded(context), stats.reshape(stats.shape[0], -1, stats.shape[3])]


def gradients(operands: Operands, *, rule: MaskRule, rate: float, interpret: bool) -> list[Array]:
    """Returns the gradients of query, keys and values; the last tensors: context, gradient."""
    run = _Run.of(operands, rule, rate, interpret)
    out = [run.by_block(), run.whole(), run.whole()]
    scratch = [pltpu.VMEM((run.tiles.length, LANES), jnp.float32)] * 2
    return [run.unpadded(x) for x in run(backward, operands, out, scratch, products=5)]


class _Spec(NamedTuple):
    block: pl.BlockSpec
    shape: Any


@dataclasses.dataclass(frozen=True)
class _Run:
    """A call of a kernel: its static arguments, and the part of each operand in a grid step."""

    shape: tuple[int, ...]  # of the queries before padding: [batch, length, heads, head]
    dtype: Any
    tiles: Tiles
    rule: MaskRule
    rate: float
    rotates: bool
    interpret: bool

    @classmethod
    def of(cls, operands: Operands, rule: MaskRule, rate: float, interpret: bool) -> _Run:
        query = operands.tensors[0]
        cut = tiles(query.shape[1], rule.window)
        return cls(query.shape, query.dtype, cut, rule, rate, bool(operands.tables), interpret)

    @property
    def length(self) -> int:
        return self.shape[1]

    @property
    def size(self) -> int:
        return self.shape[3]

    @property
    def heads(self) -> int:
        """The number of heads of a grid step."""
        return LANES // self.size

    @property
    def groups(self) -> int:
        return self.shape[2] // self.heads

    def __call__(
        self,
        kernel: Any,
        operands: Operands,
        out: list[_Spec],
        scratch: list[Any],
        *,
        products: int,
    ) -> list[Array]:
        arrays, specs = self.operands(operands)
        cut = self.tiles
        kind = f"window_{cut.block}x{cut.chunk}" if cut.is_windowed else f"blocks_{cut.chunk}"
        kind += f"_{kernel.__name__}"
        if operands.tables:
            scratch = [pltpu.VMEM((cut.length, LANES), self.dtype), *scratch]
        run = pl.pallas_call(
            functools.partial(kernel, run=self),
            grid=(self.shape[0], self.groups, cut.steps),
            in_specs=[spec.block for spec in specs],
            out_specs=[spec.block for spec in out],
            out_shape=[spec.shape for spec in out],
            scratch_shapes=scratch,
            name=pallas_parts.name_of(kind, self.rule, self.rotates, bool(operands.seeds)),
            cost_estimate=self.cost(arrays, products),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"),
                vmem_limit_bytes=VMEM_LIMIT,
            ),
            interpret=self.interpret,
        )
        return list(run(*arrays))

    def operands(self, operands: Operands) -> tuple[list[Array], list[_Spec]]:
        """Returns the kernel's arguments, padded and cut, in its order."""
        arrays = [self.padded(x) for x in operands.tensors]
        specs = [self.by_block(), self.whole(), self.whole()]
        specs += [self.by_block()] * (len(operands.tensors) - 3)
        arrays += [x.reshape(self.statistics().shape.shape) for x in operands.statistics]
        specs += [self.statistics()] * len(operands.statistics)
        widths = ((0, 0), (0, self.tiles.length - self.shape[1]))
        for x in operands.tables:
            arrays.append(jnp.tile(jnp.pad(x, (*widths, (0, 0))), (1, 1, self.heads)))
            specs.append(_of_row(arrays[-1], is_shared=x.shape[0] == 1))
        rows = [jnp.pad(x, widths) for x in operands.rows]
        for x in rows:
            of_blocks, of_chunks = self.cut(x)
            arrays += [of_blocks, of_chunks]
            specs.append(_of_row(of_blocks, by_step=True))
            specs.append(_of_row(of_chunks, by_step=self.tiles.is_windowed))
        scalars = list(operands.seeds)
        if not self.tiles.is_windowed:
            scalars.insert(0, bounds(rows[0], self.tiles, self.rule))
        for x in scalars:
            arrays.append(x.reshape(self.shape[0], 1, -1))
            specs.append(_of_row(arrays[-1], memory_space=pltpu.SMEM))
        return arrays, specs

    def padded(self, x: Array) -> Array:
        flat = x.reshape(*x.shape[:2], -1)
        return jnp.pad(flat, ((0, 0), (0, self.tiles.length - self.length), (0, 0)))

    def unpadded(self, x: Array) -> Array:
        return x[:, : self.length].reshape(self.shape)

    def by_block(self) -> _Spec:
        """Queries, and arrays of their shape: the blocks of a step."""
        block = (1, self.tiles.blocks * self.tiles.block, LANES)
        return _Spec(pl.BlockSpec(block, lambda row, group, step: (row, step, group)), self._array)

    def whole(self) -> _Spec:
        """Keys, and arrays of their shape: the whole row."""
        block = (1, self.tiles.length, LANES)
        return _Spec(pl.BlockSpec(block, lambda row, group, step: (row, 0, group)), self._array)

    @property
    def _array(self) -> Any:
        batch, _, heads, size = self.shape
        return jax.ShapeDtypeStruct((batch, self.tiles.length, heads * size), self.dtype)

    def statistics(self) -> _Spec:
        block = (1, 1, self.heads, self.tiles.blocks * self.tiles.block)
        spec = pl.BlockSpec(block, lambda row, group, step: (row, group, 0, step))
        shape = (self.shape[0], self.groups, self.heads, self.tiles.length)
        return _Spec(spec, jax.ShapeDtypeStruct(shape, jnp.float32))

    def cut(self, x: Array) -> tuple[Array, Array]:
        """Returns [batch, steps, blocks, block], and the same of each block's chunk of keys.

        If blocks walk over all chunks, the chunks are [batch, 1, chunks, chunk].
        """
        batch, cut = x.shape[0], self.tiles
        of_blocks = x.reshape(batch, cut.steps, cut.blocks, cut.block)
        if not cut.is_windowed:
            return of_blocks, x.reshape(batch, 1, cut.chunks, cut.chunk)
        begins = [int(cut.begin(number, np.clip)) for number in range(cut.length // cut.block)]
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


def _of_row(x: Array, *, is_shared: bool = False, by_step: bool = False, **options: Any) -> _Spec:
    """The row of [batch, n, ...], or of a shared [1, n, ...]; `by_step`: the step's item of n."""
    rest = x.shape[2:]

    def index(row: Any, group: Any, step: Any) -> tuple[Any, ...]:
        return (0 if is_shared else row, step if by_step else 0, *[0] * len(rest))

    return _Spec(pl.BlockSpec((1, 1 if by_step else x.shape[1], *rest), index, **options), None)


class Tiles(NamedTuple):
    """The division of a row: `block` queries share a chunk of `chunk` keys, `blocks` a step."""

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
        """The most chunks that a block of queries walks over."""
        return 1 if self.is_windowed else self.length // self.chunk

    def begin(self, block: Any, clip: Callable[..., Any] = jnp.clip) -> Any:
        """Returns the first key of a block's chunk in a window, a multiple of WINDOW_UNIT.

        The chunk ends inside the row. `clip` is numpy's for a number, jax's for a traced one.
        """
        before = (self.chunk - self.block) // 2
        return clip(block * self.block - before, 0, self.length - self.chunk)


def tiles(length: int, window: int | None) -> Tiles:
    """Returns the division of rows of `length` positions."""
    if window is not None:
        block = max(1, -(-2 * window // LANES)) * LANES
        chunk = block + 2 * (-(-window // WINDOW_UNIT) * WINDOW_UNIT)
        padded = -(-length // block) * block
        if chunk <= min(padded, MOST_WINDOW_KEYS):
            count, most = padded // block, max(SCORES_PER_STEP // (block * chunk), 1)
            blocks = max(x for x in range(1, min(count, most) + 1) if count % x == 0)
            return Tiles(padded, block, chunk, blocks, True)
    padded, block = min((-(-length // size) * size, -size) for size in BLOCKS)
    return Tiles(padded, -block, -block, 1, False)


def bounds(numbers: Array, cut: Tiles, rule: MaskRule) -> Array:
    """Returns the first and the end of the chunks that each block sees, [batch, 2 blocks].

    A chunk is seen if the ranges of numbers overlap, and places are within window and order.
    """
    batch = numbers.shape[0]
    blocks = numbers.reshape(batch, -1, cut.block)
    highest = blocks.max(axis=2)
    if rule.is_by_key:
        seen = jnp.broadcast_to((highest != 0)[:, None], (batch, highest.shape[1], cut.chunks))
    else:
        lowest = jnp.where(blocks == 0, jnp.iinfo(jnp.int32).max, blocks).min(axis=2)
        seen = lowest[:, :, None] <= highest[:, None]
        seen &= lowest[:, None] <= highest[:, :, None]
    first = jnp.arange(cut.chunks, dtype=jnp.int32) * cut.chunk
    last = first + cut.chunk - 1
    if rule.window is not None:
        seen &= (first[:, None] - rule.window <= last[None])[None]
        seen &= (first[None] - rule.window <= last[:, None])[None]
    if rule.left_to_right and rule.rises:
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
    """The inputs of a grid step, by names."""

    def __init__(self, run: _Run, refs: list[Any]):
        cut = run.tiles
        self.run, self.cut = run, cut
        if run.rotates:
            *self.tables, refs = *refs[:2], refs[2:]
        count = 1 + run.rule.has_positions
        self.query_rows, self.key_rows = refs[0 : 2 * count : 2], refs[1 : 2 * count : 2]
        others = refs[2 * count :]
        if not cut.is_windowed:
            self.bounds, *others = others
        self.seeds = others
        self.number = pl.program_id(2)
        self.first_head = pl.program_id(1) * run.heads
        self.units = [
            _Unit(
                block,
                head,
                slice(head * run.size, (head + 1) * run.size),
                slice(block * cut.block, (block + 1) * cut.block),
            )
            for block in range(cut.blocks)
            for head in range(run.heads)
        ]

    @property
    def first_query(self) -> Any:
        return self.number * self.cut.blocks * self.cut.block

    def queries(self, query_ref: Any) -> Array:
        """Returns the step's queries, rotated if need be: [queries, lanes]."""
        if not self.run.rotates:
            return query_ref[0]
        return self.rotated(query_ref[0], self.first_query).astype(query_ref.dtype)

    def keys(self, keys_ref: Any, rotated: list[Any]) -> Any:
        """Returns the ref of the row's keys; the row's first step rotates them if need be."""
        if not self.run.rotates:
            return keys_ref.at[0]
        (ref,) = rotated

        @pl.when(self.number == 0)
        def _() -> None:
            def fill(begin: Any, rows: Any) -> None:
                ref[rows] = self.rotated(keys_ref[0, rows], begin).astype(ref.dtype)

            self.by_parts(fill)

        return ref

    def rotated(self, x: Array, begin: Any, *, back: bool = False) -> Array:
        """Returns rows [n, lanes] from place `begin` on, rotated by their positions, or back."""
        cos, sin = (ref[0, pl.ds(begin, x.shape[0])] for ref in self.tables)
        x, half = x.astype(jnp.float32), self.run.size // 2
        behind, before = (pltpu.roll(x, shift, 1) for shift in (LANES - half, half))
        lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
        partner = jnp.where(lane & half == 0, behind, before)
        return x * cos - partner * sin if back else x * cos + partner * sin

    def by_parts(self, body: Any) -> None:
        """Runs `body(begin, rows)` over parts of the whole row."""
        part = math.gcd(self.cut.length, _PART)

        def of_part(number: Any, _: Any) -> None:
            begin = pl.multiple_of(number * part, part)
            body(begin, pl.ds(begin, part))

        jax.lax.fori_loop(0, self.cut.length // part, of_part, None)

    def walk(self, body: Any, carry: Any) -> Any:
        """Runs `body(chunk, carry)` over the chunks that the step's block sees."""
        if self.cut.is_windowed:
            return body(None, carry)
        first, end = (self.bounds[0, 0, 2 * self.number + i] for i in (0, 1))
        return jax.lax.fori_loop(first, end, body, carry)

    def begins(self, chunk: Any) -> list[Any]:
        """Returns the first key of each block."""
        cut = self.cut
        if not cut.is_windowed:
            return [pl.multiple_of(chunk * cut.chunk, cut.chunk)]
        starts = [cut.begin(self.number * cut.blocks + block) for block in range(cut.blocks)]
        return [pl.multiple_of(x, WINDOW_UNIT) for x in starts]

    def chunks(self, begins: list[Any], *refs: Any) -> list[list[Array]]:
        return [[ref[pl.ds(begin, self.cut.chunk)] for begin in begins] for ref in refs]

    def biases(self, chunk: Any, begins: list[Any]) -> list[Array]:
        biases = []
        for block, begin in enumerate(begins):
            queries = [ref[0, 0, block : block + 1] for ref in self.query_rows]
            at = slice(block, block + 1) if chunk is None else pl.ds(chunk, 1)
            keys = [ref[0, 0, at] for ref in self.key_rows]
            first = self.first_query + block * self.cut.block
            biases.append(self.run.rule.bias(queries, keys, (first, begin)))
        return biases

    def masked(self, by_unit: list[Array], begins: list[Any]) -> list[Array]:
        """Returns arrays [keys, queries] after dropout, without its factor."""
        if not self.seeds:
            return by_unit
        masked = []
        for unit, x in zip(self.units, by_unit, strict=True):
            first, second = (ref[0, 0, self.first_head + unit.head] for ref in self.seeds)
            begin = begins[unit.block], self.first_query + unit.block * self.cut.block
            keep = weight_masks.kept_block(
                (first, second), begin, x.shape, self.run.length, self.run.rate
            )
            masked.append(jnp.where(keep, x, 0.0))
        return masked


def forward(query_ref: Any, keys_ref: Any, values_ref: Any, *refs: Any, run: _Run) -> None:
    """Writes the context of the step's queries, and the logarithms of their sums."""
    others, (context_ref, stats_ref), rotated = _parted(refs, 2, int(run.rotates))
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.size
    of_head = pallas_parts.lanes_of_heads(cut.block, LANES, size)
    keys_at, query = step.keys(keys_ref, rotated), step.queries(query_ref)
    queries = [pallas_parts.only(of_head[u.head], query[u.rows]) for u in units]

    def body(chunk: Any, carry: Any) -> Any:
        begins = step.begins(chunk)
        keys, values = step.chunks(begins, keys_at, values_ref.at[0])
        values = [x.T for x in values]
        biases = step.biases(chunk, begins)
        scores = [
            pallas_parts.dot(keys[u.block], x, (1, 1)) + biases[u.block]
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
    scales, stats = _ended(highest, totals, run.rate)
    _write_transposed(context_ref, step, [x * s for x, s in zip(sums, scales, strict=True)])
    for unit, x in zip(units, stats, strict=True):
        stats_ref[0, 0, unit.head : unit.head + 1, unit.rows] = x


def _ended(
    highest: list[Array], totals: list[Array], rate: float
) -> tuple[list[Array], list[Array]]:
    """Returns the factors from exponentials to weights, and the logarithms of their sums.

    Both are 0 for queries that see nothing: exp(LOWEST - 0) is 0.
    """
    scales, stats = [], []
    for m, total in zip(highest, totals, strict=True):
        is_blind = m <= LOWEST / 2
        total = jnp.where(is_blind, 1.0, total)
        scales.append(jnp.where(is_blind, 0.0, 1 / (1 - rate) / total))
        stats.append(jnp.where(is_blind, 0.0, m + jnp.log(total)))
    return scales, stats


def backward(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    context_ref: Any,
    grad_ref: Any,
    stats_ref: Any,
    *refs: Any,
    run: _Run,
) -> None:
    """Writes the gradients of the step's queries and, in the row's last one, of keys and values."""
    others, outputs, scratch = _parted(refs, 3, 2 + run.rotates)
    grad_query_ref, grad_keys_ref, grad_values_ref = outputs
    *rotated, sum_keys, sum_values = scratch
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.size
    dtype, scale = query_ref.dtype, 1 / (1 - run.rate)
    query_lanes, key_lanes = (
        pallas_parts.lanes_of_heads(rows, LANES, size) for rows in (cut.block, cut.chunk)
    )
    keys_at, query = step.keys(keys_ref, rotated), step.queries(query_ref)
    inputs = _BackwardInputs(
        query=[query[u.rows] for u in units],
        query_of_head=[pallas_parts.only(query_lanes[u.head], query[u.rows]) for u in units],
        grad=[grad_ref[0, u.rows] for u in units],
        grad_of_head=[pallas_parts.only(query_lanes[u.head], grad_ref[0, u.rows]) for u in units],
        stats=[stats_ref[0, 0, u.head : u.head + 1, u.rows] for u in units],
        deltas=_deltas(step, context_ref, grad_ref),
    )

    @pl.when(step.number == 0)
    def _() -> None:
        def clear(_: Any, rows: Any) -> None:
            for ref in (sum_keys, sum_values):
                ref[rows] = jnp.zeros((rows.size, LANES), jnp.float32)

        step.by_parts(clear)

    def body(chunk: Any, carry: Any) -> Any:
        begins = step.begins(chunk)
        keys, values = step.chunks(begins, keys_at, values_ref.at[0])
        biases = step.biases(chunk, begins)
        of_keys, of_values, of_query = _gradients(step, inputs, keys, values, biases, begins)
        for block, begin in enumerate(begins):
            at = pl.ds(begin, cut.chunk)
            sum_keys[at] += _joined(of_keys, key_lanes, units, block)
            sum_values[at] += _joined(of_values, key_lanes, units, block)
        if carry is not None:
            of_query = [old + x for old, x in zip(carry, of_query, strict=True)]
        return of_query

    carry = None
    if not cut.is_windowed:
        carry = [jnp.zeros((size, cut.block), jnp.float32) for _ in units]
    grad_query = step.walk(body, carry)
    if run.rotates:
        _write_rotated_back(grad_query_ref, step, grad_query)
    else:
        _write_transposed(grad_query_ref, step, grad_query)

    @pl.when(step.number == cut.steps - 1)
    def _() -> None:
        def write(begin: Any, rows: Any) -> None:
            of_keys = sum_keys[rows]
            if run.rotates:
                of_keys = step.rotated(of_keys, begin, back=True)
            grad_keys_ref[0, rows] = of_keys.astype(dtype)
            grad_values_ref[0, rows] = (sum_values[rows] * scale).astype(dtype)

        step.by_parts(write)


class _BackwardInputs(NamedTuple):
    """Each unit's inputs of the backward pass, [queries, lanes] or [1, queries].

    `_of_head`: with zeros in the lanes of other heads.
    """

    query: list[Array]
    query_of_head: list[Array]
    grad: list[Array]
    grad_of_head: list[Array]
    stats: list[Array]
    deltas: list[Array]


def _gradients(
    step: _Step,
    inputs: _BackwardInputs,
    keys: list[Array],
    values: list[Array],
    biases: list[Array],
    begins: list[Any],
) -> tuple[list[Array], list[Array], list[Array]]:
    """Returns each unit's part of the gradients of a chunk's keys and values, and its queries'.

    The first two are [keys, lanes], valid in the head's lanes; the last is [head, queries].
    """
    units, dtype, scale = step.units, keys[0].dtype, 1 / (1 - step.run.rate)
    transposed_keys = [x.T for x in keys]
    probabilities = [
        jnp.exp(pallas_parts.dot(keys[u.block], x, (1, 1)) + biases[u.block] - s)
        for u, x, s in zip(units, inputs.query_of_head, inputs.stats, strict=True)
    ]
    weights = [x.astype(dtype) for x in step.masked(probabilities, begins)]
    of_values = [pallas_parts.dot(x, g, (1, 0)) for x, g in zip(weights, inputs.grad, strict=True)]
    of_weights = [
        pallas_parts.dot(values[u.block], g, (1, 1))
        for u, g in zip(units, inputs.grad_of_head, strict=True)
    ]
    of_scores = [
        (p * (x * scale - d)).astype(dtype)
        for p, x, d in zip(
            probabilities, step.masked(of_weights, begins), inputs.deltas, strict=True
        )
    ]
    of_keys = [pallas_parts.dot(x, q, (1, 0)) for x, q in zip(of_scores, inputs.query, strict=True)]
    of_query = [
        pallas_parts.dot(transposed_keys[u.block][u.of_head], x, (1, 0))
        for u, x in zip(units, of_scores, strict=True)
    ]
    return of_keys, of_values, of_query


def _parted(
    refs: Sequence[Any], outputs: int, scratch: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the inputs, outputs and scratch of a kernel, which come in this order."""
    end = len(refs) - scratch
    return list(refs[: end - outputs]), list(refs[end - outputs : end]), list(refs[end:])


def _deltas(step: _Step, context_ref: Any, grad_ref: Any) -> list[Array]:
    """Returns the softmax's sum over keys of weight x gradient, [1, queries] of each unit."""
    lanes = [x.astype(jnp.float32) for x in pallas_parts.lanes_of_heads(8, LANES, step.run.size)]
    deltas = []
    for unit in step.units:
        context, grad = (ref[0, unit.rows].astype(jnp.float32) for ref in (context_ref, grad_ref))
        sums = jax.lax.dot_general(
            lanes[unit.head],
            context * grad,
            (((1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        deltas.append(sums[:1])
    return deltas


def _joined(by_unit: list[Array], lanes: list[Array], units: list[_Unit], block: int) -> Array:
    """Returns each head's lanes of its array [keys, lanes]."""
    mine = [(u.head, x) for u, x in zip(units, by_unit, strict=True) if u.block == block]
    whole = mine[0][1]
    for head, x in mine[1:]:
        whole = jnp.where(lanes[head], x, whole)
    return whole


def _write_transposed(ref: Any, step: _Step, by_unit: list[Array]) -> None:
    """Writes arrays [head, queries]."""
    for rows, whole in _by_block(step, [x.astype(ref.dtype) for x in by_unit]):
        ref[0, rows] = whole.T


def _write_rotated_back(ref: Any, step: _Step, by_unit: list[Array]) -> None:
    """Writes the gradients of queries from the gradients of rotated queries, [head, queries]."""
    for rows, whole in _by_block(step, by_unit):
        back = step.rotated(whole.T, step.first_query + rows.start, back=True)
        ref[0, rows] = back.astype(ref.dtype)


def _by_block(step: _Step, by_unit: list[Array]) -> Iterator[tuple[slice, Array]]:
    """Yields each block's rows in the step, and its heads' arrays concatenated."""
    for block in range(step.cut.blocks):
        mine = [(u.rows, x) for u, x in zip(step.units, by_unit, strict=True) if u.block == block]
        yield mine[0][0], jnp.concatenate([x for _, x in mine])
