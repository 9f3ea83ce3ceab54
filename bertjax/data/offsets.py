"""Folding of text that keeps, for every character, the place in the original that it stands for.

`wordpiece` and `sentence_piece` decide the order of the steps.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from typing import Literal

# A folded character and the original characters [start, end) that it stands for. Several of them
# have the same place where one character became several.
Placed = list[tuple[str, int, int]]


def placed(text: str) -> Placed:
    """Returns the characters of a text, each for itself."""
    return [(character, place, place + 1) for place, character in enumerate(text)]


def replaced(text: Placed, replacement: Callable[[str], str]) -> Placed:
    """Returns the text with each character replaced by none, one or several."""
    return [(new, start, end) for character, start, end in text for new in replacement(character)]


def lowered(text: Placed) -> Placed:
    """Returns the text in lower case.

    Only the sigma depends on what stands around it, and both of its forms are one character: the
    places are right, and the sigma is the one inside a word.
    """
    return replaced(text, str.lower)


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
    # Before they change their order: what stood between would belong to the base, too.
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
