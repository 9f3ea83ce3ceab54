"""Watches a run: collects the steps' reports, and notices what must not pass silently.

Throughput, skipped steps and a loss that never leaves its chance level are seen here; drawing and
writing belong to `writers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from bertjax.options import faults
from bertjax.tasks import base, metrics
from bertjax.training import state, writers

CURVE_POINTS = 20  # that a run has at least, however short it is


class DivergedError(faults.RunError):
    """Too many steps in a row had a non-finite loss or gradient."""


@dataclasses.dataclass
class Skipped:
    """Counts of non-finite steps, and of steps without a target for one of the losses."""

    in_a_row: int = 0
    total: int = 0
    untaught: int = 0


@dataclasses.dataclass
class Progress:
    """The counts of a monitor so far; a checkpoint's meta has them for the resumed run.

    `means` are the sums since the last line of scalars. `words` counts the words of all rows so
    far, 0 if the records count none; `word_marks` has the step that reached each mark. `seconds`
    is the time of training, without compiling, evaluating and saving.
    """

    skipped: Skipped = dataclasses.field(default_factory=Skipped)
    means: base.Means = dataclasses.field(default_factory=dict)
    words: int = 0
    word_marks: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def to_meta(self) -> dict[str, Any]:
        sums = {name: [float(it.total), float(it.weight)] for name, it in self.means.items()}
        return {
            "skipped": dataclasses.asdict(self.skipped),
            "sums": sums,
            "words": self.words,
            "word_marks": [list(pair) for pair in self.word_marks.items()],
            "seconds": self.seconds,
        }

    @classmethod
    def of_meta(cls, meta: Mapping[str, Any]) -> Progress:
        # float32 as the devices have them: added up in another type, they would round otherwise.
        means = {
            name: metrics.Mean(np.float32(total), np.float32(weight))
            for name, (total, weight) in meta["sums"].items()
        }
        marks = {mark: step for mark, step in meta["word_marks"]}
        return cls(Skipped(**meta["skipped"]), means, meta["words"], marks, meta["seconds"])


@dataclasses.dataclass(frozen=True)
class MonitorOptions:
    """The steps and values to log; the last step is always logged, and the first of a short run.

    `objectives` are the coefficients of the losses (`tasks.Task`). `faults` takes the lines of
    metrics.jsonl and returns the names and the sentences of the checks that speak of the run; with
    a `plateau_check_step` of 0 it is not called.
    `peak_flops` are those of all devices, None if unknown. `word_marks` are the
    numbers of words to notice; `epochs` returns the passes over the data up to a step.
    """

    objectives: Mapping[str, float]
    log_every_steps: int
    last_step: int
    max_skipped_steps: int
    plateau_check_step: int
    peak_flops: float | None
    faults: Callable[[Sequence[Mapping[str, Any]]], Iterable[tuple[str, str]]] = lambda lines: ()
    word_marks: tuple[int, ...] = ()
    epochs: Callable[[int], float | None] = lambda step: None


@dataclasses.dataclass(frozen=True)
class PhaseFacts:
    """The size of a step; the step is compiled once for each of these.

    `details` is from `jobs.Phase`.
    """

    tokens_per_step: int
    flops_per_step: float
    details: str = ""


class Monitor:
    """Takes the report of each step, reads it one step late, and logs every `log_every_steps`.

    `last_checkpoint` returns the newest complete checkpoint's step, for the message of a stop.
    `begun` are the steps that were compiled before; this run adds its own.
    """

    def __init__(
        self,
        options: MonitorOptions,
        writer: writers.RunWriter,
        progress: Progress,
        last_checkpoint: Callable[[], int | None],
        begun: set[PhaseFacts] | None = None,
    ):
        self.progress = progress
        self._options = options
        self._writer = writer
        self._last_checkpoint = last_checkpoint
        self._pending: tuple[int, state.StepReport, np.ndarray, PhaseFacts, float] | None = None
        self._begun = set() if begun is None else begun
        self._compiled: set[PhaseFacts] = set()
        self._compiling_since: float | None = None
        self._first_step_since: float | None = None
        self._restart_clock(0.0)
        self._has_written = False
        self._faults: set[str] = set()

    def set_last_step(self, step: int) -> None:
        """Takes another last step, as config.budget.hours decided."""
        self._options = dataclasses.replace(self._options, last_step=step)
        self._writer.set_total(step)

    def begin(self, step: int, phase: PhaseFacts) -> None:
        """Notes that the next step compiles, if it is the first of its batch shape."""
        if phase not in self._begun:
            self.flush()  # first: compiling is not a part of the step before it
            self._begun.add(phase)
            self._compiling_since = time.perf_counter()
            self._count_seconds(self._compiling_since)
            details = f", {phase.details}" if phase.details else ""
            self._writer.note(
                f"compiling step {step + 1}, {phase.tokens_per_step:,} tokens{details}"
            )

    def submit(
        self,
        step: int,
        report: state.StepReport,
        record_positions: np.ndarray,
        phase: PhaseFacts,
        fill: float = 1.0,
    ) -> None:
        """Takes the report of the step that made the count `step`, which is compiled and may run.

        `fill` is the share of the batch's positions that hold a token.
        The report before it is fetched now, so that fetching never leaves the devices idle.
        """
        if self._compiling_since is not None:
            self._first_step_since = time.perf_counter()
            seconds = self._first_step_since - self._compiling_since
            self._compiling_since = None
            self._writer.note(f"compiled in {seconds:.1f} s, step {step} runs")
        self.flush()
        self._pending = (step, report, record_positions, phase, fill)

    def flush(self) -> None:
        """Waits for the last step submitted and takes its report into account."""
        if self._pending is None:
            return
        step, report, record_positions, phase, fill = self._pending
        self._pending = None
        report = jax.device_get(report)
        self._steps_timed += 1
        self._tokens_timed += phase.tokens_per_step
        self._real_timed += fill * phase.tokens_per_step
        self._flops_timed += phase.flops_per_step
        if phase not in self._compiled:  # the first step of a batch shape holds its compilation
            now = time.perf_counter()
            self._note_first_step(step, now)
            self._compiled.add(phase)
            self._restart_clock(now)
        self._count_words(step, int(report.words or 0))
        if report.is_finite:
            self.progress.skipped.in_a_row = 0
            self.progress.means = metrics.merge(self.progress.means, report.means)
            self._count_untaught(step, report.means)
        else:
            self._count_skipped(step, record_positions)
        if self._is_logged(step):
            self._write(step, report)
        elif not self._has_written:  # the first line of metrics may be minutes away
            self._writer.progress(step, self._averages())

    def _note_first_step(self, step: int, now: float) -> None:
        """Says how long the first step of a run took, and takes later notes off the bar."""
        if self._first_step_since is None or self._compiled:
            return self._writer.note("")
        seconds, left = now - self._first_step_since, self._options.last_step - step
        self._writer.note(
            f"step {step} took {seconds:.1f} s, at which speed {left:,} more take "
            f"{seconds * left / 60:,.1f} min"
        )

    def _is_logged(self, step: int) -> bool:
        """Whether a step has a line: by the options, and often enough for the curve of a short run.

        It depends on the options alone, so that a resumed run has the same lines.
        """
        often, last = self._options.log_every_steps, self._options.last_step
        every = min(often, max(1, last // CURVE_POINTS))
        return step % every == 0 or step == last or (every < often and step == 1)

    def reaches_mark(self, step: int) -> bool:
        """Returns whether a step, the last one submitted, is the first with the words of a mark.

        It waits for the report of the step only where its tokens could be as many words.
        """
        left = [mark for mark in self._options.word_marks if mark > self.progress.words]
        if left and self._pending is not None:
            *_, phase, _ = self._pending
            if left[0] - self.progress.words <= phase.tokens_per_step:
                self.flush()
        return step in self.progress.word_marks.values()

    def evaluated(self, step: int) -> None:
        """Takes note of an evaluation, whose scores the writer has."""
        self._check_faults(step)

    def _count_words(self, step: int, words: int) -> None:
        before, self.progress.words = self.progress.words, self.progress.words + words
        for mark in self._options.word_marks:
            if before < mark <= self.progress.words:
                self.progress.word_marks[mark] = step
                logging.info("Step %d reaches %s words, and is saved and kept", step, f"{mark:,}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps what happens inside (evaluation, saving) out of the throughput."""
        start = time.perf_counter()
        self._count_seconds(start)
        yield
        self._counted_until = time.perf_counter()
        self._paused_seconds += self._counted_until - start

    def _count_skipped(self, step: int, record_positions: np.ndarray) -> None:
        self.progress.skipped.in_a_row += 1
        self.progress.skipped.total += 1
        logging.warning("Step %d had a non-finite loss or gradient; its update was skipped", step)
        if self.progress.skipped.in_a_row < self._options.max_skipped_steps:
            return
        # Pairs for records, single numbers for finetuning examples.
        pairs = record_positions[:8].reshape(len(record_positions[:8]), -1).tolist()
        shown = ", ".join(":".join(map(str, pair)) for pair in pairs)
        raise DivergedError(
            f"{self._options.max_skipped_steps} steps in a row up to step {step} had a non-finite "
            f"loss or gradient (config.max_skipped_steps). The batch of step {step} held the "
            f"{'records (shard:index)' if record_positions.ndim > 1 else 'examples'} "
            f"{shown}{', ...' if len(record_positions) > 8 else ''}. {self._saved(step)}. Lower "
            "config.schedule.peak_learning_rate or lengthen the warm-up in a new workdir; if the "
            "records are at fault, look at them with `python -m data_pipelines.inspect_records`"
        )

    def _count_untaught(self, step: int, means: base.Means) -> None:
        """Counts a step whose batch has nothing to predict for one of the losses."""
        losses = [it for it in self._options.objectives if it in means and not means[it].weight]
        if not losses:
            return
        self.progress.skipped.untaught += 1
        if self.progress.skipped.untaught == 1:
            logging.warning(
                "Step %d had nothing to predict for %s, such as no masked token, and did not teach "
                "it; train/steps_without_targets counts such steps. Words of more tokens than a "
                "row may mask are never masked: use the mask 'token', longer rows or a larger "
                "vocabulary", step, ", ".join(losses),
            )  # fmt: skip

    def _saved(self, step: int) -> str:
        """Describes the newest checkpoint of a run that diverged by `step`."""
        finite, saved = step - self.progress.skipped.in_a_row, self._last_checkpoint()
        message = f"The last step with a finite loss was {finite}"
        if saved is None:
            return f"{message}; there is no checkpoint yet"
        same = f", with the parameters of step {finite}" if saved > finite else ""
        return (
            f"{message}; the newest checkpoint: step {saved}{same}. A run diverges before its loss "
            "is infinite: see train/loss and train/grad_norm in metrics.jsonl before you use it"
        )

    def _averages(self) -> dict[str, float]:
        """Returns the scalars of the losses and metrics since the last line."""
        means = self.progress.means
        averages = {name: mean.value() for name, mean in means.items() if mean.weight}
        scalars = {f"train/{name}": value for name, value in averages.items()}
        losses = [
            coefficient * averages.get(name, float("nan"))
            for name, coefficient in self._options.objectives.items()
        ]
        if all(means[name].weight for name in self._options.objectives if name in means):
            scalars["train/loss"] = float(np.sum(losses))
        return scalars

    def _write(self, step: int, report: state.StepReport) -> None:
        scalars = self._averages()
        self._has_written = True
        if self.progress.words:
            scalars["train/words"] = float(self.progress.words)
        if (epochs := self._options.epochs(step)) is not None:
            scalars["train/epochs"] = epochs
        if self.progress.skipped.untaught:
            scalars["train/steps_without_targets"] = float(self.progress.skipped.untaught)
        scalars |= {
            "train/learning_rate": float(report.learning_rate),
            "train/grad_norm": float(report.grad_norm),
            "train/skipped_steps": float(self.progress.skipped.total),
            **self._throughput(),
        }
        self._writer.scalars(step, scalars)
        self._writer.progress(step, scalars)
        self._check_faults(step)
        self.progress.means = {}

    def _count_seconds(self, now: float) -> None:
        if self._compiled:
            self.progress.seconds += now - self._counted_until
        self._counted_until = now

    def _restart_clock(self, now: float) -> None:
        self._counted_until = now
        self._started, self._paused_seconds, self._steps_timed = now, 0.0, 0
        self._tokens_timed, self._real_timed, self._flops_timed = 0, 0.0, 0.0

    def _throughput(self) -> dict[str, float]:
        now = time.perf_counter()
        self._count_seconds(now)
        seconds = now - self._started - self._paused_seconds
        steps, tokens, flops = self._steps_timed, self._tokens_timed, self._flops_timed
        real = self._real_timed
        self._restart_clock(now)
        if not steps or seconds <= 0:
            return {}
        scalars = {
            "perf/step_seconds": seconds / steps,
            "perf/tokens_per_second": tokens / seconds,
            "perf/real_tokens_per_second": real / seconds,
        }
        if self._options.peak_flops:
            rate = flops / seconds
            scalars["perf/model_flop_utilization"] = rate / self._options.peak_flops
        return scalars

    def _check_faults(self, step: int) -> None:
        """Warns of each fault that is new; after the last step `run_log` has all of them."""
        if not self._options.plateau_check_step or step == self._options.last_step:
            return
        faults = dict(self._options.faults(self._writer.lines()))
        for name in faults.keys() - self._faults:
            logging.warning("At step %d, %s: %s", step, name, faults[name])
        self._faults = set(faults)
