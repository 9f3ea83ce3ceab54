"""Runs that are told to stop, as the system tells them: by a signal while they run."""

import contextlib
import os
import signal

import pytest

from bertjax.training import evaluation, monitor


@contextlib.contextmanager
def signal_after(step: int, *, nth: int = 1, number: int = signal.SIGTERM):
    """Sends this process a signal when the step that made the count `step` is done (nth time)."""
    submit, seen = monitor.Monitor.submit, []

    def submitted(self, at, *rest):
        submit(self, at, *rest)
        if at == step:
            seen.append(at)
            if len(seen) == nth:
                os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor.Monitor, "submit", submitted)
        yield


@contextlib.contextmanager
def signal_in_evaluation(*, nth_batch: int = 2, number: int = signal.SIGTERM):
    """Sends this process a signal before a batch of an evaluation."""
    until_stopped, seen = evaluation._until_stopped, []

    def batches_with_a_signal(batches, must_stop):
        for batch in until_stopped(batches, must_stop):
            seen.append(batch)
            if len(seen) == nth_batch:
                os.kill(os.getpid(), number)
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_until_stopped", batches_with_a_signal)
        yield
