"""The rows of a model from which a sentence has its score: each token masked once, or all as it is.

What a score is, is the objective's affair (`tasks`): here is what the model is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import padding
from bertjax.tokenization import tokenizer


class Row(NamedTuple):
    """The tokens of a row without [CLS] and [SEP]; the places and true ids of those it scores."""

    tokens: list[int]
    places: list[int]
    ids: list[int]


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


def whole(
    vocabulary: tokenizer.Tokenizer, ids: Sequence[int], scored: Sequence[int], masking: str
) -> Iterator[Row]:
    """Yields the tokens as they are, for objectives that score all of them at once."""
    del vocabulary, masking
    if len(scored):
        yield Row(list(ids), list(scored), [ids[place] for place in scored])


def masked(
    vocabulary: tokenizer.Tokenizer, ids: Sequence[int], scored: Sequence[int], masking: str
) -> Iterator[Row]:
    """Yields the tokens with each of the scored ones masked in turn."""
    tokens = np.asarray(ids, np.int32)
    ends = MASKINGS[masking](vocabulary.continues_word[tokens])
    for place in scored:
        row = tokens.copy()
        row[place : ends[place]] = vocabulary.mask_id
        yield Row(row.tolist(), [place], [int(tokens[place])])


class Rows(NamedTuple):
    """The rows of a sentence.

    `of` makes them from its tokens and the places of those that count, `count` counts them by the
    number of these, and `width` is the most tokens that a row of a length scores.
    """

    of: Callable[[tokenizer.Tokenizer, Sequence[int], Sequence[int], str], Iterator[Row]]
    count: Callable[[int], int]
    width: Callable[[int], int]


# `ScoresSentences.sentence_rows` -> the rows of a sentence, whose scores are added.
ROWS = {
    "each_token_masked": Rows(masked, count=lambda scored: scored, width=lambda length: 1),
    "whole": Rows(whole, count=lambda scored: min(scored, 1), width=lambda length: length),
}


def batch(
    rows: Sequence[Row],
    vocabulary: tokenizer.Tokenizer,
    *,
    size: int,
    length: int,
    width: int,
    has_sep: bool = True,
) -> dict[str, np.ndarray]:
    """Returns `size` rows as a model of masked tokens reads them; rows of padding fill up the rest.

    Keys are those of the records. The `width` masked positions are those of the scored tokens.
    Without `has_sep` no [SEP] ends a row.
    """
    is_real = (np.arange(size) < len(rows)).astype(np.float32)
    tokens = padding.cls_rows([row.tokens for row in rows], vocabulary, length=length, size=size)
    positions, ids = np.zeros((2, size, width), np.int32)
    weights = np.zeros((size, width), np.float32)
    for number, row in enumerate(rows):
        scored = slice(len(row.places))
        positions[number, scored] = np.array(row.places) + 1
        ids[number, scored], weights[number, scored] = row.ids, 1.0
        if not has_sep:
            end = len(row.tokens) + 1
            tokens["input_ids"][number, end] = vocabulary.pad_id
            tokens["input_mask"][number, end] = 0
    return {
        **tokens,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
        "example_weights": is_real,
    }
