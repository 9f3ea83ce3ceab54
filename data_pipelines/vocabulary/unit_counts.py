"""How often each word of a text, or piece of one, stands in it, counted in bounded memory."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Callable, Iterable, Mapping

from bertjax.tokenization import normalization, wordpiece
from data_pipelines.reports import losses

# Bounds of memory. English has 3 million characters of distinct words in 60 MB of novels.
FOLD_CHARACTERS = 2**24
MAX_DISTINCT_CHARACTERS = 2**25


class Counts:
    """How often each unit stands in a text, in bounded memory.

    `split` turns what stands between white space, as `rule` judges it, into units, for example
    words and punctuation. `lost` counts what the rules for a text lose.
    Beyond `MAX_DISTINCT_CHARACTERS` a growing share of the rarest units is forgotten, chosen by a
    hash of the unit.
    """

    def __init__(
        self,
        split: Callable[[str], Iterable[str]],
        lost: losses.LostMarks | None = None,
        rule: str = normalization.RELEASED,
    ):
        self._split, self._lost, self._rule = split, lost, rule
        self._chunks: collections.Counter[str] = collections.Counter()
        self._units: dict[str, float] = collections.defaultdict(int)
        self._weight = 1.0
        self._characters = 0
        self._forgetting = 0

    def add(self, text: str, weight: float = 1.0) -> None:
        """Counts a text, each unit `weight` times."""
        if weight != self._weight:
            self.units()
            self._weight = weight
        self._chunks.update(wordpiece.chunks(text, self._rule))
        self._characters += len(text)
        if self._characters >= FOLD_CHARACTERS:
            self.units()

    def units(self) -> Mapping[str, float]:
        """Returns the counts, in an order that the text alone decides; whole without weights."""
        weight = 1 if self._weight == 1 else self._weight
        for chunk, count in self._chunks.items():
            for unit in self._split(chunk):
                self._units[unit] += count * weight
            if self._lost:
                self._lost.add(chunk, count)
        self._chunks.clear()
        self._characters = 0
        if _size(self._units) > MAX_DISTINCT_CHARACTERS:
            self._forget()
        return self._units

    def _forget(self) -> None:
        # Units that came since the last time are dropped at the share of that time, and more of
        # them if that is too few.
        share = 2**self._forgetting
        self._units = collections.defaultdict(
            int,
            {
                unit: count
                for unit, count in self._units.items()
                if count >= share or zlib.crc32(unit.encode()) % share == 0
            },
        )
        if _size(self._units) > MAX_DISTINCT_CHARACTERS // 2:
            self._forgetting += 1
            self._forget()


def _size(counts: Mapping[str, float]) -> int:
    return sum(map(len, counts))
