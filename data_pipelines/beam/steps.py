"""The three steps of the fast build as Apache Beam transforms.

Tokens of every block, examples of every block, shards. What a step finds lies in files that all
machines reach (`work`), where the program reads it before the next step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam
from apache_beam import pvalue

from data_pipelines import sources
from data_pipelines.beam import work
from data_pipelines.reports import statistics


def tokenize(
    pipeline: apache_beam.Pipeline,
    groups: Sequence[tuple[sources.Unit, ...]],
    job: work.Job,
) -> None:
    """Adds the first step: the tokens of all blocks, with their counts, and what reading found."""
    read: Any = (
        pipeline
        | "groups" >> apache_beam.Create(list(enumerate(groups)))
        | "spread groups" >> apache_beam.Reshuffle()
        | "read" >> apache_beam.FlatMap(work.read_group, job).with_outputs(work.LOGS, main="text")
    )
    tokenized = (
        read["text"]
        | "spread blocks" >> apache_beam.Reshuffle()
        | "tokenize" >> apache_beam.Map(work.tokenize_block, job)
    )
    _keep(read[work.LOGS], job, work.READING_FILE)
    _keep(tokenized | "block facts" >> apache_beam.Keys(), job, work.TOKENS_FILE)
    tally = (
        tokenized
        | "tallies of text" >> apache_beam.Values()
        | "tally of text" >> apache_beam.CombineGlobally(_merged_text)
        | "text as JSON" >> apache_beam.Map(statistics.CorpusTally.to_json)
    )
    _keep(tally, job, work.TOKENS_TALLY_FILE)


def pair(pipeline: apache_beam.Pipeline, job: work.Job) -> None:
    """Adds the second step: the examples of all blocks, as places in the corpus."""
    layout = _layout(pipeline, job)
    drafted: Any = _block_indices(pipeline, layout) | "draft" >> apache_beam.FlatMap(
        work.draft_block, layout, job
    ).with_outputs(work.REQUESTS, main="drafts")
    answers = (
        _keyed(drafted[work.REQUESTS], "requests", tuple[int, tuple[int, bytes]])
        | "gather requests" >> apache_beam.GroupByKey()
        | "answer" >> apache_beam.FlatMap(work.answer_requests, layout, job)
    )
    counts = (
        {
            "drafts": _keyed(drafted["drafts"], "drafts", tuple[int, Any]),
            "answers": _keyed(answers, "answers", tuple[int, bytes]),
        }
        | "gather answers" >> apache_beam.CoGroupByKey()
        | "finish" >> apache_beam.Map(work.finish_block, layout, job)
    )
    _keep(counts, job, work.PAIRS_FILE)


def write(pipeline: apache_beam.Pipeline, job: work.Job, dealing: work.Dealing) -> None:
    """Adds the third step: the shards of `dealing`, or the figures of a sample."""
    layout = _layout(pipeline, job)
    segments = _block_indices(pipeline, layout) | "deal" >> apache_beam.FlatMap(
        work.deal_block, layout, job, dealing
    )
    pieces = (
        _keyed(segments, "segments", tuple[int, bytes])
        | "gather segments" >> apache_beam.GroupByKey()
        | "tokens of segments" >> apache_beam.FlatMap(work.segment_pieces, layout, job)
    )
    written = (
        _keyed(pieces, "pieces", tuple[int, tuple[bytes, bytes]])
        | "gather shards" >> apache_beam.GroupByKey()
        | "write" >> apache_beam.Map(work.write_shard, layout, job, dealing)
    )
    _keep(written | "shard facts" >> apache_beam.Keys(), job, work.RECORDS_FILE)
    merged = functools.partial(_merged_examples, job=job)
    tally = (
        written
        | "tallies of examples" >> apache_beam.Values()
        | "tally of examples" >> apache_beam.CombineGlobally(merged)
        | "examples as JSON" >> apache_beam.Map(statistics.ExampleTally.to_json)
    )
    _keep(tally, job, work.RECORDS_TALLY_FILE)


def _merged_text(tallies: Iterable[statistics.CorpusTally]) -> statistics.CorpusTally:
    return functools.reduce(statistics.CorpusTally.merged, tallies, statistics.CorpusTally())


def _merged_examples(
    tallies: Iterable[statistics.ExampleTally], job: work.Job
) -> statistics.ExampleTally:
    total = job.new_tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _layout(pipeline: apache_beam.Pipeline, job: work.Job) -> pvalue.AsSingleton:
    """Returns the layout as a side input: in the job's own description it might be too large."""
    loaded = (
        pipeline
        | "job" >> apache_beam.Create([job])
        | "layout" >> apache_beam.Map(work.Layout.load)
    )
    return pvalue.AsSingleton(loaded)


def _block_indices(
    pipeline: apache_beam.Pipeline, layout: pvalue.AsSingleton
) -> pvalue.PCollection:
    return (
        pipeline
        | "start" >> apache_beam.Create([None])
        | "blocks"
        >> apache_beam.FlatMap(lambda _, all_blocks: range(all_blocks.num_blocks), layout)
        | "spread blocks" >> apache_beam.Reshuffle()
    )


def _keyed(collection: Any, name: str, kind: Any) -> pvalue.PCollection:
    """Returns the collection with its type declared: keys are only grouped as what they are."""
    return collection | f"{name} by key" >> apache_beam.Map(_same).with_output_types(kind)


def _same(element: Any) -> Any:
    return element


def _keep(collection: Any, job: work.Job, name: str) -> None:
    """Adds a step that writes all elements into one JSON file."""
    _ = (
        collection
        | f"all of {name}" >> apache_beam.combiners.ToList()
        | f"write {name}" >> apache_beam.Map(work.write_json, job, name)
    )
