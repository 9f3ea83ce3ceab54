"""Sentences about times whose steps are not equal: gaps, other rates, changed clocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertjax.data import time_steps

# Times the usual step, or a part of it: months have 28 to 31 days.
OTHER_STEP = 1.5
STEADY = 10  # equal steps, one after another, are a rate of their own
CLOCK_MONTHS = (3, 4, 9, 10, 11)  # in which clocks are changed, in any country
_HOUR = 3600.0


def irregularities(times: np.ndarray, usual: time_steps.Step) -> Iterator[str]:
    """Yields a sentence for each way in which rising times leave their usual step.

    These are changed clocks, other rates, and single steps such as gaps.
    """
    steps, size = _steps(times), _steps(usual.times(times[0], np.arange(2)))[0]
    kinds = np.rint(np.log(steps / size) / np.log(OTHER_STEP)).astype(int)
    changed = np.flatnonzero(_are_at_a_changed_clock(times, steps, size + _HOUR))
    if changed.size:
        yield (
            f"an hour is missing after {time_steps.said(times[changed[0]])}, as where clocks are "
            f"set forward{_more(changed)}: write the times in UTC"
        )
    kinds[changed] = 0
    starts = np.flatnonzero(np.diff(kinds, prepend=kinds[0] + 1))
    lengths = np.diff(starts, append=len(kinds))
    rates = starts[lengths >= STEADY]
    if (changes := rates[1:][kinds[rates[1:]] != kinds[rates[:-1]]]).size:
        rate = np.median(steps[changes[0] : changes[0] + STEADY]) / size
        yield (
            f"the step is {rate:.3g} times the usual {usual} from "
            f"{time_steps.said(times[changes[0]])} on{_more(changes)}"
        )
    if (odd := np.flatnonzero((kinds != 0) & np.repeat(lengths < STEADY, lengths))).size:
        before, after = (time_steps.said(times[odd[0] + at]) for at in (0, 1))
        yield (
            f"{odd.size:,} of {len(steps):,} steps are not the usual {usual}, the first from "
            f"{before} to {after}"
        )


def _more(places: np.ndarray) -> str:
    return f", and {places.size - 1:,} more times" if places.size > 1 else ""


def is_hour_twice(times: np.ndarray, at: int) -> bool:
    """Returns whether times fall at a step as where clocks are set back."""
    steps = _steps(times)
    usual = np.median(steps)
    return bool(_are_at_a_changed_clock(times, steps, usual - _HOUR)[at])


def _are_at_a_changed_clock(times: np.ndarray, steps: np.ndarray, size: float) -> np.ndarray:
    """Returns which steps have a size and lie where clocks are changed, early on a Sunday."""
    if times.dtype.kind != "M":
        return np.zeros(len(steps), bool)
    days = times[:-1].astype("datetime64[D]")
    is_sunday = days.astype(np.int64) % 7 == 3  # 1970-01-01 was a Thursday
    is_early = times[:-1] - days < np.timedelta64(4, "h")
    months = days.astype("datetime64[M]").astype(np.int64) % 12 + 1
    is_changed = np.isin(months, CLOCK_MONTHS) & is_sunday & is_early
    return is_changed & (np.abs(steps - size) < 1)


def _steps(times: np.ndarray) -> np.ndarray:
    """Returns the steps in seconds, or in the unit of numbers."""
    steps = np.diff(times)
    return steps.astype(np.int64) / 1e6 if steps.dtype.kind == "m" else steps
