"""Scores of vectors by their cosines: pairs with a score, and triplets."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from bertjax.scores import classification


def unit(vectors: Float[np.ndarray, "rows hidden"]) -> Float[np.ndarray, "rows hidden"]:
    """Returns the vectors in float64 with length 1; zero vectors do not change."""
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def cosines(
    first: Float[np.ndarray, "rows hidden"], second: Float[np.ndarray, "rows hidden"]
) -> Float[np.ndarray, " rows"]:
    """Returns the cosine of each row with the other's; 0 for a zero vector."""
    return (unit(first) * unit(second)).sum(axis=-1)


def correlations(
    first: Float[np.ndarray, "pairs hidden"],
    second: Float[np.ndarray, "pairs hidden"],
    scores: Float[np.ndarray, " pairs"],
) -> dict[str, float]:
    """Returns Pearson's and Spearman's correlation of cosines with the scores of pairs.

    Raises:
      ValueError: if there are fewer than two pairs, or not a score for each.
    """
    similarities = cosines(first, second)
    return {
        "pearson": classification.pearson(scores, similarities),
        "spearman": classification.spearman(scores, similarities),
    }


def triplet_accuracy(
    anchors: Float[np.ndarray, "triplets hidden"],
    positives: Float[np.ndarray, "triplets hidden"],
    negatives: Float[np.ndarray, "triplets columns hidden"],
) -> float:
    """Returns the share of anchors whose positive is nearer than all of its negatives.

    A negative as near as the positive counts as an error, as in sentence-transformers'
    TripletEvaluator.
    """
    of_positives = cosines(anchors, positives)
    columns = [cosines(anchors, negatives[:, place]) for place in range(negatives.shape[1])]
    return float(np.mean(of_positives > np.max(columns, axis=0)))
