"""Words of Japanese text, as BertJapaneseTokenizer of transformers finds them.

MeCab, by fugashi with the dictionary unidic-lite or another one, cuts a text; a WordPiece
vocabulary, or one of characters, has the rest.
Source: transformers 5.24, models/bert_japanese/tokenization_bert_japanese.py.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from tokenizers import normalizers, pre_tokenizers

from bertjax.options import faults

CLASS = "BertJapaneseTokenizer"
# Values of word_tokenizer_type and of subword_tokenizer_type that are read.
WORDS, SUBWORDS = ("basic", "mecab"), ("wordpiece", "character")
FIELDS = ("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs")
DICTIONARIES = ("unidic_lite", "unidic", "ipadic")


class Words:
    """A pre-tokenizer of `tokenizers`: the words of MeCab, or the characters of these."""

    def __init__(self, config: Mapping[str, Any]):
        self._lowercase = bool(config.get("do_lower_case"))
        self._is_of_characters = config.get("subword_tokenizer_type") == "character"
        self._tagger: Any = None
        if config.get("word_tokenizer_type") == "mecab":
            self._tagger = tagger(config.get("mecab_kwargs") or {})

    def pre_tokenize(self, text: Any) -> None:
        """Cuts the text, which keeps its places."""
        if self._tagger is not None:
            text.split(self._cut)
        if self._is_of_characters:
            text.split(_characters)

    def _cut(self, _: int, text: Any) -> list[Any]:
        whole, place, words = str(text), 0, []
        for found in self._tagger(whole):
            start = whole.index(found.surface, place)
            place = start + len(found.surface)
            word = text[start:place]
            if self._lowercase:
                word.lowercase()
            words.append(word)
        return words


def _characters(_: int, word: Any) -> list[Any]:
    word.nfkc()
    return [word[place : place + 1] for place in range(len(str(word)))]


def check(config: Mapping[str, Any]) -> None:
    """Raises a ValueError listing the choices of a config that are not read."""
    choices = {
        "word_tokenizer_type": (config.get("word_tokenizer_type") or "basic", WORDS),
        "subword_tokenizer_type": (config.get("subword_tokenizer_type") or "wordpiece", SUBWORDS),
        "do_word_tokenize": (config.get("do_word_tokenize", True), (True,)),
        "do_subword_tokenize": (config.get("do_subword_tokenize", True), (True,)),
        "never_split": (config.get("never_split") or None, (None,)),
    }
    faults.check(
        f"{CLASS} has choices that cannot be read",
        (
            faults.unknown(name, value, values)
            for name, (value, values) in choices.items()
            if value not in values
        ),
    )


def normalizer(config: Mapping[str, Any]) -> normalizers.Normalizer | None:
    """Returns the normalizer of a text, which comes before it is cut; None for none."""
    if config.get("word_tokenizer_type") == "mecab":
        is_as_it_is = (config.get("mecab_kwargs") or {}).get("normalize_text") is False
        return None if is_as_it_is else normalizers.NFKC()
    lowercase = bool(config.get("do_lower_case"))
    basic = normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=lowercase)
    return normalizers.Sequence([normalizers.NFC(), basic])


def cutter(config: Mapping[str, Any]) -> pre_tokenizers.PreTokenizer:
    """Returns the pre-tokenizer; it cannot be written into a tokenizer.json."""
    words = pre_tokenizers.PreTokenizer.custom(Words(config))  # pyright: ignore
    if config.get("word_tokenizer_type") == "mecab":
        return words
    return pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), words])  # pyright: ignore


def tagger(options: Mapping[str, Any]) -> Any:
    """Returns MeCab with the dictionary that `mecab_kwargs` name, unidic-lite by default."""
    dictionary, more = options.get("mecab_dic", DICTIONARIES[0]), options.get("mecab_option") or ""
    if dictionary not in (None, *DICTIONARIES):
        raise faults.unknown("mecab_dic", dictionary, DICTIONARIES)
    try:
        fugashi = importlib.import_module("fugashi")
        place = importlib.import_module(dictionary).DICDIR if dictionary else ""
    except ModuleNotFoundError as error:
        raise ValueError(
            f"MeCab needs {error.name}, which is not installed: pip install fugashi "
            f"{(dictionary or '').replace('_', '-')} (the extra `japanese` has unidic-lite)"
        ) from error
    where = f'-d "{place}" -r "{os.path.join(place, "mecabrc")}" ' if place else ""
    return fugashi.GenericTagger(f"{where}{more}")
