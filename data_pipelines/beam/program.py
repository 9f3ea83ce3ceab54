"""The program: its options, the four runs of the pipeline, and what lies between them.

What each step does is in `steps` and `work`, what runs them in `runners`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging as standard_logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import app, flags, logging

try:
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "data_pipelines.beam needs Apache Beam, which is optional: pip install 'bertjax[beam]'"
    ) from error

from bertjax.data import records
from data_pipelines import (
    blocks,
    builders,
    command_line,
    examples,
    pairing,
    shards,
    sizes,
    sources,
    workers,
)
from data_pipelines import build as local
from data_pipelines.beam import runners, steps, work
from data_pipelines.options import Options
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import report, statistics

# Runs a pipeline to its end; gets the function that adds the steps, and its name.
Runner = Callable[[str, Callable[[apache_beam.Pipeline], None]], None]


@dataclasses.dataclass(frozen=True)
class BeamOptions(Options):
    """What to build, and what runs the pipeline."""

    runner: str = command_line.option(
        f"what runs the pipeline: {', '.join(runners.RUNNERS)}", default="DirectRunner"
    )

    def content(self) -> dict[str, Any]:
        """Returns the options that decide what the records hold: the same as without Beam."""
        arguments = super().content()
        del arguments["runner"]
        return arguments


def build(options: BeamOptions, beam_arguments: Sequence[str] = ()) -> records.Manifest:
    """Writes the record directory that `options` describe and returns its manifest.

    `beam_arguments` are options of Beam and its runners.

    Raises:
      RuntimeError: if a worker fails; names its step.
      WorkerDied: if worker processes die and the runner gives up.
      ValueError: if an option does not fit. Other errors are those of `build.build`.
    """
    _check(options, beam_arguments)
    if "://" in options.output and not options.scratch:
        # A local build would ask for a local directory, which workers do not reach.
        scratch = f"{options.output.rstrip('/')}.partial/scratch"
        options = dataclasses.replace(options, scratch=scratch)
    more = runners.RUNNERS[options.runner].options(options.num_workers, beam_arguments)
    run = functools.partial(_run, options.runner, (*beam_arguments, *more))
    return local.build(options, functools.partial(make, run=run))


def make(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: builders.Judge,
    *,
    run: Runner,
) -> builders.Content:
    """Writes the shards of `options` into `output.records`, in four runs of Beam.

    Raises:
      ValueError: if the text does not allow a correct record, or there are fewer examples than
        shards.
      OSError: if the disk would be full.
    """
    job = _job(options, vocabulary, output)
    run("tokens", lambda pipeline: steps.tokenize(pipeline, blocks.groups(units), job))
    layout, text, log = _tokenized(options, job)
    known = text.statistics() | log.statistics()
    judge(known)
    pairing.check_documents(int(layout.documents[-1]), options.pairs)
    job = layout.saved(job)
    run("pairs", lambda pipeline: steps.pair(pipeline, job))
    layout, pairs = _paired(job, layout)
    if pairing.labels(options.pair_objective):
        known |= pairs.statistics()
    job = layout.saved(job)
    sample = _sample(job, pairs.examples)
    run("sample", lambda pipeline: steps.write(pipeline, job, sample))
    ((example_bytes,),), tally = _written(job)
    figures = tally.statistics(vocabulary.load())
    num_records = sizes.num_records(pairs.examples, tally)
    judge(known | figures | {"examples": num_records})
    num_shards = options.num_shards or sizes.default_num_shards(
        num_records, example_bytes, is_packed=options.pairs.is_packed
    )
    sizes.check(num_shards, num_records, example_bytes, output)
    dealing = work.Dealing(num_shards)
    run("records", lambda pipeline: steps.write(pipeline, job, dealing))
    written, tally = _written(job)
    return builders.Content(
        tuple(records.Shard(*fields) for fields in written),
        known | tally.statistics(vocabulary.load()),
        tally.contents(text.distinct_documents),
    )


def main(arguments: Sequence[str]) -> None:
    """Builds and prints the health report; `arguments` are the program and what is for Beam."""
    # It tells of every annotation that it cannot read, which harms nothing.
    standard_logging.getLogger("apache_beam.typehints").setLevel(standard_logging.WARNING)
    try:
        options = command_line.parsed(BeamOptions, flags.FLAGS)
        _check_unknown(arguments[1:])
        print("\n".join(report.lines(build(options, arguments[1:]))))
    except (ValueError, OSError, workers.WorkerDied) as error:
        sys.exit(f"error: {error}")


def _job(options: Options, vocabulary: blocks.Vocabulary, output: PartialOutput) -> work.Job:
    """Returns what the workers need, with a copy of the vocabulary where they find it."""
    scratch = output.scratch / "beam"
    directory = scratch / "vocabulary"
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary.load().save(directory)
    shared = blocks.Vocabulary.of(str(directory), None)
    return work.Job(
        vocabulary=shared,
        pairs=options.pairs,
        masking=options.masking,
        reading=options.reading,
        tokenization=options.tokenization(shared),
        scratch=str(scratch),
        directory=str(output.records),
    )


def _tokenized(
    options: Options, job: work.Job
) -> tuple[work.Layout, statistics.CorpusTally, sources.Log]:
    """Returns where the blocks lie, what was counted in the text, and the problems of reading."""
    found = work.load_found(job, work.TOKENS_FILE)
    tally, log = statistics.CorpusTally.from_json(found["tally"] or {}), sources.Log()
    for *_, read in found["logs"] + found["facts"]:
        log.merge(sources.Log(**read))
    builders.check_text(tally, options)
    _, _, names, documents, tokens, _ = zip(*found["facts"], strict=True)
    layout = work.Layout(
        np.array(names), examples.starts(documents), examples.starts(tokens), np.zeros(0, np.int64)
    )
    return layout, tally, log


def _paired(job: work.Job, layout: work.Layout) -> tuple[work.Layout, shards.PairCounts]:
    """Returns the layout with the numbers of examples, and what all blocks gave together."""
    facts = work.load_found(job, work.PAIRS_FILE)["facts"]
    found = [shards.PairCounts(*counts) for _, *counts in facts]
    total = shards.PairCounts.total(found)
    starts = examples.starts([counts.examples for counts in found])
    return dataclasses.replace(layout, examples=starts), total


def _sample(job: work.Job, num_examples: int) -> work.Dealing:
    """Returns the first batches of the first shard, as in the local build."""
    num_shards = sizes.sample_shards(num_examples)
    size = work.shard_size(num_examples, 0, num_shards)
    # How many examples fill so many rows is known once they are packed.
    rows = size if job.pairs.is_packed else sizes.SAMPLE_BATCHES * shards.ROWS_PER_BATCH
    return work.Dealing(num_shards, shards.order(job.pairs, 0, size)[:rows])


def _written(job: work.Job) -> tuple[list[Any], statistics.ExampleTally]:
    """Returns what the last step found of every shard, and what was counted in the examples."""
    found = work.load_found(job, work.RECORDS_FILE)
    tally = job.new_tally()
    tally.add_json(found["tally"])
    return found["facts"], tally


def _run(
    runner: str,
    arguments: Sequence[str],
    name: str,
    add_steps: Callable[[apache_beam.Pipeline], None],
) -> None:
    logging.info("beam: the step %s begins on %s", name, runner)
    chosen = runners.RUNNERS[runner]
    pipeline = apache_beam.Pipeline(chosen.beam_name, PipelineOptions(list(arguments)))
    add_steps(pipeline)
    chosen.run(pipeline)


def _check(options: BeamOptions, beam_arguments: Sequence[str]) -> None:
    faults = []
    if options.runner in runners.RUNNERS:
        faults += runners.RUNNERS[options.runner].faults(beam_arguments)
    else:
        faults.append(f"runner is {options.runner!r}; known are {', '.join(runners.RUNNERS)}")
    if options.algorithm != "fast":
        faults.append(
            f"algorithm is {options.algorithm!r}, which is one process by nature; use "
            "data_pipelines.build for it"
        )
    if options.runner == "DataflowRunner":
        faults += _places_on_this_machine(options)
    if faults:
        raise ValueError("the options do not fit:\n  " + "\n  ".join(faults))


def _places_on_this_machine(options: BeamOptions) -> list[str]:
    """Returns what workers on other machines could not reach."""
    files = [part for part in options.input.split(",") if sources.are_files(part)]
    places = [("output", options.output), *(("input", part) for part in files)]
    if options.scratch:
        places.append(("scratch", options.scratch))
    return [
        f"{name} is {place!r}, on this machine, which workers of Dataflow do not see; give a "
        "gs:// path"
        for name, place in places
        if "://" not in place
    ]


def _check_unknown(arguments: Sequence[str]) -> None:
    """Raises ValueError for options that look like misspelled ones of ours; Beam ignores others."""
    ours = [field.name for field in dataclasses.fields(BeamOptions)]
    of_beam = PipelineOptions([]).get_all_options()
    for argument in arguments:
        name = argument.partition("=")[0].lstrip("-")
        meant = difflib.get_close_matches(name, ours, n=1, cutoff=0.75)
        if argument.startswith("--") and name not in of_beam and meant:
            raise ValueError(f"there is no option --{name}; did you mean --{meant[0]}?")


def start() -> None:
    """Parses the command line and runs the program; what is no flag of ours may be one of Beam."""
    command_line.define_flags(BeamOptions, flags.FLAGS)
    app.run(main, flags_parser=functools.partial(command_line.parse, known_only=True))
