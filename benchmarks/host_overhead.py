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
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from bertjax import recipes, train
from bertjax.devices import sharding
from bertjax.training import monitor, program, state

TARGET_MS = 2.0
WARM_UP_STEPS = 50


class Stopwatch:
    """Seconds spent in each named piece of the loop, call by call."""

    def __init__(self):
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)

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

        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            return iter(self.timed(name, make(*args, **kwargs).__next__), None)

        return call


class StampedStep:
    """A step that costs the device next to nothing; `stamps` are the times of its calls."""

    def __init__(self, run: program.Program, stopwatch: Stopwatch):
        self.stamps: list[float] = []
        self._step = stopwatch.timed("dispatch", empty_step(run))

    def __call__(
        self, train_state: state.TrainState, batch: Any, step_inputs: state.StepInputs
    ) -> Any:
        self.stamps.append(time.perf_counter())
        return self._step(train_state, batch, step_inputs)


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

    def step(
        train_state: state.TrainState, batch: Any, step_inputs: state.StepInputs
    ) -> tuple[state.TrainState, Any]:
        del batch, step_inputs
        # Ones: finite, and a weight that can be divided by.
        report = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)
        counted = train_state.step + 1
        return dataclasses.replace(train_state, step=counted), report

    return jax.jit(
        step,
        in_shardings=(placed, rows, replicated),
        out_shardings=(placed, replicated),
        donate_argnums=0,
        keep_unused=True,
    )


def run_loop(config: ml_collections.ConfigDict) -> tuple[list[float], dict[str, list[float]]]:
    """Returns a run's seconds from step to step, with the empty step, and those of its pieces."""
    stopwatch = Stopwatch()
    steps: list[StampedStep] = []
    prepare = train.prepare

    def prepare_with_empty_step(*args: Any) -> program.Program:
        run = prepare(*args)
        steps.append(StampedStep(run, stopwatch))
        return dataclasses.replace(run, train_step=steps[-1])

    pieces = {
        "next batch": (
            "remaining_batches",
            stopwatch.timed_iterator,
            train,
            train.remaining_batches,
        ),
        "to_devices": ("to_devices", stopwatch.timed, sharding, sharding.to_devices),
        "monitor": ("submit", stopwatch.timed, monitor.Monitor, monitor.Monitor.submit),
    }
    with contextlib.ExitStack() as patched, tempfile.TemporaryDirectory() as workdir:
        for name, (attribute, wrap, owner, original) in pieces.items():
            patched.enter_context(mock.patch.object(owner, attribute, wrap(name, original)))
        patched.enter_context(mock.patch.object(train, "prepare", prepare_with_empty_step))
        train.train(config, workdir)
    return np.diff(steps[0].stamps).tolist(), stopwatch.seconds


def smoke_config(num_steps: int) -> ml_collections.ConfigDict:
    """Returns the smoke recipe with `num_steps` steps, saving only after the last."""
    config = recipes.load("smoke")
    config.phases.phase1.num_steps = num_steps
    config.checkpoint.save_every_steps = num_steps
    return config


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
    between_steps, pieces = run_loop(smoke_config(options.steps))
    print(
        f"{platform.machine()}, {os.cpu_count()} CPU cores, python {platform.python_version()}, "
        f"jax {jax.__version__}, {options.steps} steps on {jax.devices()[0].device_kind}"
    )
    for name, seconds in pieces.items():
        print(f"  {name:12}{milliseconds(seconds)}")
    median_ms = 1e3 * statistics.median(between_steps[WARM_UP_STEPS:])
    print(f"step to step  {milliseconds(between_steps)}")
    print(f"target under {TARGET_MS} ms: {'met' if median_ms < TARGET_MS else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
