"""Idle workers, and tasks that Dask's scheduler has left in its queue."""

import threading
import time
import types

import pytest

pytestmark = pytest.mark.faults
NUM_TASKS = 12  # Dask queues only tasks of large groups.


def _wait_for(scheduler, holds):
    end = time.monotonic() + 60
    while not holds(scheduler):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_tasks_that_dask_has_left_in_its_queue_are_done(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from apache_beam.runners.dask.dask_runner import DaskRunnerResult

    from data_pipelines.beam import program

    monkeypatch.setattr(program, "LOOK_SECONDS", 0.5)
    one_thread = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**one_thread, dashboard_address=":0") as cluster:
        client = distributed.Client(cluster)
        with monkeypatch.context() as as_when_a_worker_leaves:
            as_when_a_worker_leaves.setattr(
                cluster.scheduler, "stimulus_queue_slots_maybe_opened", lambda **stimulus: None
            )
            last = client.submit(sum, client.map(abs, range(NUM_TASKS), pure=False), pure=False)
            _wait_for(cluster.scheduler, lambda it: it.queued)
            _wait_for(
                cluster.scheduler,
                lambda it: not any(each.processing for each in it.workers.values()),
            )
        pipeline = types.SimpleNamespace(run=lambda: DaskRunnerResult(client, [last]))
        has_ended = threading.Event()

        def run():
            program._on_dask(pipeline)
            has_ended.set()

        threading.Thread(target=run, daemon=True).start()
        assert has_ended.wait(30)
