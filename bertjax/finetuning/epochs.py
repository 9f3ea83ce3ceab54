"""Which examples stand in which batch of an epoch, as a function of (seed, epoch).

An epoch visits every example once; of files with a weight, as often as the weight says. Here
belongs the order; what rows hold belongs to `feature_sets`, padding to `batches`, how batches
without a text twice are made to `distinct_batches`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from absl import logging
from jaxtyping import Int

from bertjax.finetuning import distinct_batches, feature_sets

FILLER = distinct_batches.FILLER  # the place of a row that fills up a batch

# Examples are sorted by length among this many batches at a time: enough that hardly a token is
# padding, and few enough that what shares a batch is new in every epoch.
SORTED_BATCHES = 64

# Parts of the random keys, so that no two uses of a seed share their numbers; `streams` has 0 to 3.
_EXAMPLE_ORDER, _BATCH_ORDER, _PART_ORDER = 4, 5, 6

# More batches than rows need are told where texts repeat so much that there are so many more.
_TOLD_EXCESS = 0.1

Steps = Int[np.ndarray, "steps batch"]


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Returns how many batches show every example once; the last may be filled up."""
    return -(-examples // batch_size)


@dataclasses.dataclass(frozen=True, eq=False)
class Epochs:
    """The batches of all epochs of a feature set.

    Where no text may stand in a batch twice, epochs may have different numbers of batches; what an
    epoch has is then known when it was made, which takes seconds for a million examples.
    """

    features: feature_sets.FeatureSet
    batch_size: int
    seed: int
    by_length: bool = True
    _counts: dict[int, int] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def order(self, epoch: int) -> Steps:
        """Returns which example stands where in the batches of an epoch; -1 is a row to fill up.

        Rows that fill up are the last of their batches.
        """
        features = self.features
        lengths = features.lengths()
        shared = {"batch_size": self.batch_size, "seed": self.seed, "epoch": epoch}
        examples = _of_parts(features, self.seed, epoch)
        steps = epoch_order(lengths, examples=examples, by_length=self.by_length, **shared)
        if features.apart is not None:
            steps, left = distinct_batches.separate(steps, features.apart, lengths)
            steps = np.concatenate([steps, left])
            self._tell(len(examples), len(steps))
        self._counts[epoch] = len(steps)
        return steps

    def count(self, epoch: int) -> int:
        """Returns how many batches an epoch has."""
        if self.features.apart is None:
            return steps_per_epoch(self.features.epoch_size, self.batch_size)
        if epoch not in self._counts:
            self.order(epoch)
        return self._counts[epoch]

    def steps_in(self, epochs: float) -> int:
        """Returns how many batches some epochs have; a part of one is rounded up."""
        if self.features.apart is None:
            return math.ceil(epochs * self.count(0))
        whole = math.floor(epochs)
        rest = epochs - whole
        steps = sum(self.count(epoch) for epoch in range(whole))
        return steps + (math.ceil(rest * self.count(whole)) if rest else 0)

    def from_step(self, start_step: int) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yields the rows of the batches of `start_step`, `start_step` + 1, ..., without end."""
        first, skip = 0, start_step
        if self.features.apart is None:
            first, skip = divmod(start_step, self.count(0))
        while skip >= self.count(first):
            skip -= self.count(first)
            first += 1
        for epoch in itertools.count(first):
            yield from self.order(epoch)[skip:]
            skip = 0

    def _tell(self, examples: int, steps: int) -> None:
        least = steps_per_epoch(examples, self.batch_size)
        if not self._counts and steps > (1 + _TOLD_EXCESS) * least:
            logging.warning(
                "An epoch has %d batches, %d would hold its examples: some texts stand in so many "
                "examples that batches in which each stands once are not full. Smaller batches, or "
                "fewer examples with the same text, help",
                steps, least,
            )  # fmt: skip


def epoch_order(
    lengths: Int[np.ndarray, " examples"],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    by_length: bool = True,
    examples: Int[np.ndarray, " shown"] | None = None,
) -> Steps:
    """Returns which example stands where in the batches of an epoch; -1 is a row to fill up.

    A permutation of `examples`, all by default; by length, it is sorted within windows of
    `SORTED_BATCHES` batches, cut, and the batches are permuted.
    """
    shown = len(lengths) if examples is None else len(examples)
    order = np.random.default_rng([seed, _EXAMPLE_ORDER, epoch]).permutation(shown)
    if examples is not None:
        order = examples[order]
    if not by_length:
        return cut(order, batch_size)
    window = SORTED_BATCHES * batch_size
    for start in range(0, len(order), window):
        part = order[start : start + window]
        order[start : start + window] = part[np.argsort(lengths[part], kind="stable")]
    steps = cut(order, batch_size)
    return np.random.default_rng([seed, _BATCH_ORDER, epoch]).permutation(steps)


def _of_parts(
    features: feature_sets.FeatureSet, seed: int, epoch: int
) -> Int[np.ndarray, " shown"]:
    """Returns the examples that an epoch shows.

    The rows of a part are walked through in one permutation after the other; an epoch takes as many
    as its weight says. So with 0.5 two epochs show each once, and with 2 each epoch shows it twice.
    """
    shown, first = [], 0
    for number, part in enumerate(features.parts):
        walked = np.arange(epoch * part.shown, (epoch + 1) * part.shown)
        passes = walked // part.examples
        for walk in np.unique(passes):
            key = [seed, _PART_ORDER, number, int(walk)]
            order = np.random.default_rng(key).permutation(part.examples)
            shown.append(first + order[walked[passes == walk] % part.examples])
        first += part.examples
    return np.concatenate(shown) if shown else np.arange(len(features))


def cut(order: Int[np.ndarray, " examples"], batch_size: int) -> Steps:
    """Returns the order in batches; -1 fills up the last."""
    steps = steps_per_epoch(len(order), batch_size)
    filled = np.full(steps * batch_size, FILLER, np.int64)
    filled[: len(order)] = order
    return filled.reshape(steps, batch_size)
