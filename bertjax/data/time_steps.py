"""Steps of time: their text, the usual one of some times, and the grid that a step makes.

Times are datetime64[us], or numbers in a unit of their own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.options import faults

# Microseconds of a unit.
UNITS = {"s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "D": 86400 * 10**6, "W": 604800 * 10**6}
MONTHS = "MS"  # from the first day of a month to the next first day
_TEXT = re.compile(rf"(\d*\.?\d*)({'|'.join(UNITS)}|{MONTHS}|)")


@dataclasses.dataclass(frozen=True)
class Step:
    """`count` times a unit: one of UNITS, MONTHS, or "" for times that are numbers."""

    count: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.count:.15g}{self.unit}"

    @classmethod
    def parsed(cls, option: str, text: str) -> Step:
        """Returns the step of a text such as 15min; ValueError names the option."""
        match = _TEXT.fullmatch(text)
        count = float(match[1] or 1) if match and match[1] != "." and text else 0.0
        if not match or count <= 0 or (match[2] == MONTHS and count % 1):
            must = f"a number and a unit ({', '.join(UNITS)}, {MONTHS}), such as 1h or 15min"
            raise faults.wrong(option, text, must)
        return cls(count, match[2])

    @classmethod
    def usual(cls, times: Sequence[np.ndarray]) -> Step | None:
        """Returns the median step of rising times of several series, None without a step."""
        steps = np.concatenate([np.diff(it) for it in times])
        if not steps.size:
            return None
        if steps.dtype.kind != "m":
            return cls(float(np.median(steps)))
        months = [it.astype("datetime64[M]") for it in times]
        if all((it == month).all() for it, month in zip(times, months, strict=True)):
            return cls(
                float(np.median(np.concatenate([*map(np.diff, months)]).astype(int))), MONTHS
            )
        size = float(np.median(steps.astype(np.int64)))
        unit = next((it for it in ("D", "h", "min") if size % UNITS[it] == 0), "s")
        return cls(size / UNITS[unit], unit)

    def places(self, times: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns the first time of the grid on which most times lie, and each one's nearest step.

        The first has the step 0.
        """
        if self.unit == MONTHS:
            months = times.astype("datetime64[M]")
            is_later = times - months > (months + 1) - times
            numbers = months.astype(np.int64) + is_later
            first = np.datetime64(int(numbers[0]), "M").astype("datetime64[us]")
            return first, np.rint((numbers - numbers[0]) / self.count).astype(np.int64)
        passed = (times - times[0]).astype(np.float64)
        size = self.count * UNITS.get(self.unit, 1)
        offset = np.median(passed - np.rint(passed / size) * size)
        numbers = np.rint((passed - offset) / size).astype(np.int64)
        return self._later(times[0], offset + size * numbers[0]), numbers - numbers[0]

    def times(self, first: Any, numbers: np.ndarray) -> np.ndarray:
        """Returns the times of steps of the grid that starts at a time."""
        if self.unit == MONTHS:
            months = first.astype("datetime64[M]") + np.rint(self.count * numbers).astype(np.int64)
            return months.astype("datetime64[us]")
        return self._later(first, self.count * UNITS.get(self.unit, 1) * numbers)

    def is_regular(self, times: np.ndarray) -> bool:
        """Returns whether times are a grid of this step."""
        made = self.times(times[0], np.arange(len(times)))
        if self.unit:
            return bool((made == times).all())
        return bool(np.abs(made - times).max() < 1e-6 * self.count)

    def _later(self, first: Any, passed: Any) -> Any:
        if not self.unit:
            return first + passed
        return first + np.rint(passed).astype("timedelta64[us]")


def said(time: Any) -> str:
    """Returns a time as messages write it."""
    if isinstance(time, np.datetime64):
        return str(np.datetime_as_string(time, unit="us")).removesuffix(".000000").replace("T", " ")
    return f"{time:.15g}"
