import dataclasses
import random

import numpy as np
import pytest

from data_pipelines import examples, pairing, store

BUDGET = 29


def options(budget=BUDGET, **changes):
    fields = {"pair_objective": "nsp", "dupe_factor": 1, "random_seed": 3} | changes
    return pairing.PairOptions(max_seq_length=budget + 3, **fields)


def uncut(corpus, options):
    drafts = pairing.draft(corpus, options)
    return pairing.completed(drafts, *pairing.random_segments(corpus, drafts.requests))


def document_of(corpus, position):
    starts = corpus.sentence_starts[corpus.document_starts]
    return np.searchsorted(starts, position, side="right") - 1


def times_used(corpus, begin, length):
    """How many of the segments each token lies in."""
    change = np.zeros(len(corpus.tokens) + 1, np.int64)
    np.add.at(change, begin, 1)
    np.add.at(change, begin + length, -1)
    return np.cumsum(change)[:-1]


def follows(spans, first="a", second="b"):
    return spans[f"begin_{first}"] + spans[f"length_{first}"] == spans[f"begin_{second}"]


def test_random_segments_never_come_from_their_own_document(numbered_corpus):
    spans = uncut(numbered_corpus, options(dupe_factor=5))
    is_random = spans["label"] == pairing.IS_RANDOM
    own, other = (document_of(numbered_corpus, spans[name]) for name in ("begin_a", "begin_b"))
    np.testing.assert_array_equal(is_random, own != other)
    assert 0.4 < is_random.mean() < 0.75
    assert set(other[is_random]) == set(range(60))


def test_next_segments_are_the_sentences_that_follow(numbered_corpus):
    spans = uncut(numbered_corpus, options())
    spans = spans[spans["label"] == pairing.IS_NEXT]
    assert follows(spans).all()
    for name in ("a", "b"):
        begin, end = spans[f"begin_{name}"], spans[f"begin_{name}"] + spans[f"length_{name}"]
        assert (end > begin).all()
        assert np.isin([begin, end], numbered_corpus.sentence_starts).all()


def test_random_segments_are_sentences_until_there_are_enough_tokens(numbered_corpus):
    drafts = pairing.draft(numbered_corpus, options(dupe_factor=3))
    begin, length = pairing.random_segments(numbered_corpus, drafts.requests)
    starts = numbered_corpus.sentence_starts
    first, last = np.searchsorted(starts, begin), np.searchsorted(starts, begin + length)
    np.testing.assert_array_equal(starts[[first, last]], [begin, begin + length])
    assert (last > first).all()
    is_end = np.isin(last, numbered_corpus.document_starts)
    assert (is_end | (length >= drafts.requests.wanted)).all()
    without_last = starts[last - 1] - begin
    assert (without_last < np.maximum(drafts.requests.wanted, 1)).all()
    # No sentence of a document is more likely to begin a segment than another.
    inside = drafts.requests.place
    np.testing.assert_allclose(np.quantile(inside, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.06)


def test_every_sentence_is_used_once_in_every_pass_even_after_random_segments(numbered_corpus):
    for objective in ("nsp", "sop"):
        spans = uncut(numbered_corpus, options(dupe_factor=3, pair_objective=objective))
        is_own = document_of(numbered_corpus, spans["begin_a"]) == document_of(
            numbered_corpus, spans["begin_b"]
        )
        used = times_used(numbered_corpus, spans["begin_a"], spans["length_a"])
        own = spans[is_own]
        used += times_used(numbered_corpus, own["begin_b"], own["length_b"])
        assert (used == 3).all()


def test_pairs_fit_and_no_segment_is_empty(numbered_corpus):
    for objective in ("nsp", "sop"):
        chosen = options(short_seq_prob=0.5, pair_objective=objective)
        spans = pairing.spans_of_one_block(numbered_corpus, chosen)
        assert (spans["length_a"] > 0).all() and (spans["length_b"] > 0).all()
        assert (spans["length_a"] + spans["length_b"]).max() == BUDGET


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

    chosen = options(budget, dupe_factor=passes, short_seq_prob=short_seq_prob)
    spans = uncut(numbered_corpus, chosen)
    error = np.std(counts) * np.sqrt(2 / passes)
    assert abs(len(spans) / passes - np.mean(counts)) < 4 * error + 1e-9
    for values, column in zip(("length_a", "length_b", "label"), expected.T, strict=True):
        bound = 2.5 / np.sqrt(min(len(spans), len(expected)) / 2)
        assert largest_difference(spans[values].astype(int), column) < bound, values
    for label in (0, 1):
        one, other = spans[spans["label"] == label], expected[expected[:, 2] == label]
        bound = 2.5 / np.sqrt(min(len(one), len(other)) / 2)
        assert largest_difference(one["length_b"].astype(int), other[:, 1]) < bound


def test_one_document_cannot_be_paired_but_one_of_many_can():
    alone = examples.corpus([[[5, 6], [7]]])
    with pytest.raises(ValueError, match="at least 2"):
        pairing.draft(alone, options())
    with pytest.raises(ValueError, match="pair_objective sop"):
        pairing.draft(alone, options(pair_objective="sop"))
    drafts = pairing.draft(alone, options(dupe_factor=30), first_document=1, num_documents=3)
    assert set(drafts.requests.document) == {0, 2}


def test_blocks_seeds_and_passes_differ_and_repeat(numbered_corpus):
    for objective in ("nsp", "sop", "none"):
        chosen = options(pair_objective=objective, short_seq_prob=0.5)
        first = pairing.spans_of_one_block(numbered_corpus, chosen)
        np.testing.assert_array_equal(first, pairing.spans_of_one_block(numbered_corpus, chosen))
        twice = pairing.draft(numbered_corpus, dataclasses.replace(chosen, dupe_factor=2)).spans
        once = pairing.draft(numbered_corpus, chosen).spans
        assert not np.array_equal(twice[len(once) :], once)
        for other in (
            pairing.draft(numbered_corpus, dataclasses.replace(chosen, random_seed=4)),
            pairing.draft(numbered_corpus, chosen, index=1),
        ):
            assert not np.array_equal(other.spans, once)


@pytest.mark.parametrize(
    "changes",
    [{}, {"pair_objective": "none"}, {"pair_objective": "none", "packing": "full_sentences"}],
)
def test_a_block_gives_the_same_examples_wherever_it_stands(numbered_corpus, changes):
    chosen = options(**changes)
    block, first_token = store.block_of(numbered_corpus, 20, 40)
    assert first_token > 0 and block.sentence_starts[0] == 0
    alone = pairing.draft(block, chosen, index=2, first_document=0, num_documents=60)
    inside = pairing.draft(block, chosen, index=2, first_document=20, num_documents=60)
    np.testing.assert_array_equal(alone.spans, inside.spans)
    np.testing.assert_array_equal(alone.requests.place, inside.requests.place)
    segments = pairing.random_segments(numbered_corpus, inside.requests)
    spans = pairing.completed(inside, *segments, first_token=first_token)
    own = document_of(numbered_corpus, spans["begin_a"])
    assert set(own) <= set(range(20, 40))
    is_random = spans["label"] == pairing.IS_RANDOM
    assert (document_of(numbered_corpus, spans["begin_b"]) != own)[is_random].all()
    assert follows(spans)[~is_random & (spans["length_b"] > 0)].all()


def test_balanced_pairs_are_exactly_half_random_and_few_are_left_out():
    rng = np.random.default_rng(0)
    documents = ([[5] * n for n in rng.integers(1, 40, rng.integers(1, 15))] for _ in range(800))
    corpus = examples.corpus(documents)
    for budget in (29, 125, 253):
        plain = pairing.draft(corpus, options(budget, dupe_factor=2))
        assert plain.spans["label"].mean() > 0.58 and not plain.dropped
        drafts = pairing.draft(corpus, options(budget, dupe_factor=2, balanced_nsp=True))
        labels = drafts.spans["label"]
        assert 2 * labels.sum() == len(labels)
        np.testing.assert_array_equal(drafts.requests.example, np.flatnonzero(labels))
        # With a coin of a half, the random pairs beyond a half would be left out: 16% and more.
        assert drafts.dropped / (len(labels) + drafts.dropped) < 0.05
    # Where nearly all chunks are single sentences, it is they that go.
    drafts = pairing.draft(corpus, options(5, balanced_nsp=True))
    assert 2 * drafts.spans["label"].sum() == len(drafts.spans) > 0
    assert drafts.dropped > len(drafts.spans)


def test_balancing_single_sentences_leaves_nothing():
    corpus = examples.corpus([[[5, 6]], [[7]], [[8]]])
    drafts = pairing.draft(corpus, options(balanced_nsp=True, dupe_factor=2))
    assert len(drafts.spans) == len(drafts.requests.example) == 0 and drafts.dropped == 6


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"balanced_nsp": True},
        {"pair_objective": "sop"},
        {"pair_objective": "none"},
        {"pair_objective": "none", "packing": "full_sentences"},
    ],
)
def test_a_block_without_any_text_gives_no_examples(changes):
    drafts = pairing.draft(examples.corpus([]), options(**changes), num_documents=9)
    assert len(drafts.spans) == len(drafts.requests.example) == 0


def test_sentence_order_is_swapped_in_half_and_only_single_sentences_are_random(numbered_corpus):
    spans = uncut(numbered_corpus, options(dupe_factor=5, pair_objective="sop"))
    is_own = document_of(numbered_corpus, spans["begin_a"]) == document_of(
        numbered_corpus, spans["begin_b"]
    )
    in_order, swapped = (spans[is_own & (spans["label"] == label)] for label in (0, 1))
    assert follows(in_order).all() and follows(swapped, "b", "a").all()
    assert abs(len(swapped) / is_own.sum() - 0.5) < 0.05
    forced = spans[~is_own]
    assert len(forced) and (forced["label"] == 1).all()
    sentences = np.searchsorted(
        numbered_corpus.sentence_starts, [forced["begin_a"], forced["begin_a"] + forced["length_a"]]
    )
    assert (sentences[1] - sentences[0] == 1).all()
    drafts = pairing.draft(numbered_corpus, options(dupe_factor=5, pair_objective="sop"))
    assert drafts.forced_random == len(forced)


def test_doc_sentences_cover_the_corpus_once_without_crossing_documents(numbered_corpus):
    spans = pairing.draft(numbered_corpus, options(pair_objective="none")).spans
    begin, end = spans["begin_a"], spans["begin_a"] + spans["length_a"]
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert begin[0] == 0 and end[-1] == len(numbered_corpus.tokens)
    assert (end - begin).max() == BUDGET + 1  # One [SEP] less than a pair has.
    last = document_of(numbered_corpus, end - 1)
    np.testing.assert_array_equal(document_of(numbered_corpus, begin), last)
    # It ends with a sentence, unless that sentence alone is longer than the target.
    lengths = np.diff(numbered_corpus.sentence_starts)
    sentence = np.searchsorted(numbered_corpus.sentence_starts, begin, side="right") - 1
    assert (np.isin(end, numbered_corpus.sentence_starts) | (lengths[sentence] > 2)).all()
    assert not spans["length_b"].any() and not spans["label"].any()


SEP = -1


def with_separators(corpus):
    """The corpus as it is tokenized for full_sentences: SEP ends every document."""
    ends = np.zeros(corpus.num_sentences, np.int64)
    ends[corpus.document_starts[1:] - 1] = 1
    starts = corpus.sentence_starts + np.concatenate([[0], np.cumsum(ends)])
    document_ends = corpus.sentence_starts[corpus.document_starts[1:]]
    return examples.Corpus(
        np.insert(corpus.tokens, document_ends, SEP), starts, corpus.document_starts
    )


@pytest.mark.parametrize(("budget", "short_seq_prob"), [(29, 0.1), (125, 0.0), (10, 1.0)])
def test_full_sentences_cross_documents_with_one_separator(numbered_corpus, budget, short_seq_prob):
    corpus = with_separators(numbered_corpus)
    chosen = options(
        budget,
        pair_objective="none",
        packing="full_sentences",
        dupe_factor=3,
        short_seq_prob=short_seq_prob,
    )
    seen, crossing = [], 0
    for begin, _, length, *_ in pairing.draft(corpus, chosen).spans.tolist():
        segment = corpus.tokens[begin : begin + length]
        assert 0 < length <= budget + 1
        # [CLS] stands before and [SEP] after it: a separator at an edge would separate nothing.
        assert segment[0] != SEP and segment[-1] != SEP
        text = segment[segment != SEP]
        # Tokens are numbers: consecutive text, with a separator where a document ends.
        np.testing.assert_array_equal(np.diff(text), 1)
        between = document_of(numbered_corpus, text[-1]) - document_of(numbered_corpus, text[0])
        assert (segment == SEP).sum() == between
        crossing += between > 0
        seen.append(text)
    assert crossing
    np.testing.assert_array_equal(
        np.bincount(np.concatenate(seen)), np.full(len(numbered_corpus.tokens), 3)
    )


def test_full_sentences_are_as_long_as_whole_sentences_allow(numbered_corpus):
    corpus = with_separators(numbered_corpus)
    chosen = options(125, pair_objective="none", packing="full_sentences", short_seq_prob=0.0)
    spans = pairing.draft(corpus, chosen).spans
    sentences = np.searchsorted(corpus.sentence_starts, spans["begin_a"] + spans["length_a"])
    following = np.diff(corpus.sentence_starts)[sentences[:-1]]
    # Up to two separators were taken from the edges.
    assert (spans["length_a"][:-1] + following + 2 > chosen.budget).all()
