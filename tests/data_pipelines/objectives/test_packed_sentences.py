import numpy as np
import pytest

from data_pipelines.objectives import examples, packed_sentences, pairing
from tests.data_pipelines.objectives import drafting


def test_doc_sentences_cover_the_corpus_once_without_crossing_documents(numbered_corpus):
    spans = drafting.draft(numbered_corpus, drafting.options(pair_objective="none")).spans
    begin, end = spans["begin_a"], spans["begin_a"] + spans["length_a"]
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert begin[0] == 0 and end[-1] == len(numbered_corpus.tokens)
    assert (end - begin).max() == drafting.BUDGET + 1  # One [SEP] less than a pair has.
    last = drafting.document_of(numbered_corpus, end - 1)
    np.testing.assert_array_equal(drafting.document_of(numbered_corpus, begin), last)
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
    changes = {"pair_objective": "none", "packing": "full_sentences", "dupe_factor": 3}
    chosen = drafting.options(budget, short_seq_prob=short_seq_prob, **changes)
    seen, crossing = [], 0
    for begin, _, length, *_ in drafting.draft(corpus, chosen).spans.tolist():
        segment = corpus.tokens[begin : begin + length]
        assert 0 < length <= budget + 1
        # [CLS] stands before and [SEP] after it: a separator at an edge would separate nothing.
        assert segment[0] != SEP and segment[-1] != SEP
        text = segment[segment != SEP]
        # Tokens are numbers: consecutive text, with a separator where a document ends.
        np.testing.assert_array_equal(np.diff(text), 1)
        first, last = drafting.document_of(numbered_corpus, text[[0, -1]])
        assert (segment == SEP).sum() == last - first
        crossing += last > first
        seen.append(text)
    assert crossing
    np.testing.assert_array_equal(
        np.bincount(np.concatenate(seen)), np.full(len(numbered_corpus.tokens), 3)
    )


def test_full_sentences_are_as_long_as_whole_sentences_allow(numbered_corpus):
    corpus = with_separators(numbered_corpus)
    changes = {"pair_objective": "none", "packing": "full_sentences", "short_seq_prob": 0.0}
    chosen = drafting.options(125, **changes)
    spans = drafting.draft(corpus, chosen).spans
    sentences = np.searchsorted(corpus.sentence_starts, spans["begin_a"] + spans["length_a"])
    following = np.diff(corpus.sentence_starts)[sentences[:-1]]
    # Up to two separators were taken from the edges.
    assert (spans["length_a"][:-1] + following + 2 > pairing.budget(chosen)).all()


@pytest.mark.parametrize("budget", [29, 125, 10])
def test_best_fit_fills_pieces_of_one_document_to_the_last_token(numbered_corpus, budget):
    chosen = drafting.options(budget, pair_objective="none", packing="best_fit", short_seq_prob=0.0)
    spans = drafting.draft(numbered_corpus, chosen).spans
    begin, end = spans["begin_a"], spans["begin_a"] + spans["length_a"]
    np.testing.assert_array_equal(begin[1:], end[:-1])
    assert begin[0] == 0 and end[-1] == len(numbered_corpus.tokens)
    ends = numbered_corpus.sentence_starts[numbered_corpus.document_starts[1:]]
    target, rest = budget + 1, min(packed_sentences.SHORTEST_REST, budget + 1)
    is_last = np.isin(end, ends)
    lengths = (end - begin).astype(int)
    assert lengths.max() == target
    sizes = np.diff([0, *ends])
    whole = {int(size) for size in sizes if size <= target}
    for length, last in zip(lengths, is_last, strict=True):
        # Full, or a whole document, or what is left of one: never a rest that teaches nothing.
        assert length == target or length in whole or length >= min(rest, target // 2)
        assert last or length >= target // 2
