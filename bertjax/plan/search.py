"""Finds the largest batch that fits, and the changes that make a batch fit, with few compiles.

The caller passes a function that compiles one variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

MAX_BATCH_TRIALS = 8
BATCH_PARTS = 16  # the batch is found to a sixteenth of itself


@dataclasses.dataclass(frozen=True)
class Trial:
    """One compiled variant: what was changed, and what came of it.

    `needed_bytes` is of one device, `lacked_bytes` what exceeds its memory; None where the compiler
    does not say, the second also where the variant fits. `fault` says why a variant was not
    compiled.
    """

    changes: dict[str, Any]
    fits: bool
    needed_bytes: int | None = None
    step_seconds: float | None = None
    fault: str = ""
    lacked_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Device memory, and the part of it that does not grow with the batch."""

    device_bytes: int
    fixed_bytes: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options that a change may turn, as the asked run has them."""

    remat: str
    accumulation_steps: int
    sharding: str
    data_devices: int


def largest_batch(
    attempt: Callable[[int], Trial], first: int, limits: Limits, *, unit: int
) -> dict[int, Trial]:
    """Returns every batch size tried, in order; the largest that fits is the answer.

    Sizes are multiples of `unit`. Each trial is where memory that grows evenly with the batch would
    be full, kept between the largest known to fit and the smallest known not to; the search ends
    when a sixteenth lies between those two.
    """
    trials: dict[int, Trial] = {}
    guess = first
    while guess and guess not in trials and len(trials) < MAX_BATCH_TRIALS:
        trials[guess] = attempt(guess)
        guess = _next_batch(trials, guess, limits, unit=unit)
    return trials


def best_batch(trials: Mapping[int, Trial]) -> int | None:
    """Returns the largest batch size of the trials that fits, None if none does."""
    return max((size for size, trial in trials.items() if trial.fits), default=None)


def changes_that_fit(
    attempt: Callable[[dict[str, Any]], Trial], settings: Settings, batch_size: int
) -> list[Trial]:
    """Returns trials of single changes, then, if none of them fits, of changes together."""
    policies = ("none", "dots", "full")
    stronger = policies[policies.index(settings.remat) + 1 :]
    can_shard = settings.sharding == "data_parallel" and settings.data_devices > 1
    single: list[dict[str, Any]] = [{"model.remat": policy} for policy in stronger]
    tried = [attempt(it) for it in (*single, *([{"sharding": "fsdp"}] if can_shard else ()))]
    tried += _accumulations(attempt, {}, settings, batch_size)
    if any(trial.fits for trial in tried):
        return tried
    base: dict[str, Any] = {"model.remat": "full"}
    if settings.remat != "full":
        tried += _accumulations(attempt, base, settings, batch_size)
    if not any(trial.fits for trial in tried) and can_shard:
        tried += _accumulations(attempt, base | {"sharding": "fsdp"}, settings, batch_size)
    return tried


def _next_batch(trials: Mapping[int, Trial], last: int, limits: Limits, *, unit: int) -> int:
    """Returns the batch size to try next; 0 when the answer is known."""
    fitting = best_batch(trials) or 0
    failing = min((size for size, trial in trials.items() if not trial.fits), default=None)
    guess = _full_batch(trials[last], last, limits)
    if fitting == 0:
        highest = last * (BATCH_PARTS - 1) // BATCH_PARTS
        return min(guess or last // 2, highest) // unit * unit or (unit if last > unit else 0)
    step = max(fitting // unit // BATCH_PARTS, 1) * unit
    lowest = fitting // step * step + step
    if failing is None:
        return max(min(guess or 2 * fitting, 4 * fitting) // step * step, lowest)
    if failing - fitting <= step:
        return 0
    middle = guess or (fitting + failing) // 2
    return min(max(middle // step * step, lowest), (failing - 1) // step * step)


def _full_batch(trial: Trial, size: int, limits: Limits) -> int | None:
    """Returns the batch at which the memory would be full if it grew evenly from `size`."""
    if trial.needed_bytes is None or trial.needed_bytes <= limits.fixed_bytes:
        return None
    room = max(limits.device_bytes - limits.fixed_bytes, 0)
    return int(size * room / (trial.needed_bytes - limits.fixed_bytes))


def _accumulations(
    attempt: Callable[[dict[str, Any]], Trial],
    base: Mapping[str, Any],
    settings: Settings,
    batch_size: int,
) -> list[Trial]:
    """Returns trials of 2, 4, 8, ... times as many micro-batches, up to the first that fits."""
    trials: list[Trial] = []
    steps = 2 * settings.accumulation_steps
    while batch_size % (steps * settings.data_devices) == 0:
        trials.append(attempt({**base, "gradient_accumulation_steps": steps}))
        if trials[-1].fits:
            break
        steps *= 2
    return trials
