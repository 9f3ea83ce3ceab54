"""The interface of a pair objective: options, drafts of examples, requests for text.

Examples are made block by block (a block is some megabytes of consecutive documents), so that the
work can be spread over processes or machines. A block does not hold the text of other documents: a
draft leaves a segment that comes from elsewhere open, as one of its `Requests`, and
`random_segments` finds it. The random numbers depend on the seed and the block alone.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from data_pipelines.objectives import examples

# The packing of several examples in a row; the others put one example in each.
BEST_FIT = "best_fit"


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """How documents become examples; names as in the released script where it has them.

    With `are_translations` a document is a sentence and its translation.
    """

    max_seq_length: int
    pair_objective: str
    packing: str
    balanced_nsp: bool
    short_seq_prob: float
    dupe_factor: int
    random_seed: int
    max_sequences_per_row: int = 0
    are_translations: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether a row of the records holds several examples."""
        return self.packing == BEST_FIT

    def budget(self, num_segments: int) -> int:
        """Returns the tokens of an example besides [CLS] and the [SEP] of each segment."""
        return self.max_seq_length - 1 - num_segments

    def generator(self, purpose: str, index: int) -> np.random.Generator:
        """Returns the generator of one purpose for one block or shard; no two share a stream."""
        return np.random.default_rng([self.random_seed, *purpose.encode(), index])

    def target_length(self, budget: int, rng: random.Random) -> int:
        """Returns the budget or, with `short_seq_prob`, a random length from 2 tokens up to it."""
        if rng.random() >= self.short_seq_prob:
            return budget
        return rng.randint(2, budget)


@dataclasses.dataclass(frozen=True)
class Block:
    """Block `index` of a corpus of `num_documents`; the first of its documents is `first_document`.

    Positions in `text` count from the beginning of the block.
    """

    text: examples.Corpus
    index: int
    first_document: int
    num_documents: int

    def starts(self) -> tuple[list[int], list[int]]:
        """Returns the tokens with which sentences begin, and the sentences of documents."""
        sentences, documents = self.text.sentence_starts, self.text.document_starts
        return (sentences - sentences[0]).tolist(), (documents - documents[0]).tolist()


@dataclasses.dataclass(frozen=True)
class Requests:
    """Second segments still to be found: arrays over the random pairs of a block.

    `example` is the index among the block's drafts, `document` the one to take from (in the whole
    corpus), `place` the beginning of the segment (0: the document's first sentence, almost 1: its
    last), `num_tokens` the size, which the last sentence may exceed.
    """

    example: Int[np.ndarray, " requests"]
    document: Int[np.ndarray, " requests"]
    place: Float[np.ndarray, " requests"]
    num_tokens: Int[np.ndarray, " requests"]

    @classmethod
    def none(cls) -> Requests:
        """Returns the requests of a block that needs no text of others."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros(0), nothing)


@dataclasses.dataclass(frozen=True)
class Drafts:
    """The examples of one block, all passes, in no particular order and not yet cut to length.

    Positions count from the beginning of the block. `forced_random` counts the pairs that are
    random because their chunk was a single sentence, `dropped` those left out to balance labels.
    """

    spans: examples.Spans
    requests: Requests
    forced_random: int = 0
    dropped: int = 0


# Draws the examples of a block in all `dupe_factor` passes.
Draft = Callable[[Block, PairOptions], Drafts]


def random_segments(
    corpus: examples.Corpus, requests: Requests
) -> tuple[Int[np.ndarray, " requests"], Int[np.ndarray, " requests"]]:
    """Returns begin and length of the requested segments: whole sentences, at least one."""
    starts = corpus.sentence_starts
    first = corpus.document_starts[requests.document]
    last = corpus.document_starts[requests.document + 1]
    first = first + (requests.place * (last - first)).astype(np.int64)
    begin = starts[first]
    end = np.searchsorted(starts, begin + requests.num_tokens)
    return begin, starts[np.clip(end, first + 1, last)] - begin


def completed(
    drafts: Drafts,
    begin_b: Int[np.ndarray, " requests"],
    length_b: Int[np.ndarray, " requests"],
    *,
    first_token: int = 0,
) -> examples.Spans:
    """Returns the spans with the requested segments, in positions of the whole corpus.

    `first_token` is where the block begins in it.
    """
    spans = drafts.spans.copy()
    spans["begin_a"] += first_token
    spans["begin_b"] += first_token
    spans["begin_b"][drafts.requests.example] = begin_b
    spans["length_b"][drafts.requests.example] = length_b
    return spans
