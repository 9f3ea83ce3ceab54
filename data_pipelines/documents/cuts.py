"""Sentences whose ends no rule knows, cut where their tokens fill half an example.

Text without full stops (Thai, speech, tables) would otherwise be one sentence for each paragraph,
of which an example shows the beginning alone. Only the borders of sentences change: their tokens
stay what they are in the whole text.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import regex
from jaxtyping import Bool, Int

from bertjax.tokenization import token_ids
from data_pipelines.documents import sentences

# No sentence has more tokens: the longest one in the documentation of 27 Python packages has 357
# (a vocabulary of 8,192).
LONGEST_SENTENCE = 512

# The zero-width space stands between the words of Khmer and Burmese.
_SPACE = regex.compile(r"[\s\u200b]")
_GRAPHEME = regex.compile(r"\X")

Lengths = Int[np.ndarray, " sentences"]
Pieces = Int[np.ndarray, " pieces"]


def cut(
    texts: Sequence[str],
    lengths: Lengths,
    document_of: Lengths,
    vocabulary: token_ids.Tokenizer,
    most: int,
) -> tuple[Pieces, Pieces]:
    """Returns the numbers of tokens of the sentences after the cuts, and their documents.

    A sentence of more than `most` tokens is cut at the last white space before that, else at the
    last border of a grapheme cluster (Unicode Standard Annex 29), if it has no end that the rules
    know: the paragraph ends without one, in a script without case; or, in any script,
    `LONGEST_SENTENCE` tokens follow each other without one.
    """
    places = np.flatnonzero(_lacks_end(texts, lengths, document_of, most))
    pieces = {place: _pieces(texts[place], vocabulary, most) for place in places.tolist()}
    counts = np.ones(len(lengths), np.int64)
    counts[places] = [len(sizes) for sizes in pieces.values()]
    after = np.repeat(lengths, counts)
    ends = np.cumsum(counts)
    for place, sizes in pieces.items():
        after[ends[place] - len(sizes) : ends[place]] = sizes
    return after, np.repeat(document_of, counts)


def _lacks_end(
    texts: Sequence[str], lengths: Lengths, document_of: Lengths, most: int
) -> Bool[np.ndarray, " sentences"]:
    """Returns which sentences have more than `most` tokens and no end that the rules know."""
    is_long = lengths > most
    if not is_long.any():
        return is_long
    has_mark = np.fromiter(map(sentences.ends_with_mark, texts), bool, len(texts))
    begins_stretch = np.ones(len(texts), bool)
    begins_stretch[1:] = has_mark[:-1] | (document_of[1:] != document_of[:-1])
    stretch = np.cumsum(begins_stretch) - 1
    is_endless = np.bincount(stretch, lengths)[stretch] > LONGEST_SENTENCE
    for place in np.flatnonzero(is_long & ~has_mark & ~is_endless).tolist():
        is_endless[place] = sentences.lacks_case(texts[place])
    return is_long & is_endless


def _pieces(text: str, vocabulary: token_ids.Tokenizer, most: int) -> list[int]:
    """Returns the numbers of tokens of the pieces of a text."""
    _, starts, ends = vocabulary.encode_with_offsets(text)
    spaces_before = np.zeros(len(text) + 1, np.int64)
    spaces_before[[match.end() for match in _SPACE.finditer(text)]] = 1
    spaces_before = np.cumsum(spaces_before)
    is_border = np.zeros(len(text) + 1, bool)
    is_border[[match.end() for match in _GRAPHEME.finditer(text)]] = True
    before, after = ends[:-1], starts[1:]  # the end and the start between which two tokens part
    at_space = spaces_before[after] > spaces_before[before]
    at_border = is_border[after] & (after >= before)  # Bytes of one character share its place.
    spaces, borders = ((np.flatnonzero(at) + 1).tolist() for at in (at_space, at_border))
    borders.append(len(starts))
    cuts = [0]
    while len(starts) - cuts[-1] > most:
        cuts.append(_next_cut(cuts[-1], most, spaces, borders))
    return np.diff([*cuts, len(starts)] if cuts[-1] < len(starts) else cuts).tolist()


def _next_cut(begin: int, most: int, spaces: list[int], borders: list[int]) -> int:
    for places in (spaces, borders):
        place = bisect.bisect_right(places, begin + most) - 1
        if place >= 0 and places[place] > begin:
            return places[place]
    # A single cluster has more tokens than that.
    return borders[bisect.bisect_right(borders, begin + most)]
