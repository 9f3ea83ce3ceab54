"""The rows of a model from which a sentence has its score: each token masked once, or all as it is.

What a score is, is the objective's affair (`tasks`): here is what the model is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import padding, tokenizer


class Row(NamedTuple):
    """The tokens of a row without [CLS] and [SEP]; of the masked one its place and true id."""

    tokens: list[int]
    place: int
    token: int


def _next_places(continues: Bool[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    return np.arange(1, len(continues) + 1)


def _word_ends(continues: Bool[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    starts = ~continues
    starts[:1] = True
    ends = np.append(np.flatnonzero(starts)[1:], len(continues))
    return ends[np.cumsum(starts) - 1]


# Name -> for each token, the place where what is masked with it ends, of which tokens continue the
# word before them.
MASKINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "token": _next_places,
    "word_to_right": _word_ends,
}


def whole(vocabulary: tokenizer.Tokenizer, ids: Sequence[int], masking: str) -> Iterator[Row]:
    """Yields the tokens as they are, for objectives that score all of them at once."""
    del vocabulary, masking
    if len(ids):
        yield Row(list(ids), 0, 0)


def masked(vocabulary: tokenizer.Tokenizer, ids: Sequence[int], masking: str) -> Iterator[Row]:
    """Yields the tokens with each of them masked in turn."""
    tokens = np.asarray(ids, np.int32)
    ends = MASKINGS[masking](vocabulary.continues_word[tokens])
    for place, (token, end) in enumerate(zip(tokens, ends, strict=True)):
        row = tokens.copy()
        row[place:end] = vocabulary.mask_id
        yield Row(row.tolist(), place, int(token))


class Rows(NamedTuple):
    """The rows of a sentence: `of` makes them from its tokens, `count` counts them."""

    of: Callable[[tokenizer.Tokenizer, Sequence[int], str], Iterator[Row]]
    count: Callable[[Sequence[int]], int]


# `ScoresSentences.sentence_rows` -> the rows of a sentence, whose scores are added.
ROWS = {"each_token_masked": Rows(masked, len), "whole": Rows(whole, lambda ids: min(len(ids), 1))}


def batch(
    rows: Sequence[Row], vocabulary: tokenizer.Tokenizer, *, size: int, length: int
) -> dict[str, np.ndarray]:
    """Returns `size` rows as a model of masked tokens reads them; rows of padding fill up the rest.

    Keys are those of the records.
    """
    filled = [*rows, *[Row([], 0, 0)] * (size - len(rows))]
    is_real = (np.arange(size) < len(rows)).astype(np.float32)
    return {
        **padding.cls_rows([row.tokens for row in rows], vocabulary, length=length, size=size),
        "masked_lm_positions": np.array([[row.place + 1] for row in filled], np.int32),
        "masked_lm_ids": np.array([[row.token] for row in filled], np.int32),
        "masked_lm_weights": is_real[:, None],
        "example_weights": is_real,
    }
