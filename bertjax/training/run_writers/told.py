"""What writers that cannot forget were told before a restart, so that nothing is told twice.

A file of one's own can be cut back to the step that a run resumes from. A service keeps what it
has, so a resumed run leaves out what it was told already: the same numbers, but for rounding.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from bertjax.data import atomic
from bertjax.training.run_writers import base

FILE = "writers.json"  # in the workdir


@dataclasses.dataclass(frozen=True)
class Told:
    """The identity of a run, and for each writer the last step of each scalar that it was told."""

    identity: str
    last_steps: Mapping[str, Mapping[str, int]]


def keep(
    workdir: epath.PathLike, writers: Sequence[str], lines: Iterable[Mapping[str, Any]]
) -> Told:
    """Returns what `writers` were told in earlier starts, and keeps it for later ones.

    `lines` are those of metrics.jsonl before any is forgotten. A writer that is new in this start
    was told nothing.

    Raises:
      ValueError: naming the file, if it is not what this function wrote.
    """
    path = epath.Path(workdir) / FILE
    before = _read(path)
    in_file: dict[str, int] = {}
    for line in lines:
        for name in line.keys() - {"step"}:
            in_file[name] = max(line["step"], in_file.get(name, 0))
    last_steps = dict(before.last_steps)
    for writer in writers:
        if writer not in before.last_steps:
            last_steps[writer] = {}
            continue
        told = before.last_steps[writer]
        names = sorted({*told, *in_file})
        last_steps[writer] = {name: max(told.get(name, 0), in_file.get(name, 0)) for name in names}
    found = Told(before.identity, last_steps)
    atomic.write(path, json.dumps(dataclasses.asdict(found), indent=2) + "\n")
    return found


def _read(path: epath.Path) -> Told:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Told(uuid.uuid4().hex, {})
    try:
        content = json.loads(text)
        return Told(str(content["identity"]), {**content["last_steps"]})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); it says which run of W&B or MLflow this is. Remove it "
            "to begin another one there"
        ) from error


class Untold:
    """A writer that is told no scalar of a step up to `last_steps`, which it was told before."""

    def __init__(self, writer: base.Writer, last_steps: Mapping[str, int]):
        self._writer = writer
        self._last_steps = last_steps

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        untold = {
            name: value for name, value in values.items() if step > self._last_steps.get(name, -1)
        }
        if untold:
            self._writer.scalars(step, untold)

    def picture(self, path: Path) -> None:
        self._writer.picture(path)

    def close(self, outcome: base.Outcome) -> None:
        self._writer.close(outcome)
