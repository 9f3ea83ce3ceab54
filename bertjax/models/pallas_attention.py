"""Attention with dropout inside as one TPU kernel for the forward and one for the backward pass.

`bertjax.models.attention` has the same formulas in plain JAX, chooses between the two, and says
what they mean. In plain JAX every elementwise pass over the scores (batch x heads x length x
length in float32) goes through memory. In a kernel they never leave the core. Here a row is given
to one of two: `pallas_rows` takes short rows whole, `pallas_blocks` takes long ones, windows, and
lengths between. Each device works on its own rows and heads: the compiler cannot split a kernel.
Not yet run on a TPU.

In both a grid step takes the heads that fill 128 lanes. Scores are [keys, queries], so that the
softmax's sums go over sublanes, as cheap as any addition, and its factors lie along lanes. Every
step is done for all heads and blocks before the next: a product or a reduction is long on its way,
and the others fill the wait. The dropout masks are those of plain JAX, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from bertjax.models import (
    layers,
    pallas_blocks,
    pallas_parts,
    pallas_rows,
    pallas_tiles,
    placement,
    rotary,
)
from bertjax.models.visibility import Visibility

MIN_LENGTH = 128
MAX_LENGTH = pallas_blocks.MAX_LENGTH
HEAD_SIZES = (32, 64, 128)
# Which heads of which rows a device has: of tensors [batch, length, heads, head], of [batch, heads,
# ...], and of [batch, length].
_TENSORS = P(placement.DATA, None, placement.TENSOR)
_BY_HEAD = P(placement.DATA, placement.TENSOR)
_ROWS = P(placement.DATA)


def takes(length: int, head_size: int) -> bool:
    """Returns whether the kernels compute rows of so many positions, with such heads."""
    return MIN_LENGTH <= length <= MAX_LENGTH and head_size in HEAD_SIZES


def context(
    query: Float[Array, "batch length heads head"],
    keys: Float[Array, "batch length heads head"],
    values: Float[Array, "batch length heads head"],
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    *,
    rate: float,
    rotary_base: float | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "batch length heads head"], Array | None]:
    """Returns what `attention.attend` does, for lengths taken and HEAD_SIZES; and the statistics.

    These are what `gradients` wants to have again, [batch, heads, n] or None (`no_statistics`).
    With a `rotary_base` queries and keys turn by their positions first, as `rotary.turned` has it,
    in the kernel where it walks over blocks.
    With `interpret` it runs on any platform, slowly, as the tests do.
    """
    sight = pallas_parts.Sight.of(visible)
    options = {"sight": sight, "rate": rate, "interpret": interpret}
    if _is_short(query.shape[1], sight):
        tensors = (*_turned((query, keys), visible, rotary_base), values)
        run = functools.partial(pallas_rows.context, **options)
        return _per_device(run, [_TENSORS], tensors, (), (), visible, seeds)[0], None
    run = functools.partial(pallas_blocks.context, **options)
    tables = _tables(query, visible, rotary_base)
    out = [_TENSORS, _BY_HEAD]
    made, statistics = _per_device(run, out, (query, keys, values), (), tables, visible, seeds)
    return made, statistics


def no_statistics(shape: tuple[int, ...], visible: Visibility) -> Array | None:
    """Returns zeros for the statistics of queries of this shape, where nobody reads them."""
    batch, length, heads, _ = shape
    sight = pallas_parts.Sight.of(visible)
    if _is_short(length, sight):
        return None
    padded = pallas_tiles.tiles(length, sight.window).length
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
    rotary_base: float | None = None,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of query, keys and values, given what `context` gave and its gradient.

    Short rows have no use for the context: their softmax is there again as a whole.
    """
    sight = pallas_parts.Sight.of(visible)
    options = {"sight": sight, "rate": rate, "interpret": interpret}
    out = [_TENSORS] * 3
    if statistics is None:
        run = functools.partial(pallas_rows.gradients, **options)
        tensors = (*_turned((query, keys), visible, rotary_base), values, grad)
        made = _per_device(run, out, tensors, (), (), visible, seeds)
        of_query, of_keys = _turned(made[:2], visible, rotary_base, back=True)
        return of_query, of_keys, made[2]
    run = functools.partial(pallas_blocks.gradients, **options)
    tensors = (query, keys, values, context, grad)
    tables = _tables(query, visible, rotary_base)
    made = _per_device(run, out, tensors, (statistics,), tables, visible, seeds)
    return made[0], made[1], made[2]


def _turned(
    tensors: Sequence[Array], visible: Visibility, base: float | None, *, back: bool = False
) -> list[Array]:
    if base is None:
        return list(tensors)
    return [rotary.turned(x, visible.positions, base, back=back) for x in tensors]


def _tables(query: Array, visible: Visibility, base: float | None) -> tuple[Array, ...]:
    if base is None:
        return ()
    return rotary.tables(query.shape[1], query.shape[3], visible.positions, base)


def _is_short(length: int, sight: pallas_parts.Sight) -> bool:
    """Returns whether `pallas_rows` takes the row: if a window has no part of it for itself."""
    if length not in pallas_rows.LENGTHS:
        return False
    return pallas_tiles.tiles(length, sight.window).chunk >= length


def _per_device(
    run: Callable[..., list[Array]],
    out_specs: list[P],
    tensors: tuple[Array, ...],
    statistics: tuple[Array, ...],
    tables: tuple[Array, ...],
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
) -> list[Array]:
    """Returns `run(tensors, statistics, tables, rows, seeds)` of each device's rows and heads."""
    rows = pallas_parts.Sight.of(visible).rows(visible)
    parts = (tensors, statistics, tables, tuple(rows), () if seeds is None else tuple(seeds))
    of_tables = _ROWS if tables and tables[0].shape[0] > 1 else P()
    specs = (_TENSORS, _BY_HEAD, of_tables, _ROWS, _BY_HEAD)

    def on_device(*arrays: Array) -> list[Array]:
        left = list(arrays)
        mine = [tuple(left.pop(0) for _ in part) for part in parts]
        return _whole_lanes(run, mine)

    arguments = [x for part in parts for x in part]
    in_specs = [spec for part, spec in zip(parts, specs, strict=True) for _ in part]
    return placement.per_device(on_device, arguments, in_specs, out_specs)


def _whole_lanes(run: Callable[..., list[Array]], parts: list[tuple[Array, ...]]) -> list[Array]:
    """Runs it with as many heads of zeros more as fill the lanes of the last grid step."""
    tensors, statistics, tables, rows, seeds = parts
    heads, size = tensors[0].shape[2:]
    more = -heads % (pallas_parts.LANES // size)
    if not more:
        return run(tensors, statistics, tables, rows, seeds)

    def padded(x: Array, axis: int) -> Array:
        return jnp.pad(x, [(0, more if axis == i else 0) for i in range(x.ndim)])

    found = run(
        tuple(padded(x, 2) for x in tensors),
        tuple(padded(x, 1) for x in statistics),
        tables,
        rows,
        tuple(padded(x, 1) for x in seeds),
    )
    return [x[:, :, :heads] if x.ndim == 4 else x[:, :heads] for x in found]
