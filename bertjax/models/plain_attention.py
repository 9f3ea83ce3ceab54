"""Attention in plain JAX: the context of queries, and the gradients of query, keys and values.

Short rows are computed with all keys at once, long rows one block of queries after the other,
narrow windows with the keys around each block. The results are the same except for rounding. Only
the arguments are kept for the backward pass, which computes scores, softmax and dropout mask again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models import layers, relative, visibility, weight_masks
from bertjax.models.visibility import Visibility

# Longer rows are computed in blocks of queries, so that the number of scores in memory does not
# grow with the square of the length.
MOST_AT_ONCE = 1024
QUERY_BLOCK = 512
# Queries that share a window's keys: the lanes of a TPU.
WINDOW_BLOCK = 128


class _Masks(NamedTuple):
    """The masks of the keys seen, [rows, 1, L or 1, S], and of the weights that dropout keeps.

    `has_blind`: there may be queries that see nothing.
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
    terms: relative.Terms | None = None,
    *,
    rate: float,
) -> Array:
    """Returns the same as `attention.attend`: [batch, length, heads, head]."""
    length = query.shape[1]
    if (window := _narrow_window(visible, length)) is not None:
        block_queries, near = _own(query, window), (_near(keys, window), _near(values, window))
        masks = _window_masks(query, visible, window, seeds, rate)
        added = _Added(terms, window)
        return _of_rows(_context(block_queries, *near, masks, added, rate), query)
    if length <= MOST_AT_ONCE:
        masks = _all_masks(query, keys, visible, seeds, rate)
        return _context(query, keys, values, masks, _Added(terms, 0), rate)
    queries, masks_of = _query_blocks(query), _block_masks(query, keys, visible, seeds, rate)

    def of_block(block: tuple[Array, Array]) -> Array:
        number, its_query = block
        added = _Added(terms, number * QUERY_BLOCK)
        return _context(its_query, keys, values, masks_of(number), added, rate)

    blocks = jax.lax.map(of_block, (jnp.arange(len(queries)), queries))
    return _unblocked(blocks, length)


def weights(
    query: Array, keys: Array, visible: Visibility, terms: relative.Terms | None = None
) -> Float[Array, "batch heads queries keys"]:
    """Returns the float32 weights by which the context averages the values, without dropout."""
    masks = _all_masks(query, keys, visible, None, 0.0)
    return _probabilities(query, keys, masks, _Added(terms, 0))


def gradients(
    query: Array,
    keys: Array,
    values: Array,
    visible: Visibility,
    seeds: layers.MaskSeeds | None,
    context: Array,
    grad: Array,
    terms: relative.Terms | None = None,
    *,
    rate: float,
) -> tuple[Array, Array, Array, relative.Terms | None]:
    """Returns the gradients of query, keys, values and terms, from the context and its gradient."""
    # The barrier keeps the compiler from recognizing probabilities and mask of the forward pass,
    # and saving them.
    query, keys, values, visible, seeds, context, terms = jax.lax.optimization_barrier(
        (query, keys, values, visible, seeds, context, terms)
    )
    length = query.shape[1]
    if (window := _narrow_window(visible, length)) is not None:
        near_keys, of_keys = jax.vjp(lambda x: _near(x, window), keys)
        near_values, of_values = jax.vjp(lambda x: _near(x, window), values)
        queries, contexts, grads = (_own(x, window) for x in (query, context, grad))
        masks = _window_masks(query, visible, window, seeds, rate)
        arrays = (queries, near_keys, near_values, contexts, grads, masks)
        by_block = _gradients(*arrays, _Added(terms, window), rate)
        of_query = _of_rows(by_block[0], query)
        return of_query, of_keys(by_block[1])[0], of_values(by_block[2])[0], by_block[3]
    if length <= MOST_AT_ONCE:
        masks = _all_masks(query, keys, visible, seeds, rate)
        return _gradients(query, keys, values, context, grad, masks, _Added(terms, 0), rate)
    masks_of = _block_masks(query, keys, visible, seeds, rate)
    blocks = tuple(map(_query_blocks, (query, context, grad)))

    def of_block(sums: Any, block: Any) -> tuple[Any, Array]:
        number, (its_query, its_context, its_grad) = block
        arrays = (its_query, keys, values, its_context, its_grad, masks_of(number))
        of_query, *others = _gradients(*arrays, _Added(terms, number * QUERY_BLOCK), rate)
        return jax.tree.map(jnp.add, sums, tuple(others)), of_query  # the sums are float32

    summed = (keys, values, terms)
    zeros = jax.tree.map(lambda it: jnp.zeros(it.shape, jnp.float32), summed)
    numbers = jnp.arange(len(blocks[0]))
    sums, grad_query = jax.lax.scan(of_block, zeros, (numbers, blocks))
    of_query = _unblocked(grad_query, length)
    return of_query, *jax.tree.map(lambda total, it: total.astype(it.dtype), sums, summed)


class _Added(NamedTuple):
    """The terms that are added to the scores, and the distance of the first query and key."""

    terms: relative.Terms | None
    first: Any


def _scores(query: Array, keys: Array, added: _Added) -> Array:
    scores = jnp.einsum("BLHK,BSHK->BHLS", query, keys, preferred_element_type=jnp.float32)
    if added.terms is None:
        return scores
    return scores + _relative(query, keys, added.terms, added.first)


def _relative(query: Array, keys: Array, terms: relative.Terms, first: Any) -> Array:
    here = relative.between(terms, first, query.shape[1], keys.shape[1])
    return relative.scores(query, keys, here)


def _context(
    query: Array, keys: Array, values: Array, masks: _Masks, added: _Added, rate: float
) -> Array:
    weights = _masked(_probabilities(query, keys, masks, added), masks)
    context = jnp.einsum(
        "BHLS,BSHK->BLHK", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return (context * (1 / (1 - rate))).astype(values.dtype)


def _gradients(
    query: Array,
    keys: Array,
    values: Array,
    context: Array,
    grad: Array,
    masks: _Masks,
    added: _Added,
    rate: float,
) -> tuple[Array, Array, Array, relative.Terms | None]:
    scale = 1 / (1 - rate)
    probabilities = _probabilities(query, keys, masks, added)
    weights = _masked(probabilities, masks).astype(values.dtype)
    grad_values = jnp.einsum("BHLS,BLHK->BSHK", weights, grad, preferred_element_type=jnp.float32)
    grad_weights = jnp.einsum("BLHK,BSHK->BHLS", grad, values, preferred_element_type=jnp.float32)
    # The softmax's sum over keys of weight x gradient is the context times its gradient.
    # Source: Dao et al. 2022 (FlashAttention), appendix B.2.
    sums = (grad.astype(jnp.float32) * context.astype(jnp.float32)).sum(axis=-1)
    sums = jnp.swapaxes(sums, 1, 2)[..., None]
    grad_scores = probabilities * (_masked(grad_weights * scale, masks) - sums)
    of_terms = None
    more_query: Any = 0
    more_keys: Any = 0
    if added.terms is not None:
        function = functools.partial(_relative, first=added.first)
        _, pull = jax.vjp(function, query, keys, added.terms)
        more_query, more_keys, of_terms = pull(grad_scores)
    grad_scores = grad_scores.astype(query.dtype)
    grad_query = jnp.einsum("BHLS,BSHK->BLHK", grad_scores, keys) + more_query
    grad_keys = jnp.einsum("BHLS,BLHK->BSHK", grad_scores, query) + more_keys
    return grad_query, grad_keys, (grad_values * scale).astype(values.dtype), of_terms


def _probabilities(query: Array, keys: Array, masks: _Masks, added: _Added) -> Array:
    scores = jnp.where(masks.seen, _scores(query, keys, added), jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1)
    if not masks.has_blind:
        return probabilities
    return jnp.where(masks.seen.any(axis=-1, keepdims=True), probabilities, 0.0)


def _masked(x: Array, masks: _Masks) -> Array:
    return x if masks.kept is None else jnp.where(masks.kept, x, 0.0)


def _all_masks(
    query: Array, keys: Array, visible: Visibility, seeds: layers.MaskSeeds | None, rate: float
) -> _Masks:
    batch, length, heads, _ = query.shape
    shape = (batch, heads, length, keys.shape[1])
    kept = None if seeds is None else weight_masks.kept(seeds, shape, rate)
    return _Masks(visibility.pairs(visible), kept, not visible.is_by_key)


# Long rows: one block of queries after the other, each with all keys


def _query_blocks(x: Array) -> Array:
    """Returns [batch, length, ...] as [blocks, batch, block, ...], padded with zeros."""
    blocks = -(-x.shape[1] // QUERY_BLOCK)
    padded = _padded(x, 0, blocks * QUERY_BLOCK - x.shape[1])
    parts = padded.reshape(x.shape[0], blocks, QUERY_BLOCK, *x.shape[2:])
    return jnp.moveaxis(parts, 1, 0)


def _unblocked(x: Array, length: int) -> Array:
    whole = jnp.moveaxis(x, 0, 1)
    return whole.reshape(whole.shape[0], -1, *whole.shape[3:])[:, :length]


def _block_masks(
    query: Array, keys: Array, visible: Visibility, seeds: layers.MaskSeeds | None, rate: float
) -> Callable[[Array], _Masks]:
    """Returns a function from the number of a block of queries to its `_Masks`."""
    length = keys.shape[1]
    placed = visibility.placed(visible, query.shape[1])
    asking = jax.tree.map(_query_blocks, placed)

    def masks_of(number: Array) -> _Masks:
        first = number * QUERY_BLOCK
        if visible.is_by_key:
            seen = visibility.pairs(visible)
        else:
            seen = visibility.pairs(placed, jax.tree.map(lambda x: x[number], asking))
        if seeds is None:
            return _Masks(seen, None, not visible.is_by_key)
        rows = (first + jnp.arange(QUERY_BLOCK)).astype(jnp.uint32)[:, None]
        columns = jnp.arange(length, dtype=jnp.uint32)[None]
        words = (seeds[0][:, :, None, None], seeds[1][:, :, None, None])
        at = rows[None, None], columns[None, None]
        return _Masks(seen, weight_masks.kept_at(words, *at, length, rate), not visible.is_by_key)

    return masks_of


# Narrow windows: a block of queries sees its own places and a window to each side. The blocks are
# the rows of the batch.


def _narrow_window(visible: Visibility, length: int) -> int | None:
    """Returns the window if a block has fewer keys than the row."""
    window = visible.window
    is_narrow = window is not None and _window_block(window) + 2 * window < length
    return window if is_narrow else None


def _window_block(window: int) -> int:
    # A block's keys end in the next block: both sides together have at most a block.
    return max(1, -(-2 * window // WINDOW_BLOCK)) * WINDOW_BLOCK


def _own(x: Array, window: int) -> Array:
    """Returns [batch, length, ...] as [batch * blocks, block, ...]."""
    block = _window_block(window)
    padded = _padded(x, 0, -x.shape[1] % block)
    return padded.reshape(-1, block, *x.shape[2:])


def _near(x: Array, window: int) -> Array:
    """Returns each block with `window` places before and after it, zeros outside of the row.

    The shape is [batch * blocks, block + 2 * window, ...].
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


def _window_masks(
    query: Array, visible: Visibility, window: int, seeds: layers.MaskSeeds | None, rate: float
) -> _Masks:
    batch, length, heads, _ = query.shape
    whole = visibility.placed(visible, length)
    asking = jax.tree.map(lambda x: _own(x, window), whole)
    near = jax.tree.map(lambda x: _near(x, window), whole)
    seen = visibility.pairs(near, asking)
    if seeds is None:
        return _Masks(seen, None, True)
    block = _window_block(window)
    blocks = -(-length // block)
    begins = jnp.arange(blocks, dtype=jnp.int32)[:, None] * block
    # Nothing sees places outside of the row, so their numbers do not matter.
    rows = (begins + jnp.arange(block)[None]).astype(jnp.uint32)
    columns = (begins - window + jnp.arange(block + 2 * window)[None]).astype(jnp.uint32)
    words = tuple(word[:, None, :, None, None] for word in seeds)
    at = rows[None, :, None, :, None], columns[None, :, None, None, :]
    kept: Bool[Array, "batch blocks heads rows columns"]
    kept = weight_masks.kept_at((words[0], words[1]), *at, length, rate)
    return _Masks(seen, kept.reshape(batch * blocks, heads, *kept.shape[3:]), True)
