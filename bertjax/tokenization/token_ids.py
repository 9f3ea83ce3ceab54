"""The base of all tokenizers, and flat arrays of ids."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Bool, Int

from bertjax.tokenization import normalization as normalization_lib

MASK = "[MASK]"
_SURROGATES = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"\S+")

# Our fields of tokenizer_config.json, and of what manifests keep.
NORMALIZATION_FIELD, LANGUAGE_FIELD = "normalization", "lowercase_language"
CUTS_FIELD, COMPOSES_FIELD = "cuts_long_words", "composes"
# The rules for a text, as `describe` names them; one that is missing is the released rule.
RULES = (
    *("kind", "lowercase", "strip_accents", NORMALIZATION_FIELD, LANGUAGE_FIELD),
    *(CUTS_FIELD, COMPOSES_FIELD),
)
# The class that transformers reads such a vocabulary with: its own classes have other rules.
LIBRARY_CLASS = "PreTrainedTokenizerFast"

# The ids of several texts one after the other, and the number of ids of each text.
Flat = tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"]]
# As `Flat`, and which tokens begin a word.
FlatWords = tuple[
    Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"], Bool[np.ndarray, " tokens"]
]
# The ids of a text, and where in it each token starts and ends.
Placed = tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]


def without_surrogates(text: str) -> str:
    """Returns a text that UTF-8 can hold: halves of surrogate pairs become U+FFFD.

    JSON can spell them, and Python keeps bytes of the command line that are not UTF-8 so.
    """
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def flat(lists: Sequence[Sequence[int]]) -> Flat:
    """Returns the ids of all texts, one after the other, and the number of each text's."""
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    ids = itertools.chain.from_iterable(lists)
    return np.fromiter(ids, np.int32, int(lengths.sum())), lengths


def by_text(ids: Int[np.ndarray, " tokens"], lengths: Int[np.ndarray, " texts"]) -> list[list[int]]:
    """Returns the ids of each text from the arrays that `flat` returns."""
    ends = np.cumsum(lengths)
    return [part.tolist() for part in np.split(ids, ends[:-1])] if len(lengths) else []


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns [start, end) without the white space at both ends."""
    part = text[start:end]
    start = end - len(part.lstrip())
    return start, start + len(text[start:end].rstrip())


class Tokenizer:
    """A tokenizer for building, masking and inference; the base of every kind.

    Encoding adds neither [CLS] nor [SEP]. `special_ids` are pad, unk (unless nothing is unknown,
    where `unk_id` is -1), cls, sep and mask.
    `continues_word` is true for the entries that belong to the word of the entry before them.
    `normalization`, `lowercase` and `strip_accents` are the rules for a text before it is cut, and
    `language` is the rule for the letter I; see `normalization`.
    `base` is the tokenizer without `added_tokens`, which other files than its own add to it.
    `keeps_blanks` is true if white space is part of the tokens: a single word then has the ids
    that it has inside a text only with a space before it, and a mask takes the space before it.
    `letters` are the entries' letters if a text is a sequence (the module `letters`), else none.
    """

    kind: str
    vocabulary: tuple[str, ...]
    vocab_size: int
    lowercase: bool = False
    strip_accents: bool = False
    normalization: str = normalization_lib.RELEASED
    language: str = ""
    keeps_blanks: bool = False
    letters: frozenset[str] = frozenset()
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    continues_word: Bool[np.ndarray, " vocabulary"]
    added_tokens: Sequence[Any] = ()

    @property
    def base(self) -> Any:  # of any kind
        return self

    @property
    def pair_separators(self) -> int:
        """The number of separators between the two texts of a pair.

        Source: RoBERTa's <s> a </s></s> b </s>, fairseq, models/roberta/hub_interface.py, encode.
        """
        return 2 if self.token(self.sep_id) == "</s>" else 1

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; a literal "[MASK]" in it is ordinary text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode` of every text."""
        raise NotImplementedError

    def encode_flat(self, texts: Sequence[str]) -> Flat:
        """Returns the ids of all texts, concatenated, and the number of ids of each text.

        This is the fast way, in int32 and in one thread.
        """
        return flat(self.encode_batch(texts))

    def encode_with_words(self, texts: Sequence[str]) -> FlatWords:
        """Returns `encode_flat`, and which tokens begin a word, as `str.split` has words.

        A word without a token has no start.
        """
        ids, lengths = self.encode_flat(texts)
        words = [text.split() for text in texts]
        distinct = dict.fromkeys(itertools.chain.from_iterable(words))
        blank = " " if self.keeps_blanks else ""
        _, sizes = self.encode_flat([blank + word for word in distinct])
        numbers = dict(zip(distinct, itertools.count(), strict=False))
        of_words = map(numbers.__getitem__, itertools.chain.from_iterable(words))
        counts = np.fromiter(map(len, words), np.int64, len(words))
        sizes = sizes[np.fromiter(of_words, np.int64, counts.sum())]
        text_of = np.repeat(np.arange(len(texts)), counts)
        # Where the words one by one have other numbers of tokens than the text, its places decide.
        fits = np.bincount(text_of, sizes, len(texts)) == lengths
        begins, ends = np.zeros(len(ids), bool), np.cumsum(lengths, dtype=np.int64)
        for place in np.flatnonzero(~fits).tolist():
            begun = begins[ends[place] - lengths[place] : ends[place]]
            begun[:] = self._words_by_offsets(texts[place], len(begun))
        is_used = fits[text_of] & (sizes > 0)
        before = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        shifts = ends - lengths - before[np.cumsum(counts) - counts]
        begins[(before[:-1] + shifts[text_of])[is_used]] = True
        return ids, lengths, begins

    def _words_by_offsets(self, text: str, length: int) -> Bool[np.ndarray, " tokens"]:
        """Returns which of the `length` tokens of a text are the first to reach into a word."""
        _, _, ends = self.encode_with_offsets(text)
        if len(ends) != length:
            raise ValueError(
                f"the words of {text!r:.200} cannot be counted: the vocabulary makes {length} "
                f"tokens of it, but {len(ends)} with places"
            )
        starts = [match.start() for match in _WORD.finditer(text)]
        first = np.searchsorted(np.maximum.accumulate(ends), starts, side="right")
        begins = np.zeros(length, bool)
        begins[first[first < length]] = True
        return begins

    def encode_with_offsets(self, text: str) -> Placed:
        """Returns the ids of `text`, and where in it each token starts and ends.

        `text[start:end]` are the characters as they were given, before case and accents went,
        without white space around; there may be none. Tokens of one character share its place.
        """
        raise NotImplementedError

    def split_at_masks(self, text: str) -> list[str]:
        """Returns the parts of a text between its literal masks."""
        names = "|".join(map(re.escape, dict.fromkeys((MASK, self.token(self.mask_id)))))
        return re.split(rf"\s*(?:{names})" if self.keeps_blanks else names, text)

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]" as `mask_id`.

        The mask's own name in the vocabulary is read as well.
        """
        first, *others = self.split_at_masks(text)
        ids = self.encode(first)
        for part in others:
            ids += [self.mask_id, *self.encode_after_mask(part)]
        return ids

    def encode_after_mask(self, text: str) -> list[int]:
        """Returns the ids of a text behind a mask."""
        return self.encode(text)

    def token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id."""
        return self.vocabulary[token_id]

    def surface(self, token_id: int) -> str:
        """Returns what a token reads as in a text, in place of a mask."""
        return self.token(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text: pieces joined into words, words joined by spaces."""
        raise NotImplementedError

    def normalized(self, text: str) -> str:
        """Returns the text as its words are looked up: without case or accents, if so."""
        return text

    def normalized_places(self, text: str) -> list[tuple[int, int]]:
        """Returns the [start, end) in `text` of each character of `normalized`."""
        return [(place, place + 1) for place in range(len(text))]

    def kept(self, text: str) -> str:
        """Returns the part of a text that the entries can spell, to find what is lost."""
        return self.normalized(text)

    def set_rules(
        self,
        lowercase: bool | None,
        strip_accents: bool | None,
        normalization: str,
        language: str,
        *,
        by_default: bool,
    ) -> None:
        """Sets what is done to a text.

        `lowercase=None` is the default of the kind, but false with a normalization that keeps
        everything; `strip_accents=None` follows `lowercase`, as released.
        """
        if lowercase is None:
            lowercase = by_default and normalization == normalization_lib.RELEASED
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.normalization, self.language = normalization, language
        normalization_lib.check(
            normalization,
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            language=language,
        )

    @property
    def rules(self) -> dict[str, Any]:
        """The rules for a text, as arguments of the class."""
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "normalization": self.normalization,
            "language": self.language,
        }

    def rules_for_hash(self) -> list[Any]:
        """Returns the rules as hashes have them; `own_rules` come last."""
        is_released = self.normalization == normalization_lib.RELEASED and not self.language
        more = [] if is_released else [self.normalization, self.language]
        return [self.lowercase, self.strip_accents, *more]

    def rules_for_file(self) -> dict[str, Any]:
        """Returns the fields of tokenizer_config.json: the names of transformers, and ours."""
        follows_case = self.strip_accents == self.lowercase
        fields: dict[str, Any] = {
            "do_lower_case": self.lowercase,
            "strip_accents": None if follows_case else self.strip_accents,
        }
        return fields | self.own_rules()

    def own_rules(self) -> dict[str, Any]:
        """Returns the rules that are not the released ones, by name."""
        own = (
            {}
            if self.normalization == normalization_lib.RELEASED
            else {NORMALIZATION_FIELD: self.normalization}
        )
        return own | ({LANGUAGE_FIELD: self.language} if self.language else {})

    def describe(self) -> dict[str, Any]:
        """Returns kind, sha256, vocab_size and the rules, as manifests keep them.

        A kind may have more: `merges_sha256` tells vocabularies of the same entries apart.
        """
        raise NotImplementedError

    def described(self, content: bytes) -> dict[str, Any]:
        """Returns what `describe` has of every kind, with the hash of `content`."""
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(content).hexdigest(),
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            **self.own_rules(),
        }

    def save(self, directory: epath.PathLike) -> None:
        """Writes files into `directory` from which `tokenizer.load` makes the same tokenizer."""
        raise NotImplementedError
