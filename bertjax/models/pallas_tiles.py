"""How the kernels of `pallas_blocks` cut a row: blocks of queries, chunks of keys for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from bertjax.models.pallas_parts import LANES, Sight

# Queries and keys whose scores are made at once; rows are padded to a multiple of the one that
# needs the least padding.
BLOCKS = (512, 384, 256)
# A window's chunk is no longer than this; wider windows walk over chunks.
MOST_WINDOW_KEYS = 512
# A chunk reaches a multiple of so many positions to each side of its block.
WINDOW_UNIT = 64
SCORES_PER_STEP = 2 * 512 * 512


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

    def begin(self, block: Any, clip: Callable[..., Any] = jnp.clip) -> Any:
        """Returns where the chunk of a window's block begins, a multiple of WINDOW_UNIT.

        It ends inside the row. `clip` is numpy's for the number of a block, jax's for a traced one.
        """
        before = (self.chunk - self.block) // 2
        return clip(block * self.block - before, 0, self.length - self.chunk)


def tiles(length: int, window: int | None) -> Tiles:
    """Returns how rows of `length` positions are cut."""
    if window is not None:
        block = max(1, -(-2 * window // LANES)) * LANES
        chunk = block + 2 * (-(-window // WINDOW_UNIT) * WINDOW_UNIT)
        padded = -(-length // block) * block
        if chunk <= min(padded, MOST_WINDOW_KEYS):
            most = max(SCORES_PER_STEP // (block * chunk), 1)
            return Tiles(padded, block, chunk, _divisor(padded // block, most), True)
    padded, block = min((-(-length // size) * size, -size) for size in BLOCKS)
    return Tiles(padded, -block, -block, 1, False)


def _divisor(number: int, most: int) -> int:
    """Returns the largest one that is not above `most`."""
    return max(x for x in range(1, min(number, most) + 1) if number % x == 0)


def bounds(numbers: Array, cut: Tiles, sight: Sight) -> Array:
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
