"""The nearest of stored vectors, exactly: all are looked at, a block of a shard at a time."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.vectors import codes, store

# Vectors on the device at a time, and queries that go through the store together.
BLOCK_ROWS, QUERIES = 16384, 256


class Nearest:
    """The `top_k` nearest so far of each query [queries, size], in vectors added block by block.

    `similarity` is "cosine" or "dot". Of equal scores the first place comes first. `scores` and
    `places` are [queries, found], nearest first.
    """

    def __init__(
        self,
        queries: Float[np.ndarray, "queries size"],
        top_k: int,
        *,
        code: str = "float32",
        ranges: Float[np.ndarray, "2 size"] | None = None,
        similarity: str = "cosine",
    ):
        self._queries = queries
        self._ranges = np.zeros((2, queries.shape[1]), np.float32) if ranges is None else ranges
        self._top_k, self._code, self._is_dot = top_k, code, similarity == "dot"
        self.scores = np.zeros((len(queries), 0), np.float32)
        self.places = np.zeros((len(queries), 0), np.int64)

    def add(self, first: int, stored: np.ndarray) -> None:
        """Looks at vectors whose first has the place `first`; places of later calls are greater."""
        for start in range(0, len(stored), BLOCK_ROWS):
            block = stored[start : start + BLOCK_ROWS]
            rows = max(min(BLOCK_ROWS, 1 << (len(block) - 1).bit_length()), self._top_k)
            filled = np.pad(block, ((0, rows - len(block)), (0, 0)))
            scores, places = _top(
                self._queries,
                filled,
                self._ranges,
                len(block),
                top_k=self._top_k,
                code=self._code,
                is_dot=self._is_dot,
            )
            found = min(self._top_k, len(block))
            self._merge(
                np.asarray(scores)[:, :found], np.asarray(places)[:, :found] + first + start
            )

    def _merge(self, scores: np.ndarray, places: np.ndarray) -> None:
        scores = np.concatenate([self.scores, scores], axis=1)
        places = np.concatenate([self.places, places.astype(np.int64)], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._top_k]
        self.scores = np.take_along_axis(scores, order, axis=1)
        self.places = np.take_along_axis(places, order, axis=1)


@functools.partial(jax.jit, static_argnames=("top_k", "code", "is_dot"))
def _top(
    queries: Float[Array, "Q D"],
    stored: Array,
    ranges: Float[Array, "2 D"],
    count: Int[Array, ""],
    *,
    top_k: int,
    code: str,
    is_dot: bool,
) -> tuple[Float[Array, "Q K"], Int[Array, "Q K"]]:
    """Returns scores and rows of the nearest of the first `count` stored vectors."""
    scores = codes.scores(queries, stored, ranges, code=code, is_dot=is_dot)
    scores = jnp.where(jnp.arange(len(stored)) < count, scores, -jnp.inf)
    best, rows = jax.lax.top_k(scores, top_k)
    return best, rows


def search(
    stored: store.Store,
    queries: Float[np.ndarray, "queries size"],
    *,
    top_k: int = 10,
    similarity: str = "cosine",
) -> tuple[Float[np.ndarray, "queries found"], Int[np.ndarray, "queries found"]]:
    """Returns scores and places of the nearest vectors of a store for each query, nearest first.

    Raises:
      ValueError: if the queries have another size than the vectors, or as `store.Store.blocks`.
    """
    if queries.shape[1] != stored.size:
        raise ValueError(
            f"the queries have {queries.shape[1]} numbers, the vectors of {stored.directory} "
            f"{stored.size}: encode the queries with the same model and --dims"
        )
    nearest = Nearest(queries, top_k, code=stored.code, ranges=stored.ranges, similarity=similarity)
    for first, vectors in stored.blocks(BLOCK_ROWS):
        nearest.add(first, vectors)
    return nearest.scores, nearest.places


def recall(exact: Int[np.ndarray, "queries K"], found: Int[np.ndarray, "queries K"]) -> float:
    """Returns the share of the exact nearest that were found, of all queries."""
    hits = sum(len(np.intersect1d(*rows)) for rows in zip(exact, found, strict=True))
    return hits / max(exact.size, 1)


def without_self(
    places: Int[np.ndarray, "queries found"], own: Int[np.ndarray, " queries"], top_k: int
) -> Int[np.ndarray, "queries K"]:
    """Returns the first `top_k` places of each query but its own; one more must have been asked."""
    kept = [row[row != place][:top_k] for row, place in zip(places, own, strict=True)]
    return np.stack(kept)
