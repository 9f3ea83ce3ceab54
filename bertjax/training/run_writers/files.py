"""The writers whose files lie in the workdir: JSON lines and TensorBoard events."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from bertjax.training.run_writers import base
from bertjax.workdirs import scalars


class JsonLines:
    """metrics.jsonl, from which curves, tables of scores and resumed runs live.

    JSON has no NaN or infinity: such a value is null there. A run that resumes forgets what was
    reported after the step it resumes from, so the file reads as if it had never stopped.
    """

    def __init__(self, run: base.Run):
        self._path = run.directory / scalars.FILE
        scalars.forget_after(self._path, run.start_step, and_its_evaluation=run.evaluates_again)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line, which is on disk before the checkpoint of its step is."""
        # Unbuffered: the line is one write, so a killed process leaves whole lines, save the last.
        line = memoryview(scalars.line_of(step, values).encode("utf-8"))
        try:
            with open(self._path, "ab", buffering=0) as file:
                begin = os.fstat(file.fileno()).st_size
                try:
                    # A disk that is nearly full, or a mount, may take a part of it.
                    while line:
                        line = line[file.write(line) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(begin)  # half a line would spoil the next one
                    raise
        except OSError as error:
            reason = f"{error.strerror}; the scalars of this step are not recorded, free some space"
            raise OSError(error.errno, reason, str(self._path)) from error

    def picture(self, path: Path) -> None:
        del path  # It lies in the same directory.

    def close(self, outcome: base.Outcome) -> None:
        del outcome  # The checkpoints show it.


class TensorBoard:
    """Events of TensorBoard, which drops the events of steps that a resumed run takes again."""

    def __init__(self, run: base.Run):
        import tensorboardX  # it imports torch where that is installed, which takes seconds

        # The events of an earlier run are dropped from purge_step on, that step included. The
        # suffix keeps apart two runs that start within a second, which the usual name would mix.
        self._events = tensorboardX.SummaryWriter(
            str(run.directory / scalars.TENSORBOARD_DIRECTORY),
            purge_step=run.start_step + 1,
            flush_secs=10,
            filename_suffix=f".{os.getpid()}.{time.time_ns()}",
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def picture(self, path: Path) -> None:
        del path  # TensorBoard draws curves of its own.
        self._events.flush()

    def close(self, outcome: base.Outcome) -> None:
        del outcome
        self._events.close()
