"""Profiles of the devices: of some steps, and of the memory when it is full.

Both come from `jax.profiler`. XProf opens the one, pprof the other.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import logging
from etils import epath

from bertjax.files import atomic
from bertjax.options import faults as faults_lib

DIRECTORY = "profile"  # in the workdir
MEMORY_FILE = "memory.prof"


class OutOfMemoryError(faults_lib.RunError):
    """A step does not fit into the memory of the devices; the message says what to do."""


def faults(steps: Sequence[int]) -> Iterator[str]:
    """Yields the fault of `config.profile_steps`, if it has one."""
    if steps and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
        must = "a first and a last step, counted from 1, such as (10, 15), or () for no profile"
        yield str(faults_lib.wrong("config.profile_steps", steps, must))


class Profile:
    """Records what the devices and the host do from a first step to a last one, these included.

    Use it as a context manager; a run that ends between the two leaves what there is.

    Args:
      workdir: where the profile goes, in the directory `profile`; local or remote.
      steps: first and last step, counted from 1; empty for no profile.
      done_steps: the number of steps that the run has when it starts or resumes.
    """

    def __init__(self, workdir: epath.Path, steps: Sequence[int], done_steps: int):
        self._directory = workdir / DIRECTORY
        self._first, self._last = steps or (0, 0)
        self._traced: tempfile.TemporaryDirectory[str] | None = None
        if steps and self._first <= done_steps and not self._directory.exists():
            logging.warning(
                "config.profile_steps is %s, but the run goes on after step %d: nothing is "
                "profiled; give later steps", tuple(steps), done_steps,
            )  # fmt: skip

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def before(self, step: int, state: Any) -> None:
        """Begins the profile if `step` is the first one, when `state`, that before it, is there."""
        if step == self._first:
            jax.block_until_ready(state)
            self._traced = tempfile.TemporaryDirectory(prefix="bertjax_profile_")
            jax.profiler.start_trace(self._traced.name)

    def after(self, step: int, state: Any) -> None:
        """Writes the profile if `step` is the last one, when its `state` is there."""
        if step == self._last and self._traced:
            jax.block_until_ready(state)
            self._finish()

    def _finish(self) -> None:
        if self._traced is None:
            return
        jax.profiler.stop_trace()
        traced, self._traced = self._traced, None
        with traced as directory:
            for path in sorted(path for path in Path(directory).rglob("*") if path.is_file()):
                target = self._directory / path.relative_to(directory).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic.write(target, path.read_bytes())
        logging.info(
            "The profile of steps %d to %d is in %s: pip install xprof, then xprof --logdir=%s",
            self._first, self._last, self._directory, self._directory,
        )  # fmt: skip


@contextlib.contextmanager
def memory_explained(workdir: epath.Path) -> Iterator[None]:
    """Says what to do where the block runs out of the devices' memory, and keeps what filled it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        process = f"{jax.process_index()}." if jax.process_index() else ""
        path = workdir / DIRECTORY / f"{process}{MEMORY_FILE}"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, jax.profiler.device_memory_profile())
        raise OutOfMemoryError(
            f"a step does not fit into the memory of the devices ({str(error).splitlines()[0]}). "
            "Give the same command with a larger --config.gradient_accumulation_steps or "
            "--config.model.remat=full: it goes on from the newest checkpoint. Or begin another "
            "run with a smaller --config.global_batch_size. `python -m bertjax.plan` says in "
            f"advance what fits. What was in the memory is in {path}: pprof -top {path}"
        ) from error
