"""Attention with dropout as one TPU kernel for the forward and one for the backward pass.

`bertjax.models.attention` chooses between these kernels and plain JAX, and defines the result. In
plain JAX every elementwise pass over the scores (batch x heads x length x length in float32) goes
through memory. In a kernel they never leave the core. `pallas_rows` takes short rows whole,
`pallas_blocks` takes long rows, windows, and lengths between. Each device works on its own rows and
heads: the compiler cannot split a kernel. The kernels have not been run on a TPU yet.

A grid step takes the heads that fill 128 lanes. Scores are [keys, queries], so that the softmax's
sums go over sublanes, as cheap as any addition, and its factors lie along lanes. Every operation is
done for all heads and blocks before the next: a product or a reduction has a long latency, which
the others fill. The dropout masks equal the masks of plain JAX, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from bertjax.models import layers, placement, rotary
from bertjax.models.kernels import pallas_blocks, pallas_parts, pallas_rows, pallas_terms
from bertjax.models.kernels.pallas_parts import Operands
from bertjax.models.relative import Terms
from bertjax.models.visibility import Visibility

MIN_LENGTH = 128
MAX_LENGTH = pallas_blocks.MAX_LENGTH
HEAD_SIZES = (32, 64, 128)
# The sharding of tensors [batch, length, heads, head], of [batch, heads, ...], and of [batch,
# length].
_TENSORS = P(placement.DATA, None, placement.TENSOR)
_BY_HEAD = P(placement.DATA, placement.TENSOR)
_ROWS = P(placement.DATA)
_TABLES = P(None, placement.TENSOR)  # [distances, heads, head]


def takes(length: int, head_size: int, terms: Terms | None = None) -> bool:
    """Returns whether the kernels take rows of this length with heads of this size and terms."""
    if terms is not None and not (length in pallas_rows.LENGTHS and pallas_terms.takes(terms)):
        return False
    return MIN_LENGTH <= length <= MAX_LENGTH and head_size in HEAD_SIZES


def context(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    *,
    rate: float,
    rotary_base: rotary.Base | None = None,
    terms: Terms | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "batch length heads head"], Array | None]:
    """Returns the same as `attention.attend`, and the statistics that `gradients` needs.

    The statistics are [batch, heads, n] or None (`no_statistics`). With a `rotary_base` queries and
    keys are rotated by their positions first, as in `rotary.turned`; `pallas_blocks` rotates them
    in the kernel. With `interpret` it runs on any platform, slowly, for tests.
    """
    rule = pallas_parts.MaskRule.of(visible)
    options = {"rule": rule, "rate": rate, "interpret": interpret}
    if _is_short(query.shape[1], rule, terms):
        query, keys = rotary.both_turned(query, keys, visible.positions, rotary_base)
        run = functools.partial(pallas_rows.context, **options)
        tables = pallas_terms.tables(terms, is_backward=False)
        operands = _operands((query, keys, values), visible, seeds, terms=tables)
        return _per_device(run, [_TENSORS], operands)[0], None
    run = functools.partial(pallas_blocks.context, **options)
    operands = _operands((query, keys, values), visible, seeds, rotary_base=rotary_base)
    context, statistics = _per_device(run, [_TENSORS, _BY_HEAD], operands)
    return context, statistics


def no_statistics(
    shape: tuple[int, ...], visible: Visibility, terms: Terms | None = None
) -> Array | None:
    """Returns zeros in the shape of the statistics, for platforms that do not use them."""
    batch, length, heads, _ = shape
    rule = pallas_parts.MaskRule.of(visible)
    if _is_short(length, rule, terms):
        return None
    padded = pallas_blocks.tiles(length, rule.window).length
    return jnp.zeros((batch, heads, padded), jnp.float32)


def gradients(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    context: Array,
    statistics: Array | None,
    grad: Array,
    *,
    rate: float,
    rotary_base: rotary.Base | None = None,
    terms: Terms | None = None,
    interpret: bool = False,
) -> tuple[Array, Array, Array, Terms | None]:
    """Returns the gradients of query, keys, values and terms from the results of `context`.

    Short rows do not read the context: they compute their softmax again as a whole.
    """
    rule = pallas_parts.MaskRule.of(visible)
    options = {"rule": rule, "rate": rate, "interpret": interpret}
    out = [_TENSORS] * 3
    if statistics is None:
        turn = functools.partial(rotary.both_turned, positions=visible.positions, base=rotary_base)
        run = functools.partial(pallas_rows.gradients, **options)
        tables = pallas_terms.tables(terms, is_backward=True)
        operands = _operands((*turn(query, keys), values, grad), visible, seeds, terms=tables)
        out += [_TENSORS] * len(tables[2:])
        of_query, of_keys, of_values, *sums = _per_device(run, out, operands)
        of_terms = pallas_terms.of_tables(sums, terms)
        return *turn(of_query, of_keys, back=True), of_values, of_terms
    run = functools.partial(pallas_blocks.gradients, **options)
    tensors = (query, keys, values, context, grad)
    operands = _operands(tensors, visible, seeds, statistics=statistics, rotary_base=rotary_base)
    of_query, of_keys, of_values = _per_device(run, out, operands)
    return of_query, of_keys, of_values, None


def _operands(
    tensors: tuple[Array, ...],
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    *,
    statistics: Array | None = None,
    rotary_base: rotary.Base | None = None,
    terms: tuple[Array, ...] = (),
) -> Operands:
    _, length, _, size = tensors[0].shape
    return Operands(
        tensors,
        statistics=() if statistics is None else (statistics,),
        tables=()
        if rotary_base is None
        else rotary.tables(length, size, visible.positions, rotary_base),
        rows=tuple(pallas_parts.MaskRule.of(visible).rows(visible)),
        seeds=() if seeds is None else seeds,
        terms=terms,
    )


def _is_short(length: int, rule: pallas_parts.MaskRule, terms: Terms | None) -> bool:
    """Returns whether `pallas_rows` takes the row: if a window's chunk is not shorter than it.

    Terms are there alone.
    """
    if length not in pallas_rows.LENGTHS:
        return False
    return terms is not None or pallas_blocks.tiles(length, rule.window).chunk >= length


def _per_device(
    run: Callable[[Operands], list[Array]], out_specs: list[P], operands: Operands
) -> list[Array]:
    """Runs `run` on each device's rows and heads."""
    has_rows = operands.tables and operands.tables[0].shape[0] > 1
    tables = _ROWS if has_rows else P()
    specs = (_TENSORS, _BY_HEAD, tables, _ROWS, _BY_HEAD, _TABLES)  # of each part

    def on_device(*arrays: Array) -> list[Array]:
        left = iter(arrays)
        return _whole_lanes(run, Operands(*(tuple(next(left) for _ in part) for part in operands)))

    arguments = [x for part in operands for x in part]
    in_specs = [spec for part, spec in zip(operands, specs, strict=True) for _ in part]
    return placement.per_device(on_device, arguments, in_specs, out_specs)


def _whole_lanes(run: Callable[[Operands], list[Array]], operands: Operands) -> list[Array]:
    """Runs it with heads of zeros added to fill the lanes of the last grid step."""
    heads, size = operands.tensors[0].shape[2:]
    more = -heads % (pallas_parts.LANES // size)
    if not more:
        return run(operands)

    def padded(part: tuple[Array, ...], axis: int) -> tuple[Array, ...]:
        return tuple(
            jnp.pad(x, [(0, more if axis == i else 0) for i in range(x.ndim)]) for x in part
        )

    arrays = run(
        operands._replace(
            tensors=padded(operands.tensors, 2),
            statistics=padded(operands.statistics, 1),
            seeds=padded(operands.seeds, 1),
            terms=padded(operands.terms, 1),
        )
    )
    return [x[:, :, :heads] if x.ndim == 4 else x[:, :heads] for x in arrays]
