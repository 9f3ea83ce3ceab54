"""The program: its options, the four runs of the pipeline, and what lies between them.

What each step does is in `work`. The steps know nothing of runners; a new one is a row of
`RUNNERS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import logging as standard_logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
from absl import app, flags, logging

try:
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "data_pipelines.beam needs Apache Beam, which is optional: pip install 'bertjax[beam]'"
    ) from error

from bertjax.cli import command_line
from bertjax.data import records
from data_pipelines import build as local
from data_pipelines import workers
from data_pipelines.beam import work
from data_pipelines.building import blocks, builders, shards
from data_pipelines.building.options import Options
from data_pipelines.documents import deduplication, sources
from data_pipelines.objectives import examples, pairing
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import report, statistics

# Runs a pipeline to its end; gets the function that adds the steps, and its name.
RunSteps = Callable[[str, Callable[[apache_beam.Pipeline], None]], None]


AGAIN = "run the same command again, which starts from the beginning"
# Beam's message, in a thread that is not joined, when a process of DirectRunner ends by itself.
PROCESS_ENDED = "Worker subprocess exited"
# How often Dask is made to look into its queue of tasks.
LOOK_SECONDS = 10


def _processes(num_workers: int, beam_arguments: Sequence[str]) -> list[str]:
    if num_workers < 2:
        return []
    return [f"--direct_num_workers={num_workers}", "--direct_running_mode=multi_processing"]


def _partitions(num_workers: int, beam_arguments: Sequence[str]) -> list[str]:
    """Returns that each group, or range of blocks, is a task: by default 128 would be one."""
    if _has(beam_arguments, "--dask_npartitions", "--dask_partition_size"):
        return []
    return ["--dask_partition_size=1"]


def _faults_of_dask(beam_arguments: Sequence[str]) -> list[str]:
    faults = []
    if importlib.util.find_spec("distributed") is None:
        faults.append("DaskRunner needs Dask, which is optional: pip install 'bertjax[dask]'")
    if not _has(beam_arguments, "--dask_client_address", "--dask_scheduler_file"):
        faults.append(
            "DaskRunner needs the address of the scheduler: give --dask_client_address, such as "
            "tcp://HOST:8786"
        )
    return faults


def _to_its_end(pipeline: apache_beam.Pipeline) -> None:
    pipeline.run().wait_until_finish()


def _in_processes(pipeline: apache_beam.Pipeline) -> None:
    """Runs the pipeline; Beam alone would wait for ever for a process that was killed."""
    ends: queue.SimpleQueue[threading.ExceptHookArgs | None] = queue.SimpleQueue()

    def run() -> None:
        _to_its_end(pipeline)
        ends.put(None)

    def failed(arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread is thread or PROCESS_ENDED in str(arguments.exc_value):
            ends.put(arguments)
        else:
            before(arguments)

    thread = threading.Thread(target=run, daemon=True)
    before, threading.excepthook = threading.excepthook, failed
    others = psutil.Process().children()
    try:
        thread.start()
        end = ends.get()
        if end is not None:
            _kill_children(others)
    finally:
        threading.excepthook = before
    if end is None:
        return
    if end.thread is thread and end.exc_value:
        raise end.exc_value
    raise workers.WorkerDied(
        "a worker process died, most likely because the machine ran out of memory; give a smaller "
        f"--num_workers, or {AGAIN}"
    ) from end.exc_value


def _kill_children(others: Sequence[psutil.Process]) -> None:
    """Kills the processes of a failed run, which would go on writing during the next run."""
    for child in psutil.Process().children():
        if child not in others:
            family = [child, *child.children(recursive=True)]
            for process in family:
                process.kill()
            psutil.wait_procs(family)


def _on_dask(pipeline: apache_beam.Pipeline) -> None:
    """Runs the pipeline; Dask itself gives the work of a dead worker to another one."""
    import distributed

    result: Any = pipeline.run()
    ended = threading.Event()

    def look_into_queue() -> None:
        # Dask's scheduler does not do it when a worker leaves: where the others were only waiting
        # for that one, none gets a task any more. A task that is given up at once makes it look.
        while not ended.wait(LOOK_SECONDS):
            result.client.submit(int, pure=False)

    threading.Thread(target=look_into_queue, daemon=True).start()
    try:
        result.wait_until_finish()
        # Work that a scheduler took with it ends without an error.
        is_finished = all(future.status == "finished" for future in result.futures)
    except distributed.KilledWorker as error:
        raise workers.WorkerDied(
            "Dask gave up, because worker after worker died, most likely for want of memory; look "
            f"at their logs and {AGAIN}. Dask says: {error}"
        ) from error
    finally:
        ended.set()
        # Dask computes results that are still held again when their worker leaves, from files that
        # are gone by then.
        result.client.close()
    if not is_finished:
        raise workers.WorkerDied(f"the scheduler of Dask died; start it and {AGAIN}")


def _has(beam_arguments: Sequence[str], *names: str) -> bool:
    return any(argument.partition("=")[0] in names for argument in beam_arguments)


@dataclasses.dataclass(frozen=True)
class Runner:
    """An engine that runs the pipeline, with its name in Beam.

    `options(num_workers, arguments)` returns more options for Beam (0 workers: as many as it
    chooses), `faults(arguments)` the errors in those given. `run` runs a pipeline to its end.
    """

    beam_name: str
    options: Callable[[int, Sequence[str]], list[str]] = lambda number, arguments: (
        [f"--num_workers={number}"] if number else []
    )
    faults: Callable[[Sequence[str]], list[str]] = lambda arguments: []
    run: Callable[[apache_beam.Pipeline], None] = _to_its_end


RUNNERS = {
    # By its own name Beam would first download another one, Prism.
    "DirectRunner": Runner(
        "apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        options=_processes,
        run=_in_processes,
    ),
    "DaskRunner": Runner(
        "apache_beam.runners.dask.dask_runner.DaskRunner",
        options=_partitions,
        faults=_faults_of_dask,
        run=_on_dask,
    ),
    "DataflowRunner": Runner("DataflowRunner"),
    "FlinkRunner": Runner("FlinkRunner"),
    "SparkRunner": Runner("SparkRunner"),
    "PortableRunner": Runner("PortableRunner"),
}


@dataclasses.dataclass(frozen=True)
class BeamOptions(Options):
    """The options of the build and of Beam's runner."""

    runner: str = command_line.option(
        f"what runs the pipeline: {', '.join(RUNNERS)}", default="DirectRunner"
    )

    def content(self) -> dict[str, Any]:
        """Returns the options that decide what the records hold: the same as without Beam."""
        arguments = super().content()
        del arguments["runner"]
        return arguments


def build(options: BeamOptions, beam_arguments: Sequence[str] = ()) -> records.Manifest:
    """Writes the record directory that `options` describe and returns its manifest.

    `beam_arguments` are options of Beam and its runners.
    """
    _check(options, beam_arguments)
    if "://" in options.output and not options.scratch:
        # A local build would ask for a local directory, which workers do not reach.
        scratch = f"{options.output.rstrip('/')}.partial/scratch"
        options = dataclasses.replace(options, scratch=scratch)
    more = RUNNERS[options.runner].options(options.num_workers, beam_arguments)
    run = functools.partial(_run, options.runner, (*beam_arguments, *more))
    return local.build(options, functools.partial(make, run=run))


def make(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: builders.Judge,
    *,
    run: RunSteps,
) -> builders.BuildResult:
    """Writes the shards of `options` into `output.records`, in four runs of Beam."""
    job = _job(options, vocabulary, output)
    run("tokens", lambda pipeline: work.tokenize(pipeline, blocks.groups(units), job))
    layout, text, log = _tokenized(options, job)
    figures_so_far = text.statistics() | text.script_statistics(vocabulary.load())
    figures_so_far |= log.statistics()
    judge(figures_so_far)
    pairing.check_documents(int(layout.documents[-1]), options.pairs)
    job = layout.saved(job)
    run("pairs", lambda pipeline: work.pair(pipeline, job))
    layout, pairs = _paired(job, layout)
    figures_so_far |= pairs.statistics(options.pair_objective)
    job = layout.saved(job)
    sample = _sample(job, pairs.examples)
    run("sample", lambda pipeline: work.write(pipeline, job, sample))
    ((example_bytes,),), tally = _written(job)
    figures = tally.statistics(vocabulary.load())
    num_records = builders.num_records(pairs.examples, tally)
    judge(figures_so_far | figures | {"examples": num_records})
    num_shards = builders.num_shards(options, num_records, example_bytes, output)
    dealing = work.Dealing(num_shards)
    run("records", lambda pipeline: work.write(pipeline, job, dealing))
    written, tally = _written(job)
    return builders.BuildResult(
        tuple(records.Shard(*fields) for fields in written),
        figures_so_far | tally.statistics(vocabulary.load()),
        tally.contents(text.distinct_documents),
    )


def main(arguments: Sequence[str]) -> None:
    """Builds and prints the health report; `arguments` are the program and what is for Beam."""
    # It tells of every annotation that it cannot read, which harms nothing.
    standard_logging.getLogger("apache_beam.typehints").setLevel(standard_logging.WARNING)
    try:
        options = command_line.parsed(BeamOptions, flags.FLAGS)
        _check_unknown(arguments[1:])
        command_line.print_report(*report.lines(build(options, arguments[1:])))
    except command_line.USER_ERRORS as error:
        sys.exit(f"bertjax: {error}")


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
        stores_words=options.stores_words,
        counts_words=options.count_words,
        stores_sentence_ends=options.sentence_ends,
        reading=options.reading,
        tokenization=options.tokenization(shared),
        scratch=str(scratch),
        directory=str(output.records),
    )


def _tokenized(
    options: Options, job: work.Job
) -> tuple[work.Layout, statistics.CorpusTally, sources.Log]:
    """Returns where the blocks lie, what was counted in the text, and the problems of reading."""
    results = work.load_found(job, work.TOKENS_FILE)
    tally, log = statistics.CorpusTally.from_json(results["tally"] or {}), sources.Log()
    for *_, read in results["logs"] + results["facts"]:
        log.merge(sources.Log(**read))
    builders.check_text(tally, options)
    _, _, names, documents, tokens, _ = zip(*results["facts"], strict=True)
    layout = work.Layout(
        np.array(names), examples.starts(documents), examples.starts(tokens), np.zeros(0, np.int64)
    )
    return layout, tally, log


def _paired(job: work.Job, layout: work.Layout) -> tuple[work.Layout, shards.PairTotals]:
    """Returns the layout with the numbers of examples, and what all blocks gave together."""
    facts = work.load_found(job, work.PAIRS_FILE)["facts"]
    counts_of_blocks = [shards.PairCounts(*counts) for _, *counts in facts]
    total = shards.PairTotals.of(counts_of_blocks, int(layout.tokens[-1]))
    starts = examples.starts([counts.examples for counts in counts_of_blocks])
    return dataclasses.replace(layout, examples=starts), total


def _sample(job: work.Job, num_examples: int) -> work.Dealing:
    """Returns the first batches of the first shard, as in the local build."""
    num_shards = builders.sample_shards(num_examples)
    size = work.shard_size(num_examples, 0, num_shards)
    # The number of examples in these rows is known only after packing.
    rows = size if job.pairs.is_packed else builders.SAMPLE_BATCHES * shards.ROWS_PER_BATCH
    return work.Dealing(num_shards, shards.order(job.pairs, 0, size)[:rows])


def _written(job: work.Job) -> tuple[list[Any], statistics.ExampleTally]:
    """Returns what the last step found of every shard, and what was counted in the examples."""
    results = work.load_found(job, work.RECORDS_FILE)
    tally = job.new_tally()
    tally.add_json(results["tally"])
    return results["facts"], tally


def _run(
    runner: str,
    arguments: Sequence[str],
    name: str,
    add_steps: Callable[[apache_beam.Pipeline], None],
) -> None:
    logging.info("beam: the step %s begins on %s", name, runner)
    chosen = RUNNERS[runner]
    pipeline = apache_beam.Pipeline(chosen.beam_name, PipelineOptions(list(arguments)))
    add_steps(pipeline)
    chosen.run(pipeline)


def _check(options: BeamOptions, beam_arguments: Sequence[str]) -> None:
    faults = []
    if options.runner in RUNNERS:
        faults += RUNNERS[options.runner].faults(beam_arguments)
    else:
        faults.append(f"runner is {options.runner!r}; known are {', '.join(RUNNERS)}")
    if options.algorithm != "fast":
        faults.append(
            f"algorithm is {options.algorithm!r}, which is one process by nature; use "
            "data_pipelines.build for it"
        )
    if options.deduplicate != deduplication.KEEP_ALL:
        faults.append(
            f"deduplicate is {options.deduplicate!r}, for which one process reads all of the text; "
            "use data_pipelines.build for it"
        )
    if options.runner == "DataflowRunner":
        faults += _places_on_this_machine(options)
    if faults:
        raise ValueError("the options do not fit:\n  " + "\n  ".join(faults))


def _places_on_this_machine(options: BeamOptions) -> list[str]:
    """Returns what workers on other machines could not reach."""
    files = [part for part in sources.split(options.input) if sources.are_files(part)]
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
    """Parses the command line and runs the program; flags that are not ours go to Beam."""
    command_line.define_flags(BeamOptions)
    app.run(main, flags_parser=functools.partial(command_line.parse_flags, known_only=True))
