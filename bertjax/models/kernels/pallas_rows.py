"""Attention over short rows, whole, as one TPU kernel for the forward and one for the backward.

A grid step takes a row of 512 positions, or several shorter ones, with all their scores.
`pallas_attention` says how the kernels are built.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bertjax.models import weight_masks
from bertjax.models.kernels import pallas_parts, pallas_terms
from bertjax.models.kernels.pallas_parts import MaskRule, Operands

LENGTHS = (128, 256, 384, 512)
MAX_LENGTH = LENGTHS[-1]


def context(operands: Operands, *, rule: MaskRule, rate: float, interpret: bool) -> list[Array]:
    """Returns the context."""
    kernel = functools.partial(_forward_kernel, rule=rule, rate=rate)
    return _run(kernel, _name("forward", operands, rule), 1, operands, interpret)


def gradients(operands: Operands, *, rule: MaskRule, rate: float, interpret: bool) -> list[Array]:
    """Returns the gradients of query, keys and values, given the context's as the last tensor.

    The gradients of reversed tables, if any, follow: float32 [1, 2 x length, heads, head].
    """
    kernel = functools.partial(_backward_kernel, rule=rule, rate=rate)
    return _run(kernel, _name("backward", operands, rule), 3, operands, interpret)


def _name(direction: str, operands: Operands, rule: MaskRule) -> str:
    terms = "_terms" if operands.terms else ""
    kind = f"rows_{operands.tensors[0].shape[1]}{terms}_{direction}"
    return pallas_parts.name_of(kind, rule, False, bool(operands.seeds))


def _run(
    kernel: Callable[..., None], name: str, num_outputs: int, operands: Operands, interpret: bool
) -> list[Array]:
    tensors, terms, rows, seeds = (
        getattr(operands, name) for name in ("tensors", "terms", "rows", "seeds")
    )
    batch, length, heads, size = tensors[0].shape
    heads_per_step = pallas_parts.LANES // size
    lanes = heads_per_step * size
    block_rows = rows_per_step(batch, length, tensors[0].dtype, has_terms=bool(terms))
    arrays = [x.reshape(batch, length, heads * size) for x in tensors]
    arrays += [x.reshape(2 * length, heads * size) for x in terms]
    arrays += [x[:, None, :] for x in rows]
    arrays += [x[:, None, :] for x in seeds]
    by_lanes = pl.BlockSpec((block_rows, length, lanes), lambda group, row: (row, 0, group))
    shape_of_table, at_table = (2 * length, lanes), lambda group, row: (0, group)
    table = pl.BlockSpec(shape_of_table, at_table)
    # One copy in the core: it is the same for all rows.
    read_table = pl.BlockSpec(shape_of_table, at_table, pipeline_mode=pl.Buffered(1))
    by_row = pl.BlockSpec((block_rows, 1, length), lambda group, row: (row, 0, 0))
    scalars = (block_rows, 1, heads)
    all_heads = pl.BlockSpec(scalars, lambda group, row: (row, 0, 0), memory_space=pltpu.SMEM)
    of_tables = terms[2:]  # those that the backward kernel has in reverse order
    summed = [jax.ShapeDtypeStruct((2 * length, heads * size), jnp.float32)] * len(of_tables)
    run = pl.pallas_call(
        functools.partial(kernel, size=size, num_tables=len(terms)),
        grid=(heads // heads_per_step, batch // block_rows),
        in_specs=[by_lanes] * len(tensors)
        + [read_table] * len(terms)
        + [by_row] * len(rows)
        + [all_heads] * len(seeds),
        out_specs=[by_lanes] * num_outputs + [table] * len(summed),
        out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * num_outputs + summed,
        name=name,
        cost_estimate=_cost(arrays, num_outputs, heads, size),
        # The rows of a group of heads follow each other where they add to its tables' gradients.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary" if summed else "parallel")
        ),
        interpret=interpret,
    )
    made = run(*arrays)
    return [
        *(x.reshape(tensors[0].shape) for x in made[:num_outputs]),
        *(x.reshape(1, 2 * length, heads, size) for x in made[num_outputs:]),
    ]


def rows_per_step(batch: int, length: int, dtype: jnp.dtype, *, has_terms: bool = False) -> int:
    """Returns the number of rows in a grid step, with the number of scores of a row of MAX_LENGTH.

    In float32 and with terms it is half of that, to fit into the core's memory.
    """
    rows = MAX_LENGTH**2 * 2 // (length**2 * jnp.dtype(dtype).itemsize * (1 + has_terms))
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
    num_tables: int,
    rule: MaskRule,
    rate: float,
) -> None:
    *others, context_ref = refs
    tables, rows, seeds = _parted(others, num_tables, rule)
    units = _units(query_ref.shape, size)
    transposed_values = [values_ref[row].T for row in range(query_ref.shape[0])]
    biases = _biases(rows, rule)

    def transposed_contexts(units: list[_Unit]) -> list[Array]:
        exponentials, totals = _exponentials(query_ref, keys_ref, tables, biases, units)
        weights = _masked(exponentials, seeds, units, rate)
        return [
            pallas_parts.dot(transposed_values[u.row][u.of_head], x.astype(keys_ref.dtype), (1, 0))
            * _scale(u, biases, total, rate)
            for u, x, total in zip(units, weights, totals, strict=True)
        ]

    parts = [transposed_contexts(part) for part in _at_once(units, keys_ref, tables)]
    _write_transposed(context_ref, units, sum(parts, []))


def _backward_kernel(
    query_ref: Any,
    keys_ref: Any,
    values_ref: Any,
    grad_ref: Any,
    *refs: Any,
    size: int,
    num_tables: int,
    rule: MaskRule,
    rate: float,
) -> None:
    begin = len(refs) - 3 - num_tables // 2
    others, made = [*refs[:begin]], refs[begin:]
    grad_query_ref, grad_keys_ref, grad_values_ref, *grad_table_refs = made
    tables, rows, seeds = _parted(others, num_tables, rule)
    units = _units(query_ref.shape, size)
    transposed_keys = [keys_ref[row].T for row in range(query_ref.shape[0])]
    biases = _biases(rows, rule)
    if tables:
        pl.when(pl.program_id(1) == 0)(lambda: _clear(grad_table_refs))

    def gradients_of(units: list[_Unit]) -> tuple[list[Array], ...]:
        """Returns the gradients of query (transposed, then by the terms), keys and values."""
        dtype = query_ref.dtype
        exponentials, totals = _exponentials(query_ref, keys_ref, tables, biases, units)
        # Scaled for dropout here, once: each gradient has the probabilities as a factor.
        probabilities = [
            x * _scale(u, biases, t, rate)
            for u, x, t in zip(units, exponentials, totals, strict=True)
        ]
        weights = [x.astype(dtype) for x in _masked(probabilities, seeds, units, rate)]
        grad_values = [
            pallas_parts.dot(x, grad_ref[u.row], (1, 0))
            for u, x in zip(units, weights, strict=True)
        ]
        grad_weights = [
            pallas_parts.dot(values_ref[u.row], pallas_parts.only(u.lanes, grad_ref[u.row]), (1, 1))
            for u in units
        ]
        grad_weights = _masked(grad_weights, seeds, units, rate)
        products = [p * x for p, x in zip(probabilities, grad_weights, strict=True)]
        sums = [x.sum(axis=0, keepdims=True) * (1 - rate) for x in products]
        grad_scores = [
            (x - p * s).astype(dtype) for x, p, s in zip(products, probabilities, sums, strict=True)
        ]
        transposed_grad_query = [
            pallas_parts.dot(transposed_keys[u.row][u.of_head], x, (1, 0))
            for u, x in zip(units, grad_scores, strict=True)
        ]
        grad_keys = [
            pallas_parts.dot(x, query_ref[u.row], (1, 0))
            for u, x in zip(units, grad_scores, strict=True)
        ]
        by_terms: list[Array] = []
        if tables:
            more = [
                pallas_terms.gradients(
                    x, *_of_head(query_ref, keys_ref, u), tables[2:], grad_table_refs
                )
                for u, x in zip(units, grad_scores, strict=True)
            ]
            by_terms = [of_query for of_query, _ in more]
            grad_keys = [x + of_keys for x, (_, of_keys) in zip(grad_keys, more, strict=True)]
        return transposed_grad_query, by_terms, grad_keys, grad_values

    parts = [gradients_of(part) for part in _at_once(units, keys_ref, tables)]
    of_query, by_terms, of_keys, of_values = (sum(lists, []) for lists in zip(*parts, strict=True))
    _write_transposed(grad_query_ref, units, of_query)
    if tables:
        _write(grad_query_ref, units, by_terms, is_added=True)
    _write(grad_keys_ref, units, of_keys)
    _write(grad_values_ref, units, of_values)


class _Unit(NamedTuple):
    """A head of a row in a block: its place among the transposed lanes, and a mask of the lanes."""

    row: int
    head: int
    of_head: slice
    lanes: Array


def _units(shape: tuple[int, int, int], size: int) -> list[_Unit]:
    rows, length, lanes = shape
    of_head = pallas_parts.lanes_of_heads(length, lanes, size)
    return [
        _Unit(row, head, slice(head * size, (head + 1) * size), mine)
        for row in range(rows)
        for head, mine in enumerate(of_head)
    ]


def _at_once(units: list[_Unit], keys_ref: Any, tables: list[Any]) -> list[list[_Unit]]:
    """Returns the units in the parts that are computed at a time: with terms fewer have room."""
    number = max(1, MAX_LENGTH**2 // keys_ref.shape[1] ** 2) if tables else len(units)
    return [units[begin : begin + number] for begin in range(0, len(units), number)]


def _clear(refs: Sequence[Any]) -> None:
    for ref in refs:
        ref[...] = jnp.zeros(ref.shape, ref.dtype)


def _of_head(query_ref: Any, keys_ref: Any, unit: _Unit) -> tuple[Array, Array]:
    """Returns the query and keys of a unit [length, lanes], zeros in the lanes of other heads."""
    query, keys = (pallas_parts.only(unit.lanes, ref[unit.row]) for ref in (query_ref, keys_ref))
    return query, keys


def _write(
    ref: Any, units: list[_Unit], by_unit: Sequence[Array], *, is_added: bool = False
) -> None:
    """Writes each unit's lanes of its array [length, lanes], or adds them."""
    for row in range(ref.shape[0]):
        mine = [(u.lanes, x) for u, x in zip(units, by_unit, strict=True) if u.row == row]
        whole = mine[0][1]
        for lanes, x in mine[1:]:
            whole = jnp.where(lanes, x, whole)
        ref[row] = (ref[row] + whole if is_added else whole).astype(ref.dtype)


def _write_transposed(ref: Any, units: list[_Unit], by_unit: list[Array]) -> None:
    """Writes arrays [head, length]: transposing these is cheap, [length, length] is not."""
    for row in range(ref.shape[0]):
        mine = [x.astype(ref.dtype) for u, x in zip(units, by_unit, strict=True) if u.row == row]
        ref[row] = jnp.concatenate(mine).T


class _Bias(NamedTuple):
    """The bias of scores, [keys, queries]; whether queries see nothing, [1, queries] or None."""

    bias: Array
    is_blind: Array | None


def _parted(
    refs: list[Any], num_tables: int, rule: MaskRule
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the tables, the rows that `rule` reads, and the seeds."""
    tables, others = refs[:num_tables], refs[num_tables:]
    count = 1 + rule.has_positions
    return tables, others[:count], others[count:]


def _biases(rows: list[Any], rule: MaskRule) -> list[_Bias]:
    """Returns the bias of each row of a block."""
    biases = []
    for number in range(rows[0].shape[0]):
        row = [ref[number] for ref in rows]
        bias = rule.bias(row, row, (0, 0))
        is_blind = None if rule.is_by_key else bias.max(axis=0, keepdims=True) < 0
        biases.append(_Bias(bias, is_blind))
    return biases


def _scale(unit: _Unit, biases: list[_Bias], total: Array, rate: float) -> Array:
    """Returns the factors from exponentials to weights, [1, queries]: 0 if a query sees nothing."""
    scale, is_blind = 1 / (1 - rate) / total, biases[unit.row].is_blind
    return scale if is_blind is None else jnp.where(is_blind, 0.0, scale)


def _exponentials(
    query_ref: Any, keys_ref: Any, tables: list[Any], biases: list[_Bias], units: list[_Unit]
) -> tuple[list[Array], list[Array]]:
    """Returns the softmax's numerators, [keys, queries], and their sums over keys."""
    scores = [
        pallas_parts.dot(keys_ref[u.row], pallas_parts.only(u.lanes, query_ref[u.row]), (1, 1))
        + biases[u.row].bias
        for u in units
    ]
    if tables:
        terms = [pallas_terms.scores(*_of_head(query_ref, keys_ref, u), *tables[:2]) for u in units]
        scores = [x + more for x, more in zip(scores, terms, strict=True)]
    exponentials = [jnp.exp(x - x.max(axis=0, keepdims=True)) for x in scores]
    return exponentials, [x.sum(axis=0, keepdims=True) for x in exponentials]


def _masked(by_unit: list[Array], seeds: list[Any], units: list[_Unit], rate: float) -> list[Array]:
    """Returns arrays [keys, queries] after dropout, without its factor."""
    if not seeds:
        return by_unit
    first = pl.program_id(0) * (1 + units[-1].head)
    words = [tuple(ref[u.row, 0, first + u.head] for ref in seeds) for u in units]
    return [
        jnp.where(weight_masks.kept_block(pair, (0, 0), x.shape, x.shape[0], rate), x, 0.0)
        for pair, x in zip(words, by_unit, strict=True)
    ]
