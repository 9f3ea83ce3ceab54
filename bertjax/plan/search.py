"""Finds the largest batch that fits, and changes that make a batch fit, with few compilations.

The caller passes a function that compiles a variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

MAX_BATCH_TRIALS = 8
BATCH_PARTS = 16  # the precision of the largest batch is a sixteenth


@dataclasses.dataclass(frozen=True)
class Trial:
    """One compiled variant: its changes, and the result.

    `needed_bytes` is for one device, `lacked_bytes` the excess over its memory; None if the
    compiler does not say, and `lacked_bytes` also if the variant fits. `fault` is the reason why a
    variant was not compiled.
    """

    changes: dict[str, Any]
    fits: bool
    needed_bytes: int | None = None
    step_seconds: float | None = None
    fault: str = ""
    lacked_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """The memory of a device, and the part that does not grow with the batch."""

    device_bytes: int
    fixed_bytes: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of the run that a change may set."""

    remat: str
    accumulation_steps: int
    sharding: str
    data_devices: int


def largest_batch(
    attempt: Callable[[int], Trial], first: int, limits: Limits, *, unit: int
) -> dict[int, Trial]:
    """Returns the trials by batch size, in order; the largest that fits is the answer.

    Sizes are multiples of `unit`. The next size is the one that would fill the memory if it grew
    linearly, between the largest size that fits and the smallest that does not. The search ends
    when these differ by a sixteenth.
    """
    trials: dict[int, Trial] = {}
    guess = first
    while guess and guess not in trials and len(trials) < MAX_BATCH_TRIALS:
        trials[guess] = attempt(guess)
        guess = _next_batch(trials, guess, limits, unit=unit)
    return trials


def best_batch(trials: Mapping[int, Trial]) -> int | None:
    """Returns the largest batch size that fits, None without one."""
    return max((size for size, trial in trials.items() if trial.fits), default=None)


def changes_that_fit(
    attempt: Callable[[dict[str, Any]], Trial], settings: Settings, batch_size: int
) -> list[Trial]:
    """Returns trials of single changes and, if none fits, of several together."""
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
    """Returns the batch size to try next; 0 to end the search."""
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
    """Returns the batch that would fill the memory if it grew linearly from `size`."""
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
    """Returns trials with 2, 4, 8, ... times the micro-batches, up to the first that fits."""
    trials: list[Trial] = []
    steps = 2 * settings.accumulation_steps
    while batch_size % (steps * settings.data_devices) == 0:
        trials.append(attempt({**base, "gradient_accumulation_steps": steps}))
        if trials[-1].fits:
            break
        steps *= 2
    return trials
