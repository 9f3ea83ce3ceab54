"""Paragraph to sentences, by rules that need no download and give the same answer everywhere.

`SPLITTERS` has them all: our rules, one sentence per line, and the library of Wikimedia, which
knows the abbreviations of more languages. By our rules a sentence ends at . ! ? and their like in
other scripts before white space, unless the word before a period is an abbreviation or an initial,
or the next word starts in lower case; and at a mark that means nothing else, such as 。 or the
danda, whatever follows. Quotes and brackets that close behind the mark belong to the sentence. In
doubt two sentences stay one, which costs the pair objective less than a cut inside a sentence.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# After these a name or a number follows, so that a capital letter or a digit means nothing.
BEFORE_NAMES = _words(
    "adm al art capt ch col dr ed eds eq eqs fig figs gen gov hon lt maj messrs mr mrs ms no nos "
    "p pp prof ref refs rep rev sec sen sgt st vol vs cf viz i.e e.g approx resp op ser "
    # Russian, Ukrainian, Bulgarian and Serbian
    "акад бр буд бул вул гл гр див доц др им инж кв корп коп млн млрд наб напр обл оз пер пл пос "
    "пр просп проф рис рр руб св см ст стр табл тел тов тыс ул чел экз "
    # "Dr.", "Prof." and "Mr." in the scripts of India
    "डॉ डा प्रो पं श्री कु स्व मि रु ডা ডঃ মি মো ડૉ ડો શ્રી ਡਾ ਪ੍ਰੋ டாக்டர் திரு డా శ్రీ ಡಾ ಶ್ರೀ ഡോ ശ്രീ"
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

# Marks that end a sentence before white space: Arabic ؟ and ۔, Armenian ։, N'Ko ߹, Syriac ܀܁܂.
_SPACED = ".!?…؟۔։߹܀܁܂"
# Marks that end one whatever follows: of China and Japan, India (danda; Santali ᱾᱿, Meitei ꯫),
# Ethiopia ።፧፨, Burma ။, Cambodia ។៕, Tibet །༎, Mongolia ᠃᠉, Java ꧉, Canada ᙮ and the Vai ꘎꘏.
_ALONE = "。！？｡．﹒﹖﹗।॥᱾᱿꯫።፧፨။។៕།༎᠃᠉꧉᙮꘎꘏"
_MARKS = frozenset(f"{_SPACED}{_ALONE}፡")
_OPENING = "\"'“‘«([{„‚‹¿¡"
# With the marks of direction that follow punctuation in Arabic and Hebrew.
_CLOSING = "\"'”’»›)]}」』）】》〉〕〗］｝｣＂＇\u200e\u200f\u202c\u2069"
# German and its neighbours close with what English and French open with.
_CLOSING_BEFORE_SPACE = f"{_CLOSING}“‘«‹"
# All marks in one set at the front, which the regular expression engine searches fastest. Only the
# first of a row of marks begins a match, so that a line of a million dots takes no longer than any.
# Tibetan repeats its mark after a space, a verse has its number between dandas, Amharic may write
# two word spaces ፡ for ።, and French has a space before the guillemet.
_END = re.compile(
    rf"[{_SPACED}{_ALONE}፡](?:"
    rf"(?<=[{_SPACED}])(?<![{_SPACED}][{_SPACED}])[{_SPACED}]*"
    rf"[{re.escape(_CLOSING_BEFORE_SPACE)}]*(?=\s)(?:\s[»›](?!\S))?"
    rf"|(?<=[{_ALONE}])[{_ALONE}!?…]*(?:\s+[།༎]+)*(?:\s*\d+\s*[।॥]+)?"
    rf"[{re.escape(_CLOSING)}]*"
    rf"|(?<=፡)፡+[{re.escape(_CLOSING)}]*)"
)
# No sentence begins with a comma; and "។ល។" is the Khmer "etc.".
_GOES_ON = (*"，、；,;", "ល។")
_RARE_WHITE_SPACE = re.compile(r"[^\S ]")
# "U.S", "т.е", "कि.मी": in other scripts than ours letters may have marks, and more than one stand.
_LETTERS = re.compile(
    r"(?:[A-Za-z]\.)+[A-Za-z]|(?=.*[^\x00-\x7f])(?:[^\s.\d]{1,4}\.)+[^\s.\d]{1,4}"
)
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
        # "1." before a sentence is the number of a list item, and a mark may open a text: "༄༅།".
        is_alone = match.group()[0] not in _SPACED
        begin = max(start, match.start() - 40) if is_alone else start
        before = paragraph[begin : match.start()].strip()
        if before.isdigit() or (is_alone and not any(map(str.isalnum, before))):
            continue
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


def are_inside_words(
    texts: Sequence[str], split: Sequence[Sequence[str]]
) -> Bool[np.ndarray, " sentences"]:
    """Returns which sentences of all texts follow the one before without white space.

    `split` are the sentences of each text. One that a splitter has changed counts as behind space.
    """
    inside = []
    for text, parts in zip(texts, split, strict=True):
        place = 0
        for sentence in parts:
            begin = text.find(sentence, place)
            inside.append(begin > 0 and not text[begin - 1].isspace())
            place = max(place, begin + len(sentence))
    return np.array(inside, bool)


def ends_with_mark(sentence: str) -> bool:
    """Returns whether a sentence ends with a mark that the rules know; quotes may follow it."""
    return sentence.rstrip(f"{_CLOSING_BEFORE_SPACE} \xa0\u202f")[-1:] in _MARKS


def lacks_case(text: str) -> bool:
    """Returns whether most letters of a text are of scripts that begin no word with a capital."""
    letters = {one: n for one, n in collections.Counter(text).items() if one.isalpha()}
    without = sum(n for one, n in letters.items() if not (one.isupper() or _is_lower_case(one)))
    return 2 * without > sum(letters.values())


def split_with_sentencex(paragraph: str, language: str = "en") -> list[str]:
    """Returns the sentences of one paragraph by Wikimedia's rules for `language` (ISO 639 code).

    Joined without white space they are the paragraph without white space.
    """
    # sentencex 1.0 panics at an initial after a white space of several bytes.
    plain = _RARE_WHITE_SPACE.sub(" ", paragraph)
    pieces = _sentencex_segment()(language, plain)
    return [piece.strip() for piece in pieces if piece.strip()]


def splitter(name: str) -> Callable[[str], list[str]]:
    """Returns the splitter of that name; "sentencex:de" is the one for German, for example."""
    kind, _, language = name.partition(":")
    if kind not in SPLITTERS or (language and kind != "sentencex"):
        raise ValueError(
            f"sentence_splitter is {name!r}; it must be one of {', '.join(SPLITTERS)}, or "
            "sentencex:LANGUAGE with the code of a language, like sentencex:de"
        )
    if language and language not in SENTENCEX_LANGUAGES.split():
        raise ValueError(
            f"sentence_splitter is {name!r}, but sentencex has no rules for {language!r} and would "
            f"take those of English; it knows {SENTENCEX_LANGUAGES.replace(' ', ', ')}: give the "
            "one that is nearest, or use --sentence_splitter=rules"
        )
    if kind == "sentencex":
        _sentencex_segment()  # so that it is missed now, not in a worker
    return functools.partial(SPLITTERS[kind], language=language) if language else SPLITTERS[kind]


SPLITTERS: dict[str, Callable[..., list[str]]] = {
    "rules": split_paragraph,
    "lines": split_line,
    "sentencex": split_with_sentencex,
}


# The languages with rules of their own in sentencex 1.0.32, which has no list of them; it takes
# another language for a neighbour, or for English.
SENTENCEX_LANGUAGES = (
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
)


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
    mark, end = match.group(), match.end()
    if mark[0] not in ".!?…" and paragraph.endswith(("(", "（"), 0, match.start()):
        return False  # "(؟)"
    if mark[0] not in _SPACED:
        is_point = mark in "．﹒" and paragraph[end : end + 1].isdigit()
        return not (is_point or paragraph.startswith(_GOES_ON, end))
    following = paragraph[end : end + 40].split(maxsplit=1)
    if not following:
        return True
    # French has a space behind the opening guillemet.
    next_word = following[-1 if following[0] == "«" else 0].lstrip(_OPENING)
    if not next_word or _is_lower_case(next_word[0]):
        return False
    if mark[0] != "." or mark[1:2] in _MARKS:
        return True
    before = paragraph[max(0, match.start() - 40) : match.start()]
    last_word = _LAST_WORD.search(before)
    return _period_ends_sentence(last_word.group() if last_word else "", next_word)


def _is_lower_case(letter: str) -> bool:
    """Returns whether another letter would stand in its place at the beginning of a sentence.

    Georgian has capitals for headings alone: `str.title` leaves its letters, `str.upper` does not.
    """
    return letter.islower() and not letter.upper() != letter == letter.title()


def _is_initial(word: str) -> bool:
    """Returns whether a word is a capital, or a letter of an alphabet from Cyrillic to Georgian.

    In the order of Unicode; Hangul and Chinese, where one character may be a sentence, come later.
    """
    return len(word) == 1 and (word.isupper() or ("\u0400" <= word <= "\u10ff" and word.isalpha()))


def _period_ends_sentence(last_word: str, next_word: str) -> bool:
    """Returns whether the period after `last_word` is a full stop, given a non-lower-case word."""
    if "\u0e01" <= last_word[-1:] <= "\u0eff":
        return False  # Thai and Lao have it in abbreviations alone.
    lowered = last_word.lower()
    if lowered in BEFORE_NAMES:
        # "no." and its like end sentences too, but not before a number or a capitalized name.
        return next_word.rstrip(",;:.") in SENTENCE_STARTERS and lowered not in ("i.e", "e.g")
    is_initial = _is_initial(last_word)
    if is_initial or lowered in AMBIGUOUS or _LETTERS.fullmatch(last_word):
        return next_word.rstrip(",;:.") in SENTENCE_STARTERS and not (
            is_initial and next_word in ("A", "I")
        )
    return True
