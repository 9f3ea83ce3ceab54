"""Batches of a feature set as a function of (seed, step), each as short as its rows allow.

Where there are several lengths to pad to (buckets), examples of about the same length share a
batch, because a short batch costs little. Here belongs padding. Which examples share a batch is
`epochs`' affair, what the rows hold that of `feature_sets` and the readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from bertjax.data import padding
from bertjax.finetuning import epochs, feature_sets

Batch = dict[str, np.ndarray]

NOT_SCORED = -1  # in "labels" of single tokens
FILLER = epochs.FILLER


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

    Raises:
      ValueError: if there are no examples, one is longer than the last bucket, or a number is out
        of its range.
    """
    if start_step < 0:
        raise ValueError(f"start_step is {start_step}; it must be at least 0")
    rows = range(global_batch_size) if rows is None else rows
    _check(features, global_batch_size, buckets, rows)
    return _endless(features, global_batch_size, seed, start_step, buckets, rows)


def evaluation_batches(
    features: feature_sets.FeatureSet,
    *,
    batch_size: int,
    buckets: tuple[int, ...],
    rows: range | None = None,
) -> Iterator[Batch]:
    """Returns an iterator over all examples, each once, the longest first.

    Batches are those of `train_batches`; `record_positions` put predictions back in order. Every
    host gets the same number of batches, `rows` of each.

    Raises:
      ValueError: as `train_batches`.
    """
    rows = range(batch_size) if rows is None else rows
    _check(features, batch_size, buckets, rows)
    lengths = features.lengths()
    longest_first = np.argsort(-lengths, kind="stable")
    return (
        _batch(features, positions, buckets, rows)
        for positions in epochs.cut(longest_first, batch_size)
    )


def _endless(
    features: feature_sets.FeatureSet,
    batch_size: int,
    seed: int,
    start_step: int,
    buckets: tuple[int, ...],
    rows: range,
) -> Iterator[Batch]:
    of_all = epochs.Epochs(features, batch_size, seed, by_length=len(buckets) > 1)
    for positions in of_all.from_step(start_step):
        yield _batch(features, positions, buckets, rows)


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
    input_ids = features.tokens["input_ids"]
    sequences = (examples[:, None] * choices + np.arange(choices)).reshape(-1).tolist()
    longest = max(len(input_ids[sequence]) for sequence in sequences)
    length = next(bucket for bucket in buckets if bucket >= longest)
    own = slice(rows.start, rows.stop)
    sequences = sequences[rows.start * choices : rows.stop * choices]
    shape = (len(rows), length) if choices == 1 else (len(rows), choices, length)
    weights = (positions[own] != FILLER).astype(np.float32)

    def padded(values: Sequence[np.ndarray], padding: int) -> np.ndarray:
        array = np.full((len(sequences), length), padding, np.int32)
        for row, sequence in zip(array, sequences, strict=True):
            row[: len(values[sequence])] = values[sequence]
        return array.reshape(shape)

    paddings = {"input_ids": features.pad_id, "labels": NOT_SCORED}
    batch = {
        name: padded(values, paddings.get(name, 0)) for name, values in features.tokens.items()
    }
    row_lengths = np.array([len(input_ids[sequence]) for sequence in sequences])
    is_token = np.arange(length) < row_lengths[:, None]
    batch["input_mask"] = is_token.astype(np.int32).reshape(shape)
    if "labels" in batch:
        batch["labels"][weights == 0] = NOT_SCORED
    batch |= {name: column[examples[own]] for name, column in features.columns.items()}
    return batch | {"example_weights": weights, "record_positions": positions[own]}


def _check(
    features: feature_sets.FeatureSet,
    batch_size: int,
    buckets: tuple[int, ...],
    rows: range,
) -> None:
    if not len(features):
        raise ValueError("there are no examples; batches need at least one: look at the files read")
    if batch_size < 1:
        raise ValueError(f"the batch size is {batch_size}; it must be at least 1")
    if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
        raise ValueError(
            f"buckets are {buckets}; they must be lengths from short to long, such as "
            f"{padding.default_buckets(128)}"
        )
    if (longest := int(features.lengths().max())) > buckets[-1]:
        raise ValueError(
            f"the longest example has {longest} tokens, the last bucket holds {buckets[-1]}; make "
            "the features with a max_seq_length of the last bucket"
        )
    if rows.step != 1 or not 0 <= rows.start < rows.stop <= batch_size:
        raise ValueError(
            f"rows are {rows}; they must be consecutive rows of a batch of {batch_size}"
        )
