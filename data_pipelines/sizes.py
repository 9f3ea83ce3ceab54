"""How many shards there are and how large, told from a sample before any is written."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterable, Mapping

import numpy as np

from bertjax.data import records
from data_pipelines import shards
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import statistics

DEFAULT_NUM_SHARDS = 32
SHARD_BYTES = 200_000_000
# Of packed records: each shard is packed by itself, and its last rows stay open.
PACKED_ROWS_PER_SHARD = 256
SAMPLE_BATCHES = 4
# Of a TFRecord: its length and two checksums.
FRAME_BYTES = 16


def default_num_shards(
    num_examples: int, example_bytes: float = 0, *, is_packed: bool = False
) -> int:
    """Returns a multiple of 32 by which shards have at most about `SHARD_BYTES`.

    For fewer than 32 examples, it is the largest power of two that leaves no shard empty, of packed
    records the largest by which shards have enough rows.
    """
    most = num_examples // PACKED_ROWS_PER_SHARD if is_packed else num_examples
    if most < DEFAULT_NUM_SHARDS:
        return 2 ** (max(most, 1).bit_length() - 1)
    return DEFAULT_NUM_SHARDS * max(
        1, math.ceil(num_examples * example_bytes / (DEFAULT_NUM_SHARDS * SHARD_BYTES))
    )


def sample_shards(num_examples: int) -> int:
    """Returns the number of shards of which the first is as large as a sample."""
    return max(1, num_examples // (SAMPLE_BATCHES * shards.ROWS_PER_BATCH))


def sample(batches: Iterable[Mapping[str, np.ndarray]], tally: statistics.ExampleTally) -> float:
    """Counts the first few batches and returns the mean bytes of a record in its file."""
    sizes: list[int] = []
    for batch in itertools.islice(batches, SAMPLE_BATCHES):
        tally.add(batch)
        sizes += [len(record) + FRAME_BYTES for record in records.encode_batch(batch)]
    return float(np.mean(sizes))


def num_records(num_examples: int, sampled: statistics.ExampleTally) -> int:
    """Returns how many records so many examples make: as many, or by the sample if rows share."""
    return math.ceil(num_examples / sampled.sequences_per_row)


def check(num_shards: int, num_examples: int, example_bytes: float, output: PartialOutput) -> None:
    """Raises ValueError if a shard would be empty, OSError if the disk cannot hold the shards."""
    if num_shards > num_examples:
        raise ValueError(
            f"num_shards is {num_shards}, but there are only {num_examples} examples; give at most "
            "that many, or 0 to have the number chosen"
        )
    if "://" in str(output.records):
        return
    finished = sum(path.stat().length for path in output.records.iterdir())
    needed = num_examples * example_bytes - finished
    free = shutil.disk_usage(output.records).free
    if needed > free:
        raise OSError(
            f"the records take about {needed / 1e9:.1f} GB more, but {output.records} has "
            f"{free / 1e9:.1f} GB free: make space or choose another --output, or a smaller "
            "--dupe_factor; the tokenized corpus is kept for the next call"
        )
