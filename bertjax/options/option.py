"""A row of a table of options: the default, the meaning, the values it may have, who reads it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.options import faults


class Range(NamedTuple):
    """The numbers that an option may have: what they must be, in words and as a condition."""

    words: str
    holds: Callable[[float], bool]


def at_least(least: int) -> Range:
    """Returns the range without an upper end."""
    return Range(f"at least {least}", lambda value: value >= least)


def between(least: int, most: int) -> Range:
    """Returns the range of both ends and what lies between them."""
    words = f"at least {least} and at most {most:,}"
    return Range(words, lambda value: least <= value <= most)


AT_LEAST_0 = at_least(0)
AT_LEAST_1 = at_least(1)
ABOVE_0 = Range("above 0", lambda value: value > 0)
SHARE = Range("in [0, 1]", lambda value: 0 <= value <= 1)
BELOW_1 = Range("in [0, 1)", lambda value: 0 <= value < 1)
ABOVE_0_TO_1 = Range("in (0, 1]", lambda value: 0 < value <= 1)
BETWEEN_0_AND_1 = Range("between 0 and 1", lambda value: 0 < value < 1)


class Condition(NamedTuple):
    """A condition on all options, by their dotted names, under which an option is read.

    `otherwise` ends the sentence "nothing reads it ...".
    """

    holds: Callable[[Mapping[str, Any]], bool]
    otherwise: str


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a config, of the type of its default.

    help: its meaning and unit, as --help prints it
    within: the numbers that it may be
    choices: the names that it may be, where they are not the keys of another package's table
    read: conditions that must all hold, or nothing reads it
    """

    default: Any
    help: str
    within: Range | None = None
    choices: tuple[str, ...] = ()
    read: tuple[Condition, ...] = ()

    def unread(self, name: str, value: Any, options: Mapping[str, Any]) -> Iterator[ValueError]:
        """Yields the fault of a value that differs from the default, but is not read."""
        if value != self.default:
            for condition in self.read:
                if not condition.holds(options):
                    why = f"nothing reads it {condition.otherwise}"
                    yield faults.unread(name, value, why, self.default)
                    return

    def wrong(
        self, name: str, value: Any, known: Collection[Any] | None = None
    ) -> Iterator[ValueError]:
        """Yields the fault of a value that the option cannot have; `known` replaces `choices`."""
        known = self.choices if known is None else known
        if known and value not in known:
            yield faults.unknown(name, value, known)
        if self.within and isinstance(value, float) and math.isinf(value):
            yield faults.wrong(name, value, "a finite number")
        elif self.within and not self.within.holds(value):
            yield faults.wrong(name, value, self.within.words)


# The options of a group by name, or groups in it.
Group = Mapping[str, "Option | Group"]


def flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Option]:
    """Returns the options of a group by dotted name."""
    rows: dict[str, Option] = {}
    for name, row in group.items():
        is_option = isinstance(row, Option)
        rows |= {prefix + name: row} if is_option else flat(row, f"{prefix}{name}.")
    return rows
