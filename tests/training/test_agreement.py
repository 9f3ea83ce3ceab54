"""Claims about where several processes stop: all at one moment, soon, whoever was told and when.

Threads stand for the processes, a dict for what all of them can read.
"""

import contextlib
import random
import threading
import time

import jax
import pytest

from bertjax.training import preemption

COUNT = 4


class Memory:
    """What all processes can read; a share of the calls fails, before or after it is done."""

    def __init__(self, faults=0.0):
        self.values = {}
        self.faults = faults
        self.random = random.Random(0)

    def key_value_set(self, key, value, allow_overwrite=False):
        self.fail_at_times()
        assert allow_overwrite or key not in self.values
        self.values[key] = value
        self.fail_at_times()

    def key_value_dir_get(self, key):
        self.fail_at_times()
        return [item for item in self.values.copy().items() if item[0].startswith(key)]

    def fail_at_times(self):
        if self.random.random() < self.faults:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: the connection was cut")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.01)


def stops(memory, told, moments, *, number=0, seconds=0.002):
    """Returns at which moment each process stops, None where it comes to its end.

    `told` says which process is told before which of its moments; one is always behind.
    """
    found = [None] * COUNT

    def live(process):
        rng = random.Random(process)
        with preemption.Agreement(memory, process, COUNT, number) as own:
            for moment in range(1, moments + 1):
                if (process, moment) in told:
                    own.report_signal()
                time.sleep(rng.uniform(0, seconds) * (3 if process == COUNT - 1 else 1))
                if own.reached():
                    found[process] = moment
                    return

    threads = [threading.Thread(target=live, args=[process]) for process in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


TOLD = pytest.mark.parametrize(
    "told", [[0], [COUNT - 1], range(COUNT)], ids=["first", "last", "all"]
)


@TOLD
def test_processes_that_count_in_turn_stop_at_one_moment(told):
    memory, moments = Memory(), [0] * COUNT
    with contextlib.ExitStack() as stack:
        agreements = [
            stack.enter_context(preemption.Agreement(memory, process, COUNT, 0))
            for process in range(COUNT)
        ]
        for process in told:
            agreements[process].report_signal()
        running = set(range(COUNT))
        while running:
            for process in sorted(running):
                moments[process] += 1
                if agreements[process].reached():
                    running.remove(process)
    assert len(set(moments)) == 1


@pytest.mark.faults
@pytest.mark.parametrize("told_at", [1, 20, 47])
@TOLD
def test_all_stop_at_one_moment_soon_after_any_was_told(told, told_at):
    found = stops(Memory(), {(process, told_at) for process in told}, 2000)
    assert len(set(found)) == 1 and found[0] is not None
    assert told_at <= found[0] < told_at + 400  # the listeners take 10 ms each, a moment 1


@pytest.mark.faults
def test_nobody_stops_whom_nobody_told():
    assert stops(Memory(), set(), 50) == [None] * COUNT


@pytest.mark.faults
@pytest.mark.parametrize("told_at", [296, 299, 300])
def test_told_near_the_end_all_stop_there_or_all_come_to_the_end(told_at):
    memory = Memory()
    found = stops(memory, {(COUNT - 1, told_at)}, 300)
    assert len(set(found)) == 1
    # What came too late for this run is for the next one of the same processes.
    if found[0] is None:
        assert stops(memory, set(), 2000, number=1)[0] is not None


@pytest.mark.faults
def test_a_service_that_fails_at_times_only_delays():
    found = stops(Memory(faults=0.4), {(1, 5)}, 3000)
    assert len(set(found)) == 1 and found[0] is not None


def test_what_was_agreed_holds_from_then_on():
    memory = Memory()
    with preemption.Agreement(memory, 0, 1, 0) as own:
        own.report_signal()
        while not own.reached():
            pass
        assert own.reached() and own.reached()
