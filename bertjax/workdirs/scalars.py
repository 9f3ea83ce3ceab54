"""metrics.jsonl: one line for every step with scalars, by name.

Curves, model cards and tables of scores read it through this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from absl import logging
from etils import epath

from bertjax.files import atomic, json_text, opening

FILE = "metrics.jsonl"  # in the workdir
TENSORBOARD_DIRECTORY = "tensorboard"  # in the workdir: the same scalars as events


def line_of(step: int, values: Mapping[str, SupportsFloat]) -> str:
    """Returns one line of metrics.jsonl: the step, then the scalars, null where not finite."""
    numbers = {name: float(value) for name, value in values.items()}
    finite = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return json.dumps({"step": int(step), **finite}, allow_nan=False) + "\n"


def read(path: epath.PathLike) -> list[dict[str, Any]]:
    """Returns the lines of a metrics.jsonl, [] if the file does not exist.

    A line that a kill left incomplete, or that holds another thing than numbers, is skipped and
    logged.
    """
    return [entry for entry, _ in _complete_lines(epath.Path(path))]


def last_evaluation(
    lines: Sequence[Mapping[str, Any]], *, until_step: float = math.inf
) -> tuple[int | None, dict[str, float | None]]:
    """Returns the step and the scores ("eval/...") of the last evaluation up to `until_step`.

    A score that is not finite is None. Without an evaluation the step is None and the scores {}.
    """
    for line in reversed(lines):
        scores = {name: value for name, value in line.items() if name.startswith("eval/")}
        if scores and line["step"] <= until_step:
            return line["step"], scores
    return None, {}


def forget_after(path: Path, step: int, *, and_its_evaluation: bool = False) -> None:
    """Drops, atomically, the lines of a metrics.jsonl after the step, and incomplete ones."""

    def stays(entry: Mapping[str, Any]) -> bool:
        is_evaluation = any(name.startswith("eval/") for name in entry)
        return entry["step"] < step + (not (and_its_evaluation and is_evaluation))

    lines = [line for entry, line in _complete_lines(path) if stays(entry)]
    if lines or path.exists():
        atomic.write(path, "".join(lines))


def _complete_lines(path: Path | epath.Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields each entry with its line."""
    # Decoded here: a remote path's read_text takes no `errors`.
    try:
        opening.check_regular(path)
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        entry = _parse(line)
        if entry is None:
            logging.warning("%s, line %d is cut or damaged; it is left out.", path, number)
        else:
            yield entry, line


def _parse(line: str) -> dict[str, Any] | None:
    # A line without its newline is incomplete even if it parses: the next append would join it.
    if not line.endswith("\n"):
        return None
    try:
        entry = json_text.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        return None
    numbers = (value is None or isinstance(value, (int, float)) for value in entry.values())
    return entry if all(numbers) else None
