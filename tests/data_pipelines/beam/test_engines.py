"""The program on several worker processes, one of which is killed in the middle."""

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from data_pipelines import build as local
from data_pipelines.building import blocks
from data_pipelines.building.options import Options
from tests.data_pipelines import decoded
from tests.data_pipelines.conftest import made_up_text

# A group, and so a block and a task, for each file of little text.
PROGRAM = (
    "import runpy; from data_pipelines.building import blocks; blocks.GROUP_BYTES = 1; "
    "runpy.run_module('data_pipelines.beam', run_name='__main__', alter_sys=True)"
)
DEADLINE_SECONDS = 300
pytestmark = pytest.mark.faults
NUM_FILES = 6


@pytest.fixture
def options(tmp_path, vocabulary_directory, monkeypatch) -> dict[str, object]:
    """The options of a build; the local build of them is in `local`."""
    monkeypatch.setattr(blocks, "GROUP_BYTES", 1)
    for number in range(NUM_FILES):
        (tmp_path / f"text{number}.txt").write_text(made_up_text(30, seed=number))
    chosen = {
        "input": str(tmp_path / "*.txt"),
        "vocabulary": vocabulary_directory,
        "max_seq_length": 32,
        "num_shards": 5,
    }
    local.build(Options(output=str(tmp_path / "local"), num_workers=1, **chosen))
    return chosen


@pytest.fixture
def dask(tmp_path) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """The option that names a scheduler, and the processes: scheduler, worker, worker."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    place = tmp_path / "scheduler.json"
    given = ["--scheduler-file", str(place), "--no-dashboard"]
    here = ["--host", "127.0.0.1"]
    commands = [["scheduler", *given, *here, "--port", "0"]] + 2 * [
        ["worker", *given, *here, "--nthreads", "1", "--no-nanny"]
    ]
    started = [_started([sys.executable, "-m", "dask", *rest], tmp_path) for rest in commands]
    try:
        _wait_for(place.exists)
        with distributed.Client(scheduler_file=str(place)) as client:
            client.wait_for_workers(2, timeout=DEADLINE_SECONDS)
        yield f"--dask_scheduler_file={place}", started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _started(command: list[str], directory: pathlib.Path) -> subprocess.Popen:
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)


def _wait_for(found: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not found():
        assert time.monotonic() < end
        time.sleep(0.002)


def _program(options: dict[str, object], output: pathlib.Path, *more: str) -> subprocess.Popen:
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-c", PROGRAM, *flags, f"--output={output}", *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=output.parent
    )


def _assert_same(directory: pathlib.Path) -> None:
    assert decoded.files(directory / "local") == decoded.files(directory / "beam")


def _is_made(directory: pathlib.Path, pattern: str) -> bool:
    return any(directory.glob(f"beam.partial/**/{pattern}"))


@pytest.mark.parametrize("first_file", ["drafts-*.npz", "*tfrecord-*-of-00005"])
def test_dask_goes_on_without_a_worker_that_is_killed(tmp_path, options, dask, first_file):
    where, started = dask
    before = [psutil.Process(worker.pid).cpu_times().user for worker in started[1:]]
    process = _program(options, tmp_path / "beam", "--runner=DaskRunner", where)
    _wait_for(lambda: _is_made(tmp_path, first_file) or process.poll() is not None)
    assert process.poll() is None
    after = [psutil.Process(worker.pid).cpu_times().user for worker in started[1:]]
    started[1].kill()
    # Each of them has at least imported what the steps need.
    assert all(last > first + 0.5 for first, last in zip(before, after, strict=True))
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    _assert_same(tmp_path)


def test_the_program_ends_when_the_scheduler_of_dask_dies(tmp_path, options, dask):
    where, started = dask
    process = _program(options, tmp_path / "beam", "--runner=DaskRunner", where)
    _wait_for(lambda: _is_made(tmp_path, "tokens-*.npz"))
    started[0].kill()
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    lines = errors.splitlines()
    assert any(line.startswith("bertjax: the scheduler of Dask died") for line in lines)


def test_direct_runner_ends_when_a_worker_is_killed_and_the_same_command_succeeds(
    tmp_path, options
):
    flags = ["--runner=DirectRunner", "--num_workers=2"]
    process = _program(options, tmp_path / "beam", *flags)

    def workers() -> list[psutil.Process]:
        below = psutil.Process(process.pid).children(recursive=True)
        return [one for one in below if "sdk_worker_main" in " ".join(one.cmdline())]

    _wait_for(lambda: _is_made(tmp_path, "tokens-*.npz"))
    _wait_for(lambda: len(workers()) >= 2)
    found = workers()
    found[-1].kill()
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert any(line.startswith("bertjax: a worker process died") for line in errors.splitlines())
    assert not any(one.is_running() for one in found)
    assert not (tmp_path / "beam").exists()
    again = _program(options, tmp_path / "beam", *flags)
    _, errors = again.communicate(timeout=DEADLINE_SECONDS)
    assert again.returncode == 0, errors
    _assert_same(tmp_path)
