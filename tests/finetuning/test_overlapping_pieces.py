"""Pieces of long texts: every word scored once, where it has most around it."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.finetuning import overlapping_pieces


@strategies.composite
def cases(draw):
    """Lengths of words, the tokens of a piece, and the stride."""
    capacity = draw(strategies.integers(1, 20))
    one = strategies.integers(1, capacity)
    lengths = draw(strategies.lists(one, min_size=1, max_size=60))
    return np.array(lengths), capacity, draw(one)


def around(word, first, end, lengths):
    """The tokens on the poorer side of a word in a piece."""
    return min(lengths[first:word].sum(), lengths[word + 1 : end].sum())


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(cases())
def test_every_word_is_scored_once_and_where_it_has_most_around_it(case):
    lengths, capacity, stride = case
    pieces = overlapping_pieces.split(lengths, capacity, stride)
    scored = np.concatenate([words for _, _, words in pieces])
    assert sorted(scored.tolist()) == list(range(len(lengths)))
    for first, end, words in pieces:
        assert lengths[first:end].sum() <= capacity
        assert ((first <= words) & (words < end)).all()
        for word in words:
            others = [around(word, a, b, lengths) for a, b, _ in pieces if a <= word < b]
            assert around(word, first, end, lengths) == max(others)


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
