"""Functions that all tokenizers share: flat arrays of ids, special tokens, literal masks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

MASK = "[MASK]"

Flat = tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"]]


def flat(lists: Sequence[Sequence[int]]) -> Flat:
    """Returns the ids of all texts, one after the other, and the number of each text's."""
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    ids = itertools.chain.from_iterable(lists)
    return np.fromiter(ids, np.int32, int(lengths.sum())), lengths


def by_text(ids: Int[np.ndarray, " tokens"], lengths: Int[np.ndarray, " texts"]) -> list[list[int]]:
    """Returns the ids of each text from the arrays that `flat` returns."""
    ends = np.cumsum(lengths)
    return [part.tolist() for part in np.split(ids, ends[:-1])] if len(lengths) else []


class SpecialTokens:
    """A base of tokenizers: what follows from the names and ids of their special tokens.

    The vocabulary's own name of the mask is read like "[MASK]". `keeps_blanks`: white space is part
    of the tokens; then a mask takes the space before it, since it predicts tokens with their space.
    """

    keeps_blanks = False
    mask_id: int
    sep_id: int

    def token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id."""
        raise NotImplementedError

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text."""
        raise NotImplementedError

    @property
    def pair_separators(self) -> int:
        """The number of separators between the two texts of a pair.

        Source: RoBERTa's <s> a </s></s> b </s>, fairseq, models/roberta/hub_interface.py, encode.
        """
        return 2 if self.token(self.sep_id) == "</s>" else 1

    def split_at_masks(self, text: str) -> list[str]:
        """Returns the parts of a text between its literal masks."""
        names = "|".join(map(re.escape, dict.fromkeys((MASK, self.token(self.mask_id)))))
        return re.split(rf"\s*(?:{names})" if self.keeps_blanks else names, text)

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal mask as `mask_id`."""
        first, *others = self.encode_batch(self.split_at_masks(text))
        for part in others:
            first += [self.mask_id, *part]
        return first

    def surface(self, token_id: int) -> str:
        """Returns the text that a token stands for."""
        return self.token(token_id)
