"""Claims about several processes of which one fails: all end, and each says why.

A thread stands for the watch of a process, a dict for what all of them can read.
"""

import threading

import jax
import pytest

from bertjax.training import preemption
from tests.training.test_agreement import Memory


@pytest.fixture
def memory(monkeypatch):
    """What the processes read; they are two, this one is number 1, and waiting takes no time."""
    made = Memory()
    monkeypatch.setattr(preemption.distributed.global_state, "client", made)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(preemption, "GRACE_SECONDS", 0.2)
    return made


@pytest.fixture
def left(monkeypatch):
    """Set when the process is ended."""
    event = threading.Event()
    monkeypatch.setattr(preemption, "_leave", event.set)
    return event


def test_a_process_ends_when_another_has_failed_and_says_why(memory, left, caplog):
    with preemption.failures_watched():
        memory.values[f"{preemption.FAILED}0"] = "OSError: no space"
        assert left.wait(10)
    assert "process 0: OSError: no space" in caplog.text
    assert "run the same command" in caplog.text


def test_a_process_that_fails_tells_the_others_and_ends_even_if_it_hangs_afterwards(memory, left):
    with pytest.raises(OSError, match="no space"), preemption.failures_watched():
        raise OSError("no space\nand more of it")
    assert memory.values == {f"{preemption.FAILED}1": "OSError: no space"}
    assert left.wait(10)


@pytest.mark.parametrize("ending", [None, SystemExit(75), SystemExit(0)])
def test_a_process_that_ends_as_it_should_tells_nothing_and_is_left_alone(memory, left, ending):
    try:
        with preemption.failures_watched():
            if ending is not None:
                raise ending
    except SystemExit:
        pass
    assert memory.values == {}
    memory.values[f"{preemption.FAILED}0"] = "OSError: later"
    assert not left.wait(0.5)


def test_one_that_ends_by_itself_soon_after_another_failed_keeps_its_own_code(memory, left):
    with pytest.raises(SystemExit), preemption.failures_watched():
        memory.values[f"{preemption.FAILED}0"] = "OSError: no space"
        raise SystemExit(1)
    assert not left.wait(0.5)


def test_a_service_that_fails_at_times_only_delays(memory, left):
    memory.faults = 0.5
    with preemption.failures_watched():
        memory.values[f"{preemption.FAILED}0"] = "OSError: no space"
        assert left.wait(10)


def test_where_the_others_cannot_be_told_the_error_itself_goes_on(memory, left):
    memory.faults = 1.0
    with pytest.raises(OSError, match="no space"), preemption.failures_watched():
        raise OSError("no space")


def test_one_process_has_nobody_to_watch(monkeypatch, left):
    monkeypatch.setattr(preemption.distributed.global_state, "client", None)
    with pytest.raises(OSError, match="no space"), preemption.failures_watched():
        raise OSError("no space")
    assert not left.wait(0.1)
