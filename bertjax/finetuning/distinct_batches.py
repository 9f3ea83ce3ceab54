"""Batches in which no text stands twice: what losses over all rows of a batch need.

There the positive of one row is wrong for all others, so a text that stood in two rows would be
called right and wrong at once.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

FILLER = -1  # the place of a row that fills up a batch

# Rows that are moved try batches that are so many free rows away from the one of their length.
_TRIES = (0, *(sign * 2**power for power in range(24) for sign in (1, -1)))

_Steps = Int[np.ndarray, "steps batch"]
_Further = Int[np.ndarray, "further batch"]
_Texts = Int[np.ndarray, "examples texts"]


def separate(
    steps: _Steps, texts: _Texts, lengths: Int[np.ndarray, " examples"]
) -> tuple[_Steps, _Further]:
    """Returns batches with the same examples, none of which holds a text twice, and further ones.

    `steps` say which example stands where, FILLER nowhere; `texts` are numbers, an example's own
    may be equal. In each batch every example stays that shares no text with one before it. The
    others, by length, go to free rows of other batches, near the place of their length first, then
    further and further away. What still finds none goes to further batches, the last of the epoch:
    an example into the first of them behind all those that have one of its texts. Batches are of
    the same size, their rows to fill up the last.
    """
    steps, batch_size = steps.copy(), steps.shape[1]
    batches, rows = np.nonzero(steps != FILLER)
    examples = steps[batches, rows]
    codes = _Codes(int(texts.max(initial=0)) + 1)
    stays = _first_of_its_texts(codes.of(batches, texts[examples]))
    codes.take(batches[stays], texts[examples[stays]])
    moved = examples[~stays]
    steps[batches[~stays], rows[~stays]] = FILLER
    moved = moved[np.argsort(lengths[moved], kind="stable")]
    moved = _fill(steps, moved, codes, texts, lengths)
    fillers_last = np.argsort(steps == FILLER, axis=1, kind="stable")
    steps = np.take_along_axis(steps, fillers_last, axis=1)
    return steps, _further(moved, texts, batch_size)


class _Codes:
    """Which texts stand in which batches, as numbers: batch x texts + text."""

    def __init__(self, num_texts: int):
        self._num_texts = num_texts
        self._taken = np.zeros(0, np.int64)

    def of(
        self, batches: Int[np.ndarray, " rows"], texts: Int[np.ndarray, "rows texts"]
    ) -> Int[np.ndarray, "rows texts"]:
        return batches[:, None] * self._num_texts + texts

    def take(self, batches: Int[np.ndarray, " rows"], texts: Int[np.ndarray, "rows texts"]) -> None:
        added = self.of(batches, texts).reshape(-1)
        self._taken = np.sort(np.concatenate([self._taken, added]), kind="stable")

    def are_free(
        self, batches: Int[np.ndarray, " rows"], texts: Int[np.ndarray, "rows texts"]
    ) -> Bool[np.ndarray, " rows"]:
        """Returns which rows could be taken, each by itself."""
        wanted = self.of(batches, texts)
        places = np.searchsorted(self._taken, wanted).clip(max=max(len(self._taken) - 1, 0))
        return ~(self._taken[places] == wanted).any(axis=1)


def _first_of_its_texts(codes: Int[np.ndarray, "rows texts"]) -> Bool[np.ndarray, " rows"]:
    """Returns which rows have no code that a row before them has."""
    _, first, places = np.unique(codes.reshape(-1), return_index=True, return_inverse=True)
    owners = (first // codes.shape[1])[places.reshape(-1)].reshape(codes.shape)
    return (owners == np.arange(len(codes))[:, None]).all(axis=1)


def _fill(
    steps: _Steps,
    moved: Int[np.ndarray, " moved"],
    codes: _Codes,
    texts: _Texts,
    lengths: Int[np.ndarray, " examples"],
) -> Int[np.ndarray, " left"]:
    """Puts examples, the shortest first, into free rows of `steps`; returns those that fit none."""
    longest = np.where(steps == FILLER, 0, lengths[steps]).max(axis=1)
    batches, rows = np.nonzero(steps == FILLER)
    order = np.argsort(longest[batches], kind="stable")
    batches, rows = batches[order], rows[order]
    for shift in _TRIES:
        if not len(moved):
            break
        # There are as many free rows as examples, or more: no two get the same one.
        spread = np.arange(len(moved)) * len(batches) // len(moved)
        wanted = (spread + shift) % len(batches)
        fits = codes.are_free(batches[wanted], texts[moved])
        fits[fits] = _first_of_its_texts(codes.of(batches[wanted][fits], texts[moved[fits]]))
        taken = wanted[fits]
        steps[batches[taken], rows[taken]] = moved[fits]
        codes.take(batches[taken], texts[moved[fits]])
        moved = moved[~fits]
        batches, rows = np.delete(batches, taken), np.delete(rows, taken)
    return moved


def _further(moved: Int[np.ndarray, " moved"], texts: _Texts, batch_size: int) -> _Further:
    """Returns further batches of the examples, as few as this order of them allows."""
    behind: dict[int, int] = {}
    groups: list[list[int]] = []
    for example, own in zip(moved.tolist(), texts[moved].tolist(), strict=True):
        group = max(behind.get(text, 0) for text in own)
        behind.update(dict.fromkeys(own, group + 1))
        if group == len(groups):
            groups.append([])
        groups[group].append(example)
    cut = [
        group[start : start + batch_size]
        for group in groups
        for start in range(0, len(group), batch_size)
    ]
    further = np.full((len(cut), batch_size), FILLER, np.int64)
    for row, part in zip(further, cut, strict=True):
        row[: len(part)] = part
    return further
