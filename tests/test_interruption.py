"""Runs in real processes that are killed, preempted or spread over hosts: always the same run.

The reference is an uninterrupted run of one process. Every run records the examples that it reads.
The slow tests signal a process from inside, at a step; those that choose their moment by the clock
or from outside are marked faults.
"""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bertjax.training import preemption, time_budget
from bertjax.workdirs import checkpoint
from tests import small_records

ROOT = pathlib.Path(__file__).parent.parent
SAVE_EVERY = 5


class Workplace:
    """Records, a compilation cache, and the commands of runs over them."""

    def __init__(self, root, steps):
        self.root, self.steps = root, steps
        self.records = small_records.write(root / "records")
        self.limit_seconds = 1800  # of a process, until the reference has shown what one takes

    def start(self, name, *extra, host=0, signal_at=(-1, 0), reads_fail=False, held_by=""):
        """Starts a process; it signals itself when it reads the batch of a step.

        While the file `held_by` exists, it waits at step 5.
        """
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": str(ROOT),
            "RECORDED_TO": str(self.root / f"{name}.{host}.seen"),
            "SIGNAL_AT": ":".join(str(int(it)) for it in signal_at),
            "HELD_BY": str(held_by),
            **({"READS_FAIL": "1"} if reads_fail else {}),
        }
        command = [
            sys.executable, "-m", "tests.recorded_run", f"--config={ROOT}/configs/smoke.py",
            f"--workdir={self.root / name}", "--config.data.source=records",
            f"--config.data.train_dir={self.records}", "--config.model.vocab_size=0",
            "--config.model.hidden_size=32", "--config.model.num_hidden_layers=1",
            "--config.global_batch_size=8", "--config.phases.phase1.max_seq_length=16",
            f"--config.phases.phase1.num_steps={self.steps}", "--config.log_every_steps=1",
            f"--config.checkpoint.save_every_steps={SAVE_EVERY}",
            f"--config.compilation_cache_dir={self.root / 'cache'}", *extra,
        ]  # fmt: skip
        with open(self.root / f"{name}.{host}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    def ended(self, process):
        return process.wait(self.limit_seconds)

    def run(self, name, *extra):
        assert self.ended(self.start(name, *extra)) == 0, self.log(name)

    def start_hosts(self, name, count, *extra, failing=None, **options):
        """Starts the processes of a run; one of them may be unable to read checkpoints."""
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            address = f"localhost:{listener.getsockname()[1]}"
        return [
            self.start(
                name, f"--coordinator_address={address}", f"--num_processes={count}",
                f"--process_id={host}", *extra, host=host, reads_fail=host == failing,
                **options,
            )
            for host in range(count)
        ]  # fmt: skip

    def log(self, name, host=0):
        return (self.root / f"{name}.{host}.log").read_text(encoding="utf-8")[-3000:]

    def seen(self, name, host=0):
        """Returns step -> positions; a step read again after a resume must show the same."""
        steps = {}
        path = self.root / f"{name}.{host}.seen"
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                step, positions = json.loads(line)
            except ValueError:
                continue  # the line that a kill tore
            assert steps.setdefault(step, positions) == positions
        return steps

    def last_seen(self, name):
        path = self.root / f"{name}.0.seen"
        return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0

    def losses(self, name):
        lines = (self.root / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
        return {entry["step"]: entry["train/loss"] for entry in entries if "train/loss" in entry}


def with_reference(root, steps):
    place = Workplace(root, steps)
    begun = time.monotonic()
    place.run("reference")
    place.limit_seconds = max(300, 20 * (time.monotonic() - begun))
    return place


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Long enough for what comes from outside."""
    return with_reference(tmp_path_factory.mktemp("runs"), 100)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return with_reference(tmp_path_factory.mktemp("short"), 20)


def wait_until(process, condition):
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.001)
    assert process.poll() is not None, "the condition never came true"


def assert_same_run(workplace, name):
    expected, _, step = checkpoint.load_params(workplace.root / "reference")
    params, _, found_step = checkpoint.load_params(workplace.root / name)
    assert step == found_step == workplace.steps
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    fingerprints = [
        checkpoint.load_params(workplace.root / run)[1]["fingerprints"]
        for run in ("reference", name)
    ]
    assert fingerprints[0] == fingerprints[1]
    assert workplace.seen(name) == workplace.seen("reference")
    assert sorted(workplace.seen(name)) == list(range(workplace.steps))
    assert workplace.losses(name) == workplace.losses("reference")


@pytest.mark.slow
def test_a_killed_run_ends_bit_identical(short):
    killed = short.start("killed_once", signal_at=(12, signal.SIGKILL))
    assert short.ended(killed) == -signal.SIGKILL
    short.run("killed_once")
    assert "Resuming at step" in short.log("killed_once")
    assert_same_run(short, "killed_once")


@pytest.mark.faults
def test_killed_at_five_moments_the_run_ends_bit_identical(workplace):
    generator = random.Random(0)
    directory = workplace.root / "killed" / checkpoint.DIRECTORY

    def names():
        return [path.name for path in directory.iterdir()] if directory.exists() else []

    def newest():
        return max((int(name) for name in names() if name.isdigit()), default=0)

    def is_inside_a_save():
        return any("orbax-checkpoint-tmp" in name for name in names())

    for number in range(5):
        # Every life gets at least one checkpoint further, or nothing would ever be resumed.
        before = newest()
        process = workplace.start("killed")
        wait_until(process, lambda before=before: newest() > before)
        if number % 2:
            wait_until(process, is_inside_a_save)
        else:
            time.sleep(generator.uniform(0.0, 0.3))
        assert process.poll() is None, workplace.log("killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
    workplace.run("killed")
    log = (workplace.root / "killed.0.log").read_text(encoding="utf-8")
    assert log.count("Resuming at step") == 5
    assert_same_run(workplace, "killed")


@pytest.mark.faults
def test_sigterm_saves_at_once_and_exits_with_its_own_code(workplace):
    process = workplace.start("terminated")
    wait_until(process, lambda: workplace.last_seen("terminated") >= 23)
    seen = workplace.last_seen("terminated")
    process.send_signal(signal.SIGTERM)
    assert workplace.ended(process) == preemption.EXIT_CODE, workplace.log("terminated")
    _, _, saved = checkpoint.load_params(workplace.root / "terminated")
    # The step that was running, and those that the notice took to arrive.
    assert seen - 1 <= saved <= seen + 15 and saved < workplace.steps
    workplace.run("terminated")
    assert_same_run(workplace, "terminated")


@pytest.mark.faults
def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(workplace):
    process = workplace.start("by_hand")
    wait_until(process, lambda: workplace.last_seen("by_hand") >= 23)
    process.send_signal(signal.SIGINT)
    assert workplace.ended(process) == 130, workplace.log("by_hand")
    log = workplace.log("by_hand")
    assert "interrupted: saved at step" in log and "same command again" in log
    assert "Traceback" not in log
    workplace.run("by_hand")
    assert_same_run(workplace, "by_hand")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 75, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.faults),
        pytest.param(signal.SIGHUP, 75, marks=pytest.mark.faults),
    ],
)
def test_a_signal_during_the_imports_has_its_code_too(tmp_path, number, code):
    command = [sys.executable, "-X", "importtime", "-m", "bertjax.train", "--config=smoke"]
    process = subprocess.Popen(
        [*command, f"--workdir={tmp_path}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:  # until the imports are on their way
        if "jax._src" in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=300)
    assert process.returncode == code
    assert "Traceback" not in rest and "run the same command again" in rest


@pytest.mark.faults
def test_a_second_run_in_the_workdir_is_refused_at_once_and_harms_nothing(workplace):
    held_by = workplace.root / "held"
    held_by.touch()
    first = workplace.start("shared", held_by=held_by)
    wait_until(first, lambda: workplace.last_seen("shared") >= 5)
    second = workplace.start("shared", host=1)
    try:
        assert workplace.ended(second) == 1
    finally:
        held_by.unlink()
    log = workplace.log("shared", 1)
    assert f"is in use by process {first.pid} on {socket.gethostname()}" in log
    assert "Traceback" not in log
    assert workplace.ended(first) == 0
    assert_same_run(workplace, "shared")


@pytest.mark.faults
def test_ctrl_c_on_one_of_two_hosts_saves_and_stops_both(workplace):
    hosts = workplace.start_hosts("hosts_by_hand", 2)
    wait_until(hosts[0], lambda: workplace.last_seen("hosts_by_hand") >= 5)
    hosts[0].send_signal(signal.SIGINT)
    codes = [workplace.ended(process) for process in hosts]
    assert codes == [130, preemption.EXIT_CODE], workplace.log("hosts_by_hand")
    _, _, saved = checkpoint.load_params(workplace.root / "hosts_by_hand")
    assert f"interrupted: saved at step {saved}" in workplace.log("hosts_by_hand")


@pytest.mark.faults
def test_told_after_a_save_of_a_resumed_run_two_hosts_stop_at_once(workplace):
    """orbax gives JAX's preemption service the step at every save, not a count of moments."""
    saved = 0
    for life in range(2):
        hosts = workplace.start_hosts("hosts_resumed", 2, "--config.checkpoint.save_every_steps=1")
        wanted = workplace.last_seen("hosts_resumed") + 15
        wait_until(hosts[0], lambda wanted=wanted: workplace.last_seen("hosts_resumed") >= wanted)
        hosts[life].send_signal(signal.SIGTERM)
        codes = [workplace.ended(process) for process in hosts]
        assert codes == [preemption.EXIT_CODE] * 2, workplace.log("hosts_resumed")
        _, _, reached = checkpoint.load_params(workplace.root / "hosts_resumed")
        assert saved < reached < saved + 25, "it went on for long"
        saved = reached


def stopped_hosts(workplace, name):
    """Stops a run of two processes; returns the step that they saved."""
    hosts = workplace.start_hosts(name, 2, signal_at=(7, signal.SIGTERM))
    codes = [workplace.ended(process) for process in hosts]
    assert codes == [preemption.EXIT_CODE] * 2, workplace.log(name) + workplace.log(name, 1)
    _, _, saved = checkpoint.load_params(workplace.root / name)
    assert 0 < saved < workplace.steps
    return saved


@pytest.mark.faults
def test_where_one_host_cannot_read_both_stop_and_no_checkpoint_is_moved(short):
    saved = stopped_hosts(short, "unread")
    directory = short.root / "unread" / checkpoint.DIRECTORY
    kept = sorted(directory.iterdir())
    hosts = short.start_hosts("unread", 2, failing=1)
    codes = [short.ended(process) for process in hosts]
    assert codes == [1, 1], short.log("unread") + short.log("unread", 1)
    assert f"step {saved} in " in short.log("unread")
    assert "another process could not read it" in short.log("unread")
    assert sorted(directory.iterdir()) == kept
    assert not (short.root / "unread" / checkpoint.UNREADABLE_DIRECTORY).exists()


@pytest.mark.slow
def test_two_hosts_equal_one_and_their_run_is_resumed_by_one(short):
    saved = stopped_hosts(short, "hosts")
    hosts_rows = short.seen("hosts")
    (short.root / "hosts.0.seen").unlink()
    short.run("hosts")

    expected = short.seen("reference")
    together, alone = short.seen("hosts", 1), short.seen("hosts")
    for step in range(saved):
        assert hosts_rows[step] + together[step] == expected[step]
    for step in range(saved, short.steps):
        assert alone[step] == expected[step]
    losses, expected_losses = short.losses("hosts"), short.losses("reference")
    assert losses.keys() == expected_losses.keys()
    for step, loss in losses.items():
        np.testing.assert_allclose(loss, expected_losses[step], rtol=1e-4)


@pytest.mark.faults
def test_two_hosts_take_the_decisions_of_the_first_about_a_budget(short):
    options = ("--config.phases.phase1.num_steps=900000", "--config.budget.hours=0.004")
    for process in short.start_hosts("budget", 2, *options):
        assert short.ended(process) == 0, short.log("budget")
    decisions = json.loads((short.root / "budget" / time_budget.FILE).read_text())["decisions"]
    assert len(decisions) > 3 and decisions[0] == [0, 900_000]
    first, second = (sorted(short.seen("budget", host)) for host in (0, 1))
    assert first == second
    # The steps that are timed before the run read its first batches, on a slow machine more of them
    # than the run has steps.
    timed, taken = time_budget.WARM_UP_STEPS + time_budget.MOST_STEPS, decisions[-1][1]
    assert set(range(taken)) <= set(first) <= set(range(max(timed, taken)))
