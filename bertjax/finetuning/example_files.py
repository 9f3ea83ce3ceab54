"""What readers of example files share: the lines of a file, and its faults told together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.data import tables

MAX_FAULTS_TOLD = 10


FaultyFile = tables.FaultyFile


class Faults:
    """The faults of a file, gathered so that they are told at once: the first ten, and how many."""

    def __init__(self):
        self._told: list[str] = []
        self._count = 0

    def add(self, source: str, fault: str) -> None:
        """Takes what is wrong at a "file:line"."""
        self._count += 1
        if len(self._told) < MAX_FAULTS_TOLD:
            self._told.append(f"{source}: {fault}")

    def __len__(self) -> int:
        return self._count

    def summary(self) -> str:
        """Returns the one fault, or how many there are and the first of them."""
        if self._count == 1:
            return self._told[0]
        shown = "" if self._count <= MAX_FAULTS_TOLD else f", the first {MAX_FAULTS_TOLD}"
        return "\n".join([f"{self._count} faults{shown}:", *self._told])

    def check(self) -> None:
        """Raises FaultyFile if there was a fault."""
        if self._count:
            raise FaultyFile(self.summary())


def lines(path: epath.PathLike) -> list[str]:
    r"""Returns the lines of a UTF-8 file, without their ends ("\n" or "\r\n") or a byte-order mark.

    Raises:
      FileNotFoundError: if there is no such file.
      FaultyFile: if it is not UTF-8.
    """
    return list(tables.text_lines(path))


def rows(
    path: epath.PathLike, faults: Faults, rules: tables.Rules, suffix: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields "file:line" and the values of the rows of a table; the others add to `faults`.

    Raises:
      FileNotFoundError, FaultyFile: as `tables.rows`.
    """
    for row in tables.rows(path, rules, suffix):
        source = f"{path}:{row.number}"
        if row.fault:
            faults.add(source, row.fault.message)
        else:
            yield source, row.values


def missing_columns(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Returns what is wrong with the names of the columns, None if all those wanted are there."""
    missing = [name for name in wanted if name not in names]
    if missing:
        return (
            f"there is no column {' or '.join(map(repr, missing))}; the columns are "
            f"{', '.join(map(repr, names)) or '(none, the file is empty)'}"
        )
    repeated = sorted({name for name in wanted if list(names).count(name) > 1})
    if repeated:
        return f"there are several columns {', '.join(map(repr, repeated))}; names must be unique"
    return None
