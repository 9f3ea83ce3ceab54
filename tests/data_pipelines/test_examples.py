import numpy as np
import pytest

from data_pipelines import examples

CLS, SEP, PAD = 1, 2, 0
BUDGET = 29


@pytest.fixture
def corpus():
    """Sixty documents whose every token is unique, so that a token tells where it stood."""
    rng = np.random.default_rng(0)
    documents, token = [], 10
    for _ in range(60):
        document = []
        for length in rng.integers(1, 40, size=rng.integers(1, 15)):
            document.append(range(token, token + length))
            token += length
        documents.append(document)
    return examples.corpus(documents)


def pairs(corpus, short_seq_prob=0.1, pass_index=0, seed=3, budget=BUDGET):
    return examples.nsp_pairs(
        corpus,
        max_seq_length=budget + 3,
        short_seq_prob=short_seq_prob,
        seed=seed,
        pass_index=pass_index,
    )


def document_of(corpus, position):
    starts = corpus.sentence_starts[corpus.document_starts]
    return np.searchsorted(starts, position, side="right") - 1


def sentence_of(corpus, position):
    return np.searchsorted(corpus.sentence_starts, position, side="right") - 1


def test_corpus_drops_empty_sentences_and_documents():
    made = examples.corpus([[[5], []], [[]], [], [[6, 7], [8]]])
    assert made.tokens.tolist() == [5, 6, 7, 8]
    assert made.sentence_starts.tolist() == [0, 1, 3, 4]
    assert made.document_starts.tolist() == [0, 1, 3]


def test_random_segments_never_come_from_their_own_document(corpus):
    spans = np.concatenate([pairs(corpus, pass_index=index) for index in range(5)])
    is_random = spans[:, 4] == examples.IS_RANDOM
    differs = document_of(corpus, spans[:, 0]) != document_of(corpus, spans[:, 2])
    np.testing.assert_array_equal(is_random, differs)
    assert 0.4 < is_random.mean() < 0.75


def test_next_segments_follow_at_a_sentence_boundary(corpus):
    spans = pairs(corpus)
    spans = spans[spans[:, 4] == examples.IS_NEXT]
    # What is cut off a segment is less than a sentence or so; the sentences between are none.
    last_of_a = sentence_of(corpus, spans[:, 1] - 1)
    first_of_b = sentence_of(corpus, spans[:, 2])
    uncut = (spans[:, 3] - spans[:, 2]) + (spans[:, 1] - spans[:, 0]) < BUDGET
    assert uncut.any()
    np.testing.assert_array_equal(spans[uncut, 1], spans[uncut, 2])
    np.testing.assert_array_equal(last_of_a[uncut] + 1, first_of_b[uncut])
    assert (spans[:, 2] >= spans[:, 1]).all()


def test_every_sentence_is_used_in_a_pass_even_after_random_segments(corpus):
    # With a budget larger than any chunk nothing is cut, so that coverage is exact.
    spans = pairs(corpus, short_seq_prob=0.0, budget=5000)
    covered = np.zeros(len(corpus.tokens), bool)
    for begin_a, end_a, begin_b, end_b, label in spans:
        covered[begin_a:end_a] = True
        if label == examples.IS_NEXT:
            covered[begin_b:end_b] = True
    assert covered.all()


def test_pairs_fit_and_no_segment_is_empty(corpus):
    spans = pairs(corpus, short_seq_prob=0.5)
    length_a, length_b = spans[:, 1] - spans[:, 0], spans[:, 3] - spans[:, 2]
    assert (length_a > 0).all() and (length_b > 0).all()
    assert (length_a + length_b).max() == BUDGET


def released_cut(length_a, length_b, budget, rng):
    """Lengths and front losses by one token at a time, as the released code does."""
    front_a = front_b = 0
    while length_a + length_b > budget:
        front = rng.random() < 0.5
        if length_a > length_b:
            length_a, front_a = length_a - 1, front_a + front
        else:
            length_b, front_b = length_b - 1, front_b + front
    return length_a, length_b, front_a, front_b


def test_cutting_at_once_is_cutting_token_by_token():
    rng = np.random.default_rng(0)
    for length_a, length_b in [(40, 7), (7, 40), (20, 20), (30, 25), (3, 4), (60, 1)]:
        one = np.array([[100, 100 + length_a, 500, 500 + length_b, 0]])
        cut = examples._cut_to(np.repeat(one, 4000, axis=0), BUDGET, rng)
        expected = np.array([released_cut(length_a, length_b, BUDGET, rng) for _ in range(4000)])
        assert (cut[:, 1] - cut[:, 0] == expected[:, 0]).all()
        assert (cut[:, 3] - cut[:, 2] == expected[:, 1]).all()
        fronts = np.stack([cut[:, 0] - 100, cut[:, 2] - 500], axis=1)
        np.testing.assert_allclose(fronts.mean(axis=0), expected[:, 2:].mean(axis=0), atol=0.25)
        np.testing.assert_allclose(fronts.std(axis=0), expected[:, 2:].std(axis=0), atol=0.2)


def test_one_document_cannot_be_paired():
    with pytest.raises(ValueError, match="at least 2"):
        pairs(examples.corpus([[[5, 6], [7]]]))


def test_full_sentences_cover_the_corpus_once_without_crossing_documents(corpus):
    spans = examples.full_sentences(
        corpus, max_seq_length=BUDGET + 2, short_seq_prob=0.1, seed=0, pass_index=0
    )
    begin, end = spans[:, 0], spans[:, 1]
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert begin[0] == 0 and end[-1] == len(corpus.tokens)
    assert (end - begin).max() <= BUDGET
    np.testing.assert_array_equal(document_of(corpus, begin), document_of(corpus, end - 1))
    # It ends with a sentence, unless that sentence alone is longer than the row.
    too_long = np.diff(corpus.sentence_starts)[sentence_of(corpus, begin)] > 2
    assert (np.isin(end, corpus.sentence_starts) | too_long).all()


def test_passes_and_seeds_differ_and_repeat(corpus):
    # At both budgets: with the large one nothing is cut, and the draws of pairs stand alone.
    for budget in (BUDGET, 5000):
        first = pairs(corpus, budget=budget)
        np.testing.assert_array_equal(first, pairs(corpus, budget=budget))
        assert not np.array_equal(first, pairs(corpus, budget=budget, pass_index=1))
        assert not np.array_equal(first, pairs(corpus, budget=budget, seed=4))


def test_rows_are_cls_a_sep_b_sep_and_padding():
    made = examples.corpus([[[11, 12], [13]], [[21, 22, 23]]])
    spans = np.array([[0, 2, 3, 6, 1], [2, 3, 3, 3, 0]])
    rows = examples.rows(made, spans, max_seq_length=10, cls_id=CLS, sep_id=SEP, pad_id=PAD)
    assert rows["input_ids"].tolist() == [
        [CLS, 11, 12, SEP, 21, 22, 23, SEP, PAD, PAD],
        [CLS, 13, SEP, PAD, PAD, PAD, PAD, PAD, PAD, PAD],
    ]
    assert rows["segment_ids"].tolist() == [[0] * 4 + [1] * 4 + [0] * 2, [0] * 10]
    assert rows["input_mask"].tolist() == [[1] * 8 + [0] * 2, [1] * 3 + [0] * 7]
