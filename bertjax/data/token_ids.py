"""What tokenizers of every kind do alike with the ids of texts."""

from __future__ import annotations

import itertools
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


@runtime_checkable  # Shape-checked tests ask isinstance.
class _Encoder(Protocol):
    @property
    def mask_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


class ReadsMasks:
    """A tokenizer that reads a literal "[MASK]" where it is asked to."""

    def encode_with_masks(self: _Encoder, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]" as `mask_id`."""
        first, *others = self.encode_batch(text.split(MASK))
        for part in others:
            first += [self.mask_id, *part]
        return first
