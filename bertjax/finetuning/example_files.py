"""What readers of example files share: the lines of a file, and its faults told together."""

from __future__ import annotations

from collections.abc import Sequence

from etils import epath

MAX_FAULTS_TOLD = 10


class FaultyFile(ValueError):
    """A file of examples is not what it must be; the message names the file and the lines."""


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
    path = epath.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a file of examples")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FaultyFile(
            f"{path}:{line}: it is not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error
    # Only "\n" ends a line: str.splitlines would also break texts at U+2028 and its kind.
    found = text.replace("\r\n", "\n").split("\n")
    return found[:-1] if not found[-1] else found


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


def wrong_columns(found: int, wanted: int) -> str:
    """Returns what is wrong with a row that has not as many columns as there are names."""
    return f"the row has {found} columns; it must have the {wanted} of the header"
