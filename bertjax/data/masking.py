"""Which tokens are hidden and what stands in their place, for a whole batch at once in numpy.

The same functions mask offline, when records are built, and online, when a stream draws masks
at load time. Reading and batching belong to `streams`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data import word_masking
from bertjax.options import faults

# Source: BERT (Devlin et al. 2019), section 3.1: 80% [MASK], 10% random, 10% unchanged.
MASK_SHARE = 0.8
KEEP_SHARE = 0.1

# Takes the maskable positions [B, L], those that continue the word of the position before [B, L],
# the number to choose per row [B] and a generator, and returns the chosen positions [B, L].
Choose = Callable[..., Bool[np.ndarray, "batch length"]]


@dataclasses.dataclass(frozen=True)
class Masker:
    """A way to choose the tokens to mask.

    `needs_words`: it must know which tokens continue a word. `replaces_runs`: all tokens of a run
    get the same kind of replacement ([MASK], another token or themselves).
    """

    choose: Choose
    needs_words: bool = True
    replaces_runs: bool = False


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """The share of tokens to mask, the maximum per row, and the name of one of `MASKERS`.

    A share of the masked tokens, `mask_share`, becomes [MASK]; `keep_share` of them stay, and the
    others become random tokens.
    """

    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    strategy: str = "token"
    mask_share: float = MASK_SHARE
    keep_share: float = KEEP_SHARE

    def __post_init__(self):
        if not 0 < self.masked_lm_prob < 1:
            must = "between 0 and 1 (BERT: 0.15)"
            raise faults.wrong("masked_lm_prob", self.masked_lm_prob, must)
        if self.max_predictions_per_seq < 1:
            must = "at least 1 (BERT: 20 at 128 tokens, 77 at 512)"
            raise faults.wrong("max_predictions_per_seq", self.max_predictions_per_seq, must)
        shares = self.mask_share, self.keep_share
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise ValueError(
                f"mask_share is {self.mask_share} and keep_share {self.keep_share}; both must be "
                "at least 0, and their sum at most 1 (BERT: 0.8 and 0.1)"
            )
        if self.strategy not in MASKERS:
            raise faults.unknown("strategy", self.strategy, sorted(MASKERS))


def default_max_predictions(
    max_seq_length: int, masked_lm_prob: float, max_sequences_per_row: int = 0
) -> int:
    """Returns masked_lm_prob * max_seq_length rounded up: 20 at 128 tokens, 77 at 512.

    For rows of several sequences it is the most that their predictions can add up to: rounding adds
    up to a half to each, and the shortest sequence, [CLS], a token and [SEP], has one. Source of
    the first: google-research/bert README, "Pre-training with BERT".
    """
    of_each = max(0.5, 1 - 3 * masked_lm_prob)
    return math.ceil(masked_lm_prob * max_seq_length + max_sequences_per_row * of_each)


def unigram_baseline(counts: Int[np.ndarray, " vocabulary"]) -> tuple[float, float]:
    """Returns the unigram entropy of token counts in nats, and the most frequent token's share.

    They are the loss and the accuracy of the best guess that ignores the context.
    """
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()), float(shares.max())


def unigram_scores(
    trained_counts: Int[np.ndarray, " vocabulary"], counts: Int[np.ndarray, " vocabulary"]
) -> tuple[float, float]:
    """Returns loss (nats) and accuracy over `counts` of predicting by the training counts.

    The loss smooths them by Witten-Bell: all unseen tokens together count as often as there were
    first occurrences. The accuracy is the share of the most frequent training token.

    Source: Witten and Bell 1991, method C; Chen and Goodman 1998, section 2.6.
    """
    total, seen = trained_counts.sum(), np.count_nonzero(trained_counts)
    unseen = len(trained_counts) - seen
    shares = trained_counts / max(total + (seen if unseen else 0), 1)
    if unseen:
        shares[trained_counts == 0] = (seen / (total + seen) if total else 1.0) / unseen
    scored = counts > 0
    loss = -(counts[scored] * np.log(shares[scored])).sum() / counts.sum()
    return float(loss), float(counts[trained_counts.argmax()] / counts.sum())


def mask_tokens(
    input_ids: Int[np.ndarray, "batch length"],
    sequence_ids: Int[np.ndarray, "batch length"],
    *,
    options: MaskingOptions,
    vocab_size: int,
    mask_id: int,
    special_ids: Sequence[int],
    rng: np.random.Generator,
    continues_word: Bool[np.ndarray, " vocabulary"] | None = None,
    stored_words: Int[np.ndarray, "batch length"] | None = None,
) -> dict[str, np.ndarray]:
    """Returns masked `input_ids` and the original tokens, under the names of the BERT records.

    `sequence_ids` are 0 at padding and 1 at tokens, as an `input_mask`. In a row of several
    sequences they are numbered from 1, one behind the other; each sequence then has its own number
    of predictions, and the choice in it depends on it alone. If those were more than a row has
    places, the last sequences would get fewer.

    `masked_lm_positions` are ascending; unused places hold position 0, id 0, weight 0. The number
    of predictions counts all real tokens, [CLS] and [SEP] among them, as the released code does;
    the random tokens come from the whole vocabulary, specials included, also as released.
    `continues_word` is True for the entries that continue the word before ("##ing"); maskers of
    whole words need it, or `stored_words`, which is 1 for such tokens and counts in its place.

    Source: google-research/bert, create_pretraining_data.py, create_masked_lm_predictions.
    """
    maskable = (sequence_ids != 0) & ~np.isin(input_ids, special_ids)
    continues = np.zeros_like(maskable)
    masker = MASKERS[options.strategy]
    if masker.needs_words:
        if stored_words is None:
            stored_words = _checked(continues_word, options.strategy, vocab_size)[input_ids]
        continues[:, 1:] = (stored_words[:, 1:] != 0) & maskable[:, 1:] & maskable[:, :-1]
    if sequence_ids.max(initial=0) > 1:
        chosen = _choose_by_sequence(masker, maskable, continues, sequence_ids, options, rng)
    else:
        counts = _num_predictions(np.count_nonzero(sequence_ids, axis=1), options)
        chosen = masker.choose(maskable, continues, counts, rng)

    # From here on one number per chosen token, row by row: places in the flattened batch.
    places = np.flatnonzero(chosen)
    originals = input_ids.ravel()[places]
    dice = _dice_per_run(chosen, rng) if masker.replaces_runs else rng.random(len(places))
    substitutes = rng.integers(0, vocab_size, size=len(places))
    # The sum of 0.85 and 0.15 is below 1 in binary, and a die may lie between.
    stays = dice < options.mask_share + options.keep_share + 1e-9
    substitutes = np.where(stays, originals, substitutes)
    masked = input_ids.astype(np.int32, order="C")
    masked.ravel()[places] = np.where(dice < options.mask_share, mask_id, substitutes)
    used = np.arange(options.max_predictions_per_seq) < chosen.sum(axis=1)[:, None]
    return {
        "input_ids": masked,
        "masked_lm_positions": _padded(places % input_ids.shape[1], used),
        "masked_lm_ids": _padded(originals, used),
        "masked_lm_weights": used.astype(np.float32),
    }


def _num_predictions(
    lengths: Int[np.ndarray, " sequences"], options: MaskingOptions
) -> Int[np.ndarray, " sequences"]:
    """Returns the number of tokens to mask in sequences of these lengths."""
    counts = np.rint(lengths * options.masked_lm_prob).astype(np.int64)
    return np.minimum(np.maximum(counts, 1), options.max_predictions_per_seq)


def _choose_by_sequence(
    masker: Masker,
    maskable: Bool[np.ndarray, "batch length"],
    continues: Bool[np.ndarray, "batch length"],
    sequence_ids: Int[np.ndarray, "batch length"],
    options: MaskingOptions,
    rng: np.random.Generator,
) -> Bool[np.ndarray, "batch length"]:
    """Returns the masker's choice with every sequence laid out as a row of its own.

    Sequences of about the same length go together, so padding at most doubles the work.
    """
    numbers = sequence_ids.ravel()
    is_start = (np.diff(sequence_ids, axis=1, prepend=0) != 0).ravel() & (numbers != 0)
    starts = np.flatnonzero(is_start)
    row = starts // sequence_ids.shape[1]
    of_each = np.cumsum(is_start)[numbers != 0] - 1
    lengths = np.bincount(of_each, minlength=len(starts))
    counts = _within_rows(_num_predictions(lengths, options), row, options.max_predictions_per_seq)
    chosen = np.zeros(maskable.size, bool)
    classes = np.maximum(np.ceil(np.log2(lengths)), 4).astype(np.int64)
    for power in np.unique(classes):
        members = np.flatnonzero(classes == power)
        place = np.arange(lengths[members].max())
        is_inside = place < lengths[members][:, None]
        places = np.where(is_inside, starts[members][:, None] + place, 0)
        is_chosen = masker.choose(
            maskable.ravel()[places] & is_inside,
            continues.ravel()[places] & is_inside,
            counts[members],
            rng,
        )
        chosen[places[is_chosen]] = True
    return chosen.reshape(maskable.shape)


def _within_rows(
    counts: Int[np.ndarray, " sequences"], row: Int[np.ndarray, " sequences"], most: int
) -> Int[np.ndarray, " sequences"]:
    """Returns `counts`, lowered for the last sequences of a row that would exceed `most`."""
    before = np.cumsum(counts) - counts
    first = np.searchsorted(row, row)  # the first sequence of each one's row
    return np.clip(most - (before - before[first]), 0, counts)


def _checked(
    continues_word: Bool[np.ndarray, " vocabulary"] | None, strategy: str, vocab_size: int
) -> Bool[np.ndarray, " vocabulary"]:
    if continues_word is None:
        raise ValueError(
            f"continues_word is None; the strategy {strategy!r} masks whole words and must know "
            "which entries continue one: give the tokenizer's `continues_word`"
        )
    if len(continues_word) != vocab_size:
        raise ValueError(
            f"continues_word has {len(continues_word)} entries; it must have one for each of the "
            f"{vocab_size} of the vocabulary: give that of the same tokenizer"
        )
    return continues_word


def _choose_tokens(
    maskable: Bool[np.ndarray, "batch length"],
    continues: Bool[np.ndarray, "batch length"],
    counts: Int[np.ndarray, " batch"],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "batch length"]:
    """Returns `counts` distinct maskable positions per row, all sets equally likely."""
    del continues  # Every token is chosen by itself.
    batch, length = maskable.shape
    order = word_masking.random_order(maskable, rng)[:, : counts.max(initial=0)]
    order = np.where(np.arange(order.shape[1]) < counts[:, None], order, length)
    chosen = np.zeros((batch, length + 1), bool)  # the last place takes the surplus
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen[:, :length]


def _dice_per_run(
    chosen: Bool[np.ndarray, "batch length"], rng: np.random.Generator
) -> Float[np.ndarray, " tokens"]:
    """Returns a random number for each chosen token, the same for all that stand in a row.

    Source: SpanBERT (Joshi et al. 2020), section 3.1: replacement is decided for the whole span;
    its released code joins spans that touch.
    """
    opens = chosen.copy()
    opens[:, 1:] &= ~chosen[:, :-1]
    run = np.cumsum(opens[chosen]) - 1
    return rng.random(int(opens.sum()))[run]


def _padded(
    values: Int[np.ndarray, " tokens"], used: Bool[np.ndarray, "batch places"]
) -> Int[np.ndarray, "batch places"]:
    padded = np.zeros(used.shape, np.int32)
    padded[used] = values
    return padded


MASKERS: dict[str, Masker] = {
    "token": Masker(_choose_tokens, needs_words=False),
    "whole_word": Masker(word_masking.choose_whole_words),
    "ngram": Masker(word_masking.choose_ngrams),
    "span": Masker(word_masking.choose_spans, replaces_runs=True),
}
