"""Scores by cosines equal scipy's."""

import numpy as np
import pytest

from bertjax.scores import similarity


def vectors(rows, seed, width=5):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def test_cosines_and_their_correlations_are_scipys_with_ties():
    from scipy import stats
    from scipy.spatial import distance

    first, second = vectors(40, 0), vectors(40, 9)
    second[3:6], first[3:6] = second[2], first[2]
    right = np.random.default_rng(0).integers(0, 6, 40) / 5
    expected = np.array([1 - distance.cosine(a, b) for a, b in zip(first, second, strict=True)])
    np.testing.assert_allclose(similarity.cosines(first, second), expected, atol=1e-6)
    correlations = similarity.correlations(first, second, right)
    for name, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        assert correlations[name] == pytest.approx(function(right, expected).statistic, abs=1e-6)


def test_lengths_of_vectors_do_not_count_and_a_vector_of_zeros_is_like_none():
    first, second = vectors(4, 0), vectors(4, 1)
    scaled = similarity.cosines(100 * first, 0.01 * second)
    np.testing.assert_allclose(scaled, similarity.cosines(first, second), atol=1e-9)
    assert similarity.cosines(first * 0, second).tolist() == [0, 0, 0, 0]


def test_a_positive_must_be_nearer_than_every_negative_and_not_as_near():
    anchors = np.array([[1.0, 0], [1, 0], [1, 0], [1, 0]])
    positives = np.array([[1.0, 0.1], [1, 0.5], [1, 0.2], [1, 0.3]])
    negatives = np.array(
        [[[0, 1.0], [1, 1]], [[1, 0], [0, 1]], [[0, 1], [1, 0.1]], [[1, 0.3], [0, 1]]]
    )
    assert similarity.triplet_accuracy(anchors, positives, negatives) == 0.25
