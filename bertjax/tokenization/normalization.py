"""Rules for a text before it is cut into tokens: a Unicode form, case, accents.

The released models have rules of their own (`RELEASED`): BERT's cased and uncased rule in
`wordpiece`, the rule of a model's file in `sentence_piece`. The rules here lose no letter and no
mark.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, Literal, cast

from bertjax.options import faults
from bertjax.tokenization import offsets

RELEASED = "released"
# Rules of our own -> the Unicode normal form of the text; "" keeps it as it is.
FORMS: dict[str, str] = {"none": "", "nfc": "NFC", "nfkc": "NFKC"}

# Name of a choice -> arguments of a tokenizer.
CHOICES: dict[str, Mapping[str, Any]] = {
    **{name: {"normalization": name} for name in FORMS},
    "bert_cased": {"lowercase": False},
    "bert_uncased": {"lowercase": True},
}

# Languages with a dotted and a dotless I, which Unicode's lower-casing mixes up.
DOTTED_I_LANGUAGES = ("tr", "az")
# In this order. The first is a capital I and a dot above.
LOWERED_I = {"I\u0307": "i", "\u0130": "i", "I": "\u0131"}

# Format characters that no reader sees: the soft hyphen, marks of direction and their kind, and
# the byte order mark. All others of the category Cf stay, such as the zero-width joiners of Indic
# scripts and Persian; the zero-width space is a space.
INVISIBLE = frozenset(
    "\u00ad\u061c\u200e\u200f\ufeff"
    + "".join(map(chr, [*range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC)]))
)
ZERO_WIDTH_SPACE = "\u200b"


def check(name: str, *, lowercase: bool, strip_accents: bool, language: str) -> None:
    """Raises a ValueError if these rules are unknown or do not go together."""
    if name not in (*FORMS, RELEASED):
        raise faults.unknown("normalization", name, (*FORMS, RELEASED))
    if name != RELEASED and (lowercase or strip_accents):
        raise ValueError(
            f"the text is to be lower-cased or to lose its accents, and normalization {name!r} "
            "keeps both: choose one of them"
        )
    if language and (language not in DOTTED_I_LANGUAGES or not (lowercase and strip_accents)):
        must = f"{' or '.join(DOTTED_I_LANGUAGES)}, and case and accents must go (bert_uncased)"
        raise faults.wrong("the language of lower-casing", language, must)


def is_dropped(character: str) -> bool:
    """Returns whether the rules here leave out a character: invisible ones and controls."""
    if character in INVISIBLE or character == "\ufffd":
        return True
    return unicodedata.category(character) == "Cc" and not character.isspace()


def is_space(character: str) -> bool:
    """Returns whether the rules here take a character for white space."""
    return character.isspace() or character == ZERO_WIDTH_SPACE


def _replacement(character: str) -> str:
    if is_space(character):
        return " "
    return "" if is_dropped(character) else character


class _Cleaned(dict):
    """The table of `_replacement` for str.translate, filled as characters are met."""

    def __missing__(self, code_point: int) -> str:
        value = self[code_point] = _replacement(chr(code_point))
        return value


_CLEANED = _Cleaned()


def in_form(name: str, text: str) -> str:
    """Returns the text in the Unicode normal form of one of `FORMS`; as it is for any other."""
    form = cast(Literal["NFC", "NFKC"], FORMS.get(name, ""))
    return unicodedata.normalize(form, text) if form and not text.isascii() else text


def composed(name: str, text: offsets.Placed) -> offsets.Placed:
    """Returns the characters of `in_form`, each with its place in the text."""
    form = cast(Literal["NFC", "NFKC"], FORMS.get(name, ""))
    whole = "".join(character for character, _, _ in text)
    is_composed = not form or unicodedata.is_normalized(form, whole)
    return text if is_composed else offsets.composed(text, form)


def applied(name: str, text: str) -> str:
    """Returns the text by one of `FORMS`: white space as spaces, nothing invisible."""
    return in_form(name, text.translate(_CLEANED))


def placed(name: str, text: str) -> offsets.Placed:
    """Returns the characters of `applied` with their places in `text`."""
    return composed(name, offsets.replaced(offsets.placed(text), _replacement))


def lowered(text: str, language: str = "") -> str:
    """Returns the text in lower case: I as ı and İ as i in languages that have both."""
    if language:
        for capital, small in LOWERED_I.items():
            text = text.replace(capital, small)
    return text.lower()


def marks_kept(text: str, *, lowercase: bool, language: str = "") -> str:
    """Returns the text with all of its letters and marks, to compare what rules make of it."""
    text = applied("nfc", text)
    return in_form("nfc", lowered(text, language)) if lowercase else text
