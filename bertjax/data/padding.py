"""Rows of tokens with [CLS] and [SEP], and the few lengths that they are padded to.

Each length is a program that must be compiled, and each token of padding is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.tokenization import tokenizer

# Close together at the lengths that most texts have.
BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def default_buckets(max_seq_length: int) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to; the last one is max_seq_length."""
    return (*(bucket for bucket in BUCKETS if bucket < max_seq_length), max_seq_length)


def padded_length(length: int, most: int, *, unit: int = 0) -> int:
    """Returns `length` rounded up to a multiple of `unit`, or `most` if that is less.

    The default unit is an eighth of the next power of two, at least 8: at most four lengths for
    each doubling, with little padding.
    """
    unit = unit or max(8, 1 << max((length - 1).bit_length() - 3, 0))
    return min(-(-length // unit) * unit, most)


def cls_rows(
    sequences: Sequence[Sequence[int] | np.ndarray],
    vocabulary: tokenizer.Tokenizer,
    *,
    length: int,
    size: int = 0,
) -> dict[str, np.ndarray]:
    """Returns int32 input_ids, input_mask and segment_ids [rows, length] of [CLS] tokens [SEP].

    Each sequence is one row. Up to `size`, rows of padding alone follow.
    """
    input_ids = np.full((max(len(sequences), size), length), vocabulary.pad_id, np.int32)
    input_mask = np.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        end = len(sequence) + 1
        input_ids[row, 0], input_ids[row, 1:end] = vocabulary.cls_id, sequence
        input_ids[row, end] = vocabulary.sep_id
        input_mask[row, : end + 1] = 1
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": np.zeros_like(input_ids),
    }
