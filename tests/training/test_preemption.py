"""Claims about the signals that stop a run: which they are, and that an ignored one stays so."""

import os
import signal

import pytest

from bertjax.cli import interruptions
from bertjax.training import preemption


@pytest.mark.parametrize("number", interruptions.EXIT_CODES)
def test_each_signal_to_stop_is_noticed_and_afterwards_as_before(number):
    before = signal.getsignal(number)
    with preemption.Notice() as notice:
        assert not notice.reached()
        os.kill(os.getpid(), number)
        assert notice.reached()
    assert signal.getsignal(number) == before
    assert preemption.Preempted(3, by_hand=notice.by_hand).exit_code in (75, 130)
    assert notice.by_hand == (number == signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_is_ignored_at_the_start_stops_nothing(number):
    before = signal.signal(number, signal.SIG_IGN)  # as nohup does
    try:
        with preemption.Notice() as notice:
            os.kill(os.getpid(), number)
            assert not notice.reached()
        assert number not in interruptions.received_signals()
    finally:
        signal.signal(number, before)
