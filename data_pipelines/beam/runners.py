"""What can run a pipeline: its name for Beam, what it must be told, and how a run of it ends.

The steps know nothing of runners. A new one is a row of `RUNNERS`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam
import psutil

from data_pipelines import workers

AGAIN = "run the same command again, which starts from the beginning"
# What Beam says when a process of DirectRunner ends by itself, in a thread that nobody waits for.
PROCESS_ENDED = "Worker subprocess exited"


def _number(num_workers: int, beam_arguments: Sequence[str]) -> list[str]:
    return [f"--num_workers={num_workers}"] if num_workers else []


def _processes(num_workers: int, beam_arguments: Sequence[str]) -> list[str]:
    if num_workers < 2:
        return []
    return [f"--direct_num_workers={num_workers}", "--direct_running_mode=multi_processing"]


def _partitions(num_workers: int, beam_arguments: Sequence[str]) -> list[str]:
    """Returns that each group, or range of blocks, is a task: by default 128 would be one."""
    if _has(beam_arguments, "--dask_npartitions", "--dask_partition_size"):
        return []
    return ["--dask_partition_size=1"]


def _no_faults(beam_arguments: Sequence[str]) -> list[str]:
    return []


def _faults_of_dask(beam_arguments: Sequence[str]) -> list[str]:
    faults = []
    if importlib.util.find_spec("distributed") is None:
        faults.append("DaskRunner needs Dask, which is optional: pip install 'bertjax[dask]'")
    if not _has(beam_arguments, "--dask_client_address", "--dask_scheduler_file"):
        faults.append(
            "DaskRunner is not told where the scheduler is: give --dask_client_address, such as "
            "tcp://HOST:8786"
        )
    return faults


def _to_its_end(pipeline: apache_beam.Pipeline) -> None:
    pipeline.run().wait_until_finish()


def _in_processes(pipeline: apache_beam.Pipeline) -> None:
    """Runs the pipeline; Beam alone would wait for ever for a process that was killed.

    Raises:
      WorkerDied: if a worker process ended by itself.
    """
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
    """Ends what a failed run leaves behind: it would write on beside the next run."""
    for child in psutil.Process().children():
        if child not in others:
            family = [child, *child.children(recursive=True)]
            for process in family:
                process.kill()
            psutil.wait_procs(family)


def _on_dask(pipeline: apache_beam.Pipeline) -> None:
    """Runs the pipeline; Dask itself gives the work of a dead worker to another one.

    Raises:
      WorkerDied: if it gave up, or the scheduler died.
    """
    import distributed

    result: Any = pipeline.run()
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
        # Results that somebody holds are made anew when their worker leaves: by then for nobody,
        # and of files that are gone.
        result.client.close()
    if not is_finished:
        raise workers.WorkerDied(f"the scheduler of Dask died; start it and {AGAIN}")


def _has(beam_arguments: Sequence[str], *names: str) -> bool:
    return any(argument.partition("=")[0] in names for argument in beam_arguments)


@dataclasses.dataclass(frozen=True)
class Runner:
    """What runs the pipeline.

    `beam_name` is what Beam calls it. `options` are those of Beam that follow from the number of
    workers (0: as many as it likes), `faults` what its options lack, both beside those given.
    `run` runs a pipeline to its end.
    """

    beam_name: str
    options: Callable[[int, Sequence[str]], list[str]] = _number
    faults: Callable[[Sequence[str]], list[str]] = _no_faults
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
