"""A tokenized corpus, and examples as places in it: cut to length and made into rows of ids.

An example is first a row of token positions (`Spans`): each of its one or two segments is a
contiguous run of the corpus, so five numbers describe it, millions of examples are shuffled as
small arrays, and rows of ids are only made when they are written. Which places make an example is
decided by `pairing`; masks are drawn over finished rows by `bertjax.data.masking`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertjax.data import records

# Begin and length of segment A and of segment B, in token positions of the corpus, and the
# next_sentence_label. Without a pair, B is empty and the label 0.
SPAN = np.dtype(
    [
        ("begin_a", "<i8"),
        ("begin_b", "<i8"),
        ("length_a", "<u4"),
        ("length_b", "<u4"),
        ("label", "u1"),
    ]
)
Spans = np.ndarray  # [examples] of SPAN

# Added to a token of the corpus that continues the word of the one before it, if words are stored.
CONTINUES = records.MOST_ENTRIES
# Added to one that begins a word, as `str.split` has words, if these are counted.
BEGINS = 2 * CONTINUES
# Added to the last one of a sentence, if their ends are stored.
ENDS = 2 * BEGINS


@dataclasses.dataclass(frozen=True)
class Corpus:
    """All tokens in one array, with what marks add, and where sentences and documents begin in it.

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


def starts(lengths: Sequence[int] | Int[np.ndarray, " items"]) -> Int[np.ndarray, " items_and_end"]:
    """Returns where items of these lengths begin one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def cut_to(spans: Spans, budget: int, rng: np.random.Generator) -> Spans:
    """Returns the pairs cut to `budget` tokens.

    The released code takes one token at a time from the longer segment (B when they are equal),
    from its front or its back by a coin. The number that each segment loses follows from the
    lengths, and the number lost at its front is binomial: the same distribution, for all rows at
    once.
    """
    length_a, length_b = spans["length_a"].astype(np.int64), spans["length_b"].astype(np.int64)
    excess = np.maximum(length_a + length_b - budget, 0)
    difference = length_a - length_b
    uneven = np.minimum(np.abs(difference), excess)
    shared = excess - uneven
    loss_a = np.where(difference > 0, uneven, 0) + shared // 2
    loss_b = np.where(difference > 0, 0, uneven) + (shared + 1) // 2
    cut = spans.copy()
    cut["begin_a"] += rng.binomial(loss_a, 0.5)
    cut["begin_b"] += rng.binomial(loss_b, 0.5)
    cut["length_a"] = length_a - loss_a
    cut["length_b"] = length_b - loss_b
    return cut


def lengths(spans: Spans) -> Int[np.ndarray, " examples"]:
    """Returns the number of tokens of the spans as examples, [CLS] and [SEP] included."""
    length_a, length_b = spans["length_a"].astype(np.int64), spans["length_b"].astype(np.int64)
    return length_a + 2 + np.where(length_b > 0, length_b + 1, 0)


class Frame(NamedTuple):
    """The length of rows, and the ids that stand around the text."""

    max_seq_length: int
    cls_id: int
    sep_id: int
    pad_id: int


def rows(tokens: Int[np.ndarray, " tokens"], spans: Spans, frame: Frame) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask`, `segment_ids` [examples, max_seq_length] of the spans.

    [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where B is not empty; B and its [SEP] are segment 1.
    """
    begin = np.arange(len(spans)) * frame.max_seq_length
    ids = _filled(tokens, spans, begin, len(spans), frame)
    separator = spans["length_a"].astype(np.int32)[:, None] + 1
    length_b = spans["length_b"].astype(np.int32)[:, None]
    length = separator + np.where(length_b > 0, length_b + 2, 1)
    place = np.arange(frame.max_seq_length, dtype=np.int32)[None, :]
    real = place < length
    return {
        "input_ids": ids,
        "input_mask": real.astype(np.int32),
        "segment_ids": (real & (place > separator)).astype(np.int32),
    }


def packed_rows(
    tokens: Int[np.ndarray, " tokens"],
    spans: Spans,
    sequences: Int[np.ndarray, " rows"],
    frame: Frame,
) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `sequence_ids`, `segment_ids` [rows, max_seq_length] of the spans.

    A row holds the next `sequences` of the spans, one behind the other as `rows` writes them,
    numbered from 1; 0 is padding.
    """
    size = lengths(spans)
    # An example begins in its row after the examples before it.
    row = np.repeat(np.arange(len(sequences)), sequences)
    first_of_row = np.repeat(np.cumsum(sequences) - sequences, sequences)
    before = np.cumsum(size) - size
    begin = row * frame.max_seq_length + before - before[first_of_row]
    ids = _filled(tokens, spans, begin, len(sequences), frame)
    place = np.arange(size.sum()) - np.repeat(before, size)
    places = np.repeat(begin, size) + place
    numbers, segments = np.zeros_like(ids), np.zeros_like(ids)
    numbers.ravel()[places] = np.repeat(np.arange(len(spans)) - first_of_row + 1, size)
    segments.ravel()[places] = place > np.repeat(spans["length_a"].astype(np.int64) + 1, size)
    return {"input_ids": ids, "sequence_ids": numbers, "segment_ids": segments}


def with_marks(
    rows: dict[str, np.ndarray], *, stored: bool, counted: bool, ended: bool
) -> dict[str, np.ndarray]:
    """Returns rows of a corpus with marks of tokens, with these as features of their own.

    Words are stored or counted, and the ends of sentences stored.
    """
    ids = rows["input_ids"]
    rows = {**rows, "input_ids": ids & (CONTINUES - 1)}
    if stored:
        rows[records.WORDS_FEATURE] = (ids & CONTINUES) // CONTINUES
    if ended:
        rows[records.SENTENCES_FEATURE] = (ids & ENDS) // ENDS
    if counted:
        counts = np.count_nonzero(ids & BEGINS, axis=1)
        rows[records.WORD_COUNT_FEATURE] = counts.astype(np.int32)[:, None]
    return rows


def _filled(
    tokens: Int[np.ndarray, " tokens"],
    spans: Spans,
    begin: Int[np.ndarray, " examples"],
    num_rows: int,
    frame: Frame,
) -> Int[np.ndarray, "rows length"]:
    """Returns the ids of rows; `begin` are the places of the examples in the flattened rows."""
    ids = np.full((num_rows, frame.max_seq_length), frame.pad_id, np.int32)
    flat = ids.ravel()
    tokens = np.asarray(tokens)  # A view without the overhead of a memory map's own class.
    for first, (begin_a, begin_b, length_a, length_b, _) in zip(
        begin.tolist(), spans.tolist(), strict=True
    ):
        separator = first + length_a + 1
        flat[first] = frame.cls_id
        flat[first + 1 : separator] = tokens[begin_a : begin_a + length_a]
        flat[separator] = frame.sep_id
        if length_b:
            last = separator + length_b + 1
            flat[separator + 1 : last] = tokens[begin_b : begin_b + length_b]
            flat[last] = frame.sep_id
    return ids
