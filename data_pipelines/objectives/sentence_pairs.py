"""Pairs of segments: the second one follows the first, or is random (nsp) or swapped (sop).

Chunks of sentences are cut in two by the rules of the released script, for all passes of a block.

Sources: google-research/bert, create_pretraining_data.py; sop: ALBERT (Lan et al. 2020), section
3.1.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from data_pipelines.objectives import base, examples

# next_sentence_label; sentence order writes 1 for a swapped pair as well.
IS_NEXT, IS_RANDOM = 0, 1


def draft_next_sentence(block: base.Block, options: base.PairOptions) -> base.Drafts:
    """Returns pairs of which half or, as released, a few more are random."""
    coin = 0.5
    if options.balanced_nsp:
        # The share that a coin gives depends on the coin: chunks that are put back are cut anew.
        for _ in range(2):
            coin = _balancing_coin(_chunks(block, options, coin, passes=1))
    chunks = _chunks(block, options, coin, passes=options.dupe_factor)
    rng = options.generator("pairs", block.index)
    num_chunks = len(chunks.first)
    if options.balanced_nsp:
        chunks = _balanced(chunks, rng)
    spans = _spans(block, chunks)
    requests = _requests(chunks, spans, block, rng)
    return base.Drafts(spans, requests, int(chunks.is_forced.sum()), num_chunks - len(spans))


def draft_sentence_order(block: base.Block, options: base.PairOptions) -> base.Drafts:
    """Returns pairs of which half are swapped; only chunks of one sentence get random text."""
    chunks = _chunks(block, options, 0.0, passes=options.dupe_factor)
    rng = options.generator("pairs", block.index)
    spans = _spans(block, chunks)
    is_swapped = (rng.random(len(spans)) < 0.5) & ~chunks.is_random
    for name in ("begin", "length"):
        first, second = spans[f"{name}_a"], spans[f"{name}_b"]
        first[is_swapped], second[is_swapped] = second[is_swapped], first[is_swapped]
    spans["label"][is_swapped] = 1
    requests = _requests(chunks, spans, block, rng)
    return base.Drafts(spans, requests, int(chunks.is_forced.sum()))


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


def _spans(block: base.Block, chunks: _Chunks) -> examples.Spans:
    starts = np.asarray(block.text.sentence_starts)
    spans = np.zeros(len(chunks.first), examples.SPAN)
    spans["begin_a"] = starts[chunks.first]
    spans["length_a"] = starts[chunks.middle] - starts[chunks.first]
    spans["begin_b"] = starts[chunks.middle]
    spans["length_b"] = starts[chunks.end] - starts[chunks.middle]
    spans["label"] = np.where(chunks.is_random, IS_RANDOM, IS_NEXT)
    return spans


def _requests(
    chunks: _Chunks, spans: examples.Spans, block: base.Block, rng: np.random.Generator
) -> base.Requests:
    """Returns where the random second segments are to come from: another document, any place."""
    is_random = chunks.is_random
    # The released code draws until the document is another one, but ten times at most; drawing
    # from the others alone has the same distribution and never fails.
    other = rng.integers(block.num_documents - 1, size=int(is_random.sum()))
    other += other >= block.first_document + chunks.document[is_random]
    return base.Requests(
        example=np.flatnonzero(is_random),
        document=other,
        place=rng.random(len(other)),
        num_tokens=chunks.target[is_random] - spans["length_a"][is_random].astype(np.int64),
    )


def _chunks(block: base.Block, options: base.PairOptions, coin: float, *, passes: int) -> _Chunks:
    starts, documents = block.starts()
    rows: list[tuple[int, ...]] = []
    for pass_index in range(passes):
        # Text as the seed, which Python hashes: numbers of near seeds would be related.
        rng = random.Random(f"pairs {options.random_seed} {block.index} {pass_index}")
        for document, (first, last) in enumerate(zip(documents, documents[1:], strict=False)):
            target = options.target_length(options.budget(2), rng)
            for chunk in _document_chunks(starts, first, last, target, coin, rng):
                rows.append((document, *chunk, target))
    columns = np.array(rows, np.int64).reshape(-1, 6).T
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
    fields = {field.name: getattr(chunks, field.name)[keep] for field in dataclasses.fields(chunks)}
    return _Chunks(**fields)
