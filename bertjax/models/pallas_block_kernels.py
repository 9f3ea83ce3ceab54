"""The kernels of `pallas_blocks`: what a grid step computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bertjax.models import pallas_parts, weight_masks
from bertjax.models.pallas_parts import LANES, LOWEST, Sight
from bertjax.models.pallas_tiles import WINDOW_UNIT, Tiles

# Rows that are rotated, cleared and written at once.
_PART = 1024


@dataclasses.dataclass(frozen=True)
class Call:
    """What a kernel knows when it is compiled.

    `length` is that of rows before they were padded. `rotates` says that queries and keys turn by
    their positions.
    """

    tiles: Tiles
    sight: Sight
    length: int
    size: int
    rate: float
    rotates: bool

    @property
    def heads(self) -> int:
        """How many a grid step takes."""
        return LANES // self.size


class _Unit(NamedTuple):
    """A head of a block of queries."""

    block: int
    head: int
    of_head: slice
    rows: slice  # of the step's queries


class _Step:
    """What both kernels read of a grid step, by names."""

    def __init__(self, run: Call, refs: list[Any]):
        cut = run.tiles
        self.run, self.cut = run, cut
        if run.rotates:
            *self.tables, refs = *refs[:2], refs[2:]
        count = 1 + run.sight.has_positions
        self.own, self.near = refs[0 : 2 * count : 2], refs[1 : 2 * count : 2]
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
        """Returns the step's queries, rotated where they are: [queries, lanes]."""
        if not self.run.rotates:
            return query_ref[0]
        return self.rotated(query_ref[0], self.first_query).astype(query_ref.dtype)

    def keys(self, keys_ref: Any, rotated: list[Any]) -> Any:
        """Returns where the row's keys stand; where they rotate, the row's first step does it."""
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
        """Returns rows [n, lanes] from place `begin` on, turned by their positions; or back."""
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
        """Returns where the keys of each block begin."""
        cut = self.cut
        if not cut.is_windowed:
            return [pl.multiple_of(chunk * cut.chunk, cut.chunk)]
        found = [cut.begin(self.number * cut.blocks + block) for block in range(cut.blocks)]
        return [pl.multiple_of(x, WINDOW_UNIT) for x in found]

    def added(self, chunk: Any, begins: list[Any]) -> list[Array]:
        found = []
        for block, begin in enumerate(begins):
            own = [ref[0, 0, block : block + 1] for ref in self.own]
            at = slice(block, block + 1) if chunk is None else pl.ds(chunk, 1)
            near = [ref[0, 0, at] for ref in self.near]
            first = self.first_query + block * self.cut.block
            found.append(self.run.sight.added(own, near, (first, begin)))
        return found

    def masked(self, by_unit: list[Array], begins: list[Any]) -> list[Array]:
        """Returns arrays [keys, queries] with what is dropped at zero."""
        if not self.seeds:
            return by_unit
        found = []
        for unit, x in zip(self.units, by_unit, strict=True):
            first, second = (ref[0, 0, self.first_head + unit.head] for ref in self.seeds)
            query = self.first_query + unit.block * self.cut.block
            begin = begins[unit.block], query
            kept = weight_masks.kept_block(
                (first, second), begin, x.shape, self.run.length, self.run.rate
            )
            found.append(jnp.where(kept, x, 0.0))
        return found


def forward(query_ref: Any, keys_ref: Any, values_ref: Any, *refs: Any, run: Call) -> None:
    """Writes the context of the step's queries, and the logarithms of their sums."""
    others, (context_ref, stats_ref), rotated = _parted(refs, 2, int(run.rotates))
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.size
    of_head = pallas_parts.lanes_of_heads(cut.block, LANES, size)
    keys_at, query = step.keys(keys_ref, rotated), step.queries(query_ref)
    queries = [pallas_parts.only(of_head[u.head], query[u.rows]) for u in units]

    def body(chunk: Any, carry: Any) -> Any:
        begins = step.begins(chunk)
        keys, values = _chunks(begins, cut.chunk, keys_at, values_ref.at[0])
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
    scales, stats = _ended(highest, totals, run.rate)
    _write_transposed(context_ref, step, [x * s for x, s in zip(sums, scales, strict=True)])
    for unit, x in zip(units, stats, strict=True):
        stats_ref[0, 0, unit.head : unit.head + 1, unit.rows] = x


def _ended(
    highest: list[Array], totals: list[Array], rate: float
) -> tuple[list[Array], list[Array]]:
    """Returns what makes weights of exponentials, and the logarithms of the sums of these.

    Both are 0 for what sees nothing: exp(LOWEST - 0) is 0.
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
    run: Call,
) -> None:
    """Writes the gradients of the step's queries and, in the row's last one, of keys and values."""
    others, outputs, scratch = _parted(refs, 3, 2 + run.rotates)
    grad_query_ref, grad_keys_ref, grad_values_ref = outputs
    *rotated, sum_keys, sum_values = scratch
    step = _Step(run, others)
    units, cut, size = step.units, step.cut, run.size
    dtype, scale = query_ref.dtype, 1 / (1 - run.rate)
    of_head, of_key = (
        pallas_parts.lanes_of_heads(rows, LANES, size) for rows in (cut.block, cut.chunk)
    )
    keys_at, query = step.keys(keys_ref, rotated), step.queries(query_ref)
    given = _Given(
        query=[query[u.rows] for u in units],
        query_of_head=[pallas_parts.only(of_head[u.head], query[u.rows]) for u in units],
        grad=[grad_ref[0, u.rows] for u in units],
        grad_of_head=[pallas_parts.only(of_head[u.head], grad_ref[0, u.rows]) for u in units],
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
        keys, values = _chunks(begins, cut.chunk, keys_at, values_ref.at[0])
        *made, of_query = _gradients(step, given, keys, values, step.added(chunk, begins), begins)
        for block, begin in enumerate(begins):
            at = pl.ds(begin, cut.chunk)
            sum_keys[at] += _joined(made[0], of_key, units, block)
            sum_values[at] += _joined(made[1], of_key, units, block)
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


class _Given(NamedTuple):
    """What the backward pass has of each unit's queries, [queries, lanes] or [1, queries].

    Those `of_head` have zeros in the lanes of other heads.
    """

    query: list[Array]
    query_of_head: list[Array]
    grad: list[Array]
    grad_of_head: list[Array]
    stats: list[Array]
    deltas: list[Array]


def _gradients(
    step: _Step,
    given: _Given,
    keys: list[Array],
    values: list[Array],
    added: list[Array],
    begins: list[Any],
) -> tuple[list[Array], list[Array], list[Array]]:
    """Returns each unit's part of the gradients of a chunk's keys and values, and its queries'.

    The first two are [keys, lanes], of which the head's are meant, the last [head, queries].
    """
    units, dtype, scale = step.units, keys[0].dtype, 1 / (1 - step.run.rate)
    transposed_keys = [x.T for x in keys]
    probabilities = [
        jnp.exp(pallas_parts.dot(keys[u.block], x, (1, 1)) + added[u.block] - s)
        for u, x, s in zip(units, given.query_of_head, given.stats, strict=True)
    ]
    weights = [x.astype(dtype) for x in step.masked(probabilities, begins)]
    of_values = [pallas_parts.dot(x, g, (1, 0)) for x, g in zip(weights, given.grad, strict=True)]
    of_weights = [
        pallas_parts.dot(values[u.block], g, (1, 1))
        for u, g in zip(units, given.grad_of_head, strict=True)
    ]
    of_scores = [
        (p * (x * scale - d)).astype(dtype)
        for p, x, d in zip(
            probabilities, step.masked(of_weights, begins), given.deltas, strict=True
        )
    ]
    of_keys = [pallas_parts.dot(x, q, (1, 0)) for x, q in zip(of_scores, given.query, strict=True)]
    of_query = [
        pallas_parts.dot(transposed_keys[u.block][u.of_head], x, (1, 0))
        for u, x in zip(units, of_scores, strict=True)
    ]
    return of_keys, of_values, of_query


def _parted(
    refs: Sequence[Any], outputs: int, scratch: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the inputs, the outputs and the scratch of a kernel, which stand in this order."""
    end = len(refs) - scratch
    return list(refs[: end - outputs]), list(refs[end - outputs : end]), list(refs[end:])


def _chunks(begins: list[Any], chunk: int, *refs: Any) -> list[list[Array]]:
    return [[ref[pl.ds(begin, chunk)] for begin in begins] for ref in refs]


def _deltas(step: _Step, context_ref: Any, grad_ref: Any) -> list[Array]:
    """Returns the softmax's sum over keys of weight x gradient, [1, queries] of each unit."""
    lanes = [x.astype(jnp.float32) for x in pallas_parts.lanes_of_heads(8, LANES, step.run.size)]
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


def _write_transposed(ref: Any, step: _Step, by_unit: list[Array]) -> None:
    """Writes arrays [head, queries]."""
    for rows, whole in _by_block(step, [x.astype(ref.dtype) for x in by_unit]):
        ref[0, rows] = whole.T


def _write_rotated_back(ref: Any, step: _Step, by_unit: list[Array]) -> None:
    """Writes gradients of rotated queries, [head, queries], as those of the queries."""
    for rows, whole in _by_block(step, by_unit):
        back = step.rotated(whole.T, step.first_query + rows.start, back=True)
        ref[0, rows] = back.astype(ref.dtype)


def _by_block(step: _Step, by_unit: list[Array]) -> Iterator[tuple[slice, Array]]:
    """Yields each block's rows in the step, and its heads' arrays on top of each other."""
    for block in range(step.cut.blocks):
        mine = [(u.rows, x) for u, x in zip(step.units, by_unit, strict=True) if u.block == block]
        yield mine[0][0], jnp.concatenate([x for _, x in mine])
