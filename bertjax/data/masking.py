"""Which tokens are hidden and what stands in their place, for a whole batch at once in numpy.

The same functions mask offline, when records are built, and online, when a stream draws masks
at load time. Reading and batching belong to `streams`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Int

# Source: BERT (Devlin et al. 2019), section 3.1: 80% [MASK], 10% random, 10% unchanged.
MASK_SHARE = 0.8
KEEP_SHARE = 0.1

# A Masker takes the maskable positions [B, L], how many to choose per row [B] and a generator,
# and returns the chosen positions [B, L].
Masker = Callable[
    [Bool[np.ndarray, "batch length"], Int[np.ndarray, " batch"], np.random.Generator],
    Bool[np.ndarray, "batch length"],
]


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How much is masked, at most how many tokens per sequence, and by which of `MASKERS`."""

    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    strategy: str = "token"

    def __post_init__(self):
        if not 0 < self.masked_lm_prob < 1:
            raise ValueError(
                f"masked_lm_prob is {self.masked_lm_prob}; it must lie between 0 and 1 (BERT: 0.15)"
            )
        if self.max_predictions_per_seq < 1:
            raise ValueError(
                f"max_predictions_per_seq is {self.max_predictions_per_seq}; it must be at least 1 "
                "(BERT: 20 at 128 tokens, 77 at 512)"
            )
        if self.strategy not in MASKERS:
            raise ValueError(f"strategy is {self.strategy!r}; known are {sorted(MASKERS)}")


def default_max_predictions(max_seq_length: int, masked_lm_prob: float) -> int:
    """Returns masked_lm_prob * max_seq_length rounded up: 20 at 128 tokens, 77 at 512.

    Source: google-research/bert README, "Pre-training with BERT".
    """
    return math.ceil(masked_lm_prob * max_seq_length)


def unigram_baseline(counts: Int[np.ndarray, " vocabulary"]) -> tuple[float, float]:
    """Returns the unigram entropy of token counts in nats, and the most frequent token's share.

    They are the loss and the accuracy of the best guess that ignores the context.
    """
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()), float(shares.max())


def mask_tokens(
    input_ids: Int[np.ndarray, "batch length"],
    input_mask: Int[np.ndarray, "batch length"],
    *,
    options: MaskingOptions,
    vocab_size: int,
    mask_id: int,
    special_ids: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns masked `input_ids` and what stood there, under the names of the BERT records.

    `masked_lm_positions` are ascending; unused places hold position 0, id 0, weight 0. The number
    of predictions counts all real tokens, [CLS] and [SEP] among them, as the released code does;
    the random tokens come from the whole vocabulary, specials included, also as released.

    Source: google-research/bert, create_pretraining_data.py, create_masked_lm_predictions.
    """
    real = input_mask != 0
    maskable = real & ~np.isin(input_ids, special_ids)
    wanted = np.rint(real.sum(axis=1) * options.masked_lm_prob).astype(np.int64)
    wanted = np.minimum(np.maximum(wanted, 1), options.max_predictions_per_seq)
    chosen = MASKERS[options.strategy](maskable, wanted, rng)
    positions, weights = _chosen_first(chosen, options.max_predictions_per_seq)

    originals = np.take_along_axis(input_ids, positions, axis=1)
    dice = rng.random(positions.shape)
    substitutes = rng.integers(0, vocab_size, size=positions.shape)
    substitutes = np.where(dice < MASK_SHARE + KEEP_SHARE, originals, substitutes)
    substitutes = np.where(dice < MASK_SHARE, mask_id, substitutes)
    masked = np.array(input_ids, dtype=np.int32)
    rows, slots = np.nonzero(weights)
    masked[rows, positions[rows, slots]] = substitutes[rows, slots]
    return {
        "input_ids": masked,
        "masked_lm_positions": np.where(weights, positions, 0).astype(np.int32),
        "masked_lm_ids": np.where(weights, originals, 0).astype(np.int32),
        "masked_lm_weights": weights.astype(np.float32),
    }


def _choose_tokens(
    maskable: Bool[np.ndarray, "batch length"],
    wanted: Int[np.ndarray, " batch"],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "batch length"]:
    """Returns `wanted` distinct maskable positions per row, all sets equally likely."""
    # The smallest of random keys are a random subset. Each key ends in its own position, so that
    # no two are equal and the count is exact; a sort of plain integers is the fast kind.
    length = maskable.shape[1]
    keys = rng.integers(0, 2**40, size=maskable.shape) * length + np.arange(length)
    keys = np.where(maskable, keys, np.iinfo(np.int64).max)
    last = np.minimum(wanted, length)[:, None] - 1
    return maskable & (keys <= np.take_along_axis(np.sort(keys, axis=1), last, axis=1))


def _chosen_first(
    chosen: Bool[np.ndarray, "batch length"], count: int
) -> tuple[Int[np.ndarray, "batch count"], Bool[np.ndarray, "batch count"]]:
    """Returns each row's chosen positions, ascending, and which of the `count` places are used."""
    positions = np.zeros((len(chosen), count), np.int64)
    rows, places = np.nonzero(chosen)
    slots = np.cumsum(chosen, axis=1)[rows, places] - 1
    positions[rows, slots] = places
    used = np.arange(count) < chosen.sum(axis=1)[:, None]
    return positions, used


MASKERS: dict[str, Masker] = {"token": _choose_tokens}
