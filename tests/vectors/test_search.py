"""Claims about codes and the search among stored vectors, beside NumPy."""

import numpy as np
import pytest

from bertjax.vectors import codes, search

SIZE, COUNT = 13, 50
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(COUNT, SIZE)).astype(np.float32)
QUERIES = RNG.normal(size=(4, SIZE)).astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def expected_scores(code, similarity):
    """Every score, [queries, vectors], computed in float64."""
    vectors, queries = VECTORS.astype(np.float64), QUERIES.astype(np.float64)
    if code == "binary":
        same = (vectors[None] > 0) == (queries[:, None] > 0)
        return 2 * same.mean(axis=-1) - 1
    if code == "int8":
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        step = (high - low) / 255
        vectors = np.floor((VECTORS - VECTORS.min(axis=0)) / step.astype(np.float32)) * step + low
    if similarity == "cosine":
        vectors, queries = unit(vectors), unit(queries)
    return queries @ vectors.T


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("code", [*codes.CODES])
@pytest.mark.parametrize("split", [[50], [7, 1, 42]])
def test_the_nearest_are_those_of_all_scores(monkeypatch, code, similarity, split):
    monkeypatch.setattr(search, "BLOCK_ROWS", 16)
    limits = codes.ranges(VECTORS)
    nearest = search.Nearest(QUERIES, 9, code=code, ranges=limits, similarity=similarity)
    first = 0
    for count in split:
        part = VECTORS[first : first + count]
        nearest.add(first, codes.CODES[code].store(part, limits))
        first += count
    scores = expected_scores(code, similarity).round(6)
    places = np.argsort(-scores, axis=1, kind="stable")[:, :9]  # equal ones in their order
    np.testing.assert_array_equal(nearest.places, places)
    wanted = np.take_along_axis(scores, places, axis=1)
    np.testing.assert_allclose(nearest.scores, wanted, atol=2e-5)


def test_fewer_vectors_than_are_wanted_are_all_found():
    nearest = search.Nearest(QUERIES, 9)
    for first in (0, 3):
        nearest.add(first, VECTORS[first : first + 3])
    assert sorted(nearest.places[0].tolist()) == [0, 1, 2, 3, 4, 5]


def test_stored_vectors_take_the_bytes_that_they_should():
    limits = codes.ranges(VECTORS)
    sizes = {name: code.store(VECTORS, limits).nbytes for name, code in codes.CODES.items()}
    assert sizes == {"float32": 50 * 13 * 4, "int8": 50 * 13, "binary": 50 * 2}
    for name, code in codes.CODES.items():
        stored = code.store(VECTORS, limits)
        assert stored.dtype == code.dtype and stored.shape[1] == code.width(SIZE), name


def test_numbers_outside_the_ranges_are_at_their_ends():
    limits = codes.ranges(VECTORS)
    far = codes.CODES["int8"].store(VECTORS * 100, limits)
    assert far.min() == -128 and far.max() == 127


def test_a_query_is_not_found_by_itself_and_recall_counts_the_rest():
    places = np.array([[4, 0, 1, 2], [3, 5, 1, 0]])
    exact = search.without_self(places, np.array([4, 0]), 3)
    assert exact.tolist() == [[0, 1, 2], [3, 5, 1]]
    found = np.array([[0, 2, 9], [8, 9, 7]])
    assert search.recall(exact, found) == 2 / 6
    assert search.recall(exact, exact) == 1.0
