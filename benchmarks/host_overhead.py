"""The host's time between two steps of the real loop, at configs/smoke.py.

    python benchmarks/host_overhead.py [--steps=1000]

Runs `bertjax.train.train` itself, with one change: the compiled step is replaced by one of the same
signature, shardings and donation that computes next to nothing. Then the time from one call of the
step to the next is the host's. Target: under 2 ms.

Counted: making the batch (synthetic, in the loop's thread; records are read by other threads), its
way to the device, flattening and dispatching the call, fetching the report of the step before, the
monitor with its line of metrics every `log_every_steps`, and asking whether a notice has come. Not
counted: the device's own time, evaluation, and saving.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import report

from bertjax import recipes, train
from bertjax.devices import sharding
from bertjax.training import monitor, program

TARGET_MS = 2.0
WARM_UP_STEPS = 50


class Stopwatch:
    """Seconds spent in each piece of the loop, call by call; `stamps` are the times of steps."""

    def __init__(self):
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.stamps: list[float] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, its calls timed under `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[name].append(time.perf_counter() - start)
            return result

        return call

    def timed_iterator(self, name: str, make: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        """Returns `make`, the items of its iterators timed under `name`."""
        return lambda *args: iter(self.timed(name, make(*args).__next__), None)

    def stamped_step(self, run: program.Program) -> Callable[..., Any]:
        """Returns a step that costs the device next to nothing, its calls stamped."""
        step = self.timed("dispatch", empty_step(run))

        def call(*inputs: Any) -> Any:
            self.stamps.append(time.perf_counter())
            return step(*inputs)

        return call


def empty_step(run: program.Program) -> Callable[..., Any]:
    """Returns a jitted function like the step from outside, donation too, that only counts."""
    placed = jax.tree.map(lambda leaf: leaf.sharding, run.abstract_state)
    rows = sharding.batch_sharding(run.mesh)
    replicated = jax.sharding.NamedSharding(run.mesh, sharding.P())
    phase = run.job.phases[0]
    host_batch = next(run.job.data.train_batches(phase, start_step=0, rows=None))
    with jax.set_mesh(run.mesh):
        batch = sharding.to_devices(host_batch, run.mesh, phase.global_batch_size)
        _, shapes = jax.eval_shape(
            run.learner.train_step, run.abstract_state, batch, run.abstract_step_inputs
        )

    def step(train_state: Any, batch: Any, step_inputs: Any) -> tuple[Any, Any]:
        del batch, step_inputs
        # Ones: finite, and a weight that can be divided by.
        step_report = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)
        return dataclasses.replace(train_state, step=train_state.step + 1), step_report

    return jax.jit(
        step,
        in_shardings=(placed, rows, replicated),
        out_shardings=(placed, replicated),
        donate_argnums=0,
        keep_unused=True,
    )


def run_loop(num_steps: int) -> Stopwatch:
    """Returns the times of a run of the smoke recipe with the empty step, saved after the last."""
    config = recipes.load("smoke")
    config.phases.phase1.num_steps = config.checkpoint.save_every_steps = num_steps
    stopwatch, prepare = Stopwatch(), train.prepare

    def prepare_with_empty_step(*args: Any) -> program.Program:
        run = prepare(*args)
        return dataclasses.replace(run, train_step=stopwatch.stamped_step(run))

    batches = stopwatch.timed_iterator("next batch", train.remaining_batches)
    to_devices = stopwatch.timed("to_devices", sharding.to_devices)
    submit = stopwatch.timed("monitor", monitor.Monitor.submit)
    with contextlib.ExitStack() as patched, tempfile.TemporaryDirectory() as workdir:
        for owner, name, changed in (
            (train, "prepare", prepare_with_empty_step),
            (train, "remaining_batches", batches),
            (sharding, "to_devices", to_devices),
            (monitor.Monitor, "submit", submit),
        ):
            patched.enter_context(mock.patch.object(owner, name, changed))
        train.train(config, workdir)
    return stopwatch


def milliseconds(seconds: Sequence[float]) -> str:
    """Returns median, mean and 95th percentile of the steps after the warm-up."""
    values = [1e3 * value for value in seconds[WARM_UP_STEPS:]]
    return (
        f"median {statistics.median(values):.3f} ms, mean {statistics.fmean(values):.3f} ms, "
        f"95% below {np.percentile(values, 95):.3f} ms"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Host time per step of the training loop.")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run")
    options = parser.parse_args(argv)
    if options.steps < 2 * WARM_UP_STEPS:
        parser.error(f"--steps must be at least {2 * WARM_UP_STEPS}")
    stopwatch = run_loop(options.steps)
    between_steps = np.diff(stopwatch.stamps).tolist()
    print(
        f"{report.machine()}, jax {jax.__version__}, {options.steps} steps on "
        f"{jax.devices()[0].device_kind}"
    )
    for name in ("dispatch", "next batch", "to_devices", "monitor"):
        print(f"  {name:12}{milliseconds(stopwatch.seconds[name])}")
    median_ms = 1e3 * statistics.median(between_steps[WARM_UP_STEPS:])
    print(f"step to step  {milliseconds(between_steps)}")
    print(f"target under {TARGET_MS} ms: {report.target(median_ms < TARGET_MS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
