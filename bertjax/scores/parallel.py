"""Retrieval of translations: the share of texts whose nearest text is their translation."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from bertjax.scores import similarity

# Source: facebookresearch/LASER, source/mine_bitexts.py, --neighborhood.
NEIGHBOURS = 4
ROWS_AT_ONCE = 4096  # of a matrix of similarities


def retrieval(
    source: Float[np.ndarray, "pairs hidden"], target: Float[np.ndarray, "pairs hidden"]
) -> dict[str, tuple[float, float]]:
    """Returns P@1 from source to target and back, by `cosine` and by `margin`.

    The partner of a vector has the same row. The margin of a pair is its cosine over the mean
    cosine of both with their NEIGHBOURS nearest. Source: XTREME (Hu et al. 2020), Tatoeba; Artetxe
    and Schwenk 2019, section 3, ratio.
    """
    source, target = similarity.unit(source), similarity.unit(target)
    means = _mean_of_nearest(source, target), _mean_of_nearest(target, source)
    return {
        "cosine": (_share(source, target), _share(target, source)),
        "margin": (_share(source, target, *means), _share(target, source, *means[::-1])),
    }


def _mean_of_nearest(
    queries: Float[np.ndarray, "pairs hidden"], others: Float[np.ndarray, "pairs hidden"]
) -> Float[np.ndarray, " pairs"]:
    """Returns the mean cosine of each query with its nearest."""
    count = min(NEIGHBOURS, len(others))
    parts = [
        np.partition(queries[first : first + ROWS_AT_ONCE] @ others.T, -count, axis=1)[:, -count:]
        for first in range(0, len(queries), ROWS_AT_ONCE)
    ]
    return np.concatenate(parts).mean(axis=1)


def _share(
    queries: Float[np.ndarray, "pairs hidden"],
    others: Float[np.ndarray, "pairs hidden"],
    of_queries: Float[np.ndarray, " pairs"] | None = None,
    of_others: Float[np.ndarray, " pairs"] | None = None,
) -> float:
    """Returns the share of queries whose partner is the nearest; the first among equals counts."""
    right = 0
    for first in range(0, len(queries), ROWS_AT_ONCE):
        scores = queries[first : first + ROWS_AT_ONCE] @ others.T
        if of_queries is not None and of_others is not None:
            own = of_queries[first : first + ROWS_AT_ONCE, None]
            scores = scores / ((own + of_others) / 2)
        right += int((scores.argmax(axis=1) == np.arange(first, first + len(scores))).sum())
    return right / len(queries)
