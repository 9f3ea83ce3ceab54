"""Pieces of long texts: every word scored once, where it has most around it."""

import numpy as np
import pytest

from bertjax.finetuning import overlapping_pieces


def cases():
    rng = np.random.default_rng(0)
    for _ in range(100):
        capacity = int(rng.integers(1, 20))
        lengths = rng.integers(1, capacity + 1, int(rng.integers(1, 60)))
        yield lengths, capacity, int(rng.integers(1, capacity + 1))


def test_every_word_is_scored_once_and_in_its_piece():
    for lengths, capacity, stride in cases():
        pieces = overlapping_pieces.split(lengths, capacity, stride)
        scored = np.concatenate([words for _, _, words in pieces])
        assert sorted(scored.tolist()) == list(range(len(lengths)))
        for first, end, words in pieces:
            assert lengths[first:end].sum() <= capacity
            assert ((first <= words) & (words < end)).all()


def test_no_other_piece_has_more_around_a_word():
    for lengths, capacity, stride in cases():
        pieces = overlapping_pieces.split(lengths, capacity, stride)

        def around(word, first, end, lengths=lengths):
            return min(lengths[first:word].sum(), lengths[word + 1 : end].sum())

        for first, end, words in pieces:
            for word in words:
                others = [around(word, a, b) for a, b, _ in pieces if a <= word < b]
                assert around(word, first, end) == max(others)


def test_what_fits_is_one_piece():
    assert [piece[:2] for piece in overlapping_pieces.split(np.array([3, 2, 5]), 10, 1)] == [(0, 3)]
    assert len(overlapping_pieces.split(np.array([3, 2, 5]), 9, 9)) == 2


def test_pieces_overlap_by_what_the_stride_leaves_and_the_last_one_is_full():
    pieces = overlapping_pieces.split(np.ones(100, int), 40, 10)
    assert [piece[:2] for piece in pieces] == [
        (0, 40), (10, 50), (20, 60), (30, 70), (40, 80), (50, 90), (60, 100),
    ]  # fmt: skip
    assert [piece[:2] for piece in overlapping_pieces.split(np.ones(50, int), 40, 40)] == [
        (0, 40),
        (10, 50),
    ]


@pytest.mark.parametrize(("capacity", "stride"), [(30, 15), (100, 50)])
def test_half_a_piece_of_stride_leaves_a_quarter_on_both_sides_of_every_word(capacity, stride):
    count = 500
    for first, end, words in overlapping_pieces.split(np.ones(count, int), capacity, stride):
        inner = words[(words >= capacity // 4) & (words < count - capacity // 4)]
        assert (inner - first >= capacity // 4 - 1).all()
        assert (end - inner >= capacity // 4 - 1).all()


def test_of_two_equal_pieces_the_first_scores_the_word():
    (_, _, first), (_, _, second) = overlapping_pieces.split(
        np.ones(7, int), 5, 2
    )  # 0 to 4 and 2 to 6
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6])
