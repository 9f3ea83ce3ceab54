"""The fast build: three steps over all cores, each of which keeps what it has finished.

Documents become tokens (`blocks`, kept by `store`), tokens become examples of every block, and
examples become shards (`shards`). Memory is that of a few blocks, whatever the corpus.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertjax.data import records
from bertjax.files import atomic, json_text
from data_pipelines import progress, workers
from data_pipelines.building import blocks, builders, shards, store
from data_pipelines.building.options import Options
from data_pipelines.documents import deduplication, sources
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import statistics

READING_NOTES = "reading.json"


def build(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: builders.Judge,
) -> builders.BuildResult:
    """Writes the shards of `options` into `output.records`."""
    with workers.Pool(options.num_workers, vocabulary.load) as pool:
        corpus, text, log = _tokenized(options, vocabulary, units, output, pool)
        figures_so_far = text.statistics() | text.script_statistics(vocabulary.load())
        figures_so_far |= log.statistics()
        judge(figures_so_far)
        job = shards.Job(
            scratch=str(output.scratch),
            directory=str(output.records),
            vocabulary=vocabulary,
            pairs=options.pairs,
            masking=options.masking,
            stores_words=options.stores_words,
            counts_words=options.count_words,
            stores_sentence_ends=options.sentence_ends,
            block_documents=corpus.block_documents(),
        )
        pairs, counts = _paired(job, corpus.end.tokens, pool)
        figures_so_far |= pairs.statistics(options.pair_objective)
        first = shards.feature_batches(job, 0, builders.sample_shards(pairs.examples), counts)
        example_bytes = builders.sample(first, tally := job.new_tally())
        num_records = builders.num_records(pairs.examples, tally)
        judge(figures_so_far | tally.statistics(vocabulary.load()) | {"examples": num_records})
        num_shards = builders.num_shards(options, num_records, example_bytes, output)
        written, tally = _written(job, num_shards, counts, pool)
        figures = figures_so_far | tally.statistics(vocabulary.load())
        return builders.BuildResult(
            tuple(written), figures, tally.contents(text.distinct_documents)
        )


def _tokenized(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    pool: workers.Pool,
) -> tuple[store.Store, statistics.CorpusTally, sources.Log]:
    """Returns the stored corpus, what was counted in it, and the problems of reading it."""
    scratch = pathlib.Path(output.scratch)
    corpus = store.Store(scratch, token_dtype=options.tokenization(vocabulary).token_dtype)
    notes = scratch / READING_NOTES
    reading = _reading_notes(notes)
    # Inputs that are not files have no mtime, so they are read again.
    if reading.get("blocks") == len(corpus.blocks) and all(unit.bytes for unit in units):
        log = sources.Log(**reading["log"])
    else:
        # Not read to the end so far, or a crash of the machine took the last blocks.
        before = list(corpus.blocks)
        log = _read(options, vocabulary, units, corpus, pool)
        if corpus.blocks != before:
            output.discard_examples()
        read = {"blocks": len(corpus.blocks), "log": dataclasses.asdict(log)}
        atomic.write(notes, json.dumps(read))
    tally, later_log = corpus.summary()
    log.merge(later_log)
    builders.check_text(tally, options)
    return corpus, tally, log


def _reading_notes(path: pathlib.Path) -> dict[str, Any]:
    """Returns what `_tokenized` noted of a text that was read to its end, {} if it must be read."""
    if not path.exists():
        return {}
    try:
        return json_text.read_object(path)
    except ValueError as error:
        logging.warning("the text is read again: %s", error)
        return {}


def _read(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    corpus: store.Store,
    pool: workers.Pool,
) -> sources.Log:
    """Reads all units, tokenizes the blocks that are not stored yet and stores them."""
    log = sources.Log()
    filtered = deduplication.filter_for(options.deduplicate, log)
    text_blocks = (
        block
        for group in blocks.groups(units)
        for block in blocks.group_blocks(group, options.reading, log, filtered)
    )
    digests: collections.deque[str] = collections.deque()

    def new_blocks() -> Iterator[list[sources.Document]]:
        old_digests = [block.digest for block in corpus.blocks]
        index = -1
        for index, block in enumerate(text_blocks):
            digest = blocks.digest(block)
            if index < len(old_digests) and old_digests[index] == digest:
                continue
            if index < len(old_digests):
                # From here on the input is not what it was.
                corpus.truncate(index)
                old_digests = old_digests[:index]
            digests.append(digest)
            yield block
        if index + 1 < len(old_digests):
            corpus.truncate(index + 1)

    tokenize = functools.partial(blocks.tokenize, how=options.tokenization(vocabulary))
    total = sum(unit.bytes for unit in units)
    with progress.Progress("tokenizing", total, "B") as shown:
        for block in pool.map(tokenize, new_blocks()):
            corpus.append(digests.popleft(), block)
            shown.at(log.bytes_read, documents=f"{corpus.end.documents:,}")
    return log


def _paired(
    job: shards.Job, num_tokens: int, pool: workers.Pool
) -> tuple[shards.PairTotals, np.ndarray]:
    """Returns what all blocks gave together, and the number of examples of each."""
    pair = functools.partial(shards.pair_block, job=job)
    counts_of_blocks = []
    with progress.Progress("pairing", job.num_blocks, " blocks") as shown:
        for counts in pool.map(pair, range(job.num_blocks)):
            counts_of_blocks.append(counts)
            shown.at(len(counts_of_blocks))
    return shards.PairTotals.of(counts_of_blocks, num_tokens), np.array(
        [counts.examples for counts in counts_of_blocks], np.int64
    )


def _written(
    job: shards.Job, num_shards: int, counts: np.ndarray, pool: workers.Pool
) -> tuple[list[records.Shard], statistics.ExampleTally]:
    """Returns the written shards, and what was counted in all of them."""
    write = functools.partial(shards.write, job=job, num_shards=num_shards, counts=counts)
    shard_entries: list[records.Shard] = []
    tally = job.new_tally()
    examples = size = 0
    with progress.Progress("writing", int(counts.sum()), " examples") as shown:
        for one in pool.map(write, range(num_shards)):
            shard_entries.append(one.shard)
            tally.merge(one.tally)
            examples, size = examples + one.shard.examples, size + one.shard.bytes
            shown.at(examples, MB=f"{size / 1e6:,.0f}")
    return shard_entries, tally
