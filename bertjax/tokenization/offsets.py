"""Folding of text that keeps the place of every character in the original.

`wordpiece` and `sentence_piece` decide the order of the steps.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int

# A folded character and the original characters [start, end) that it stands for. Several of them
# have the same place where one character became several.
Placed = list[tuple[str, int, int]]


def placed(text: str) -> Placed:
    """Returns the characters of a text, each for itself."""
    return [(character, place, place + 1) for place, character in enumerate(text)]


def replaced(text: Placed, replacement: Callable[[str], str]) -> Placed:
    """Returns the text with each character replaced by none, one or several."""
    return [(new, start, end) for character, start, end in text for new in replacement(character)]


def lowered(text: Placed, lower: Callable[[str], str] = str.lower) -> Placed:
    """Returns the text in lower case.

    Only the sigma depends on what stands around it, and both of its forms are one character: the
    places are right, and the sigma is the one inside a word.
    """
    return replaced(text, lower)


def original(
    places: Sequence[tuple[int, int]],
    length: int,
    starts: Int[np.ndarray, " tokens"],
    ends: Int[np.ndarray, " tokens"],
) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]:
    """Returns where spans of folded text start and end in the original, of `length` characters.

    `places` has the place of each folded character. An empty span stays empty.
    """
    firsts, lasts = np.array([*places, (length, length)], np.int32).T
    return firsts[starts], np.where(starts == ends, firsts[starts], lasts[ends - 1])


def joined(text: Placed, pair: str) -> Placed:
    """Returns the text with two characters as one wherever they follow each other."""
    result: Placed = []
    for character, start, end in text:
        if result and result[-1][0] + character == pair:
            result[-1] = (pair, result[-1][1], end)
        else:
            result.append((character, start, end))
    return result


def composed(text: Placed, form: Literal["NFC", "NFKC"]) -> Placed:
    """Returns the text in a normal form that composes characters.

    Characters that change together have the place of all of them.

    Source: Unicode Standard Annex 15. A character that combines with nothing before it, neither
    as a mark nor as a second letter (Hangul, some Indic vowels), starts a new part.
    """
    parts: list[Placed] = []
    for one in text:
        if not parts or _starts_part(parts[-1], one[0], form):
            parts.append([one])
        else:
            parts[-1].append(one)
    result: Placed = []
    for part in parts:
        before = "".join(character for character, _, _ in part)
        after = unicodedata.normalize(form, before)
        if before == after:
            result += part
        else:
            result += [(character, part[0][1], part[-1][2]) for character in after]
    return result


def _starts_part(part: Placed, character: str, form: Literal["NFC", "NFKC"]) -> bool:
    if unicodedata.combining(character):
        return False
    before = "".join(one[0] for one in part)
    together = unicodedata.normalize(form, before + character)
    return together == unicodedata.normalize(form, before) + unicodedata.normalize(form, character)


def without_accents(
    text: Placed, form: Literal["NFD", "NFKD"], is_accent: Callable[[str], bool]
) -> Placed:
    """Returns the text without accents, in a normal form in which they are characters.

    The place of an accent goes to the character that it stands on.

    Source: Unicode Standard Annex 15: each character decomposed, then each run of combining
    characters in the order of their classes.
    """
    parts: Placed = []
    base: int | None = None
    # Before they change their order, or characters between would also belong to the base.
    for character, start, end in replaced(text, lambda whole: unicodedata.normalize(form, whole)):
        parts.append((character, start, end))
        if not is_accent(character):
            base = None if character.isspace() else len(parts) - 1
        elif base is not None:
            parts[base] = (*parts[base][:2], end)
    ordered: Placed = []
    for _, run in itertools.groupby(parts, key=lambda part: unicodedata.combining(part[0]) > 0):
        ordered += sorted(run, key=lambda part: unicodedata.combining(part[0]))
    return [part for part in ordered if not is_accent(part[0])]
