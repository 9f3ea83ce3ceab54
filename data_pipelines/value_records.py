"""Rows of values to records, shuffled over all shards, with a manifest.

Where rows come from, and what their positions are, belongs to the builders (`build_series`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from etils import epath

from bertjax.data import atomic, records, value_masking
from data_pipelines import builders, tfds_metadata
from data_pipelines.partial_output import PartialOutput

ROWS_PER_BATCH = 1_024


class Rows(Protocol):
    """The rows of a part of the data, which are taken by their numbers."""

    @property
    def length(self) -> int:
        """The number of positions of a row."""
        ...

    def __len__(self) -> int: ...

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the features of these rows: `values` [rows, length, width] and others."""
        ...


def write(
    directory: epath.PathLike,
    rows: Rows,
    *,
    seed: int,
    arguments: Mapping[str, Any],
    statistics: Mapping[str, Any],
    donors: value_masking.Donors | None = None,
    overwrite: bool = False,
) -> records.Manifest:
    """Writes all rows into a record directory and returns its manifest.

    Raises:
      FileExistsError: if the directory exists and is not to be overwritten.
      ValueError: if there are no rows.
    """
    if not len(rows):
        raise ValueError(f"there are no rows for {directory}: give more data, or smaller windows")
    one = rows.take(np.zeros(1, np.int64))
    features = {name: _feature(name, array) for name, array in one.items()}
    size = sum(array.nbytes for array in one.values())
    number = builders.default_num_shards(len(rows), size, is_packed=False)
    order = np.random.default_rng(seed).permutation(len(rows))
    with PartialOutput(directory, overwrite=overwrite) as output:
        output.begin({}, dict(arguments))
        shards = tuple(
            records.write_shard(
                output.records / records.shard_name(index, number),
                _encoded(rows, np.sort(order[index::number]), seed + index),
            )
            for index in range(number)
        )
        manifest = records.Manifest(
            tokenizer={},
            max_seq_length=rows.length,
            max_predictions_per_seq=0,
            masked_lm_prob=0.0,
            pair_objective="none",
            shards=shards,
            seed=seed,
            arguments=arguments,
            statistics={**statistics, "examples": len(rows)},
            features=features,
        )
        if donors is not None:
            values, observed = donors
            with atomic.writing(output.records / value_masking.DONORS_FILE) as file:
                np.savez_compressed(file, values=values, observed=observed)
        manifest.save(output.records)
        tfds_metadata.write(output.records, manifest)
        output.publish()
    return manifest


def _encoded(rows: Rows, numbers: np.ndarray, seed: int) -> Iterator[bytes]:
    """Yields the records of a shard in random order."""
    numbers = np.random.default_rng(seed).permutation(numbers)
    for first in range(0, len(numbers), ROWS_PER_BATCH):
        yield from records.encode_batch(rows.take(numbers[first : first + ROWS_PER_BATCH]))


def _feature(name: str, array: np.ndarray) -> records.Feature:
    by_position = (records.VALUES_FEATURE, records.OBSERVED_FEATURE, records.WORDS_FEATURE)
    sizes = array.shape[1:]
    shape = (records.LENGTH, *sizes[1:]) if name in by_position else sizes
    if array.dtype == np.uint8:
        return records.Feature(shape, "uint8")
    return records.Feature(shape, "float32" if array.dtype.kind == "f" else "int32")
