"""Examples without pairs: single segments of as much text as fits.

`packing` says of what. doc_sentences fills a segment with whole sentences of one document;
full_sentences goes on into the next document of the block, where the corpus then holds a separator
after each document. best_fit cuts a document wherever a segment is full, so that what shares a row
leaves no gaps.

Source of the first two: RoBERTa (Liu et al. 2019), section 4.2, DOC-SENTENCES and FULL-SENTENCES.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator

import numpy as np

from data_pipelines.objectives import base, examples

PACKINGS = ("doc_sentences", "full_sentences", base.BEST_FIT)

# best_fit shares a rest of a document that is shorter than this (in tokens) with the segment before
# it: such a short segment teaches nothing.
SHORTEST_REST = 16


def separates_documents(options: base.PairOptions) -> bool:
    """Returns whether segments cross documents, with a [SEP] between them."""
    return options.packing == "full_sentences"


def draft(block: base.Block, options: base.PairOptions) -> base.Drafts:
    """Returns the segments of a block in all passes; a sentence longer than one is cut."""
    starts, documents = block.starts()
    document_ends = np.array(starts)[documents[1:]]
    crosses = separates_documents(options)
    if crosses:
        documents = [0, documents[-1]]
    segments: list[tuple[int, int]] = []
    for pass_index in range(options.dupe_factor):
        rng = random.Random(f"packs {options.random_seed} {block.index} {pass_index}")
        for first, last in zip(documents, documents[1:], strict=False):
            segments += _segments(starts, first, last, options, rng)
    begin, end = np.array(segments, np.int64).reshape(-1, 2).T
    if crosses:
        # A separator at an edge of the segment would follow [CLS] or precede another [SEP].
        begin = np.where(np.isin(begin, document_ends - 1), begin + 1, begin)
        end = np.where(np.isin(end, document_ends), end - 1, end)
        begin, end = begin[end > begin], end[end > begin]
    spans = np.zeros(len(begin), examples.SPAN)
    spans["begin_a"], spans["length_a"] = begin, end - begin
    return base.Drafts(spans, base.Requests.none())


def _segments(
    starts: list[int], first: int, last: int, options: base.PairOptions, rng: random.Random
) -> Iterator[tuple[int, int]]:
    """Yields begin and end of the segments of sentences `first` to `last`.

    A short target holds for one document or, where segments cross documents, for one segment.
    """
    budget = options.budget(1)
    target = options.target_length(budget, rng)
    if options.is_packed:
        yield from _pieces(starts[first], starts[last], target)
        return
    position = starts[first]
    while position < starts[last]:
        whole = starts[bisect.bisect_right(starts, position + target, first, last + 1) - 1]
        end = whole if whole > position else position + target
        yield position, end
        position = end
        if separates_documents(options):
            target = options.target_length(budget, rng)


def _pieces(begin: int, end: int, target: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of pieces of `target` tokens, and of the rest."""
    while (left := end - begin) > target:
        is_shared = left - target < min(SHORTEST_REST, target)
        piece = (left + 1) // 2 if is_shared else target
        yield begin, begin + piece
        begin += piece
    yield begin, end
