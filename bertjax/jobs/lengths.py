"""The phases of a run: their steps, their batch sizes, and how much is masked.

Here epochs and tokens become steps, and a batch ramp becomes stretches of one batch size each. The
content of batches belongs to a job's data.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import ml_collections
import numpy as np

from bertjax import config as config_lib
from bertjax.options import faults, run

MOST_STRETCHES = 64  # of a course


@dataclasses.dataclass(frozen=True)
class Course:
    """How far a run is in its plan at each step, where config.budget.hours changes its length.

    From `starts[i]` on, each step moves by `paces[i]` steps of the plan, from `places[i]` on. Only
    the last stretches change with a new length, so the past stays as it was.
    """

    starts: tuple[int, ...] = (0,)
    places: tuple[float, ...] = (0.0,)
    paces: tuple[float, ...] = (1.0,)

    def at(self, step: int) -> float:
        """Returns the step of the plan that a step of the run stands for."""
        number = max(bisect.bisect_right(self.starts, step) - 1, 0)
        return self.places[number] + (step - self.starts[number]) * self.paces[number]


def course(decisions: Sequence[Sequence[int]]) -> Course:
    """Returns the course of config.budget.decisions, whose first entry is the plan."""
    if not decisions:
        return Course()
    planned = np.cumsum(decisions[0][1:])
    made = Course()
    for (_, *before), (step, *steps) in itertools.pairwise(decisions):
        if steps == before:
            continue
        past = [it for it in zip(made.starts, made.places, made.paces, strict=True) if it[0] < step]
        begun, place = step, made.at(step)
        for end, planned_end in zip(np.cumsum(steps).tolist(), planned.tolist(), strict=True):
            if end > begun:
                past.append((begun, place, (planned_end - place) / (end - begun)))
                begun, place = end, float(planned_end)
        made = Course(*zip(*past, strict=True))
    return made


@dataclasses.dataclass(frozen=True)
class MaskRate:
    """The share of tokens to predict, which goes linearly from `start` to `end` at `end_step`.

    Steps count over the plan of the run, which `course` follows. A constant share has no steps.
    """

    start: float
    end: float
    first_step: int = 0
    end_step: int = 0
    course: Course = Course()

    @property
    def largest(self) -> float:
        return max(self.start, self.end)

    def at(self, step: int) -> float:
        """Returns the rate of a step of the phase."""
        if self.start == self.end:
            return self.start
        done = self.course.at(step) - self.first_step
        share = min(max(done / (self.end_step - self.first_step), 0.0), 1.0)
        return self.start + (self.end - self.start) * share


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of steps with one batch shape; `first_step` counts from the start of the run.

    It is a phase of the config or, with a batch ramp, a part of the phase called `name`, after
    `steps_before` steps and `rows_before` sequences of that phase; `ramp_from` is the first batch
    size of the ramp, 0 without one. `ordinal` is the phase's place in the run. `mask_rate` is None
    if all phases have the config's; `rate_share` multiplies the schedule's learning rate.
    `rotary_bases` belong to layers without a window and with one; None without rotary positions.
    With `only_embeddings` only the rows of vocabulary entries move. `is_last` marks the last part
    of a phase.
    """

    name: str
    first_step: int
    num_steps: int
    global_batch_size: int
    max_seq_length: int
    ordinal: int = dataclasses.field(default=0, compare=False)
    steps_before: int = 0
    rows_before: int = 0
    ramp_from: int = 0
    mask_rate: MaskRate | None = None
    rate_share: float = 1.0
    rotary_bases: tuple[float, float] | None = None
    only_embeddings: bool = False
    is_last: bool = dataclasses.field(default=True, compare=False)

    @property
    def end_step(self) -> int:
        return self.first_step + self.num_steps

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.max_seq_length

    @property
    def title(self) -> str:
        """The phase's name, with the batch where it has several."""
        return f"{self.name} ({self.global_batch_size} at once)" if self.ramp_from else self.name

    @property
    def details(self) -> str:
        """The bases of rotary positions, and what learns if not all does, in words."""
        parts = ["only embeddings learn"] * self.only_embeddings
        if self.rotary_bases is not None:
            base, local = self.rotary_bases
            parts.append(f"rotary base {base:,g}")
            parts += [f"{local:,g} in windows"] * (local != base)
        return ", ".join(parts)

    def rows_until(self, step: int) -> int:
        """Returns the number of sequences that the phase reads before a step of this stretch."""
        return self.rows_before + (step - self.first_step) * self.global_batch_size


def phases(config: ml_collections.ConfigDict) -> tuple[Phase, ...]:
    """Returns the phases in the order in which they run, with their places in the run.

    A phase without steps is left out. Epochs and tokens have become steps (`set_steps`).
    """
    stretches, first_step = [], 0
    decisions = config.budget.decisions
    planned_ends = [0, *np.cumsum(decisions[0][1:]).tolist()] if decisions else []
    for ordinal, name in enumerate(config_lib.phase_names(config)):
        options = _checked(config, name)
        end_step = first_step + options.num_steps
        if end_step > run.MOST_STEPS:
            option = f"config.phases.{name}.num_steps"
            must = f"at most {run.MOST_STEPS - first_step:,}"
            raise faults.wrong(option, options.num_steps, must, "train for less")
        shared = {
            "max_seq_length": options.max_seq_length,
            "ordinal": ordinal,
            "ramp_from": options.ramp_from,
            "rate_share": options.rate_share,
            "only_embeddings": options.only_embeddings,
            "rotary_bases": rotary_bases(config_lib.in_phase(config, name).model),
            "mask_rate": _mask_rate(
                config, options, *(planned_ends[ordinal : ordinal + 2] or (first_step, end_step))
            ),
        }
        begun = first_step
        for steps, rows, batch_size in _stretches(config, options):
            taken = min(steps, end_step - first_step)
            before = {"steps_before": first_step - begun, "rows_before": rows}
            is_last = first_step + taken == end_step
            phase = Phase(name, first_step, taken, batch_size, **before, **shared, is_last=is_last)
            stretches.append(phase)
            first_step += taken
            if first_step == end_step:
                break
    return tuple(stretches)


def planned(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy with the numbers of steps before config.budget.hours changed them."""
    config = ml_collections.ConfigDict(config).copy_and_resolve_references()
    if config.budget.decisions:
        _, *steps = config.budget.decisions[0]
        for name, number in zip(config_lib.phase_names(config), steps, strict=True):
            config.phases[name].num_steps = number
        config.budget.decisions = ()
    return config


def set_steps(config: ml_collections.ConfigDict, num_examples: Mapping[str, int]) -> None:
    """Sets the steps of the phases that are measured in tokens, or in epochs.

    `num_examples` has the examples of an epoch by phase; other phases stay as they are. The
    tokens of a phase are all its positions, batch x length.
    """
    for name in config_lib.phase_names(config):
        options = _checked(config, name)
        rows = None
        if options.num_tokens:
            rows = options.num_tokens / options.max_seq_length
        elif options.num_epochs and name in num_examples:
            rows = options.num_epochs * num_examples[name]
        if rows is not None:
            options.num_steps = _steps_of_rows(config, options, math.ceil(rows))


def ramp_sizes(global_batch_size: int, ramp_from: int) -> range:
    """Returns the batches of a phase that starts with `ramp_from` sequences: its multiples."""
    return range(ramp_from or global_batch_size, global_batch_size + 1, ramp_from or 1)


def ramp_fault(name: str, ramp_from: int, batch_size: int) -> str:
    """Returns the fault of a phase's first batch, "" without one."""
    if ramp_from <= 0 or (batch_size % ramp_from == 0 and batch_size > ramp_from):
        return ""
    return (
        f"config.phases.{name}.ramp_from is {ramp_from}; the batch of {batch_size} must be a "
        f"multiple of it, twice at least, for it grows by {ramp_from} at a time: set another, or "
        "ramp_from and ramp_tokens to 0"
    )


def _checked(config: ml_collections.ConfigDict, name: str) -> ml_collections.ConfigDict:
    """Returns the options of a phase whose batch can grow."""
    options = config.phases[name]
    batch_size = options.global_batch_size or config.global_batch_size
    if fault := ramp_fault(name, options.ramp_from, batch_size):
        raise ValueError(fault)
    return options


def steps_of_tokens(in_order: Iterable[Phase], tokens: float) -> int:
    """Returns the number of steps, phase after phase, in which `tokens` are read.

    The tokens of a step are all its positions, batch x length. The last step is counted whole;
    tokens beyond all phases are ignored.
    """
    steps, left = 0, tokens
    for phase in in_order:
        taken = min(phase.num_steps, math.ceil(left / phase.tokens_per_step))
        steps, left = steps + taken, left - taken * phase.tokens_per_step
        if left <= 0:
            break
    return steps


def seed(run_seed: int, phase: Phase) -> int:
    """Returns the seed of a phase's data: two over the same records see them in other orders."""
    return int(np.random.SeedSequence([run_seed, phase.ordinal]).generate_state(1)[0])


_ENDLESS = 2**62  # steps


def _stretches(
    config: ml_collections.ConfigDict, options: ml_collections.ConfigDict
) -> Iterator[tuple[int, int, int]]:
    """Yields the steps, the sequences before them and the batch of each part; the last has no end.

    A batch that grows does so in equal additions, each after an equal part of `ramp_tokens`: it
    grows linearly with the tokens, as ModernBERT's about does (its sequence_packer.py,
    BatchSizeWarmupScheduler). All are multiples of the first, so what divides that one, devices
    and streams, divides all.
    """
    batch_size = options.global_batch_size or config.global_batch_size
    *growing, whole = ramp_sizes(batch_size, options.ramp_from)
    rows = 0
    for number, size in enumerate(growing, start=1):
        tokens = options.ramp_tokens * number / len(growing)
        steps = math.ceil((tokens / options.max_seq_length - rows) / size)
        if steps > 0:
            yield steps, rows, size
            rows += steps * size
    yield _ENDLESS, rows, whole


def _steps_of_rows(
    config: ml_collections.ConfigDict, options: ml_collections.ConfigDict, rows: int
) -> int:
    """Returns the number of a phase's steps in which it reads at least `rows` sequences."""
    steps = 0
    for number, before, size in _stretches(config, options):
        if rows <= before + number * size:
            return steps + math.ceil((rows - before) / size)
        steps += number
    raise AssertionError("the last stretch has no end")


def rotary_bases(model: ml_collections.ConfigDict) -> tuple[float, float] | None:
    """Returns the bases of layers without a window and with one, None without rotary positions."""
    if model.position_embedding != "rotary":
        return None
    local = model.local_rotary_base if model.window else 0.0
    return model.rotary_base, local or model.rotary_base


def _mask_rate(
    config: ml_collections.ConfigDict,
    options: ml_collections.ConfigDict,
    first_step: int,
    end_step: int,
) -> MaskRate | None:
    if not (options.masked_lm_prob or options.final_masked_lm_prob):
        return None
    start = options.masked_lm_prob or config.pretraining.masked_lm_prob
    end = options.final_masked_lm_prob or start
    if start == end:
        return MaskRate(start, end)
    return MaskRate(start, end, first_step, end_step, course(config.budget.decisions))
