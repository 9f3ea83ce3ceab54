"""Attention in plain JAX: the context of queries, and the gradients of all three.

What a position sees decides how it is computed: over all keys at once, a block of queries after the
other where rows are long, or over neighbouring blocks alone where a window is narrow. The numbers
are the same but for rounding. Nothing here is kept for the backward pass but what it is given;
scores, softmax and dropout mask are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models import layers, visibility, weight_masks
from bertjax.models.visibility import Visibility

# Rows up to so many positions are computed at once, as in BERT; longer ones in blocks of queries,
# so that the scores that are there at one time do not grow with the square of the length.
MOST_AT_ONCE = 1024
QUERY_BLOCK = 512
# Queries that share a window's keys: the lanes of a TPU.
WINDOW_BLOCK = 128


class _Sight(NamedTuple):
    """Which keys are seen, [rows, 1, L or 1, S], and of those seen which are kept by dropout.

    `has_blind` says that there may be queries that see nothing.
    """

    seen: Array
    kept: Array | None
    has_blind: bool


def context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    *,
    rate: float,
) -> Array:
    """Returns what `attention.attend` does: [batch, length, heads, head]."""
    way = _way(visible, query.shape[1])
    return way.context(query, keys, values, visible, seeds, rate)


def weights(
    query: Array, keys: Array, visible: Visibility
) -> Float[Array, "batch heads queries keys"]:
    """Returns with which weights the context averages the values, without dropout; in float32."""
    return _probabilities(query, keys, _whole_sight(query, visible, None, 0.0))


def gradients(*saved_and_grad: Any, rate: float) -> tuple[Array, Array, Array]:
    """Returns the gradients of query, keys and values.

    They are made from query, keys, values, visibility, seeds, the context and its gradient.
    """
    # The barrier keeps the compiler from finding that probabilities and mask have been there
    # before, and saving them.
    *saved, grad = saved_and_grad
    query, keys, values, visible, seeds, context = jax.lax.optimization_barrier(tuple(saved))
    way = _way(visible, query.shape[1])
    return way.gradients(query, keys, values, context, grad, visible, seeds, rate)


class _Way(NamedTuple):
    """How attention is computed; `gradients` also takes the context and its gradient."""

    context: Callable[..., Array]
    gradients: Callable[..., tuple[Array, Array, Array]]


def _way(visible: Visibility, length: int) -> _Way:
    """Returns the way that has the fewest scores at one time, or computes the fewest."""
    window = visible.window
    if window is not None and _window_block(window) + 2 * window < length:
        return _Way(_windowed_context, _windowed_gradients)
    if length > MOST_AT_ONCE:
        return _Way(_blocked_context, _blocked_gradients)
    return _Way(_whole_context, _whole_gradients)


# All keys at once


def _context(query: Array, keys: Array, values: Array, sight: _Sight, rate: float) -> Array:
    weights = _masked(_probabilities(query, keys, sight), sight)
    context = jnp.einsum(
        "BHLS,BSHK->BLHK",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    return (context * (1 / (1 - rate))).astype(values.dtype)


def _gradients(
    query: Array,
    keys: Array,
    values: Array,
    context: Array,
    grad: Array,
    sight: _Sight,
    rate: float,
) -> tuple[Array, Array, Array]:
    scale = 1 / (1 - rate)
    probabilities = _probabilities(query, keys, sight)
    weights = _masked(probabilities, sight).astype(values.dtype)
    grad_values = jnp.einsum("BHLS,BLHK->BSHK", weights, grad, preferred_element_type=jnp.float32)
    grad_weights = jnp.einsum("BLHK,BSHK->BHLS", grad, values, preferred_element_type=jnp.float32)
    # The softmax's sum over keys of weight x gradient is the context times its gradient.
    # Source: Dao et al. 2022 (FlashAttention), appendix B.2.
    sums = (grad.astype(jnp.float32) * context.astype(jnp.float32)).sum(axis=-1)
    sums = jnp.swapaxes(sums, 1, 2)[..., None]
    grad_scores = probabilities * (_masked(grad_weights * scale, sight) - sums)
    grad_scores = grad_scores.astype(query.dtype)
    grad_query = jnp.einsum("BHLS,BSHK->BLHK", grad_scores, keys)
    grad_keys = jnp.einsum("BHLS,BLHK->BSHK", grad_scores, query)
    return grad_query, grad_keys, (grad_values * scale).astype(values.dtype)


def _whole_context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> Array:
    return _context(query, keys, values, _whole_sight(query, visible, seeds, rate), rate)


def _whole_gradients(
    query: Array,
    keys: Array,
    values: Array,
    context: Array,
    grad: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> tuple[Array, Array, Array]:
    sight = _whole_sight(query, visible, seeds, rate)
    return _gradients(query, keys, values, context, grad, sight, rate)


def _probabilities(query: Array, keys: Array, sight: _Sight) -> Array:
    scores = jnp.einsum("BLHK,BSHK->BHLS", query, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(sight.seen, scores, jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1)
    if not sight.has_blind:
        return probabilities
    return jnp.where(sight.seen.any(axis=-1, keepdims=True), probabilities, 0.0)


def _masked(x: Array, sight: _Sight) -> Array:
    return x if sight.kept is None else jnp.where(sight.kept, x, 0.0)


def _whole_sight(
    query: Array, visible: Visibility, seeds: layers.MaskSeeds | None, rate: float
) -> _Sight:
    batch, length, heads, _ = query.shape
    shape = (batch, heads, length, length)
    kept = None if seeds is None else weight_masks.kept(seeds, shape, rate)
    return _Sight(visibility.pairs(visible), kept, not visible.is_by_key)


# A block of queries after the other, each with all keys


def _blocked_context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> Array:
    length = query.shape[1]
    queries, sights = _query_blocks(query), _block_sights(query, visible, seeds, rate)

    def of_block(block: tuple[Array, Array]) -> Array:
        number, its_query = block
        return _context(its_query, keys, values, sights(number), rate)

    made = jax.lax.map(of_block, (jnp.arange(len(queries)), queries))
    return _unblocked(made, length)


def _blocked_gradients(
    query: Array,
    keys: Array,
    values: Array,
    context: Array,
    grad: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> tuple[Array, Array, Array]:
    length = query.shape[1]
    sights = _block_sights(query, visible, seeds, rate)
    blocks = tuple(map(_query_blocks, (query, context, grad)))

    def of_block(sums: tuple[Array, Array], block: Any) -> tuple[tuple[Array, Array], Array]:
        number, (its_query, its_context, its_grad) = block
        made = _gradients(its_query, keys, values, its_context, its_grad, sights(number), rate)
        return (sums[0] + made[1], sums[1] + made[2]), made[0]  # in float32, which the sums have

    zeros = jnp.zeros(keys.shape, jnp.float32), jnp.zeros(values.shape, jnp.float32)
    numbers = jnp.arange(len(blocks[0]))
    (grad_keys, grad_values), grad_query = jax.lax.scan(of_block, zeros, (numbers, blocks))
    of_query = _unblocked(grad_query, length)
    return of_query, grad_keys.astype(keys.dtype), grad_values.astype(values.dtype)


def _query_blocks(x: Array) -> Array:
    """Returns [batch, length, ...] as [blocks, batch, block, ...], zeros behind the end."""
    blocks = -(-x.shape[1] // QUERY_BLOCK)
    padded = _padded(x, 0, blocks * QUERY_BLOCK - x.shape[1])
    parts = padded.reshape(x.shape[0], blocks, QUERY_BLOCK, *x.shape[2:])
    return jnp.moveaxis(parts, 1, 0)


def _unblocked(x: Array, length: int) -> Array:
    whole = jnp.moveaxis(x, 0, 1)
    return whole.reshape(whole.shape[0], -1, *whole.shape[3:])[:, :length]


def _block_sights(
    query: Array, visible: Visibility, seeds: layers.MaskSeeds | None, rate: float
) -> Any:
    """Returns a function from the number of a block of queries to its `_Sight`."""
    length = query.shape[1]
    placed = visibility.placed(visible, length)
    asking = jax.tree.map(_query_blocks, placed)

    def sight(number: Array) -> _Sight:
        first = number * QUERY_BLOCK
        if visible.is_by_key:
            seen = visibility.pairs(visible)
        else:
            seen = visibility.pairs(placed, jax.tree.map(lambda x: x[number], asking))
        if seeds is None:
            return _Sight(seen, None, not visible.is_by_key)
        rows = (first + jnp.arange(QUERY_BLOCK)).astype(jnp.uint32)[:, None]
        columns = jnp.arange(length, dtype=jnp.uint32)[None]
        words = (seeds[0][:, :, None, None], seeds[1][:, :, None, None])
        at = rows[None, None], columns[None, None]
        return _Sight(seen, weight_masks.kept_at(words, *at, length, rate), not visible.is_by_key)

    return sight


# Windows: a block of queries sees the keys of its own places and so many beside them as the window
# is wide. Blocks stand where rows of the batch do.


def _windowed_context(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> Array:
    window = _window(visible)
    own, near = _own(query, window), (_near(keys, window), _near(values, window))
    made = _context(own, *near, _window_sight(query, visible, seeds, rate), rate)
    return _of_rows(made, query)


def _windowed_gradients(
    query: Array,
    keys: Array,
    values: Array,
    context: Array,
    grad: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    rate: float,
) -> tuple[Array, Array, Array]:
    window = _window(visible)
    near_keys, of_keys = jax.vjp(lambda x: _near(x, window), keys)
    near_values, of_values = jax.vjp(lambda x: _near(x, window), values)
    own_query, own_context, own_grad = (_own(x, window) for x in (query, context, grad))
    sight = _window_sight(query, visible, seeds, rate)
    made = _gradients(own_query, near_keys, near_values, own_context, own_grad, sight, rate)
    return _of_rows(made[0], query), of_keys(made[1])[0], of_values(made[2])[0]


def _window(visible: Visibility) -> int:
    assert visible.window is not None
    return visible.window


def _window_block(window: int) -> int:
    # A block's keys end in the next block: at most a block lies on its both sides together.
    return max(1, -(-2 * window // WINDOW_BLOCK)) * WINDOW_BLOCK


def _own(x: Array, window: int) -> Array:
    """Returns [batch, length, ...] as [batch * blocks, block, ...]."""
    block = _window_block(window)
    padded = _padded(x, 0, -x.shape[1] % block)
    return padded.reshape(-1, block, *x.shape[2:])


def _near(x: Array, window: int) -> Array:
    """Returns the places from `window` before each block on to `window` behind it, zeros outside.

    They are [batch * blocks, block + 2 * window, ...].
    """
    batch, length, *others = x.shape
    block = _window_block(window)
    blocks = -(-length // block)
    padded = _padded(x, window, (blocks + 1) * block - length - window)
    first = padded[:, : blocks * block].reshape(batch, blocks, block, *others)
    second = padded[:, block:].reshape(batch, blocks, block, *others)[:, :, : 2 * window]
    both = jnp.concatenate([first, second], axis=2)
    return both.reshape(batch * blocks, block + 2 * window, *others)


def _of_rows(x: Array, like: Array) -> Array:
    batch, length = like.shape[:2]
    return x.reshape(batch, -1, *x.shape[2:])[:, :length]


def _padded(x: Array, before: int, behind: int) -> Array:
    widths = [(0, 0), (before, behind)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, widths) if before or behind else x


def _window_sight(
    query: Array, visible: Visibility, seeds: layers.MaskSeeds | None, rate: float
) -> _Sight:
    batch, length, heads, _ = query.shape
    window = _window(visible)
    whole = visibility.placed(visible, length)
    asking = jax.tree.map(lambda x: _own(x, window), whole)
    asked = jax.tree.map(lambda x: _near(x, window), whole)
    seen = visibility.pairs(asked, asking)
    if seeds is None:
        return _Sight(seen, None, True)
    block = _window_block(window)
    blocks = -(-length // block)
    begins = jnp.arange(blocks, dtype=jnp.int32)[:, None] * block
    # Places before the row and behind it are seen by none: whatever they are called.
    rows = (begins + jnp.arange(block)[None]).astype(jnp.uint32)
    columns = (begins - window + jnp.arange(block + 2 * window)[None]).astype(jnp.uint32)
    words = tuple(word[:, None, :, None, None] for word in seeds)
    at = rows[None, :, None, :, None], columns[None, :, None, None, :]
    kept: Bool[Array, "batch blocks heads rows columns"]
    kept = weight_masks.kept_at((words[0], words[1]), *at, length, rate)
    return _Sight(seen, kept.reshape(batch * blocks, heads, *kept.shape[3:]), True)
