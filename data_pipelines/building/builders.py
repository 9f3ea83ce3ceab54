"""The part that all builders share: arguments, results, and the number of shards.

The builders are `fast`, `exact` and the pipeline of `beam`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data import contents, encoding, records
from bertjax.options import faults
from data_pipelines.building import blocks, shards
from data_pipelines.building.options import Options
from data_pipelines.documents import sources
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import statistics

DEFAULT_NUM_SHARDS = 32
SHARD_BYTES = 200_000_000
# Each shard is packed by itself, and its last rows stay open.
PACKED_ROWS_PER_SHARD = 256
SAMPLE_BATCHES = 4


# Called with all figures known so far, before anything is written that depends on them.
Judge = Callable[[Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class BuildResult:
    """The shards that a build has written, the figures of its report, and the summary."""

    shards: tuple[records.Shard, ...]
    statistics: Mapping[str, Any]
    contents: contents.RecordSummary


# Writes the shards of the options into `output.records`.
Builder = Callable[
    [Options, blocks.Vocabulary, Sequence[sources.Unit], PartialOutput, Judge], BuildResult
]


class NoDocumentsError(ValueError):
    """The split of an input holds no documents."""


def check_text(tally: statistics.CorpusTally, options: Options) -> None:
    """Raises ValueError if nothing was found in the input."""
    if not tally.documents:
        cause = (
            "With --one_document_per_file a file is one document, and so few cannot be split: "
            "leave it out and separate documents by blank lines"
            if options.one_document_per_file
            else "Its documents are few, or there are none: separate them by blank lines, give more"
        )
        remedy = "" if options.split == "all" else f". {cause}, or raise --heldout_fraction"
        raise NoDocumentsError(
            f"input {options.input!r} holds no documents in its split {options.split!r} "
            f"(heldout_fraction {options.heldout_fraction}){remedy or ': give other files'}"
        )
    if not tally.sentences:
        raise ValueError(
            f"the {tally.documents} documents of input {options.input!r} hold no sentence; check "
            "that they are text"
        )


def default_num_shards(
    num_examples: int, example_bytes: float = 0, *, is_packed: bool = False
) -> int:
    """Returns a multiple of 32, so that a shard has about `SHARD_BYTES` at most.

    Fewer than 32 examples have the largest power of two that leaves no shard empty. Shards of
    packed records have at least PACKED_ROWS_PER_SHARD rows.
    """
    most = num_examples // PACKED_ROWS_PER_SHARD if is_packed else num_examples
    if most < DEFAULT_NUM_SHARDS:
        return 2 ** (max(most, 1).bit_length() - 1)
    return DEFAULT_NUM_SHARDS * max(
        1, math.ceil(num_examples * example_bytes / (DEFAULT_NUM_SHARDS * SHARD_BYTES))
    )


def sample_shards(num_examples: int) -> int:
    """Returns the number of shards for which the first is as large as a sample."""
    return max(1, num_examples // (SAMPLE_BATCHES * shards.ROWS_PER_BATCH))


def sample(batches: Iterable[Mapping[str, np.ndarray]], tally: statistics.ExampleTally) -> float:
    """Counts the first few batches and returns the mean bytes of a record in its file."""
    sizes: list[int] = []
    for batch in itertools.islice(batches, SAMPLE_BATCHES):
        tally.add(batch)
        sizes += [len(record) + encoding.FRAME_BYTES for record in encoding.encode_batch(batch)]
    return float(np.mean(sizes))


def num_records(num_examples: int, sampled: statistics.ExampleTally) -> int:
    """Returns the number of records of these examples, by the sample if rows hold several."""
    return math.ceil(num_examples / sampled.sequences_per_row)


def num_shards(
    options: Options, num_examples: int, example_bytes: float, output: PartialOutput
) -> int:
    """Returns the number of shards that the options ask for, or the default."""
    is_packed = options.pairs.is_packed
    number = options.num_shards or default_num_shards(
        num_examples, example_bytes, is_packed=is_packed
    )
    if number > num_examples:
        raise faults.wrong(
            "num_shards", number, f"at most {num_examples}, the number of examples", "0 chooses it"
        )
    if "://" in str(output.records):
        return number
    finished = sum(path.stat().length for path in output.records.iterdir())
    needed = num_examples * example_bytes - finished
    free = shutil.disk_usage(output.records).free
    if needed > free:
        raise OSError(
            f"the records take about {needed / 1e9:.1f} GB more, but {output.records} has "
            f"{free / 1e9:.1f} GB free: make space or choose another --output, or a smaller "
            "--dupe_factor; the tokenized corpus is kept for the next call"
        )
    return number
