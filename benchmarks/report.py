"""How benchmarks report: sides that take turns, medians with ranges, ratios, tables of Markdown.

The standard library alone, as the peers import this.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import TypeVar

Result = TypeVar("Result")


def take_turns(sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Returns what each side returned in each round.

    Every other round goes backwards, so that none always follows the same other.
    """
    found: dict[str, list[Result]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            found[name].append(sides[name]())
        order.reverse()
    return found


def median(values: Sequence[float], form: str = ".1f", unit: str = "") -> str:
    """Returns the median and the range."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}}{unit} ({low:{form}} to {high:{form}})"


def ratio(ours: Sequence[float], theirs: Sequence[float], form: str = ".3f") -> str:
    """Returns the ratio of the medians, and the range of the ratios round by round."""
    of_medians = statistics.median(ours) / statistics.median(theirs)
    rounds = [own / other for own, other in zip(ours, theirs, strict=True)]
    return f"{of_medians:{form}} (round by round {min(rounds):{form}} to {max(rounds):{form}})"


def target(is_met: bool) -> str:
    """Returns whether a target is met, in a word."""
    return "met" if is_met else "missed"


def row(cells: Iterable[object]) -> str:
    """Returns a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table."""
    return "\n".join([row(head), "|---" * len(head) + "|", *map(row, rows)])


def versions(*packages: str) -> dict[str, str]:
    """Returns the installed version of each package; of one on PYTHONPATH alone, "checkout"."""
    found = dict.fromkeys(packages, "checkout")
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def named(of_packages: Mapping[str, str]) -> str:
    """Returns packages with their versions in a line."""
    return ", ".join(f"{package} {version}" for package, version in of_packages.items())


def machine() -> str:
    """Returns what the figures were measured on."""
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} CPU cores, python {platform.python_version()}"


def write_marked(page: pathlib.Path, name: str, text: str) -> None:
    """Puts the text between the page's two marks of that name.

    Raises:
      ValueError: if the page has no such marks.
    """
    before, begin, _, end, after = _parts(page, name)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def read_marked(page: pathlib.Path, name: str) -> str:
    """Returns the text between the page's two marks of that name.

    Raises:
      ValueError: as `write_marked`.
    """
    return _parts(page, name)[2].strip()


def _parts(page: pathlib.Path, name: str) -> tuple[str, str, str, str, str]:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    text, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no place for the table: {begin} and {end}")
    return before, begin, text, end, after
