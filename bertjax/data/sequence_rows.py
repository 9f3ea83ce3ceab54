"""Rows for an encoder and a decoder, for a whole batch at once in numpy: MASS's and BART's.

A row becomes a source, in which tokens are hidden, and a target: what the decoder reads, and what
it is to predict of it. Masks for the encoder alone belong to `masking`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import masking, records, word_masking
from bertjax.tokenization import tokenizer

# Source: MASS (Song et al. 2019), section 3.1; microsoft/MASS, MASS/src/trainer.py,
# restricted_mask_sent and shuffle_segments.
FRAGMENT_SHARE = 0.5
EDGE_SHARE = 0.2  # of the fragments, those at the start of a row, and those at its end
# Source: BART's released recipe, facebookresearch/fairseq issue 1899; the paper has a mean of 3.
INFILLED_SHARE, MEAN_SPAN, RANDOM_SHARE = 0.3, 3.5, 0.1

Batch = Mapping[str, np.ndarray]


class Ids(NamedTuple):
    """The entries of a vocabulary that rows are made with."""

    vocab_size: int
    pad_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SequenceRows:
    """A way to make rows.

    `draw` takes a batch, its ids and a generator, and returns the features that it makes.
    `target_length` is that of rows of a length. `source_features` and `target_features` are those
    of every position of a source and of a target that not all ways have. With `reads_sentences` the
    records must have records.SENTENCES_FEATURE.
    """

    draw: Callable[[Batch, Ids, np.random.Generator], dict[str, np.ndarray]]
    target_length: Callable[[int], int]
    source_features: tuple[str, ...] = ()
    target_features: tuple[str, ...] = ()
    reads_sentences: bool = False

    def features(self, length: int) -> dict[str, records.Feature]:
        """Returns the features that are made of rows of `length` tokens."""
        target = records.Feature((self.target_length(length),))
        names = ("target_ids", "target_mask", "target_labels", *self.target_features)
        return {
            **dict.fromkeys(self.source_features, records.Feature((records.LENGTH,))),
            **dict.fromkeys(names, target),
        }


def mass(batch: Batch, ids: Ids, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns rows without a fragment of half of their tokens, which is the target.

    Tokens are replaced as BERT's are, each by a draw of its own; `source_mask` hides those that
    became [MASK] from the decoder, which reads the token before each one, at its position in the
    row. A fragment has no special tokens: it goes on behind those that it meets.

    Source: Song et al. 2019; MASS/src/trainer.py, mass_step. There the fragments of a batch have
    the length that follows from its first row, and may hold the end of a row.
    """
    input_ids, real = batch["input_ids"], batch["input_mask"] != 0
    maskable = _maskable(input_ids, real, ids)
    available = maskable.sum(axis=1)
    sizes = np.minimum(np.rint(FRAGMENT_SHARE * real.sum(axis=1)).astype(np.int64), available)
    die, anywhere = rng.random(len(sizes)), rng.integers(0, available - sizes + 1)
    at_edge = np.where(die < EDGE_SHARE, 0, available - sizes)
    first = np.where(die < 2 * EDGE_SHARE, at_edge, anywhere)
    number = np.cumsum(maskable, axis=1) - 1
    chosen = maskable & (number >= first[:, None]) & (number < (first + sizes)[:, None])

    places = np.flatnonzero(chosen)
    originals = input_ids.ravel()[places]
    dice = rng.random(len(places))
    substitutes = rng.integers(0, ids.vocab_size, size=len(places))
    stays = dice < masking.MASK_SHARE + masking.KEEP_SHARE + 1e-9  # as in `masking.mask_tokens`
    substitutes = np.where(stays, originals, substitutes)
    source = input_ids.astype(np.int32, order="C")
    source.ravel()[places] = np.where(dice < masking.MASK_SHARE, ids.mask_id, substitutes)
    used = np.arange(half(input_ids.shape[1])) < sizes[:, None]
    return {
        "input_ids": source,
        "source_mask": (real & (source != ids.mask_id)).astype(np.int32),
        "target_ids": _placed(used, input_ids.ravel()[places - 1], ids.pad_id),
        "target_mask": used.astype(np.int32),
        "target_positions": _placed(used, places % input_ids.shape[1] - 1, 0),
        "target_labels": _placed(used, originals, ids.pad_id),
    }


def bart(batch: Batch, ids: Ids, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns rows of exchanged sentences and infilled spans; the target is the row as it was.

    The decoder reads [SEP] and then the row. All tokens of a source are of the first segment.
    Source: Lewis et al. 2020, section 2.2; fairseq/data/denoising_dataset.py.
    """
    input_ids, real = batch["input_ids"].astype(np.int32), batch["input_mask"] != 0
    order = sentence_order(input_ids, real, batch[records.SENTENCES_FEATURE] != 0, ids.sep_id, rng)
    exchanged = np.take_along_axis(input_ids, order, axis=1)
    maskable = _maskable(exchanged, real, ids)
    source, is_real = infilled(exchanged, real, maskable, ids, rng)
    begin = np.full_like(input_ids[:, :1], ids.sep_id)
    return {
        "input_ids": source,
        "input_mask": is_real.astype(np.int32),
        "segment_ids": np.zeros_like(source),
        "target_ids": np.concatenate([begin, input_ids[:, :-1]], axis=1),
        "target_mask": real.astype(np.int32),
        "target_labels": input_ids,
    }


def sentence_order(
    input_ids: Int[np.ndarray, "batch length"],
    real: Bool[np.ndarray, "batch length"],
    ends_sentence: Bool[np.ndarray, "batch length"],
    sep_id: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "batch length"]:
    """Returns the places of a row's tokens, its sentences in random order, all equally likely.

    The row's first and last token and its padding stay. A sentence that the row cuts counts as one,
    and a [SEP] within the row goes with the sentence before.
    Source: fairseq/data/denoising_dataset.py, permute_sentences.
    """
    place, last = np.arange(input_ids.shape[1]), real.sum(axis=1)[:, None] - 1
    is_inside = (place > 0) & (place < last)
    is_sep = is_inside & (input_ids == sep_id)
    ends = (ends_sentence & is_inside) | is_sep
    ends[:, :-1] &= ~is_sep[:, 1:]
    number = np.cumsum(ends, axis=1) - ends
    keys = np.take_along_axis(rng.random((len(ends), len(place) + 1)), number, axis=1)
    keys = np.where(is_inside, keys, np.where(place == 0, -1.0, 2.0))
    return np.argsort(keys, axis=1, kind="stable")


def infilled(
    input_ids: Int[np.ndarray, "batch length"],
    real: Bool[np.ndarray, "batch length"],
    maskable: Bool[np.ndarray, "batch length"],
    ids: Ids,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "batch length"], Bool[np.ndarray, "batch length"]]:
    """Returns rows whose spans are a [MASK] or, one in ten, a random token; and where tokens are.

    Spans with Poisson lengths are drawn until they have ceil(0.3 x maskable) tokens, the last one
    cut. They start at distinct tokens, each as likely, and end before a special token; one that
    starts in another is lost. An empty span is a token more, anywhere within the row, as far as the
    row has space. Source: fairseq/data/denoising_dataset.py, add_whole_word_mask and
    add_insertion_noise; there at least one of a row's empty spans is a random token.
    """
    length = input_ids.shape[1]
    row, first, sizes, empty = _spans(maskable, rng)
    # The end of each span, in a flat array whose rows have one more place.
    stops = np.where(maskable, length, np.arange(length))
    stops = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    end = np.minimum(first + sizes, stops[row, first])
    changes = np.zeros((len(input_ids), length + 1), np.int64)
    np.add.at(changes, (row, first + 1), 1)
    np.add.at(changes, (row, end), -1)
    kept = real & ~(np.cumsum(changes, axis=1)[:, :length] > 0)
    source = input_ids.copy()
    source[row, first] = _masks_or_random(len(row), ids, rng)

    counts = kept.sum(axis=1)
    empty = np.minimum(empty, length - counts)
    place = np.arange(length)
    is_within = (place >= 1) & (place < (counts + empty - 1)[:, None])
    is_new = masking.MASKERS["token"].choose(is_within, np.zeros_like(is_within), empty, rng)
    is_real = place < (counts + is_new.sum(axis=1))[:, None]
    result = np.full_like(input_ids, ids.pad_id)
    result[is_new] = _masks_or_random(int(is_new.sum()), ids, rng)
    result[is_real & ~is_new] = source[kept]
    return result, is_real


def _spans(
    maskable: Bool[np.ndarray, "batch length"], rng: np.random.Generator
) -> tuple[
    Int[np.ndarray, " spans"],
    Int[np.ndarray, " spans"],
    Int[np.ndarray, " spans"],
    Int[np.ndarray, " batch"],
]:
    """Returns rows, first places and lengths of spans, and the number of empty ones in each row."""
    budget = np.ceil(INFILLED_SHARE * maskable.sum(axis=1)).astype(np.int64)
    shape = (len(maskable), int(budget.max(initial=1)))
    drawn = rng.poisson(MEAN_SPAN, shape)
    while (drawn.sum(axis=1) < budget).any():
        drawn = np.concatenate([drawn, rng.poisson(MEAN_SPAN, shape)], axis=1)
    before = np.cumsum(drawn, axis=1) - drawn
    sizes = np.clip(budget[:, None] - before, 0, drawn)
    empty = ((drawn == 0) & (before < budget[:, None])).sum(axis=1)
    row, slot = np.nonzero(sizes)
    number = np.cumsum(sizes > 0, axis=1) - 1
    first = word_masking.random_order(maskable, rng)[row, number[row, slot]]
    return row, first, sizes[row, slot], empty


def _masks_or_random(count: int, ids: Ids, rng: np.random.Generator) -> np.ndarray:
    is_random = rng.random(count) < RANDOM_SHARE
    return np.where(is_random, rng.integers(0, ids.vocab_size, size=count), ids.mask_id)


def _maskable(
    input_ids: Int[np.ndarray, "batch length"], real: Bool[np.ndarray, "batch length"], ids: Ids
) -> Bool[np.ndarray, "batch length"]:
    """Returns the tokens that may be hidden: not the special ones, and not a row's first."""
    maskable = real & ~np.isin(input_ids, ids.special_ids)
    maskable[:, 0] = False
    return maskable


def _placed(
    used: Bool[np.ndarray, "batch places"], values: Int[np.ndarray, " tokens"], padding: int
) -> Int[np.ndarray, "batch places"]:
    placed = np.full(used.shape, padding, np.int32)
    placed[used] = values
    return placed


def half(length: int) -> int:
    """Returns half of a length, rounded up."""
    return math.ceil(length / 2)


SEQUENCE_ROWS: dict[str, SequenceRows] = {
    "mass": SequenceRows(mass, half, ("source_mask",), ("target_positions",)),
    "bart": SequenceRows(bart, lambda length: length, reads_sentences=True),
}


def drawer(
    name: str, vocabulary: tokenizer.Tokenizer
) -> Callable[[Batch, np.random.Generator], dict[str, np.ndarray]]:
    """Returns how streams make rows of a batch, by a key of SEQUENCE_ROWS."""
    ids = Ids(*(getattr(vocabulary, field) for field in Ids._fields))
    return lambda batch, rng: SEQUENCE_ROWS[name].draw(batch, ids, rng)
