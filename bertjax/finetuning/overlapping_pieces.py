"""Where a long run of words is cut into overlapping pieces, and in which piece a word is scored."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int


def split(
    lengths: Int[np.ndarray, " words"], capacity: int, stride: int
) -> list[tuple[int, int, Int[np.ndarray, " scored"]]]:
    """Returns pieces of at most `capacity` tokens: first word, word after the last, words scored.

    `lengths` are the words' tokens, 1 to `capacity` each. Every word is scored in one piece: where
    the smaller of the numbers of tokens before and after it is largest, the first of several such.
    Source: google-research/bert, run_squad.py, _check_is_max_context, without its preference for
    longer pieces among equals.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    spans = _spans(starts, ends, capacity, stride)
    best, chosen = np.full((2, len(lengths)), -1)
    for number, (first, end) in enumerate(spans):
        before = starts[first:end] - starts[first]
        after = ends[end - 1] - ends[first:end]
        context = np.minimum(before, after)
        is_better = context > best[first:end]
        best[first:end][is_better] = context[is_better]
        chosen[first:end][is_better] = number
    return [
        (first, end, first + np.flatnonzero(chosen[first:end] == number))
        for number, (first, end) in enumerate(spans)
    ]


def _spans(
    starts: Int[np.ndarray, " words"], ends: Int[np.ndarray, " words"], capacity: int, stride: int
) -> list[tuple[int, int]]:
    spans, first = [], 0
    while ends[-1] - starts[first] > capacity:
        end = int(np.searchsorted(ends, starts[first] + capacity, side="right"))
        spans.append((first, end))
        first = min(int(np.searchsorted(starts, starts[first] + stride)), end)
    # The last piece reaches back as far as there is room.
    first = int(np.searchsorted(starts, ends[-1] - capacity))
    return [*spans, (first, len(starts))]
