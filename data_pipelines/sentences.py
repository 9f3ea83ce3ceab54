"""Paragraph to sentences, by rules that need no download and give the same answer everywhere.

`SPLITTERS` has them all: our rules, one sentence per line, and the library of Wikimedia, which
knows the habits of more languages. Ours are English-minded: a sentence ends at . ! ? (or their East
Asian forms) before white space, unless the word before the period is an abbreviation or an initial,
or the next word starts in lower case. In doubt two sentences stay one, which costs the pair
objective less than a cut inside a sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# After these a name or a number follows, so that a capital letter or a digit means nothing.
BEFORE_NAMES = _words(
    "adm al art capt ch col dr ed eds eq eqs fig figs gen gov hon lt maj messrs mr mrs ms no nos "
    "p pp prof ref refs rep rev sec sen sgt st vol vs cf viz i.e e.g approx resp op ser"
)
# These may end a sentence: they do when a capitalized word follows that often begins one.
AMBIGUOUS = _words(
    "a.d a.m b.c bros co corp dept est etc inc jan feb mar apr jun jul aug sep sept oct nov dec "
    "jr llc ltd p.m ph.d sr u.k u.n u.s u.s.a"
)
SENTENCE_STARTERS = _words(
    "A After All Although An And As At Because Before But By For From He Her Here However I If In "
    "It Its Many Most My No Note On One Our See She Since So Some Such That The Their Then There "
    "These They This Those Thus To Two Use We What When Where Which While With You Your"
)

_OPENING = "\"'“‘«([{"
_CLOSING = "\"'”’»)\\]}"
# All marks in one set at the front, which the regular expression engine searches fastest. Only the
# first of a row of marks begins a match, so that a line of a million dots takes no longer than any.
_END = re.compile(
    rf"[.!?…。！？｡](?:(?<=[。！？｡])[。！？｡]*+[{_CLOSING}」』）]*+"
    rf"|(?<=[.!?…])(?<![.!?…][.!?…])[.!?…]*+[{_CLOSING}]*+(?=\s))"
)
_RARE_WHITE_SPACE = re.compile(r"[^\S ]")
_LAST_WORD = re.compile(rf"[^\s{re.escape(_OPENING)}]*$")


def split_paragraph(paragraph: str) -> list[str]:
    """Returns the sentences of one paragraph, without surrounding white space.

    Joined with single spaces they are the paragraph again, except where it held other white space
    or East Asian sentence ends.
    """
    pieces, start = [], 0
    for match in _END.finditer(paragraph):
        if not _ends_sentence(paragraph, match):
            continue
        # "1." before a sentence is the number of a list item.
        if not paragraph[start : match.start()].strip().isdigit():
            pieces.append(paragraph[start : match.end()])
            start = match.end()
    pieces.append(paragraph[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def split_line(line: str) -> list[str]:
    """Returns the line as the one sentence it is: for input with one sentence per line."""
    return [line.strip()] if line.strip() else []


def split_document(text: str, splitter: Callable[[str], list[str]]) -> list[str]:
    """Returns the sentences of all paragraphs (lines) of a text; none spans two paragraphs."""
    return [sentence for line in text.split("\n") for sentence in splitter(line)]


def with_blanks(sentences: Sequence[str], is_first: Sequence[bool]) -> list[str]:
    """Returns the sentences with a blank before each that is not its document's first.

    For tokenizers that keep blanks: a sentence then has the tokens that it has in the text.
    """
    pairs = zip(sentences, is_first, strict=True)
    return [sentence if first or not sentence else f" {sentence}" for sentence, first in pairs]


def split_with_sentencex(paragraph: str, language: str = "en") -> list[str]:
    """Returns the sentences of one paragraph by Wikimedia's rules for `language` (ISO 639 code).

    Joined without white space they are the paragraph without white space.

    Raises:
      ValueError: if the package sentencex is not installed.
    """
    # sentencex 1.0 panics at an initial after a white space of several bytes.
    plain = _RARE_WHITE_SPACE.sub(" ", paragraph)
    pieces = _sentencex_segment()(language, plain)
    return [piece.strip() for piece in pieces if piece.strip()]


def splitter(name: str) -> Callable[[str], list[str]]:
    """Returns the splitter of that name; "sentencex:de" is the one for German, for example.

    Raises:
      ValueError: if there is none, or its package is not installed.
    """
    kind, _, language = name.partition(":")
    if kind not in SPLITTERS or (language and kind != "sentencex"):
        raise ValueError(
            f"sentence_splitter is {name!r}; it must be one of {', '.join(SPLITTERS)}, or "
            "sentencex:LANGUAGE with the code of a language, like sentencex:de"
        )
    if kind == "sentencex":
        _sentencex_segment()  # so that it is missed now, not in a worker
    return functools.partial(SPLITTERS[kind], language=language) if language else SPLITTERS[kind]


SPLITTERS: dict[str, Callable[..., list[str]]] = {
    "rules": split_paragraph,
    "lines": split_line,
    "sentencex": split_with_sentencex,
}


@functools.cache
def _sentencex_segment() -> Callable[[str, str], list[str]]:
    try:
        import sentencex
    except ImportError as error:
        raise ValueError(
            "the sentence splitter sentencex needs a package of that name: pip install sentencex"
        ) from error
    return sentencex.segment


def _ends_sentence(paragraph: str, match: re.Match[str]) -> bool:
    mark = match.group().rstrip("\"'”’»)]}")
    if mark[0] in "。！？｡":
        return True
    following = paragraph[match.end() : match.end() + 40].split(maxsplit=1)
    if not following:
        return True
    next_word = following[0].lstrip(_OPENING)
    if not next_word or next_word[0].islower():
        return False
    if mark != ".":
        return True
    before = paragraph[max(0, match.start() - 40) : match.start()]
    last_word = _LAST_WORD.search(before)
    return _period_ends_sentence(last_word.group() if last_word else "", next_word)


def _period_ends_sentence(last_word: str, next_word: str) -> bool:
    """Returns whether the period after `last_word` is a full stop, given a non-lower-case word."""
    lowered = last_word.lower()
    if lowered in BEFORE_NAMES:
        # "no." and its like end sentences too, but not before a number or a capitalized name.
        return next_word.rstrip(",;:.") in SENTENCE_STARTERS and lowered not in ("i.e", "e.g")
    is_initial = len(last_word) == 1 and last_word.isupper()
    if is_initial or lowered in AMBIGUOUS or re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]", last_word):
        return next_word.rstrip(",;:.") in SENTENCE_STARTERS and not (
            is_initial and next_word in ("A", "I")
        )
    return True
