"""Which texts come more than once: a bounded sample of hashes, and the commonest lines."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt64

# Values held to count the different ones: exact below, then a sample of them. The estimate of so
# large a sample is off by 0.1% (1 / sqrt(2^20)); 8 MB.
MAX_HASHES = 2**20

# The most repeated lines: the number that is remembered of a block and of the corpus, and the
# number of characters that is kept. A line that is rare in every block may be missed.
REPEATED_PER_BLOCK, REPEATED_KEPT = 20, 1000
REPEATED_CHARACTERS = 80


@dataclasses.dataclass(frozen=True)
class Distinct:
    """How many different 64-bit hashes were seen, from a bounded sample of them.

    Held are all hashes below 2^(64 - halvings), ascending. The bound halves when there are too
    many, so the sample depends on the set of hashes alone, not on their order.
    """

    hashes: UInt64[np.ndarray, " held"] = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.uint64)
    )
    halvings: int = 0

    @classmethod
    def of(cls, hashes: UInt64[np.ndarray, " any"]) -> Distinct:
        """Returns the sample of hashes in any order, repeated or not."""
        return cls(np.unique(hashes))._shrunk()

    def merged(self, other: Distinct) -> Distinct:
        """Returns the sample of both sets together."""
        halvings = max(self.halvings, other.halvings)
        larger, smaller = sorted(
            (self._below(halvings), other._below(halvings)), key=len, reverse=True
        )
        # A block is small compared with the corpus: it is inserted, and not both sorted.
        places = np.searchsorted(larger, smaller)
        is_known = np.zeros(len(smaller), bool)
        inside = places < len(larger)
        is_known[inside] = larger[places[inside]] == smaller[inside]
        united = np.insert(larger, places[~is_known], smaller[~is_known])
        return Distinct(united, halvings)._shrunk()

    def count(self) -> int:
        """Returns the number of different hashes: exact until the bound has halved."""
        return len(self.hashes) << self.halvings

    def to_json(self) -> dict[str, Any]:
        """Returns a dict for `json.dumps`."""
        content = base64.b64encode(self.hashes.astype("<u8").tobytes()).decode()
        return {"hashes": content, "halvings": self.halvings}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Distinct:
        """Returns what `to_json` described."""
        hashes = np.frombuffer(base64.b64decode(fields["hashes"]), "<u8").astype(np.uint64)
        return cls(hashes, fields["halvings"])

    def _below(self, halvings: int) -> UInt64[np.ndarray, " held"]:
        if not halvings:
            return self.hashes
        return self.hashes[: np.searchsorted(self.hashes, np.uint64(1 << (64 - halvings)))]

    def _shrunk(self) -> Distinct:
        hashes, halvings = self.hashes, self.halvings
        while len(hashes) > MAX_HASHES:
            halvings += 1
            hashes = self._below(halvings)
        return Distinct(hashes, halvings)


def hashes_of(texts: Iterable[str]) -> UInt64[np.ndarray, " texts"]:
    """Returns a 64-bit hash of each text, the same on every machine."""
    # Half a surrogate pair is not UTF-8, but it may stand in a \u escape of JSON.
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def repeated_lines(lines: Sequence[str], hashes: UInt64[np.ndarray, " lines"]) -> dict[str, int]:
    """Returns the beginnings of the lines that come most often, and how often."""
    _, places, counts = np.unique(hashes, return_index=True, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:REPEATED_PER_BLOCK]
    frequent = frequent[counts[frequent] > 1]
    repeated: dict[str, int] = {}
    for place, count in zip(places[frequent], counts[frequent], strict=True):
        beginning = lines[int(place)][:REPEATED_CHARACTERS]
        repeated[beginning] = repeated.get(beginning, 0) + int(count)
    return repeated


def merged_lines(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Returns the repeated lines of two texts, the commonest `REPEATED_KEPT` of them."""
    united = dict(first)
    for line, count in second.items():
        united[line] = united.get(line, 0) + count
    return united if len(united) <= REPEATED_KEPT else most_frequent(united, REPEATED_KEPT)


def most_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Returns the `number` largest counts, largest first, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number])


def duplicate_share(distinct: int, total: int) -> float:
    """Returns the share of `total` texts that had come before."""
    # An estimate of the distinct ones may come out a little above their total.
    return max(0, total - distinct) / total if total else 0.0
