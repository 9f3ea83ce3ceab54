"""The numbers of words seen at which a run keeps its checkpoint, and their names.

A mark is reached by the first step that has seen as many words, or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MILLION = 10**6

# Name -> its marks.
SCHEDULES: Mapping[str, tuple[int, ...]] = {
    # Source: the call for papers of the BabyLM challenge of 2025: every million words up to ten,
    # every ten up to a hundred, every hundred up to a thousand.
    "babylm": tuple(
        number * MILLION for number in (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
    ),
}


def marks(chosen: Sequence[Any]) -> tuple[int, ...]:
    """Returns the marks of config.checkpoint.save_at_words, from the fewest words to the most."""
    named = (SCHEDULES[it] if isinstance(it, str) else (it,) for it in chosen)
    return tuple(sorted({int(mark) for several in named for mark in several}))


def faults(chosen: Sequence[Any]) -> Iterator[str]:
    """Yields the faults of config.checkpoint.save_at_words."""
    for one in chosen:
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        if not (one in SCHEDULES if isinstance(one, str) else is_number and one == int(one) >= 1):
            yield (
                f"config.checkpoint.save_at_words has {one!r}; it must have whole numbers of "
                f"words, from 1 on, or names: {', '.join(SCHEDULES)}"
            )


def label(words: int) -> str:
    """Returns the name of a mark: 1M, 250K, 1234."""
    for size, unit in ((MILLION, "M"), (1000, "K")):
        if words % size == 0:
            return f"{words // size}{unit}"
    return str(words)
