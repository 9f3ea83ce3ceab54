"""Attention over long rows and over windows, as one TPU kernel for each pass.

`pallas_attention` has the kernels for short rows and says how all of them are built. Here a grid
step takes blocks of queries of the heads that fill 128 lanes, and the keys that they see: a chunk
after the other, with the running maximum and sum of the softmax, where they see a whole row; one
chunk around each block where they see a window. Scores stay in the core, so memory grows with the
length, and chunks that no query of a block sees are passed over: of other sequences, of padding,
beyond a window.

Queries and keys may turn by their positions (rotary) here: a row's keys once, in its first step.
Outside they would go through memory twice more each way. Besides the context the forward pass gives
the logarithm of each query's sum of exponentials, from which the backward pass has the
probabilities at once.
Source: Dao et al. 2022 (FlashAttention), algorithms 1 and 4; Dao 2023, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bertjax.models import pallas_block_kernels, pallas_parts, pallas_tiles
from bertjax.models.pallas_block_kernels import Call
from bertjax.models.pallas_parts import LANES, Operands, Sight

# Of the core's memory, in bytes: a step holds keys, values and sums of a whole row.
VMEM_LIMIT = 96 * 2**20
MAX_LENGTH = 16384  # for which that is enough, in float32 too


def context(given: Operands, *, sight: Sight, rate: float, interpret: bool) -> list[Array]:
    """Returns the context, and the statistics [batch, heads, padded length].

    A row without any token has a context of zeros.
    """
    run = _Run.of(given, sight, rate, interpret)
    out = [run.by_block(run.dtype), run.statistics()]
    made, found = run(pallas_block_kernels.forward, given, out, [], products=2)
    return [run.unpadded(made), found.reshape(found.shape[0], -1, found.shape[3])]


def gradients(given: Operands, *, sight: Sight, rate: float, interpret: bool) -> list[Array]:
    """Returns the gradients of query, keys and values; the last tensors: context, its gradient."""
    run = _Run.of(given, sight, rate, interpret)
    out = [run.by_block(run.dtype), run.whole(run.dtype), run.whole(run.dtype)]
    scratch = [pltpu.VMEM((run.tiles.length, LANES), jnp.float32)] * 2
    found = run(pallas_block_kernels.backward, given, out, scratch, products=5)
    return [run.unpadded(x) for x in found]


class _Spec(NamedTuple):
    block: pl.BlockSpec
    shape: Any


@dataclasses.dataclass(frozen=True)
class _Run:
    """One call of a kernel: shapes, and where each grid step finds its part."""

    shape: tuple[int, ...]
    dtype: Any
    call: Call
    interpret: bool

    @classmethod
    def of(cls, given: Operands, sight: Sight, rate: float, interpret: bool) -> _Run:
        query = given.tensors[0]
        _, length, _, size = query.shape
        cut = pallas_tiles.tiles(length, sight.window)
        call = Call(cut, sight, length, size, rate, rotates=bool(given.tables))
        return cls(query.shape, query.dtype, call, interpret)

    @property
    def tiles(self) -> pallas_tiles.Tiles:
        return self.call.tiles

    @property
    def heads(self) -> int:
        """How many a grid step takes."""
        return self.call.heads

    @property
    def groups(self) -> int:
        return self.shape[2] // self.heads

    def __call__(
        self, kernel: Any, given: Operands, out: list[_Spec], scratch: list[Any], *, products: int
    ) -> list[Array]:
        arrays, specs = self.operands(given)
        if given.tables:
            scratch = [pltpu.VMEM((self.tiles.length, LANES), self.dtype), *scratch]
        run = pl.pallas_call(
            functools.partial(kernel, run=self.call),
            grid=(self.shape[0], self.groups, self.tiles.steps),
            in_specs=[spec.block for spec in specs],
            out_specs=[spec.block for spec in out],
            out_shape=[spec.shape for spec in out],
            scratch_shapes=scratch,
            name=self.name(kernel.__name__, has_dropout=bool(given.seeds)),
            cost_estimate=self.cost(arrays, products),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"),
                vmem_limit_bytes=VMEM_LIMIT,
            ),
            interpret=self.interpret,
        )
        return list(run(*arrays))

    def operands(self, given: Operands) -> tuple[list[Array], list[_Spec]]:
        """Returns what the kernel reads, in the order in which it does, padded and cut."""
        batch, dtype = self.shape[0], self.dtype
        arrays = [self.padded(x) for x in given.tensors]
        specs = [self.by_block(dtype), self.whole(dtype), self.whole(dtype)]
        specs += [self.by_block(dtype)] * (len(given.tensors) - 3)
        arrays += [x.reshape(self.statistics().shape.shape) for x in given.statistics]
        specs += [self.statistics()] * len(given.statistics)
        widths = ((0, 0), (0, self.tiles.length - self.shape[1]))
        for x in given.tables:
            arrays.append(jnp.tile(jnp.pad(x, (*widths, (0, 0))), (1, 1, self.heads)))
            specs.append(self.table(arrays[-1]))
        rows = [jnp.pad(x, widths) for x in given.rows]
        for x in rows:
            of_blocks, of_chunks = self.cut(x)
            arrays += [of_blocks, of_chunks]
            specs += [self.row(of_blocks, True), self.row(of_chunks, self.tiles.is_windowed)]
        scalars = list(given.seeds)
        if not self.tiles.is_windowed:
            scalars.insert(0, pallas_tiles.bounds(rows[0], self.tiles, self.call.sight))
        for x in scalars:
            arrays.append(x.reshape(batch, 1, -1))
            specs.append(_of_row(arrays[-1]))
        return arrays, specs

    def name(self, direction: str, *, has_dropout: bool) -> str:
        cut, call = self.tiles, self.call
        kind = f"window_{cut.block}x{cut.chunk}" if cut.is_windowed else f"blocks_{cut.chunk}"
        return pallas_parts.name_of(
            f"{kind}_{direction}", call.sight, rotates=call.rotates, has_dropout=has_dropout
        )

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

    def table(self, x: Array) -> _Spec:
        """Cosines or sines of all places: those of the row, or the same for all rows."""
        index = lambda row, group, step: (row if x.shape[0] > 1 else 0, 0, 0)  # noqa: E731
        return _Spec(pl.BlockSpec((1, *x.shape[1:]), index), None)

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


def _of_row(x: Array) -> _Spec:
    """Numbers that a kernel reads one by one, [batch, 1, n]: those of the row."""
    block = (1, 1, x.shape[2])
    index = lambda row, group, step: (row, 0, 0)  # noqa: E731
    return _Spec(pl.BlockSpec(block, index, memory_space=pltpu.SMEM), None)
