"""Histograms of lengths: counted exactly, shown in bins."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

# Lengths are counted exactly below this, and together from here on: sentences of so many tokens
# and documents of so many sentences are rare, and the tally stays small.
MAX_LENGTH = 4095


def counted(lengths: Int[np.ndarray, " any"]) -> Int[np.ndarray, " lengths"]:
    """Returns how many there are of each length; at the last index, of all that are longer."""
    return np.bincount(np.minimum(lengths, MAX_LENGTH), minlength=MAX_LENGTH + 1)


def figures(counts: Int[np.ndarray, " lengths"], *, mean: float, largest: int) -> dict[str, Any]:
    """Returns a summary of lengths; "counts" are of the lengths from "from" to the next."""
    median = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    # Four bins to a doubling: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...
    octaves = 2 ** np.arange(3, MAX_LENGTH.bit_length())
    starts = np.concatenate([np.arange(8), np.ravel(octaves[:, None] * [1, 1.25, 1.5, 1.75])])
    return {"mean": mean, "median": median, "max": largest} | _binned(counts, starts)


def example_figures(counts: Int[np.ndarray, " lengths"]) -> dict[str, Any]:
    """Returns the lengths of examples (tokens, specials included) in about 32 equal bins."""
    width = max(1, (len(counts) - 1) // 32)
    mean = float(counts @ np.arange(len(counts)) / counts.sum())
    # Counted down from the longest: full examples are most and have a bin to themselves.
    starts = np.arange(len(counts) - 1, -1, -width)[::-1]
    return {"mean": mean} | _binned(counts, starts if starts[0] == 0 else np.append(0, starts))


def _binned(
    counts: Int[np.ndarray, " lengths"], starts: Int[np.ndarray, " bins"]
) -> dict[str, list[int]]:
    """Returns the counts of bins that begin at `starts`, without the empty ones at both ends."""
    starts = starts.astype(np.int64)
    bins = np.add.reduceat(counts, starts)
    used = np.flatnonzero(bins)
    inner = slice(used[0], used[-1] + 1) if len(used) else slice(0)
    return {"from": starts[inner].tolist(), "counts": bins[inner].tolist()}
