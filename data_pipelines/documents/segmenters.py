"""Words of text that has no spaces between them: which tokens are masked together.

`SEGMENTERS` has them all: each character of such a script by itself, or the words of a library. A
segmenter changes no token; it tells which tokens continue the word of the token before them. A
piece of the vocabulary that reaches over the end of a word belongs to the word in which it begins.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import regex
from jaxtyping import Bool, Int

from bertjax.tokenization import japanese, tokenizer
from data_pipelines.reports import scripts

BY_VOCABULARY = "vocabulary"  # its own rule, such as "##": no segmenter
WORD_END = "\x1f"  # the separator of units, which is in no text that was read

# The places in a text where a word, or what stands between words, begins.
Starts = Iterable[int]
Segment = Callable[[str], Starts]

# A character of a script without spaces, a word of any other, or what stands between; with marks.
_CHARACTERS = regex.compile(
    rf"[{scripts.UNSPACED_BLOCKS}]\p{{M}}*|(?:(?![{scripts.UNSPACED_BLOCKS}])[\w\p{{M}}])+|.",
    regex.DOTALL,
)


class Segmenter(NamedTuple):
    """How words are found; the extra of bertjax for it, and the packages that decide the words."""

    open: Callable[[], Segment]
    extra: str = ""
    packages: tuple[str, ...] = ()


@functools.cache
def segmenter(name: str) -> Segment:
    """Returns the function that finds the words of a text; in each process it is loaded once."""
    try:
        return SEGMENTERS[name].open()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the segmenter {name} needs {error.name}, which is not installed: "
            f"pip install 'bertjax[{SEGMENTERS[name].extra}]'"
        ) from error


def versions(name: str) -> dict[str, str]:
    """Returns the version of each package by which a segmenter finds words."""
    return {package: metadata.version(package) for package in SEGMENTERS[name].packages}


def marked(text: str, segment: Segment) -> str:
    """Returns a text without white space, with WORD_END between its words."""
    starts = sorted({0, *segment(text), len(text)})
    return WORD_END.join(text[first:end] for first, end in itertools.pairwise(starts))


def continuing(
    texts: Sequence[str],
    lengths: Int[np.ndarray, " texts"],
    vocabulary: tokenizer.Tokenizer,
    segment: Segment,
) -> Bool[np.ndarray, " tokens"]:
    """Returns which tokens of all texts continue a word; `lengths` are the texts' tokens."""
    parts = []
    for text, length in zip(texts, lengths.tolist(), strict=True):
        _, starts, _ = vocabulary.encode_with_offsets(text)
        if len(starts) != length:
            raise ValueError(
                f"the words of {text!r:.200} cannot be stored: the vocabulary makes {length} "
                f"tokens of it, but {len(starts)} with places"
            )
        begins = np.zeros(len(text) + 1, bool)
        begins[list(segment(text))] = True
        # The pieces of one character, such as its bytes, have one place.
        parts.append(~begins[starts] | (np.diff(starts, prepend=-1) == 0))
    return np.concatenate([np.zeros(0, bool), *parts])


def _characters() -> Segment:
    return lambda text: (match.start() for match in _CHARACTERS.finditer(text))


def _jieba() -> Segment:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its source, which is from 2020
        jieba = importlib.import_module("jieba")
    jieba.setLogLevel(logging.WARNING)
    words = jieba.Tokenizer()
    # It reads a file of /tmp, which anyone may have written, unless it has a directory of its own.
    with tempfile.TemporaryDirectory() as directory:
        words.tmp_dir = directory
        words.initialize()
    return lambda text: (start for _, start, _ in words.tokenize(text))


def _fugashi() -> Segment:
    tagger = japanese.tagger({})
    return lambda text: _placed(text, (word.surface for word in tagger(text)))


def _pythainlp() -> Segment:
    # It makes a directory in the user's home, for what it might download.
    os.environ.setdefault("PYTHAINLP_READ_ONLY", "1")
    tokenize = importlib.import_module("pythainlp.tokenize")
    return lambda text: _placed(text, tokenize.word_tokenize(text, engine="newmm"))


def _icu() -> Segment:
    breakers: Any = importlib.import_module("icu4py.breakers")
    # Its dictionaries follow from the script; a language only decides details. (Its places count
    # units of UTF-16.)
    return lambda text: _placed(text, map(str, breakers.WordBreaker(text, "")))


def _placed(text: str, words: Iterable[str]) -> Iterator[int]:
    """Yields where each word begins, and what stands between two of them."""
    end = 0
    for word in words:
        start = text.index(word, end)
        yield end
        yield start
        end = start + len(word)
    yield end


SEGMENTERS: dict[str, Segmenter] = {
    "characters": Segmenter(_characters),
    "jieba": Segmenter(_jieba, "chinese", ("jieba",)),
    "fugashi": Segmenter(_fugashi, "japanese", ("fugashi", "unidic-lite")),
    "pythainlp": Segmenter(_pythainlp, "thai", ("pythainlp",)),
    "icu": Segmenter(_icu, "icu", ("icu4py",)),
}
