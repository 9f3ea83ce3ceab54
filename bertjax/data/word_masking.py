"""Whole words, n-grams of words and spans of words to hide, for a whole batch at once in numpy.

Which tokens are hidden is decided here; what stands in their place is `masking`'s.

A word is a maskable token and the tokens after it that continue it. One that follows [CLS], [SEP]
or another token that is never masked starts a word, whatever its entry says. A run is one or more
words in a row; none reaches over a [SEP]. All strategies go through the words in random order and
start a run at each, until enough tokens are chosen or the words are used up. They differ in the
number of words of a run. Words are chosen whole, so that a row of long words may get fewer tokens
than asked for, never more.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Bool, Int, UInt64

# Source: google-research/albert, create_pretraining_data.py, ngram=3: p(n) proportional to 1/n.
NGRAM_WEIGHTS = tuple(1 / words for words in (1, 2, 3))

# Source: SpanBERT (Joshi et al. 2020), section 3.1: geometric(0.2), at most 10 words; mean 3.8.
SPAN_WEIGHTS = tuple(0.2 * 0.8 ** (words - 1) for words in range(1, 11))


def random_order(
    candidates: Bool[np.ndarray, "batch length"], rng: np.random.Generator
) -> Int[np.ndarray, "batch length"]:
    """Returns each row's candidate positions in random order, then `length` to the row's end."""
    # Sorted random numbers whose lowest bits are the position: a sort of plain integers is many
    # times faster than an argsort, and no two are equal.
    length = candidates.shape[1]
    low_bits = np.uint64((1 << length.bit_length()) - 1)
    keys: UInt64[np.ndarray, "batch length"] = rng.integers(
        0, 2**64 - 1, size=candidates.shape, dtype=np.uint64, endpoint=True
    )
    keys &= ~low_bits
    keys |= np.arange(length, dtype=np.uint64)
    keys[~candidates] = np.iinfo(np.uint64).max
    keys.sort(axis=1)
    keys &= low_bits
    return np.minimum(keys.view(np.int64), length)


def _choose_runs(
    maskable: Bool[np.ndarray, "batch length"],
    continues: Bool[np.ndarray, "batch length"],
    num_masked: Int[np.ndarray, " batch"],
    rng: np.random.Generator,
    *,
    weights: tuple[float, ...],
    drop_at_overlap: bool,
) -> Bool[np.ndarray, "batch length"]:
    """Returns the tokens of the chosen runs; `weights[n - 1]` is the weight of n words."""
    # All arrays are flat, each row with one more place, so that a position in the batch is one
    # number and the end of a run lies in its own row.
    batch, length = maskable.shape
    order = random_order(maskable & ~continues, rng)
    sizes = _word_sizes(maskable, continues)
    chosen = np.zeros(batch * (length + 1), bool)
    left = num_masked.astype(np.int64)
    shares = np.cumsum(weights) / sum(weights)
    for slot in range(length):
        rows = np.flatnonzero((left > 0) & (order[:, slot] < length))
        if not len(rows):
            break
        first = rows * (length + 1) + order[rows, slot]
        words = 1 + np.searchsorted(shares[:-1], rng.random(len(rows)), side="right")
        end, overlaps = _run_ends(first, words, left[rows], sizes, chosen)
        if drop_at_overlap:
            end[overlaps] = first[overlaps]
        taken = end - first
        left[rows] -= taken
        chosen[_ranges(first, taken)] = True
    return chosen.reshape(batch, length + 1)[:, :length]


def _word_sizes(
    maskable: Bool[np.ndarray, "batch length"], continues: Bool[np.ndarray, "batch length"]
) -> Int[np.ndarray, " places"]:
    """Returns, flat with one more place per row, a word's tokens where it starts.

    All other places hold more than a row has tokens: no run can step there.
    """
    batch, length = maskable.shape
    sizes = np.full((batch, length + 1), length + 1)
    sizes[:, :length][maskable & ~continues] = 1
    padded = np.zeros((batch, length + 1), bool)
    padded[:, :length] = continues
    # Only words of several tokens need counting; most have one.
    places = np.flatnonzero(padded)
    second = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    sizes = sizes.ravel()
    sizes[places[second] - 1] = 1 + np.diff(second, append=len(places))
    return sizes


def _run_ends(
    first: Int[np.ndarray, " runs"],
    words: Int[np.ndarray, " runs"],
    budget: Int[np.ndarray, " runs"],
    sizes: Int[np.ndarray, " places"],
    chosen: Bool[np.ndarray, " places"],
) -> tuple[Int[np.ndarray, " runs"], Bool[np.ndarray, " runs"]]:
    """Returns the ends of the runs that start at `first`, and which of them met a chosen word.

    A run has at most `words` words and `budget` tokens. It ends before a chosen word and before a
    token that is never masked.
    """
    end = first.copy()
    overlaps = np.zeros(len(first), bool)
    for grown in range(int(words.max())):
        after = end + sizes[end]
        fits = (words > grown) & (after - first <= budget)
        meets = fits & chosen[end]
        overlaps |= meets
        end = np.where(fits & ~meets, after, end)
    return end, overlaps


def _ranges(
    first: Int[np.ndarray, " runs"], counts: Int[np.ndarray, " runs"]
) -> Int[np.ndarray, " places"]:
    """Returns first[i], first[i] + 1, ..., `counts[i]` of them, for one i after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


# Words in random order; one that would overrun the number of tokens to mask is left out.
# Source: google-research/bert, create_pretraining_data.py, do_whole_word_mask. There a second
# segment that begins within a word joins the last word of the first; here it does not.
choose_whole_words = functools.partial(_choose_runs, weights=(1.0,), drop_at_overlap=True)

# Runs of one to three words, fewer where the drawn number would overrun the number to mask. A run
# that meets a chosen word is dropped and its words stay free for others, as released.
# Source: google-research/albert, create_pretraining_data.py (there runs reach over a [SEP]).
choose_ngrams = functools.partial(_choose_runs, weights=NGRAM_WEIGHTS, drop_at_overlap=True)

# Runs of one to ten words that end before the number to mask is overrun or at a chosen word.
# Source: Joshi et al. 2020, section 3.1: complete words, each as likely to be the start. The
# released SpanBERT starts at the word of a random token (a long word is likelier), lets the budget
# cut the last word, and goes on behind a chosen word.
choose_spans = functools.partial(_choose_runs, weights=SPAN_WEIGHTS, drop_at_overlap=False)
