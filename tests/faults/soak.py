"""A run of four processes that is killed and goes on, again and again: it ends as if it never was.

    python -m tests.faults.soak --kills=100 --seed=0 --directory=/tmp/soak [--store]

SIGKILL or SIGTERM, to one process or to all, comes while they start, train or save. In some lives a
call of one process's file system fails, too; in others all its calls do from some moment on, until
the processes end by themselves. After SIGTERM, or once one has failed, all have to end within the
half minute that a spot machine has. After SIGKILL of one the others are killed a little later, as a
launcher does. A line tells of every kill; the end is compared with a run that was left alone.

With --store the workdir and the records are at gs://, at the store of `google_storage`, which lets
1% of the requests fail. The run that is left alone has them on disk.

The processes are forked from this one, which has imported all and started nothing: a life then
takes seconds, and hundreds take an afternoon.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import ctypes
import dataclasses
import errno
import faulthandler
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from etils import epath

from bertjax import jobs, train
from bertjax.cli import command_line, interruptions, programs
from bertjax.data import records
from bertjax.files import atomic
from bertjax.workdirs import checkpoint, ownership
from tests import recorded_run, small_records
from tests.faults import google_storage

ROOT = pathlib.Path(__file__).parent.parent.parent
PROCESSES = 4
STEPS_PER_KILL, SAVE_EVERY, EVALUATE_EVERY = 6, 3, 60
GRACE_SECONDS = 30
LIFE_SECONDS = 300
MOMENTS = ("starting", "training", "saving")
DUMP = signal.SIGRTMIN  # a run that gets it goes on, and its log shows where it is
PREEMPTED, FAILED = interruptions.EXIT_CODES[signal.SIGTERM], 1
STORE, STORE_FAULTS = "gs://bucket", 0.01
RECORDS = {"records": {}, "heldout": {"counts": (40,), "seed": 2}}


class Broken(Exception):
    """The run did not do what it should."""


class Fault(NamedTuple):
    """A process whose calls below the workdir fail, from which one on, and how many of them."""

    process: int
    call: int
    times: int = 1

    def __str__(self) -> str:
        if self.times > 1:
            return f"from its call {self.call} on the storage of process {self.process} fails"
        return f"call {self.call} of process {self.process} fails"


@dataclasses.dataclass(frozen=True)
class Kill:
    """What is sent to which processes, when; and where the storage of one fails, if it does.

    Without a `number` nothing is sent: the storage fails for good.
    """

    number: signal.Signals | None
    targets: tuple[int, ...]
    moment: str
    fault: Fault | None

    @property
    def grace_seconds(self) -> int:
        """The time to end in by themselves; what comes before a step is compiled waits for that."""
        return GRACE_SECONDS * (4 if self.moment == "starting" else 1)

    @property
    def kind(self) -> str:
        if self.number is None:
            return "storage that failed"
        return f"{self.number.name} to {'one' if len(self.targets) == 1 else 'all'}"

    def __str__(self) -> str:
        if self.number is None:
            return str(self.fault)
        whom = "all" if len(self.targets) == PROCESSES else f"process {self.targets[0]}"
        fault = f"; {self.fault}" if self.fault else ""
        return f"{self.number.name} to {whom} while {self.moment}{fault}"


def drawn(rng: random.Random, *, has_store: bool) -> Kill:
    """Returns a kill; the disk fails, one call or all, in a third of the lives that have one."""
    one = (rng.randrange(PROCESSES),)
    fault = Fault(rng.randrange(PROCESSES), rng.randrange(1, 400))
    kill = Kill(
        rng.choice([signal.SIGKILL, signal.SIGTERM]),
        rng.choice([one, tuple(range(PROCESSES))]),
        rng.choices(MOMENTS, [1, 2, 2])[0],
        None,
    )
    chance = rng.random()
    if has_store or chance > 1 / 3:
        return kill
    if chance < 1 / 8:
        return Kill(None, (), "training", fault._replace(times=10**6))
    return dataclasses.replace(kill, fault=fault)


class Run:
    """One run in a directory: its processes, and what is seen of it from outside."""

    def __init__(self, root: pathlib.Path, where: epath.Path, name: str, steps: int):
        self.root, self.where, self.name, self.steps = root, where, name, steps
        self.processes: list[int] = []
        self.codes: dict[int, int] = {}
        self._bytes_seen = 0  # at the start of this life

    @property
    def workdir(self) -> epath.Path:
        return self.where / self.name

    def start(self, fault: Fault | None = None) -> None:
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            address = f"localhost:{listener.getsockname()[1]}"
        self.codes = {}
        self._bytes_seen = self.seen_path(0).stat().st_size if self.seen_path(0).exists() else 0
        self.processes = [
            self._fork(process, address, fault if fault and fault.process == process else None)
            for process in range(PROCESSES)
        ]

    def _fork(self, process: int, address: str, fault: Fault | None) -> int:
        sys.stdout.flush()
        if made := os.fork():
            return made
        code = 70
        try:
            interruptions.leave_at_once()
            log = os.open(self.log_path(process), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.register(DUMP)
            os.environ["RECORDED_TO"] = str(self.seen_path(process))
            ownership.HEARTBEAT_SECONDS = 2
            if fault:
                numbers = (ctypes.c_long(fault.call), ctypes.c_long(fault.times))
                ctypes.CDLL(None).faults_arm(f"{self.workdir}/".encode(), *numbers, errno.EIO)
            sys.argv = ["train", *self._flags(process, address)]
            code = trained()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _flags(self, process: int, address: str) -> list[str]:
        options = {
            "data.source": "records",
            "data.train_dir": self.where / "records",
            "data.eval_dir": self.where / "heldout",
            "model.vocab_size": 0,
            "model.hidden_size": 32,
            "model.num_hidden_layers": 1,
            "global_batch_size": 8,
            "phases.phase1.max_seq_length": 16,
            "phases.phase1.num_steps": self.steps,
            "evaluation.every_steps": EVALUATE_EVERY,
            "evaluation.global_batch_size": 8,
            "checkpoint.save_every_steps": SAVE_EVERY,
            "log_every_steps": 1,
            "compilation_cache_dir": self.root / "cache",
        }
        return [
            f"--config={ROOT}/configs/smoke.py", f"--workdir={self.workdir}",
            f"--coordinator_address={address}", f"--num_processes={PROCESSES}",
            f"--process_id={process}", *(f"--config.{key}={it}" for key, it in options.items()),
        ]  # fmt: skip

    def log_path(self, process: int) -> pathlib.Path:
        return self.root / f"{self.name}.{process}.log"

    def seen_path(self, process: int) -> pathlib.Path:
        return self.root / f"{self.name}.{process}.seen"

    def seen(self, process: int) -> dict[int, list]:
        """Returns which records each step read; a step that is repeated reads the same ones."""
        found: dict[int, list] = {}
        for line in self.seen_path(process).read_text(encoding="utf-8").splitlines():
            try:
                step, positions = json.loads(line)
            except ValueError:
                continue  # the line that a kill tore
            if found.setdefault(step, positions) != positions:
                raise Broken(f"step {step} of {self.name} read other records when repeated")
        return found

    def step(self) -> int:
        """Returns the last step whose batch process 0 has read in this life, -1 for none."""
        if not self.seen_path(0).exists():
            return -1
        lines = self.seen_path(0).read_bytes()[self._bytes_seen :].splitlines()
        whole = [line for line in lines[-2:] if line.endswith(b"]]]")]
        return json.loads(whole[-1])[0] if whole else -1

    def is_saving(self) -> bool:
        if atomic.is_remote(self.workdir):
            return True  # a save takes nearly all of the time there
        directory = self.workdir / checkpoint.DIRECTORY
        return directory.exists() and any("tmp" in name for name in os.listdir(directory))

    def ended(self) -> dict[int, int]:
        """Returns the codes of the processes that have ended, a signal's number negative."""
        for process, made in enumerate(self.processes):
            if process not in self.codes and (found := os.waitpid(made, os.WNOHANG))[0]:
                self.codes[process] = os.waitstatus_to_exitcode(found[1])
        return self.codes

    def send(self, number: signal.Signals, targets: tuple[int, ...]) -> None:
        for process in targets:
            if process not in self.ended():
                os.kill(self.processes[process], number)

    def wait(self, seconds: float) -> bool:
        """Waits for all to end; returns whether they did."""
        deadline = time.monotonic() + seconds
        while len(self.ended()) < PROCESSES and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(self.codes) == PROCESSES

    def end(self) -> None:
        self.send(signal.SIGKILL, tuple(range(PROCESSES)))
        self.wait(GRACE_SECONDS)

    def told(self) -> str:
        tails = [self.log_path(process).read_text("utf-8")[-5000:] for process in range(PROCESSES)]
        return "\n".join(f"-- process {number}\n{tail}" for number, tail in enumerate(tails))


def trained() -> int:
    """Trains as the program does, in a process that was forked; returns its exit code."""
    jobs.pretraining_data.PretrainingData.train_batches = recorded_run.recorded
    command_line.parse(programs.Train, None)
    code = 0
    try:
        command_line.run(train.main)
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        code = leaving.code if isinstance(leaving.code, int) else FAILED * bool(leaving.code)
    atexit._run_exitfuncs()  # JAX leaves the others there
    return code


def live(run: Run, kill: Kill, until: int, rng: random.Random) -> str:
    """Starts the processes, kills them at or after step `until`; returns what came of it."""
    run.start(kill.fault)
    begun, delay = time.monotonic(), rng.uniform(0.5, 6)
    while not run.ended() and not is_due(kill, run, until, time.monotonic() - begun - delay):
        if time.monotonic() > begun + LIFE_SECONDS:
            raise Broken(f"no step {until} in {LIFE_SECONDS} s")
        time.sleep(0.002)
    sent, by_itself = time.monotonic(), dict(run.ended())
    if kill.number is not None and not by_itself:
        run.send(kill.number, kill.targets)
    is_over = run.wait(3)
    if not is_over and (by_itself or kill.number == signal.SIGTERM):
        run.send(DUMP, tuple(range(PROCESSES)))  # their logs show where they are
        is_over = run.wait(kill.grace_seconds - 3)
    seconds, codes = time.monotonic() - sent, dict(run.codes)
    run.end()
    check(kill, codes, by_itself, is_over)
    told = f"codes {[codes.get(it, 'lost') for it in range(PROCESSES)]} after {seconds:.1f} s"
    return f"ended by themselves, {told}" if by_itself else told


def is_due(kill: Kill, run: Run, until: int, late_seconds: float) -> bool:
    """Returns whether to send the signal now, if there is one."""
    if kill.number is None:
        return False
    if kill.moment == "starting":
        return late_seconds > 0
    patience = 2 * SAVE_EVERY if kill.moment == "saving" and not run.is_saving() else 0
    return run.step() >= until + patience


def check(kill: Kill, codes: dict[int, int], by_itself: dict[int, int], is_over: bool) -> None:
    """Raises Broken where the processes did not end as they should.

    `by_itself` has the codes of those that had ended before anything was sent.
    """
    if by_itself and (set(by_itself.values()) != {FAILED} or not kill.fault):
        raise Broken(f"ended before the signal, with {by_itself}")
    if kill.number == signal.SIGKILL and not by_itself:
        return
    if len(kill.targets) == 1 and kill.moment == "starting" and not by_itself:
        return  # it may have left before it knew the others, which wait for it
    allowed = {PREEMPTED} if not kill.fault else {FAILED} if by_itself else {PREEMPTED, FAILED}
    if not is_over or set(codes.values()) - allowed:
        raise Broken(f"{kill.grace_seconds} s later the codes are {codes}")


def compare(run: Run, reference: Run) -> None:
    """Raises AssertionError or Broken where the end of a run is not that of another."""
    found = [checkpoint.load_params(it.workdir) for it in (run, reference)]
    assert found[0][2] == found[1][2] == run.steps
    jax.tree.map(np.testing.assert_array_equal, found[0][0], found[1][0])
    assert found[0][1]["fingerprints"] == found[1][1]["fingerprints"]
    assert scalars(run) == scalars(reference), "metrics.jsonl differs"
    for process in range(PROCESSES):
        assert run.seen(process) == reference.seen(process), "other records were read"
        assert sorted(run.seen(process)) == list(range(run.steps))


def scalars(run: Run) -> list[dict]:
    lines = (run.workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("perf/")}
        for line in lines
    ]


def finish(run: Run) -> None:
    run.start()
    if not run.wait(600) or set(run.codes.values()) != {0}:
        run.end()
        raise Broken(f"the run ended with {run.codes}")


def soak(root: pathlib.Path, where: epath.Path, kills: int, seed: int) -> None:
    """Kills a run again and again, and compares its end with a run that was left alone."""
    steps, rng = STEPS_PER_KILL * (kills + 1), random.Random(seed)
    reference = Run(root, epath.Path(root), "reference", steps)
    run = Run(root, where, "soaked", steps)
    counts: collections.Counter[str] = collections.Counter()
    try:
        finish(reference)
        for number in range(1, kills + 1):
            kill, begun = drawn(rng, has_store=atomic.is_remote(where)), time.monotonic()
            came = live(run, kill, number * STEPS_PER_KILL - rng.randrange(STEPS_PER_KILL), rng)
            counts[kill.kind] += 1
            print(
                f"{number}/{kills}: {kill}: {came}; last step {run.step()}, "
                f"{time.monotonic() - begun:.0f} s", flush=True,
            )  # fmt: skip
        finish(run)
    except Broken:
        run.send(DUMP, tuple(range(PROCESSES)))  # their logs show where they are
        time.sleep(1)
        print(run.told())
        run.end()
        raise
    compare(run, reference)
    print("bit-identical after", ", ".join(f"{count} {name}" for name, count in counts.items()))


@contextlib.contextmanager
def store_with_records(root: pathlib.Path, is_wanted: bool) -> Iterator[dict[str, str]]:
    """Yields the environment in which a process finds the store, empty if there is none."""
    if not is_wanted:
        yield {}
        return
    store = google_storage.Store()
    for name in RECORDS:
        for path in (root / name).iterdir():
            store.put(f"bucket/{name}/{path.name}", path.read_bytes(), {})
    store.faults = STORE_FAULTS
    with google_storage.running(root, store) as environment:
        yield environment | {"no_proxy": "localhost"}
    print(f"{store.failed:,} of {store.requests:,} requests to the store failed")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="a new directory")
    parser.add_argument("--store", action="store_true", help="workdir and records at gs://")
    options = parser.parse_args()
    root = options.directory.absolute()
    records.import_tensorflow()  # before processes are forked: it takes seconds
    if "LD_PRELOAD" in os.environ:
        where = epath.Path(STORE if options.store else root)
        soak(root, where, options.kills, options.seed)
        return 0
    root.mkdir(parents=True)
    library = root / "failing_calls.so"
    source = pathlib.Path(__file__).with_name("failing_calls.c")
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    for name, given in RECORDS.items():
        small_records.write(root / name, **given)
    command = [sys.executable, "-m", "tests.faults.soak", *sys.argv[1:]]
    ours = {"LD_PRELOAD": str(library), "JAX_PLATFORMS": "cpu"}
    with store_with_records(root, options.store) as of_store:
        return subprocess.run(command, env=os.environ | ours | of_store, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
