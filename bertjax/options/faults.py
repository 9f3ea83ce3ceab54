"""The sentences of faults: the option, the value it has, the value it must have, the next step.

Each constructor returns a ValueError, to raise or to collect for `check`. `option` is the full name
that a user writes: "config.global_batch_size", "--layers", or an argument's name in Python.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

MOST_CHARACTERS = 200  # of a value


class RunError(RuntimeError):
    """A run cannot go on; the message says why and what to do."""


def wrong(option: str, value: Any, must: str, instead: str = "") -> ValueError:
    """Returns the fault of a value out of its range: it must be `must`, or do `instead`."""
    return ValueError(f"{option} is {shown(value)}; it must be {must}" + _step(instead))


def unread(option: str, value: Any, why: str, default: Any) -> ValueError:
    """Returns the fault of an option that is set, but that nothing reads."""
    return ValueError(f"{option} is {shown(value)}, but {why}: leave it at {shown(default)}")


def unknown(option: str, value: Any, known: Iterable[Any], instead: str = "") -> ValueError:
    """Returns the fault of a name that is not in a table; a similar known name is suggested."""
    names = list(known)
    return ValueError(
        f"{option} is {shown(value)}; known are {', '.join(map(str, names)) or 'none'}"
        + suggestion(value, map(str, names))
        + _step(instead)
    )


def check(title: str, faults: Iterable[ValueError | str]) -> None:
    """Raises one ValueError with all faults, a line each below the title, if there are any."""
    lines = list(map(str, faults))
    if lines:
        raise ValueError(f"{title}:\n  " + "\n  ".join(lines))


def suggestion(name: Any, known: Iterable[str], of: str = "") -> str:
    """Returns '. Did you mean X?' for the known name that is most like `name`, or "".

    `of` comes before the suggested name, as "--" before a flag's.
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.75)
    return f". Did you mean {of}{near[0]}?" if near else ""


def shown(value: Any) -> str:
    """Returns a value as a message prints it, without the middle of a long one."""
    text = repr(value)
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} ... {text[-half:]}"


def _step(instead: str) -> str:
    return f": {instead}" if instead else ""
