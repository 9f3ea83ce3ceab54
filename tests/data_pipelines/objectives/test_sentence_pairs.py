import random

import numpy as np
import pytest

from data_pipelines.objectives import base, sentence_pairs
from tests.data_pipelines import conftest
from tests.data_pipelines.objectives import drafting


def times_used(corpus, begin, length):
    """How many of the segments each token lies in."""
    change = np.zeros(len(corpus.tokens) + 1, np.int64)
    np.add.at(change, begin, 1)
    np.add.at(change, begin + length, -1)
    return np.cumsum(change)[:-1]


def test_random_segments_never_come_from_their_own_document(numbered_corpus):
    spans = drafting.uncut(numbered_corpus, drafting.options(dupe_factor=5))
    is_random = spans["label"] == sentence_pairs.IS_RANDOM
    own, other = (
        drafting.document_of(numbered_corpus, spans[name]) for name in ("begin_a", "begin_b")
    )
    np.testing.assert_array_equal(is_random, own != other)
    assert 0.4 < is_random.mean() < 0.75
    assert set(other[is_random]) == set(range(60))


def test_next_segments_are_the_sentences_that_follow(numbered_corpus):
    spans = drafting.uncut(numbered_corpus, drafting.options())
    spans = spans[spans["label"] == sentence_pairs.IS_NEXT]
    assert drafting.follows(spans).all()
    for name in ("a", "b"):
        begin, end = spans[f"begin_{name}"], spans[f"begin_{name}"] + spans[f"length_{name}"]
        assert (end > begin).all()
        assert np.isin([begin, end], numbered_corpus.sentence_starts).all()


def test_random_segments_are_sentences_until_there_are_enough_tokens(numbered_corpus):
    drafts = drafting.draft(numbered_corpus, drafting.options(dupe_factor=3))
    begin, length = base.random_segments(numbered_corpus, drafts.requests)
    starts = numbered_corpus.sentence_starts
    first, last = np.searchsorted(starts, begin), np.searchsorted(starts, begin + length)
    np.testing.assert_array_equal(starts[[first, last]], [begin, begin + length])
    assert (last > first).all()
    is_end = np.isin(last, numbered_corpus.document_starts)
    assert (is_end | (length >= drafts.requests.num_tokens)).all()
    without_last = starts[last - 1] - begin
    assert (without_last < np.maximum(drafts.requests.num_tokens, 1)).all()
    # No sentence of a document is more likely to begin a segment than another.
    inside = drafts.requests.place
    np.testing.assert_allclose(np.quantile(inside, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.06)


def test_pairs_fit_and_every_sentence_is_used_once_in_every_pass(numbered_corpus):
    """Even after random segments."""
    for objective in ("nsp", "sop"):
        chosen = drafting.options(dupe_factor=3, pair_objective=objective)
        spans = drafting.uncut(numbered_corpus, chosen)
        first, second = (
            drafting.document_of(numbered_corpus, spans[name]) for name in ("begin_a", "begin_b")
        )
        used = times_used(numbered_corpus, spans["begin_a"], spans["length_a"])
        own = spans[first == second]
        used += times_used(numbered_corpus, own["begin_b"], own["length_b"])
        assert (used == 3).all()
        chosen = drafting.options(short_seq_prob=0.5, pair_objective=objective)
        spans = drafting.finished(numbered_corpus, chosen)
        assert (spans["length_a"] > 0).all() and (spans["length_b"] > 0).all()
        assert (spans["length_a"] + spans["length_b"]).max() == drafting.BUDGET


def released_pairs(documents, budget, short_seq_prob, rng):
    """Lengths of A and B and the label by the rules of the released script, sentence by sentence.

    `documents` are lists of sentence lengths.
    """
    made = []
    for own, document in enumerate(documents):
        target = rng.randint(2, budget) if rng.random() < short_seq_prob else budget
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                b = chunk[a_end:]
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    others = [index for index in range(len(documents)) if index != own]
                    other, b = documents[rng.choice(others)], []
                    for sentence in other[rng.randint(0, len(other) - 1) :]:
                        b.append(sentence)
                        if sum(b) >= target - sum(chunk[:a_end]):
                            break
                    i -= len(chunk) - a_end
                made.append((sum(chunk[:a_end]), sum(b), is_random))
                chunk = []
            i += 1
    return np.array(made)


def largest_difference(first, second):
    """The Kolmogorov-Smirnov distance of two samples of integers."""
    places = np.arange(max(first.max(), second.max()) + 1)
    shares = [
        np.searchsorted(np.sort(one), places, side="right") / len(one) for one in (first, second)
    ]
    return np.abs(shares[0] - shares[1]).max()


@pytest.mark.parametrize(("budget", "short_seq_prob"), [(29, 0.1), (125, 0.0), (60, 0.7)])
def test_pairs_have_the_distribution_of_the_released_rules(numbered_corpus, budget, short_seq_prob):
    passes = 60
    lengths = np.diff(numbered_corpus.sentence_starts)
    documents = [part.tolist() for part in np.split(lengths, numbered_corpus.document_starts[1:-1])]
    rng = random.Random(1)
    expected = [released_pairs(documents, budget, short_seq_prob, rng) for _ in range(passes)]
    counts = [len(one) for one in expected]
    expected = np.concatenate(expected)

    chosen = drafting.options(budget, dupe_factor=passes, short_seq_prob=short_seq_prob)
    spans = drafting.uncut(numbered_corpus, chosen)
    error = np.std(counts) * np.sqrt(2 / passes)
    assert abs(len(spans) / passes - np.mean(counts)) < 4 * error + 1e-9
    for values, column in zip(("length_a", "length_b", "label"), expected.T, strict=True):
        bound = 2.5 / np.sqrt(min(len(spans), len(expected)) / 2)
        assert largest_difference(spans[values].astype(int), column) < bound, values
    for label in (0, 1):
        one, other = spans[spans["label"] == label], expected[expected[:, 2] == label]
        bound = 2.5 / np.sqrt(min(len(one), len(other)) / 2)
        assert largest_difference(one["length_b"].astype(int), other[:, 1]) < bound


def test_balanced_pairs_are_exactly_half_random_and_few_are_left_out():
    rng = np.random.default_rng(0)
    documents = ([[5] * n for n in rng.integers(1, 40, rng.integers(1, 15))] for _ in range(800))
    corpus = conftest.corpus_of(documents)
    for budget in (29, 125, 253):
        plain = drafting.draft(corpus, drafting.options(budget, dupe_factor=2))
        assert plain.spans["label"].mean() > 0.58 and not plain.dropped
        drafts = drafting.draft(corpus, drafting.options(budget, dupe_factor=2, balanced_nsp=True))
        labels = drafts.spans["label"]
        assert 2 * labels.sum() == len(labels)
        np.testing.assert_array_equal(drafts.requests.example, np.flatnonzero(labels))
        # With a coin of a half, the random pairs beyond a half would be left out: 16% and more.
        assert drafts.dropped / (len(labels) + drafts.dropped) < 0.05
    # Where nearly all chunks are single sentences, it is they that go.
    drafts = drafting.draft(corpus, drafting.options(5, balanced_nsp=True))
    assert 2 * drafts.spans["label"].sum() == len(drafts.spans) > 0
    assert drafts.dropped > len(drafts.spans)
    # Single sentences alone leave nothing.
    corpus = conftest.corpus_of([[[5, 6]], [[7]], [[8]]])
    drafts = drafting.draft(corpus, drafting.options(balanced_nsp=True, dupe_factor=2))
    assert len(drafts.spans) == len(drafts.requests.example) == 0 and drafts.dropped == 6


def test_sentence_order_is_swapped_in_half_and_only_single_sentences_are_random(numbered_corpus):
    spans = drafting.uncut(numbered_corpus, drafting.options(dupe_factor=5, pair_objective="sop"))
    is_own = drafting.document_of(numbered_corpus, spans["begin_a"]) == drafting.document_of(
        numbered_corpus, spans["begin_b"]
    )
    in_order, swapped = (spans[is_own & (spans["label"] == label)] for label in (0, 1))
    assert drafting.follows(in_order).all() and drafting.follows(swapped, "b", "a").all()
    assert abs(len(swapped) / is_own.sum() - 0.5) < 0.05
    forced = spans[~is_own]
    assert len(forced) and (forced["label"] == 1).all()
    sentences = np.searchsorted(
        numbered_corpus.sentence_starts, [forced["begin_a"], forced["begin_a"] + forced["length_a"]]
    )
    assert (sentences[1] - sentences[0] == 1).all()
    drafts = drafting.draft(numbered_corpus, drafting.options(dupe_factor=5, pair_objective="sop"))
    assert drafts.forced_random == len(forced)
