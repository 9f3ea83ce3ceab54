"""Which spans of a corpus make examples: sentence pairs (nsp, sop) or packed sentences.

Examples are made block by block (a block is some megabytes of consecutive documents), so that the
work can be spread over processes or machines. What a block cannot know is the text of the other
documents: `draft` leaves the second segment of a random pair open, as one of its `Requests`, and
`random_segments` finds it. The random numbers depend on the seed and the block alone. The released
script, in its own order of random numbers, is `exact`.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from data_pipelines import examples

# next_sentence_label; sentence order writes 1 for a swapped pair as well.
IS_NEXT, IS_RANDOM = 0, 1
PAIR_OBJECTIVES = ("nsp", "sop", "none")
PACKINGS = ("doc_sentences", "full_sentences")


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """How documents become examples; names as in the released script where it has them.

    `pair_objective` is nsp (BERT), sop (ALBERT) or none (RoBERTa): whole sentences packed from one
    document or, with `packing` full_sentences, across the documents of a block; the corpus then
    holds a separator after each document.
    """

    max_seq_length: int
    pair_objective: str = "nsp"
    packing: str = "doc_sentences"
    balanced_nsp: bool = False
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    random_seed: int = 12345

    @property
    def budget(self) -> int:
        """The tokens of an example besides [CLS] and [SEP]."""
        return self.max_seq_length - (2 if self.pair_objective == "none" else 3)

    def generator(self, purpose: str, index: int) -> np.random.Generator:
        """Returns the generator of one purpose for one block or shard; no two share a stream."""
        return np.random.default_rng([self.random_seed, *purpose.encode(), index])


@dataclasses.dataclass(frozen=True)
class Requests:
    """Second segments still to be found: arrays over the random pairs of a block.

    `example` is the index among the block's drafts, `document` the one to take from (in the whole
    corpus), `place` where the segment begins (0: its first, almost 1: its last sentence), `wanted`
    how many tokens, or as many more as the last sentence brings.
    """

    example: Int[np.ndarray, " requests"]
    document: Int[np.ndarray, " requests"]
    place: Float[np.ndarray, " requests"]
    wanted: Int[np.ndarray, " requests"]


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


def draft(
    block: examples.Corpus,
    options: PairOptions,
    *,
    index: int = 0,
    first_document: int = 0,
    num_documents: int | None = None,
) -> Drafts:
    """Returns the examples of block `index` in all `dupe_factor` passes.

    The block's first document is number `first_document` of the corpus's `num_documents`.

    Raises:
      ValueError: if there is only one document to draw random segments from.
    """
    if options.pair_objective == "none":
        return _packed(block, options, index)
    num_documents = block.num_documents if num_documents is None else num_documents
    check_documents(num_documents, options)
    return _paired(block, options, index, first_document, num_documents)


def check_documents(num_documents: int, options: PairOptions) -> None:
    """Raises ValueError if there is only one document to draw random segments from."""
    if num_documents < 2 and options.pair_objective != "none":
        raise ValueError(
            f"the corpus has {num_documents} documents; pair_objective {options.pair_objective} "
            "needs at least 2 to draw random segments from: separate documents by blank lines, or "
            "use --pair_objective=none"
        )


def random_segments(
    corpus: examples.Corpus, requests: Requests
) -> tuple[Int[np.ndarray, " requests"], Int[np.ndarray, " requests"]]:
    """Returns begin and length of the requested segments: whole sentences, at least one."""
    starts = corpus.sentence_starts
    first = corpus.document_starts[requests.document]
    last = corpus.document_starts[requests.document + 1]
    first = first + (requests.place * (last - first)).astype(np.int64)
    begin = starts[first]
    end = np.searchsorted(starts, begin + requests.wanted)
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


def spans_of_one_block(corpus: examples.Corpus, options: PairOptions) -> examples.Spans:
    """Returns the finished examples of a corpus that is small enough to be one block."""
    drafts = draft(corpus, options)
    spans = completed(drafts, *random_segments(corpus, drafts.requests))
    return examples.cut_to(spans, options.budget, options.generator("cut", 0))


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """Arrays over chunks of sentences: A begins at `first`, B at `middle` and ends at `end`.

    Sentences are counted in the block. Where B is to be random, `end` is `middle`; `is_forced`
    where the chunk was a single sentence. `target` is the length that the chunk was made for.
    """

    document: Int[np.ndarray, " chunks"]
    first: Int[np.ndarray, " chunks"]
    middle: Int[np.ndarray, " chunks"]
    end: Int[np.ndarray, " chunks"]
    target: Int[np.ndarray, " chunks"]
    is_forced: Int[np.ndarray, " chunks"]

    @property
    def is_random(self) -> np.ndarray:
        return self.middle == self.end


def _paired(
    block: examples.Corpus,
    options: PairOptions,
    index: int,
    first_document: int,
    num_documents: int,
) -> Drafts:
    is_sop = options.pair_objective == "sop"
    coin = 0.0 if is_sop else 0.5
    if options.balanced_nsp and not is_sop:
        # What one coin leads to depends on itself: chunks that are put back become others.
        for _ in range(2):
            coin = _balancing_coin(_chunks(block, options, index, coin, passes=1))
    chunks = _chunks(block, options, index, coin, passes=options.dupe_factor)
    rng = options.generator("pairs", index)
    made = len(chunks.first)
    if options.balanced_nsp and not is_sop:
        chunks = _balanced(chunks, rng)

    starts = np.asarray(block.sentence_starts)
    is_random = chunks.is_random
    spans = np.zeros(len(chunks.first), examples.SPAN)
    spans["begin_a"] = starts[chunks.first]
    spans["length_a"] = starts[chunks.middle] - starts[chunks.first]
    spans["begin_b"] = starts[chunks.middle]
    spans["length_b"] = starts[chunks.end] - starts[chunks.middle]
    spans["label"] = np.where(is_random, IS_RANDOM, IS_NEXT)
    if is_sop:
        _swap(spans, (rng.random(len(spans)) < 0.5) & ~is_random)
    # The released code draws until the document is another one, but ten times at most; drawing
    # from the others alone has the same distribution and never fails.
    other = rng.integers(num_documents - 1, size=int(is_random.sum()))
    other += other >= first_document + chunks.document[is_random]
    requests = Requests(
        example=np.flatnonzero(is_random),
        document=other,
        place=rng.random(len(other)),
        wanted=chunks.target[is_random] - spans["length_a"][is_random].astype(np.int64),
    )
    return Drafts(spans, requests, int(chunks.is_forced.sum()), made - len(spans))


def _chunks(
    block: examples.Corpus, options: PairOptions, index: int, coin: float, *, passes: int
) -> _Chunks:
    starts = (block.sentence_starts - block.sentence_starts[0]).tolist()
    documents = (block.document_starts - block.document_starts[0]).tolist()
    found: list[tuple[int, ...]] = []
    for pass_index in range(passes):
        # Text as the seed, which Python hashes: numbers of near seeds would be related.
        rng = random.Random(f"pairs {options.random_seed} {index} {pass_index}")
        for document, (first, last) in enumerate(zip(documents, documents[1:], strict=False)):
            target = _target_length(options, rng)
            for chunk in _document_chunks(starts, first, last, target, coin, rng):
                found.append((document, *chunk, target))
    columns = np.array(found, np.int64).reshape(-1, 6).T
    document, first, middle, end, is_forced, target = columns
    return _Chunks(document, first, middle, end, target, is_forced)


def _document_chunks(
    starts: list[int], sentence: int, last: int, target: int, coin: float, rng: random.Random
) -> Iterator[tuple[int, int, int, bool]]:
    """Yields (first, middle, end, whether forced random) of one document's chunks of sentences.

    A chunk has `target` tokens or the sentence that passes it; it is cut at a random sentence. With
    probability `coin` its second part is put back for the next chunk, and random text is to take
    its place; a single sentence always needs random text.

    Source: google-research/bert, create_pretraining_data.py, create_instances_from_document.
    """
    draw = rng.random
    while sentence < last:
        end = bisect.bisect_left(starts, starts[sentence] + target, sentence + 1, last)
        if end - sentence == 1:
            yield sentence, end, end, True
            sentence = end
            continue
        middle = sentence + 1 + int(draw() * (end - sentence - 1))
        if draw() < coin:
            yield sentence, middle, middle, False
            sentence = middle
        else:
            yield sentence, middle, end, False
            sentence = end


def _target_length(options: PairOptions, rng: random.Random) -> int:
    """Returns the budget or, with `short_seq_prob`, a random length from 2 tokens up to it."""
    if rng.random() >= options.short_seq_prob:
        return options.budget
    return rng.randint(2, options.budget)


def _balancing_coin(chunks: _Chunks) -> float:
    """Returns the share of chunks of several sentences to make random, so that half of all are."""
    single = float(chunks.is_forced.sum() / max(len(chunks.is_forced), 1))
    return 0.0 if single >= 0.5 else (0.5 - single) / (1 - single)


def _balanced(chunks: _Chunks, rng: np.random.Generator) -> _Chunks:
    """Returns as many random as other chunks, by leaving out some of the more frequent kind."""
    is_random = chunks.is_random
    surplus_is_random = 2 * is_random.sum() > len(is_random)
    frequent = np.flatnonzero(is_random == surplus_is_random)
    surplus = 2 * len(frequent) - len(is_random)
    keep = np.ones(len(is_random), bool)
    keep[rng.choice(frequent, surplus, replace=False)] = False
    kept = {field.name: getattr(chunks, field.name)[keep] for field in dataclasses.fields(chunks)}
    return _Chunks(**kept)


def _swap(spans: examples.Spans, where: np.ndarray) -> None:
    """Exchanges the segments of some examples, in place, and labels them as swapped."""
    spans["begin_a"][where], spans["begin_b"][where] = (
        spans["begin_b"][where],
        spans["begin_a"][where],
    )
    spans["length_a"][where], spans["length_b"][where] = (
        spans["length_b"][where],
        spans["length_a"][where],
    )
    spans["label"][where] = 1


def _packed(block: examples.Corpus, options: PairOptions, index: int) -> Drafts:
    """Returns single segments of as many whole sentences as fit; a longer sentence is cut.

    Source: RoBERTa (Liu et al. 2019), section 4.2, DOC-SENTENCES and FULL-SENTENCES.
    """
    starts = (block.sentence_starts - block.sentence_starts[0]).tolist()
    documents = (block.document_starts - block.document_starts[0]).tolist()
    crosses = options.packing == "full_sentences"
    if crosses:
        documents = [0, documents[-1]]
    segments: list[tuple[int, int]] = []
    for pass_index in range(options.dupe_factor):
        rng = random.Random(f"packs {options.random_seed} {index} {pass_index}")
        for first, last in zip(documents, documents[1:], strict=False):
            segments += _document_segments(starts, first, last, options, rng)
    begin, end = np.array(segments, np.int64).reshape(-1, 2).T
    if crosses:
        # A separator at an edge of the segment would stand beside [CLS] or another [SEP].
        ends = np.array(starts)[block.document_starts[1:] - block.document_starts[0]]
        begin = np.where(np.isin(begin, ends - 1), begin + 1, begin)
        end = np.where(np.isin(end, ends), end - 1, end)
        begin, end = begin[end > begin], end[end > begin]
    spans = np.zeros(len(begin), examples.SPAN)
    spans["begin_a"], spans["length_a"] = begin, end - begin
    none = np.zeros(0, np.int64)
    return Drafts(spans, Requests(none, none, np.zeros(0), none))


def _document_segments(
    starts: list[int], first: int, last: int, options: PairOptions, rng: random.Random
) -> Iterator[tuple[int, int]]:
    """Yields begin and end of the segments of sentences `first` to `last`.

    A short target holds for one document or, where segments cross documents, for one segment.
    """
    target = _target_length(options, rng)
    position = starts[first]
    while position < starts[last]:
        whole = starts[bisect.bisect_right(starts, position + target, first, last + 1) - 1]
        end = whole if whole > position else position + target
        yield position, end
        position = end
        if options.packing == "full_sentences":
            target = _target_length(options, rng)
