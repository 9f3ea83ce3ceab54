"""The three steps of the fast build as Apache Beam transforms.

Tokens of every block, examples of every block, shards. A step is one chain, from what is to be done
to one file of what was found, which the program reads before the next step. What else passes from
step to step lies in files that all machines reach (`work`). No transform has a second output or a
side input, since not every runner knows them: Beam's for Dask computes the last transform alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam

from data_pipelines import sources
from data_pipelines.beam import work

# Of any number of blocks: each is part of the description of the pipeline, which may not be large.
RANGES = 1000


def tokenize(
    pipeline: apache_beam.Pipeline,
    groups: Sequence[tuple[sources.Unit, ...]],
    job: work.Job,
) -> None:
    """Adds the first step: the tokens of all blocks, with their counts, and what reading found."""
    tokenized = (
        pipeline
        | "groups" >> apache_beam.Create(list(enumerate(groups)))
        | "spread groups" >> apache_beam.Reshuffle()
        | "read" >> apache_beam.FlatMap(work.read_group, job)
        | "spread blocks" >> apache_beam.Reshuffle()
        | "tokenize" >> apache_beam.Map(work.tokenize_block, job)
    )
    _keep(tokenized, job, work.TOKENS_FILE)


def pair(pipeline: apache_beam.Pipeline, job: work.Job) -> None:
    """Adds the second step: the examples of all blocks, as places in the corpus."""
    requests = _block_indices(pipeline, job) | "draft" >> apache_beam.FlatMap(work.draft_block, job)
    answers = (
        _keyed(requests, "requests", tuple[int, tuple[int, bytes]])
        | "gather requests" >> apache_beam.GroupByKey()
        | "answer" >> apache_beam.FlatMap(work.answer_requests, job)
    )
    paired = (
        _keyed(answers, "answers", tuple[int, bytes])
        | "gather answers" >> apache_beam.GroupByKey()
        | "finish" >> apache_beam.Map(work.finish_block, job)
    )
    _keep(paired, job, work.PAIRS_FILE)


def write(pipeline: apache_beam.Pipeline, job: work.Job, dealing: work.Dealing) -> None:
    """Adds the third step: the shards of `dealing`, or the figures of a sample."""
    segments = _block_indices(pipeline, job) | "deal" >> apache_beam.FlatMap(
        work.deal_block, job, dealing
    )
    pieces = (
        _keyed(segments, "segments", tuple[int, bytes])
        | "gather segments" >> apache_beam.GroupByKey()
        | "tokens of segments" >> apache_beam.FlatMap(work.segment_pieces, job)
    )
    written = (
        _keyed(pieces, "pieces", tuple[int, tuple[bytes, bytes]])
        | "gather shards" >> apache_beam.GroupByKey()
        | "write" >> apache_beam.Map(work.write_shard, job, dealing)
    )
    _keep(written, job, work.RECORDS_FILE)


def _block_indices(pipeline: apache_beam.Pipeline, job: work.Job) -> Any:
    num_blocks = job.layout.num_blocks
    size = -(-num_blocks // RANGES)
    ranges = [range(begin, min(begin + size, num_blocks)) for begin in range(0, num_blocks, size)]
    return (
        pipeline
        | "ranges" >> apache_beam.Create(ranges)
        | "blocks" >> apache_beam.FlatMap(_same)
        | "spread blocks" >> apache_beam.Reshuffle()
    )


def _keep(found: Any, job: work.Job, name: str) -> None:
    """Adds the end of a step: everything found in one file."""
    _ = (
        # Not without a key: Beam's own key for that is None, whose hash differs between processes.
        _keyed(found | "one key" >> apache_beam.Map(_at_zero), "found", tuple[int, work.Found])
        | "merge" >> apache_beam.CombinePerKey(work.Found.merged)
        | "save" >> apache_beam.Map(_save, job, name)
    )


def _at_zero(found: work.Found) -> tuple[int, work.Found]:
    return 0, found


def _save(keyed: tuple[int, work.Found], job: work.Job, name: str) -> None:
    _, found = keyed
    found.save(job, name)


def _keyed(collection: Any, name: str, kind: Any) -> Any:
    """Returns the collection with its type declared: keys are only grouped as what they are."""
    return collection | f"{name} by key" >> apache_beam.Map(_same).with_output_types(kind)


def _same(element: Any) -> Any:
    return element
