"""Random token batches in the shape of records: to measure speed, and to run without TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np


def train_batches(
    *,
    global_batch_size: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    seed: int,
    start_step: int = 0,
    rows: range | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields endless full-length batches; each is a function of (seed, step). Labels are random."""
    rows = range(global_batch_size) if rows is None else rows
    for step in itertools.count(start_step):
        rng = np.random.default_rng([seed, step])
        size = (global_batch_size, max_seq_length)
        predictions = (global_batch_size, max_predictions_per_seq)
        # Distinct, ascending positions: a random start and a fixed stride.
        stride = max(max_seq_length // max_predictions_per_seq, 1)
        starts = rng.integers(0, stride, (global_batch_size, 1))
        positions = starts + stride * np.arange(max_predictions_per_seq)
        batch = {
            "input_ids": rng.integers(0, vocab_size, size),
            "input_mask": np.ones(size),
            "segment_ids": np.arange(max_seq_length)[None]
            >= rng.integers(1, max_seq_length, (global_batch_size, 1)),
            "masked_lm_positions": positions,
            "masked_lm_ids": rng.integers(0, vocab_size, predictions),
            "next_sentence_labels": rng.integers(0, 2, global_batch_size),
        }
        batch = {
            name: values[rows.start : rows.stop].astype(np.int32) for name, values in batch.items()
        }
        batch["masked_lm_weights"] = np.ones((len(rows), max_predictions_per_seq), np.float32)
        batch["example_weights"] = np.ones(len(rows), np.float32)
        batch["record_positions"] = np.stack([np.full(len(rows), step), np.asarray(rows)], axis=1)
        yield batch
