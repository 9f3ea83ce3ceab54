"""Mixtures of languages: the share of each in a phase, and the language of every row.

The language of a stream's k-th row is drawn by its share, in blocks of BLOCK rows whose random
numbers are keyed by (seed, stream, block). So the rows of a language before any row are found by
drawing the blocks before it, without reading.

A share is proportional to size^alpha, as mBERT, XLM-R and mmBERT have it: 1 reads every text
equally often, 0 every language. Source: Lample and Conneau 2019, section 3.1; Conneau et al. 2020,
section 3.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import records

# First words of the random keys, after the keys of `streams`.
_LANGUAGES, _EXAMPLES, _SHARDS = 5, 6, 7
# A language of fewer bytes is read whole at the start; a larger one from its shards.
IN_MEMORY_BYTES = 32 << 20
# In a list of languages: all that are not named otherwise.
OTHERS = "*"
BLOCK = 8192
PART = 1024  # rows that are read at once
# How often the text of a language is read in a phase before it is warned of.
MOST_EPOCHS = 4


def parse(listed: str) -> dict[str, float | None]:
    """Returns the languages of a list, such as "en=0.3, de, *", with the shares that it gives."""
    chosen: dict[str, float | None] = {}
    for part in filter(None, (it.strip() for it in listed.split(","))):
        name, given, share = (it.strip() for it in part.partition("="))
        if name in chosen:
            raise ValueError(f"languages is {listed!r}, which names {name} twice: name it once")
        try:
            number = float(share) if given else None
        except ValueError:
            number = np.nan
        chosen[name] = number
        if number is not None and not (0 < number < 1 and name != OTHERS):
            raise ValueError(
                f"languages is {listed!r}, and {part!r} gives no share: it must be LANGUAGE=SHARE, "
                "with a share between 0 and 1, LANGUAGE, or * for all others"
            )
    return chosen


def shares(sizes: Mapping[str, int], alpha: float = 1.0, listed: str = "") -> dict[str, float]:
    """Returns the share of each language of `sizes` in the rows, in their order; they add up to 1.

    Languages without a share divide the rest by size^alpha. Those that a list
    leaves out have 0.
    """
    chosen = parse(listed) or {OTHERS: None}
    if unknown := sorted(chosen.keys() - sizes.keys() - {OTHERS}):
        raise ValueError(
            f"languages is {listed!r}, but the records have no {', '.join(unknown)}: they have "
            f"{', '.join(sizes)}"
        )
    given = {name: share for name, share in chosen.items() if share is not None}
    rest = [name for name in sizes if name not in given and (name in chosen or OTHERS in chosen)]
    left = 1 - sum(given.values())
    by_size = {name: float(sizes[name]) ** alpha if sizes[name] else 0.0 for name in rest}
    total = sum(by_size.values())
    if (left > 1e-6) != bool(total) or left < -1e-6:
        raise ValueError(
            f"languages is {listed!r}: the given shares are {sum(given.values()):g} together, and "
            f"the languages without one are {', '.join(rest) or 'none'}; what is left must be "
            "for them, so give less, or all of 1 where there are no others"
        )
    of_all = given | {name: left * size / total for name, size in by_size.items() if total}
    return {name: of_all.get(name, 0.0) for name in sizes}


def of_manifest(manifest: records.Manifest, alpha: float, listed: str) -> dict[str, float]:
    """Returns the share of each language of records in several, by their tokens; see `shares`."""
    tokens = {name: figures["tokens"] for name, figures in manifest.languages.items()}
    return shares(tokens, alpha, listed)


@dataclasses.dataclass(frozen=True)
class Draws:
    """The languages of one stream's rows, by their places in `shares`."""

    shares: tuple[float, ...]
    key: tuple[int, ...]

    def block(self, number: int) -> Int[np.ndarray, " block"]:
        """Returns the languages of rows `number` * BLOCK and on."""
        numbers = np.random.default_rng([*self.key, number]).random(BLOCK)
        return np.searchsorted(self._borders, numbers, side="right")

    @functools.cached_property
    def _borders(self) -> Float[np.ndarray, " languages_but_one"]:
        # Languages of share 0 behind the last one that is read would get the rest of 1.
        last = max(place for place, share in enumerate(self.shares) if share)
        return np.cumsum(self.shares[:last])

    def before(self, row: int) -> Int[np.ndarray, " languages"]:
        """Returns the number of rows of each language before a row of the stream."""
        counts = np.zeros(len(self.shares), np.int64)
        for number in range(-(-row // BLOCK)):
            drawn = self.block(number)[: row - number * BLOCK]
            counts += np.bincount(drawn, minlength=len(counts))
        return counts

    def from_row(self, row: int) -> Iterator[Int[np.ndarray, " rows"]]:
        """Yields, without end, the languages of a row and all later ones, in parts."""
        number, skip = divmod(row, BLOCK)
        while True:
            languages = self.block(number)
            for first in range(skip, BLOCK, PART):
                yield languages[first : first + PART]
            number, skip = number + 1, 0


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Which of `count` examples the draws of all streams read: each once, in a new order, again.

    The k-th row of stream s is the one at place k * streams + s of all epochs, one after another.
    """

    count: int
    streams: int
    key: tuple[int, ...]

    def examples(self, stream: int, rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
        """Returns the examples that rows of a stream read, which are numbered from 0."""
        epochs, places = np.divmod(rows * self.streams + stream, self.count)
        chosen = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            chosen[here] = _permutation(self.count, (*self.key, epoch))[places[here]]
        return chosen


@functools.lru_cache(maxsize=256)
def _permutation(count: int, key: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(key).permutation(count)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The encoded examples of a language, with shard and place inside the shard of each."""

    records: np.ndarray  # [examples] of bytes
    positions: Int[np.ndarray, "examples 2"]


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The order of languages in all streams from a row on, and the examples that are in memory.

    `in_memory` is by the place of a language in `shares`; the others are read from shards.
    """

    shares: tuple[float, ...]
    seed: int
    streams: int
    first_row: int
    in_memory: Mapping[int, Examples]

    @property
    def from_shards(self) -> list[int]:
        """The places of the languages that are read from shards."""
        return [
            place
            for place, share in enumerate(self.shares)
            if share and place not in self.in_memory
        ]

    def before(self, stream: int) -> Int[np.ndarray, " languages"]:
        """Returns the number of rows of each language in a stream before its first row here."""
        return _draws(self.shares, self.seed, stream).before(self.first_row)

    def seed_of(self, place: int) -> int:
        """Returns the seed of the order of a language's shards."""
        return int(np.random.SeedSequence([self.seed, _SHARDS, place]).generate_state(1)[0])

    def choices(self, stream: int) -> Iterator[Int[np.ndarray, " rows"]]:
        """Yields of each row which of `from_shards` it is of, or else the number behind them."""
        numbers = np.full(len(self.shares), len(self.from_shards))
        numbers[self.from_shards] = np.arange(len(self.from_shards))
        for languages in _draws(self.shares, self.seed, stream).from_row(self.first_row):
            yield numbers[languages]

    def rows(self, stream: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields, in parts, the rows of the languages in memory: records and positions."""
        orders = {
            place: InTurn(len(it.records), self.streams, (self.seed, _EXAMPLES, place))
            for place, it in self.in_memory.items()
        }
        read = self.before(stream)
        for languages in _draws(self.shares, self.seed, stream).from_row(self.first_row):
            records = np.empty(len(languages), object)
            positions = np.zeros((len(languages), 2), np.int64)
            for place, order in orders.items():
                here = np.flatnonzero(languages == place)
                rows = order.examples(stream, read[place] + np.arange(len(here)))
                records[here] = self.in_memory[place].records[rows]
                positions[here] = self.in_memory[place].positions[rows]
            is_here = np.isin(languages, list(orders))
            read = read + np.bincount(languages, minlength=len(read))
            yield records[is_here], positions[is_here]


def _draws(shares: tuple[float, ...], seed: int, stream: int) -> Draws:
    return Draws(shares, (seed, _LANGUAGES, stream))


@dataclasses.dataclass(frozen=True)
class Part:
    """The share of a language in a phase, its tokens, and how often these are its whole text."""

    share: float
    tokens: float
    times: float

    def __str__(self) -> str:
        return f"{self.share:.2%}, {self.tokens:,.0f} tokens, {self.times:,.2f} times its text"


def parts(
    languages: Mapping[str, Mapping[str, int]], of_each: Mapping[str, float], tokens: float
) -> dict[str, Part]:
    """Returns what a phase of `tokens` reads of each language of a manifest, if anything."""
    return {
        name: Part(share, tokens * share, tokens * share / max(languages[name]["tokens"], 1))
        for name, share in of_each.items()
        if share
    }


def warning(read: Mapping[str, Part]) -> str:
    """Returns a sentence about the languages whose text is read too often, "" without any."""
    often = {name: part for name, part in read.items() if part.times > MOST_EPOCHS}
    if not often or len(read) < 2:
        return ""
    listed = ", ".join(f"{name} {part.times:,.1f}" for name, part in often.items())
    return (
        f"the text of some languages is read more than {MOST_EPOCHS} times ({listed}): from then "
        "on a text teaches less each time. Raise language_alpha, give them smaller shares in "
        "languages, or add text"
    )
