"""What tokenizers of every kind do alike with the ids of texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

MASK = "[MASK]"

Flat = tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"]]


def flat(lists: Sequence[Sequence[int]]) -> Flat:
    """Returns the ids of all texts, one after the other, and how many each text has."""
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    ids = itertools.chain.from_iterable(lists)
    return np.fromiter(ids, np.int32, int(lengths.sum())), lengths


def by_text(ids: Int[np.ndarray, " tokens"], lengths: Int[np.ndarray, " texts"]) -> list[list[int]]:
    """Returns the ids of each text, of what `flat` returns."""
    ends = np.cumsum(lengths)
    return [part.tolist() for part in np.split(ids, ends[:-1])] if len(lengths) else []


# Name of the separator -> how many stand between two texts, where it is not one.
# Source: RoBERTa's <s> a </s></s> b </s>, fairseq, models/roberta/hub_interface.py, encode.
SEPARATORS_OF_PAIRS = {"</s>": 2}


@runtime_checkable  # Shape-checked tests ask isinstance.
class _Encoder(Protocol):
    keeps_blanks: bool

    @property
    def mask_id(self) -> int: ...

    @property
    def sep_id(self) -> int: ...

    def token(self, token_id: int) -> str: ...

    def split_at_masks(self, text: str) -> list[str]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


class SpecialTokens:
    """A tokenizer that reads a literal "[MASK]" where it is asked to, and knows its templates.

    The vocabulary's own name of the mask will do as well. `keeps_blanks`: white space is part of
    the tokens; then a mask takes what stands before it, as it predicts tokens with their blanks.
    """

    keeps_blanks = False

    @property
    def pair_separators(self: _Encoder) -> int:
        """How many separators stand between the two texts of a pair."""
        return SEPARATORS_OF_PAIRS.get(self.token(self.sep_id), 1)

    def split_at_masks(self: _Encoder, text: str) -> list[str]:
        """Returns what stands between the literal masks of a text."""
        names = "|".join(map(re.escape, dict.fromkeys((MASK, self.token(self.mask_id)))))
        return re.split(rf"\s*(?:{names})" if self.keeps_blanks else names, text)

    def encode_with_masks(self: _Encoder, text: str) -> list[int]:
        """Returns the ids of `text` with each literal mask as `mask_id`."""
        first, *others = self.encode_batch(self.split_at_masks(text))
        for part in others:
            first += [self.mask_id, *part]
        return first

    def surface(self: _Encoder, token_id: int) -> str:
        """Returns what a token reads as in a text."""
        return self.token(token_id)
