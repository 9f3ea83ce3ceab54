"""Tokenized documents to training examples: pure functions of the corpus and a seed.

An example is first a row of token positions (`Spans`): each of its one or two segments is a
contiguous run of the corpus, so five integers describe it, millions of examples are shuffled as
small arrays, and rows of ids are only made when they are written. Masks are drawn over finished
rows by `bertjax.data.masking`.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

IS_NEXT, IS_RANDOM = 0, 1
PAIR_OBJECTIVES = ("nsp", "none")

# A row: begin and end of segment A, begin and end of segment B (token positions in the corpus),
# next_sentence_label. Without a pair, B is empty and the label 0.
Spans = Int[np.ndarray, "examples 5"]

# Distinguishes the random streams that one seed feeds.
_PAIRS_STREAM, _CUT_STREAM, _PACK_STREAM = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Corpus:
    """All tokens in one array, and where sentences and documents begin in it.

    `sentence_starts` are token positions, `document_starts` indices into `sentence_starts`; both
    end with the end of the corpus, so that item i reaches to the start of item i + 1. No sentence
    and no document is empty.
    """

    tokens: Int[np.ndarray, " tokens"]
    sentence_starts: Int[np.ndarray, " sentences_and_end"]
    document_starts: Int[np.ndarray, " documents_and_end"]

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1


def corpus(documents: Iterable[Iterable[Sequence[int]]]) -> Corpus:
    """Returns documents of sentences of token ids as a corpus; drops what is empty."""
    chunks, lengths, counts = [], [], []
    for document in documents:
        sentences = [np.asarray(sentence, np.int32) for sentence in document if len(sentence)]
        if sentences:
            chunks.append(np.concatenate(sentences))
            lengths += [len(sentence) for sentence in sentences]
            counts.append(len(sentences))
    return Corpus(
        tokens=np.concatenate(chunks) if chunks else np.zeros(0, np.int32),
        sentence_starts=np.cumsum([0, *lengths]),
        document_starts=np.cumsum([0, *counts]),
    )


def nsp_pairs(
    corpus: Corpus, *, max_seq_length: int, short_seq_prob: float, seed: int, pass_index: int
) -> Spans:
    """Returns one pass of segment pairs, half of them or more with a random second segment.

    Chunks of sentences up to a target length (per document, shorter with `short_seq_prob`) are cut
    at a random sentence; the second part is kept, or replaced by sentences of another document
    and put back. Chunks of one sentence are always completed with random text, hence "or more".

    Source: google-research/bert, create_pretraining_data.py, create_instances_from_document. On
    purpose, a random segment never comes from its own document (there it can after ten draws).
    """
    if corpus.num_documents < 2:
        raise ValueError(
            f"the corpus has {corpus.num_documents} documents; pair_objective nsp needs at least 2 "
            "to draw random segments from: separate documents by blank lines, or use "
            "--pair_objective=none"
        )
    budget = max_seq_length - 3
    starts = corpus.sentence_starts.tolist()
    documents = corpus.document_starts.tolist()
    pairs: list[tuple[int, int, int, int, int]] = []
    for document in range(corpus.num_documents):
        rng = np.random.default_rng([seed, _PAIRS_STREAM, pass_index, document])
        target = _target_length(budget, short_seq_prob, rng)
        pairs += _document_pairs(document, starts, documents, target, rng)
    rng = np.random.default_rng([seed, _CUT_STREAM, pass_index])
    return _cut_to(np.array(pairs, np.int64).reshape(-1, 5), budget, rng)


def full_sentences(
    corpus: Corpus, *, max_seq_length: int, short_seq_prob: float, seed: int, pass_index: int
) -> Spans:
    """Returns one pass of single segments: as many whole sentences as fit, of one document each.

    A sentence longer than the sequence is cut.

    Source: RoBERTa (Liu et al. 2019), section 4.2, DOC-SENTENCES.
    """
    budget = max_seq_length - 2
    starts = corpus.sentence_starts.tolist()
    documents = corpus.document_starts.tolist()
    rng = np.random.default_rng([seed, _PACK_STREAM, pass_index])
    segments = []
    for first, last in zip(documents[:-1], documents[1:], strict=True):
        target = _target_length(budget, short_seq_prob, rng)
        position = starts[first]
        while position < starts[last]:
            whole = starts[bisect.bisect_right(starts, position + target, first, last + 1) - 1]
            end = whole if whole > position else position + target
            segments.append((position, end, end, end, IS_NEXT))
            position = end
    return np.array(segments, np.int64).reshape(-1, 5)


def rows(
    corpus: Corpus, spans: Spans, *, max_seq_length: int, cls_id: int, sep_id: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask`, `segment_ids` [examples, max_seq_length] of the spans.

    [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where B is not empty; B and its [SEP] are segment 1.
    """
    begin_a, end_a, begin_b, end_b, _ = (column[:, None] for column in spans.T)
    separator = end_a - begin_a + 1
    has_pair = end_b > begin_b
    length = np.where(has_pair, separator + end_b - begin_b + 2, separator + 1)
    place = np.arange(max_seq_length)[None, :]

    in_a = (place > 0) & (place < separator)
    in_b = (place > separator) & (place < length - 1)
    source = np.where(in_a, begin_a + place - 1, begin_b + place - separator - 1)
    text = corpus.tokens[np.where(in_a | in_b, source, 0)]
    is_separator = (place == separator) | (place == length - 1)
    edges = np.where(place == 0, cls_id, np.where(is_separator, sep_id, pad_id))
    real = place < length
    return {
        "input_ids": np.where(in_a | in_b, text, edges).astype(np.int32),
        "input_mask": real.astype(np.int32),
        "segment_ids": (real & (place > separator)).astype(np.int32),
    }


def _target_length(budget: int, short_seq_prob: float, rng: np.random.Generator) -> int:
    if rng.random() >= short_seq_prob:
        return budget
    return int(rng.integers(2, budget, endpoint=True))


def _document_pairs(
    document: int,
    starts: list[int],
    documents: list[int],
    target: int,
    rng: np.random.Generator,
) -> Iterator[tuple[int, int, int, int, int]]:
    sentence, last = documents[document], documents[document + 1]
    while sentence < last:
        chunk_end = min(
            bisect.bisect_left(starts, starts[sentence] + target, sentence + 1, last), last
        )
        is_single = chunk_end - sentence == 1
        middle = chunk_end if is_single else int(rng.integers(sentence + 1, chunk_end))
        if is_single or rng.random() < 0.5:
            wanted = target - (starts[middle] - starts[sentence])
            begin, end = _random_segment(document, starts, documents, wanted, rng)
            yield starts[sentence], starts[middle], begin, end, IS_RANDOM
            sentence = middle
        else:
            yield starts[sentence], starts[middle], starts[middle], starts[chunk_end], IS_NEXT
            sentence = chunk_end


def _random_segment(
    document: int,
    starts: list[int],
    documents: list[int],
    wanted: int,
    rng: np.random.Generator,
) -> tuple[int, int]:
    """Returns begin and end of sentences of another document, `wanted` tokens or a little more."""
    other = int(rng.integers(len(documents) - 2))
    other += other >= document
    last = documents[other + 1]
    first = int(rng.integers(documents[other], last))
    end = min(bisect.bisect_left(starts, starts[first] + wanted, first + 1, last), last)
    return starts[first], starts[end]


def _cut_to(spans: Spans, budget: int, rng: np.random.Generator) -> Spans:
    """Returns the pairs cut to `budget` tokens.

    The released code takes one token at a time from the longer segment (B when they are equal),
    from its front or its back by a coin. How many each segment loses follows from the lengths, and
    how many of them at its front is binomial: the same distribution, for all rows at once.
    """
    begin_a, end_a, begin_b, end_b, label = spans.T
    length_a, length_b = end_a - begin_a, end_b - begin_b
    excess = np.maximum(length_a + length_b - budget, 0)
    difference = length_a - length_b
    uneven = np.minimum(np.abs(difference), excess)
    shared = excess - uneven
    loss_a = np.where(difference > 0, uneven, 0) + shared // 2
    loss_b = np.where(difference > 0, 0, uneven) + (shared + 1) // 2
    front_a, front_b = rng.binomial(loss_a, 0.5), rng.binomial(loss_b, 0.5)
    return np.stack(
        [
            begin_a + front_a,
            end_a - (loss_a - front_a),
            begin_b + front_b,
            end_b - (loss_b - front_b),
            label,
        ],
        axis=1,
    )
