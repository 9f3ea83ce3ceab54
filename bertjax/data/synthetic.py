"""Random batches in the shape of records: to measure speed, and to run without TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from bertjax.data import records


def train_batches(
    features: records.Features,
    *,
    global_batch_size: int,
    max_seq_length: int,
    vocab_size: int,
    seed: int,
    start_step: int = 0,
    rows: range | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields endless full-length batches; each is a function of (seed, step). Labels are random."""
    rows = range(global_batch_size) if rows is None else rows
    for step in itertools.count(start_step):
        rng = np.random.default_rng([seed, step])
        shapes = {
            name: (global_batch_size, *feature.sizes(max_seq_length))
            for name, feature in features.items()
        }
        batch = {
            name: _drawn(name, shapes[name], max_seq_length, vocab_size, rng)
            for name in sorted(features, key=_place)
        }
        yield {
            **{
                name: values[rows.start : rows.stop].astype(features[name].dtype)
                for name, values in batch.items()
            },
            "input_mask": np.ones((len(rows), max_seq_length), np.int32),
            "example_weights": np.ones(len(rows), np.float32),
            "record_positions": np.stack([np.full(len(rows), step), np.asarray(rows)], axis=1),
        }


# The features of text in the order in which they are drawn.
_IN_ORDER = (
    *("masked_lm_positions", "input_ids", "segment_ids", "masked_lm_ids"),
    records.PAIR_FEATURE,
)


def _place(name: str) -> tuple[int, str]:
    return (_IN_ORDER.index(name) if name in _IN_ORDER else len(_IN_ORDER)), name


def _drawn(
    name: str, shape: tuple[int, ...], length: int, vocab_size: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns valid ids for features of text, normally distributed numbers for others."""
    match name:
        case "masked_lm_positions":
            # Distinct and ascending: a random start and a fixed stride.
            stride = max(length // shape[1], 1)
            return rng.integers(0, stride, (shape[0], 1)) + stride * np.arange(shape[1])
        case "target_positions":
            return np.broadcast_to(np.arange(shape[1]), shape)
        case "input_ids" | "masked_lm_ids" | "target_ids" | "target_labels":
            return rng.integers(0, vocab_size, shape)
        case "segment_ids":
            return np.arange(length)[None] >= rng.integers(1, length, (shape[0], 1))
        case records.PAIR_FEATURE:
            return rng.integers(0, 2, shape)
        case "masked_lm_weights" | "input_mask" | "sequence_ids" | "source_mask" | "target_mask":
            return np.ones(shape)
        case records.LANGUAGE_FEATURE | records.POSITIONS_FEATURE:
            return np.zeros(shape)
    return rng.standard_normal(shape)
