"""A run of four processes that is killed and goes on, again and again: it ends as if it never was.

    python -m tests.faults.soak --kills=100 --seed=0 --directory=/tmp/soak

SIGKILL or SIGTERM, to one process or to all, comes while they start, train or save. In some lives a
call of one process's file system fails, too. After SIGTERM all have to end by themselves within the
half minute that a spot machine has. After SIGKILL of one the others are killed a little later, as a
launcher does. A line tells of every kill; the end is compared with a run that was left alone.

The processes are forked from this one, which has imported all and started nothing: a life then
takes seconds, and hundreds take an afternoon.
"""

from __future__ import annotations

import argparse
import atexit
import collections
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

import jax
import numpy as np

from bertjax import command_line, interruptions, jobs, train
from bertjax.data import records
from bertjax.workdirs import checkpoint
from tests import recorded_run, small_records

ROOT = pathlib.Path(__file__).parent.parent.parent
PROCESSES = 4
STEPS_PER_KILL, SAVE_EVERY, EVALUATE_EVERY = 6, 3, 60
GRACE_SECONDS = 30
# A process that cannot write a checkpoint leaves the others at a barrier of orbax for 20 minutes.
STANDSTILL_SECONDS = 90
MOMENTS = ("starting", "training", "saving")
PREEMPTED, FAILED = interruptions.EXIT_CODES[signal.SIGTERM], 1


class Broken(Exception):
    """The run did not do what it should."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """What is sent to which processes, when; and where the storage of one fails, if it does."""

    number: signal.Signals
    targets: tuple[int, ...]
    moment: str
    fault: tuple[int, int] | None  # process, and which of its calls below the workdir

    @property
    def grace_seconds(self) -> int:
        """The time to end in by themselves; what comes before a step is compiled waits for that."""
        return GRACE_SECONDS * (4 if self.moment == "starting" else 1)

    def __str__(self) -> str:
        whom = "all" if len(self.targets) == PROCESSES else f"process {self.targets[0]}"
        fault = "; call {1} of process {0} fails".format(*self.fault) if self.fault else ""
        return f"{self.number.name} to {whom} while {self.moment}{fault}"


def drawn(rng: random.Random) -> Kill:
    one = (rng.randrange(PROCESSES),)
    return Kill(
        rng.choice([signal.SIGKILL, signal.SIGTERM]),
        rng.choice([one, tuple(range(PROCESSES))]),
        rng.choices(MOMENTS, [1, 2, 2])[0],
        (rng.randrange(PROCESSES), rng.randrange(1, 400)) if rng.random() < 0.25 else None,
    )


class Run:
    """One run in a directory: its processes, and what is seen of it from outside."""

    def __init__(self, root: pathlib.Path, name: str, steps: int):
        self.root, self.name, self.steps = root, name, steps
        self.processes: list[int] = []
        self.codes: dict[int, int] = {}
        self._bytes_seen = 0  # at the start of this life

    @property
    def workdir(self) -> pathlib.Path:
        return self.root / self.name

    def start(self, fault: tuple[int, int] | None = None) -> None:
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            address = f"localhost:{listener.getsockname()[1]}"
        self.codes = {}
        self._bytes_seen = self.seen_path(0).stat().st_size if self.seen_path(0).exists() else 0
        self.processes = [
            self._fork(process, address, fault[1] if fault and fault[0] == process else 0)
            for process in range(PROCESSES)
        ]

    def _fork(self, process: int, address: str, failing_call: int) -> int:
        sys.stdout.flush()
        if made := os.fork():
            return made
        code = 70
        try:
            interruptions.leave_at_once()
            log = os.open(self.log_path(process), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.register(signal.SIGUSR1)
            os.environ["RECORDED_TO"] = str(self.seen_path(process))
            if failing_call:
                below, nth = str(self.workdir).encode(), ctypes.c_long(failing_call)
                ctypes.CDLL(None).faults_arm(below, nth, ctypes.c_long(1), errno.EIO)
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
            "data.train_dir": self.root / "records",
            "data.eval_dir": self.root / "heldout",
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
        tails = [self.log_path(process).read_text("utf-8")[-1500:] for process in range(PROCESSES)]
        return "\n".join(f"-- process {number}\n{tail}" for number, tail in enumerate(tails))


def trained() -> int:
    """Trains as the program does, in a process that was forked; returns its exit code."""
    jobs.pretraining_data.PretrainingData.train_batches = recorded_run.recorded
    train.define_flags()
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
    while not run.ended():
        if kill.moment == "starting" and time.monotonic() > begun + delay:
            break
        late = run.step() - until if kill.moment != "starting" else -1
        if late >= (2 * SAVE_EVERY if kill.moment == "saving" and not run.is_saving() else 0):
            break
        if time.monotonic() > begun + (STANDSTILL_SECONDS if kill.fault else 300):
            if not kill.fault:
                raise Broken(f"no step {until} in 300 s")
            run.end()
            return "stood still after its storage failed"
        time.sleep(0.002)
    sent, was_alone = time.monotonic(), dict(run.ended())
    run.send(kill.number, kill.targets)
    is_over = run.wait(3)
    if not is_over and kill.number == signal.SIGTERM and not was_alone:
        run.send(signal.SIGUSR1, tuple(range(PROCESSES)))  # their logs show where they are
        is_over = run.wait(kill.grace_seconds - 3)
    seconds, codes = time.monotonic() - sent, dict(run.codes)
    run.end()
    if kill.fault and not is_over and kill.number == signal.SIGTERM:
        return "stood still after its storage failed"
    check(kill, codes, was_alone, is_over)
    if was_alone:
        return "ended after its storage failed"
    return f"codes {[codes.get(it, 'lost') for it in range(PROCESSES)]} after {seconds:.1f} s"


def check(kill: Kill, codes: dict[int, int], before: dict[int, int], is_over: bool) -> None:
    """Raises Broken where the processes did not end as they should."""
    if set(before.values()) - ({FAILED} if kill.fault else set()):
        raise Broken(f"ended before the signal, with {before}")
    if before or kill.number == signal.SIGKILL:
        return
    if len(kill.targets) < PROCESSES and kill.moment == "starting":
        return  # it may have left before it knew the others, which wait for it
    if kill.fault and FAILED in codes.values():
        return
    if not is_over or set(codes.values()) - {PREEMPTED}:
        raise Broken(f"{kill.grace_seconds} s after SIGTERM the codes are {codes}")


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
    lines = (run.workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("perf/")}
        for line in lines
    ]


def finish(run: Run) -> None:
    run.start()
    if not run.wait(600) or set(run.codes.values()) != {0}:
        run.end()
        raise Broken(f"the run ended with {run.codes}")


def soak(root: pathlib.Path, kills: int, seed: int) -> None:
    """Kills a run again and again, and compares its end with a run that was left alone."""
    small_records.write(root / "records")
    small_records.write(root / "heldout", counts=(40,), seed=2)
    steps, rng = STEPS_PER_KILL * (kills + 1), random.Random(seed)
    reference, run = (Run(root, name, steps) for name in ("reference", "soaked"))
    counts: collections.Counter[str] = collections.Counter()
    try:
        finish(reference)
        for number in range(1, kills + 1):
            kill, begun = drawn(rng), time.monotonic()
            came = live(run, kill, number * STEPS_PER_KILL - rng.randrange(STEPS_PER_KILL), rng)
            counts[f"{kill.number.name} to {'one' if len(kill.targets) == 1 else 'all'}"] += 1
            if came.endswith("its storage failed"):
                counts[f"times it {came}"] += 1
            print(
                f"{number}/{kills}: {kill}: {came}; last step {run.step()}, "
                f"{time.monotonic() - begun:.0f} s", flush=True,
            )  # fmt: skip
        finish(run)
    except Broken:
        print(run.told())
        raise
    compare(run, reference)
    print("bit-identical after", ", ".join(f"{count} {name}" for name, count in counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="a new directory")
    options = parser.parse_args()
    library = options.directory / "failing_calls.so"
    if "LD_PRELOAD" not in os.environ:
        options.directory.mkdir(parents=True)
        source = pathlib.Path(__file__).with_name("failing_calls.c")
        compiler = shutil.which("cc") or "cc"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True
        )
        environment = os.environ | {"LD_PRELOAD": str(library.absolute()), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tests.faults.soak", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    records.import_tensorflow()  # before the processes are forked: it takes seconds
    soak(options.directory.absolute(), options.kills, options.seed)


if __name__ == "__main__":
    main()
