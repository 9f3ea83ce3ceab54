"""The draws of Python's `random.Random`, with less bookkeeping than its own methods.

The released script draws with them, so that equal examples need equal draws.
"""

from __future__ import annotations

import functools
import random
from collections.abc import MutableSequence


def shuffle(rng: random.Random, items: MutableSequence[int], front: int) -> None:
    """Shuffles in place as `rng.shuffle(items)` would; only the first `front` items are valid.

    The others may be lost, which saves half of the work.

    Source: CPython 3.11 to 3.14, Lib/random.py, Random.shuffle and _randbelow_with_getrandbits.
    """
    getrandbits = rng.getrandbits
    for bits, lasts in _steps(len(items), max(front, 1)):
        for last in lasts:
            place = getrandbits(bits)
            while place > last:
                place = getrandbits(bits)
            items[place] = items[last]
    for bits, lasts in _steps(min(front, len(items)), 1):
        for last in lasts:
            place = getrandbits(bits)
            while place > last:
                place = getrandbits(bits)
            items[last], items[place] = items[place], items[last]


def below(rng: random.Random, limit: int) -> int:
    """Returns what `rng.randrange(limit)` would.

    Source: CPython 3.11 to 3.14, Lib/random.py, _randbelow_with_getrandbits.
    """
    bits = limit.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= limit:
        drawn = rng.getrandbits(bits)
    return drawn


@functools.lru_cache(maxsize=4096)
def _steps(size: int, stop: int) -> tuple[tuple[int, range], ...]:
    """Returns the last indices of a shuffle from `size` items down to `stop`, by bits to draw."""
    found = []
    while size > stop:
        bits = size.bit_length()
        lowest = max(1 << (bits - 1), stop + 1)
        found.append((bits, range(size - 1, lowest - 2, -1)))
        size = lowest - 1
    return tuple(found)
