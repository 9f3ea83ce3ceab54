"""Which examples share a row: best-fit decreasing, inside a window of examples.

An example stays whole and goes where it leaves the least room. Which tokens an example has belongs
to `objectives`, how a row is written to `examples`.

Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.2,
which packs a histogram of lengths; a window of examples gives the same rows but for their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

# The number of examples packed together; the few rows left open at the end do not matter.
WINDOW = 1 << 15

# The mean length of examples from which rows are filled, by default.
TOKENS_PER_SEQUENCE = 16


def default_most(max_seq_length: int) -> int:
    """Returns the most examples of a row: one for every 16 tokens, at least two."""
    return max(2, max_seq_length // TOKENS_PER_SEQUENCE)


def rows(
    lengths: Int[np.ndarray, " examples"], capacity: int, most: int, rng: np.random.Generator
) -> Iterator[list[int]]:
    """Yields the numbers of the examples of each row, window by window, rows in random order.

    The examples are taken as they come, so they should be in random order already.
    """
    for start in range(0, len(lengths), WINDOW):
        packed = best_fit(lengths[start : start + WINDOW], capacity, most)
        for row in rng.permutation(len(packed)).tolist():
            yield [start + number for number in packed[row]]


def best_fit(lengths: Int[np.ndarray, " examples"], capacity: int, most: int) -> list[list[int]]:
    """Returns rows of at most `most` examples and `capacity` tokens, by best-fit decreasing.

    From the longest example to the shortest, each goes into the row with the least room that holds
    it, and where none does into a new one.
    """
    if lengths.max(initial=0) > capacity:
        raise ValueError(f"an example has {lengths.max()} tokens; a row holds {capacity}")
    packed: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the room that they have
    rooms = 0  # bit r: a row with room r is open
    order = np.argsort(-lengths, kind="stable")
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, len(packed)
            packed.append([])
        packed[row].append(number)
        if len(packed[row]) < most:
            open_rows[room - length].append(row)
            rooms |= 1 << (room - length)
    return packed
