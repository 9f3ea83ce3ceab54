"""Translations in records: a text and its translation in a row, which see each other.

Records of them are called by both languages, "en+fr". Their rows are pairs without a
label: segment 0 is in the first language, segment 1 in the second. Positions begin anew in segment
1, so that a word and its translation have about the same position. Masks hide words of both, so
that a model fills a word of one language by the text of the other.

Source: Conneau and Lample 2019, section 3.3 (TLM); facebookresearch/XLM, xlm/utils.py,
concat_batches. There both texts begin with </s> at position 0; here the first word of both has
position 1, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from bertjax.data import records

MARK = "+"  # between the names of the two languages


def languages(name: str) -> list[str]:
    """Returns the languages of records of this name: one, or the two of translations."""
    return name.split(MARK)


def are_named(name: str) -> bool:
    """Returns whether a name is of translations, not of one language."""
    return MARK in name


def are_in(manifest: records.Manifest) -> bool:
    """Returns whether records hold translations."""
    return any(map(are_named, manifest.languages))


def positions(batch: Mapping[str, np.ndarray]) -> Int[np.ndarray, "batch length"]:
    """Returns the position of each token in its text, which is a segment of a sequence.

    A second segment starts with 1, as the first one does after its [CLS].
    """
    segments = batch["segment_ids"]
    texts = 2 * records.sequence_ids(batch) + segments
    place = np.broadcast_to(np.arange(texts.shape[1], dtype=np.int32), texts.shape)
    begins = np.diff(texts, axis=1, prepend=texts[:, :1]) != 0
    first = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    return place - first + np.where(segments == 1, 1, 0).astype(np.int32)


def token_languages(
    of_rows: Int[np.ndarray, "batch 2"], batch: Mapping[str, np.ndarray]
) -> Int[np.ndarray, "batch length"]:
    """Returns the language of each token, by the languages of a row's first and second text."""
    return np.where(batch["segment_ids"] == 1, of_rows[:, 1:], of_rows[:, :1])
