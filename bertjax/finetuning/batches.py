"""Batches of a feature set as a function of (seed, step), each as short as its rows allow.

An epoch visits every example once; of files with a weight, as often as the weight says. Where there
are several lengths to pad to (buckets), examples of about the same length share a batch, because a
short batch costs little. Losses over all rows of a batch need batches in which no text occurs
twice: the positive of one row is wrong for all others. The contents of rows belong to
`feature_sets`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging
from jaxtyping import Bool, Int

from bertjax.finetuning import feature_sets

Batch = dict[str, np.ndarray]

NOT_SCORED = -1  # in "labels" of single tokens
FILLER = -1  # the place of a row that fills up a batch

Steps = Int[np.ndarray, "steps batch"]  # the example at each place, FILLER for none


def train_batches(
    features: feature_sets.FeatureSet,
    *,
    global_batch_size: int,
    seed: int,
    start_step: int = 0,
    buckets: tuple[int, ...],
    rows: range | None = None,
) -> Iterator[Batch]:
    """Returns an endless iterator of the batches of `start_step`, `start_step` + 1, ....

    A batch holds input_ids, input_mask and segment_ids [batch, length] (with choices: [batch,
    choices, length]), the columns of the features, labels of single tokens [batch, length] (-1
    where nothing is scored), example_weights (float32) and record_positions (int64, the example).
    The one incomplete batch of an epoch is filled up with copies whose example_weights are 0,
    record_positions -1 and token labels -1. `rows` are the rows of the global batch that this host
    needs; None means all.
    """
    rows = range(global_batch_size) if rows is None else rows
    _check(features, buckets)
    epochs = Epochs(features, global_batch_size, seed, by_length=len(buckets) > 1)
    return (_batch(features, it, buckets, rows) for it in epochs.from_step(start_step))


def evaluation_batches(
    features: feature_sets.FeatureSet,
    *,
    batch_size: int,
    buckets: tuple[int, ...],
    rows: range | None = None,
) -> Iterator[Batch]:
    """Returns an iterator over all examples, each once, the longest first.

    Batches are as in `train_batches`; `record_positions` put predictions back in order. Every
    host gets the same number of batches, `rows` of each.
    """
    rows = range(batch_size) if rows is None else rows
    _check(features, buckets)
    longest_first = np.argsort(-features.lengths(), kind="stable")
    return (_batch(features, it, buckets, rows) for it in cut(longest_first, batch_size))


def _batch(
    features: feature_sets.FeatureSet,
    positions: Int[np.ndarray, " batch"],
    buckets: tuple[int, ...],
    rows: range,
) -> Batch:
    """Returns `rows` of the batch, padded as the whole one is: all hosts run one program."""
    choices = features.choices
    # A copy fills up, because attention over a row without tokens is not a number.
    examples = np.where(positions == FILLER, positions[0], positions)
    sequences = (examples[:, None] * choices + np.arange(choices)).reshape(-1).tolist()
    longest = int(features.row_lengths[sequences].max())
    length = next(bucket for bucket in buckets if bucket >= longest)
    host_rows = slice(rows.start, rows.stop)
    sequences = sequences[rows.start * choices : rows.stop * choices]
    shape = (len(rows), length) if choices == 1 else (len(rows), choices, length)
    weights = (positions[host_rows] != FILLER).astype(np.float32)

    def padded(values: Sequence[np.ndarray], padding: int) -> np.ndarray:
        array = np.full((len(sequences), length), padding, np.int32)
        for row, sequence in zip(array, sequences, strict=True):
            row[: len(values[sequence])] = values[sequence]
        return array.reshape(shape)

    paddings = {"input_ids": features.pad_id, "labels": NOT_SCORED}
    batch = {name: padded(it, paddings.get(name, 0)) for name, it in features.tokens.items()}
    is_token = np.arange(length) < features.row_lengths[sequences][:, None]
    batch["input_mask"] = is_token.astype(np.int32).reshape(shape)
    if "labels" in batch:
        batch["labels"][weights == 0] = NOT_SCORED
    batch |= {name: column[examples[host_rows]] for name, column in features.columns.items()}
    return batch | {"example_weights": weights, "record_positions": positions[host_rows]}


def _check(features: feature_sets.FeatureSet, buckets: tuple[int, ...]) -> None:
    if not len(features):
        raise ValueError("there are no examples; batches need at least one: look at the files read")
    if (longest := int(features.lengths().max())) > buckets[-1]:
        raise ValueError(
            f"the longest example has {longest} tokens, the last bucket holds {buckets[-1]}; make "
            "the features with a max_seq_length of the last bucket"
        )


# Examples are sorted by length among this many batches at a time: enough that hardly a token is
# padding, and few enough that what shares a batch is new in every epoch.
SORTED_BATCHES = 64

# Parts of the random keys, so that no two uses of a seed share their numbers; `streams` has 0 to 3.
_EXAMPLE_ORDER, _BATCH_ORDER, _PART_ORDER = 4, 5, 6

# Above this share of further batches, which repeated texts cause, a warning is logged.
_LOGGED_EXCESS = 0.1


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Returns the number of batches that show every example once; the last may be filled up."""
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
        draw = {"batch_size": self.batch_size, "seed": self.seed, "epoch": epoch}
        examples = _of_parts(features, self.seed, epoch)
        steps = epoch_order(lengths, examples, by_length=self.by_length, **draw)
        if features.apart is not None:
            steps, left = separate(steps, features.apart, lengths)
            steps = np.concatenate([steps, left])
            least = steps_per_epoch(len(examples), self.batch_size)
            if not self._counts and len(steps) > (1 + _LOGGED_EXCESS) * least:
                logging.warning(
                    "An epoch has %d batches, %d would hold its examples: some texts are in many "
                    "examples, and batches in which each occurs once are not full. Smaller "
                    "batches, or fewer examples with the same text, help", len(steps), least,
                )  # fmt: skip
        self._counts[epoch] = len(steps)
        return steps

    def count(self, epoch: int) -> int:
        """Returns the number of batches of an epoch."""
        if self.features.apart is None:
            return steps_per_epoch(self.features.epoch_size, self.batch_size)
        if epoch not in self._counts:
            self.order(epoch)
        return self._counts[epoch]

    def steps_in(self, epochs: float) -> int:
        """Returns the number of batches of some epochs, rounded up."""
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


def epoch_order(
    lengths: Int[np.ndarray, " examples"],
    examples: Int[np.ndarray, " shown"],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    by_length: bool = True,
) -> Steps:
    """Returns which example stands where in the batches of an epoch; -1 is a row to fill up.

    A permutation of `examples`; by length, it is sorted within windows of `SORTED_BATCHES` batches,
    cut, and the batches are permuted.
    """
    order = np.random.default_rng([seed, _EXAMPLE_ORDER, epoch]).permutation(len(examples))
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


# Moved rows try the batches at these distances, in free rows, from the one of their length.
_TRIES = (0, *(sign * 2**power for power in range(24) for sign in (1, -1)))

_Further = Int[np.ndarray, "further batch"]
_Texts = Int[np.ndarray, "examples texts"]


def separate(
    steps: Steps, texts: _Texts, lengths: Int[np.ndarray, " examples"]
) -> tuple[Steps, _Further]:
    """Returns batches with the same examples, none of which holds a text twice, and further ones.

    `steps` say which example stands where, FILLER nowhere; `texts` are numbers, an example's own
    may be equal. In each batch every example stays that shares no text with one before it. The
    others, by length, go to free rows of other batches, near the place of their length first, then
    further and further away. Examples without a row go to further batches, the last of the epoch:
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
    """Pairs of a batch and a text in it, as numbers: batch x texts + text."""

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
        codes = self.of(batches, texts)
        places = np.searchsorted(self._taken, codes).clip(max=max(len(self._taken) - 1, 0))
        return ~(self._taken[places] == codes).any(axis=1)


def _first_of_its_texts(codes: Int[np.ndarray, "rows texts"]) -> Bool[np.ndarray, " rows"]:
    """Returns which rows have no code that a row before them has."""
    _, first, places = np.unique(codes.reshape(-1), return_index=True, return_inverse=True)
    owners = (first // codes.shape[1])[places.reshape(-1)].reshape(codes.shape)
    return (owners == np.arange(len(codes))[:, None]).all(axis=1)


def _fill(
    steps: Steps,
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
        places = (spread + shift) % len(batches)
        fits = codes.are_free(batches[places], texts[moved])
        fits[fits] = _first_of_its_texts(codes.of(batches[places][fits], texts[moved[fits]]))
        taken = places[fits]
        steps[batches[taken], rows[taken]] = moved[fits]
        codes.take(batches[taken], texts[moved[fits]])
        moved = moved[~fits]
        batches, rows = np.delete(batches, taken), np.delete(rows, taken)
    return moved


def _further(moved: Int[np.ndarray, " moved"], texts: _Texts, batch_size: int) -> _Further:
    """Returns further batches of the examples, as few as this order of them allows."""
    behind: dict[int, int] = {}
    groups: list[list[int]] = []
    for example, example_texts in zip(moved.tolist(), texts[moved].tolist(), strict=True):
        group = max(behind.get(text, 0) for text in example_texts)
        behind.update(dict.fromkeys(example_texts, group + 1))
        if group == len(groups):
            groups.append([])
        groups[group].append(example)
    filled = [cut(np.array(group), batch_size) for group in groups]
    return np.concatenate([np.zeros((0, batch_size), np.int64), *filled])
