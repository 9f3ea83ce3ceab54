"""The fast build: three steps over all cores, each of which keeps what it has finished.

Documents become tokens (`blocks`, kept by `store`), tokens become examples of every block, and
examples become shards (`shards`). Memory is that of a few blocks, whatever the corpus.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data import atomic, records
from data_pipelines import blocks, progress, shards, sources, store, workers
from data_pipelines.options import Options
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import statistics

DEFAULT_NUM_SHARDS = 32
SHARD_BYTES = 200_000_000
SAMPLE_BATCHES = 4
# Of a TFRecord: its length and two checksums.
FRAME_BYTES = 16
READING_NOTES = "reading.json"

# Called with all figures known so far, before anything is written that depends on them.
Judge = Callable[[Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Content:
    """What a build has written: the shards and the figures of the health report."""

    shards: tuple[records.Shard, ...]
    statistics: Mapping[str, Any]


def build(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: Judge,
) -> Content:
    """Writes the shards of `options` into `output.records`.

    Raises:
      ValueError: if the text does not allow a correct record, or there are fewer examples than
        shards.
      OSError: if the disk is, or would be, full.
    """
    with workers.Pool(options.num_workers, vocabulary.load) as pool:
        return _build(options, vocabulary, units, output, judge, pool)


def _build(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: Judge,
    pool: workers.Pool,
) -> Content:
    kept, known = _tokenized(options, vocabulary, units, output, pool)
    judge(known)
    job = shards.Job(
        scratch=str(output.scratch),
        directory=str(output.records),
        vocabulary=vocabulary,
        pairs=options.pairs,
        masking=options.masking,
        block_documents=kept.block_documents(),
    )
    pairs, counts = _paired(job, pool)
    if options.pair_objective != "none":
        known |= pairs.statistics()
    first = shards.feature_batches(job, 0, sample_shards(pairs.examples), counts)
    example_bytes = sample(first, tally := job.new_tally())
    judge(known | tally.statistics(vocabulary.load()) | {"examples": pairs.examples})
    num_shards = options.num_shards or default_num_shards(pairs.examples, example_bytes)
    check_size(num_shards, pairs.examples, example_bytes, output)
    written, tally = _written(job, num_shards, counts, pool)
    return Content(tuple(written), known | tally.statistics(vocabulary.load()))


def default_num_shards(num_examples: int, example_bytes: float = 0) -> int:
    """Returns a multiple of 32 by which shards have at most about `SHARD_BYTES`.

    For fewer than 32 examples, it is the largest power of two that leaves no shard empty.
    """
    if num_examples < DEFAULT_NUM_SHARDS:
        return 2 ** (max(num_examples, 1).bit_length() - 1)
    return DEFAULT_NUM_SHARDS * max(
        1, math.ceil(num_examples * example_bytes / (DEFAULT_NUM_SHARDS * SHARD_BYTES))
    )


def sample_shards(num_examples: int) -> int:
    """Returns the number of shards of which the first is as large as a sample."""
    return max(1, num_examples // (SAMPLE_BATCHES * shards.ROWS_PER_BATCH))


def _tokenized(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    pool: workers.Pool,
) -> tuple[store.Store, dict[str, Any]]:
    """Returns the stored corpus and its figures."""
    scratch = pathlib.Path(output.scratch)
    kept = store.Store(scratch, token_dtype=vocabulary.token_dtype)
    notes = scratch / READING_NOTES
    found: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {"blocks": -1}
    # Of what is no file nobody knows whether it has changed: it is read again and compared.
    if found["blocks"] == len(kept.blocks) and all(unit.bytes for unit in units):
        log = sources.Log(**found["log"])
    else:
        # Not read to the end so far, or a crash of the machine took the last blocks.
        before = list(kept.blocks)
        log = _read(options, vocabulary, units, kept, pool)
        if kept.blocks != before:
            output.discard_examples()
        read = {"blocks": len(kept.blocks), "log": dataclasses.asdict(log)}
        atomic.write(notes, json.dumps(read))
    tally, later_log = kept.summary()
    log.merge(later_log)
    check_text(tally, options)
    return kept, tally.statistics() | log.statistics()


def check_text(tally: statistics.CorpusTally, options: Options) -> None:
    """Raises ValueError if nothing was found in the input."""
    if not tally.documents:
        raise ValueError(
            f"input {options.input!r} holds no documents in its split {options.split!r}; give "
            "other files, or another --split and --heldout_fraction"
        )
    if not tally.sentences:
        raise ValueError(
            f"the {tally.documents} documents of input {options.input!r} hold no sentence; check "
            "that they are text"
        )


def _read(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    kept: store.Store,
    pool: workers.Pool,
) -> sources.Log:
    """Reads all units, tokenizes the blocks that are not stored yet and stores them."""
    log = sources.Log()
    text_blocks = (
        block
        for group in blocks.groups(units)
        for block in blocks.group_blocks(group, options.reading, log)
    )
    digests: collections.deque[str] = collections.deque()

    def new_blocks() -> Iterator[list[sources.Document]]:
        known = [block.digest for block in kept.blocks]
        index = -1
        for index, block in enumerate(text_blocks):
            digest = blocks.digest(block)
            if index < len(known) and known[index] == digest:
                continue
            if index < len(known):
                # From here on the input is not what it was.
                kept.truncate(index)
                known = known[:index]
            digests.append(digest)
            yield block
        if index + 1 < len(known):
            kept.truncate(index + 1)

    tokenize = functools.partial(blocks.tokenize, how=options.tokenization(vocabulary))
    total = sum(unit.bytes for unit in units)
    with progress.Progress("tokenizing", total, "B") as shown:
        for block in pool.map(tokenize, new_blocks()):
            kept.append(digests.popleft(), block)
            shown.at(log.bytes_read, documents=f"{kept.end.documents:,}")
    return log


def _paired(job: shards.Job, pool: workers.Pool) -> tuple[shards.PairCounts, np.ndarray]:
    """Returns what all blocks gave together, and the number of examples of each."""
    pair = functools.partial(shards.pair_block, job=job)
    found = []
    with progress.Progress("pairing", job.num_blocks, " blocks") as shown:
        for counts in pool.map(pair, range(job.num_blocks)):
            found.append(counts)
            shown.at(len(found))
    return sum_of_pairs(found), np.array([counts.examples for counts in found], np.int64)


def sum_of_pairs(found: Sequence[shards.PairCounts]) -> shards.PairCounts:
    """Returns what all blocks gave together; ValueError if that is nothing."""
    total = functools.reduce(shards.PairCounts.__add__, found)
    if not total.examples:
        raise ValueError(
            "no examples are left: all pairs are random, so that half of them cannot be next "
            "sentences; drop --balanced_nsp, and look whether documents have several sentences"
        )
    return total


def sample(batches: Iterable[Mapping[str, np.ndarray]], tally: statistics.ExampleTally) -> float:
    """Counts the first few batches and returns the mean bytes of a record in its file."""
    sizes: list[int] = []
    for batch in itertools.islice(batches, SAMPLE_BATCHES):
        tally.add(batch)
        sizes += [len(record) + FRAME_BYTES for record in records.encode_batch(batch)]
    return float(np.mean(sizes))


def check_size(
    num_shards: int, num_examples: int, example_bytes: float, output: PartialOutput
) -> None:
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


def _written(
    job: shards.Job, num_shards: int, counts: np.ndarray, pool: workers.Pool
) -> tuple[list[records.Shard], statistics.ExampleTally]:
    """Returns the written shards, and what was counted in all of them."""
    write = functools.partial(shards.write, job=job, num_shards=num_shards, counts=counts)
    found: list[records.Shard] = []
    tally = job.new_tally()
    examples = size = 0
    with progress.Progress("writing", int(counts.sum()), " examples") as shown:
        for one in pool.map(write, range(num_shards)):
            found.append(one.shard)
            tally.merge(one.tally)
            examples, size = examples + one.shard.examples, size + one.shard.bytes
            shown.at(examples, MB=f"{size / 1e6:,.0f}")
    return found, tally
