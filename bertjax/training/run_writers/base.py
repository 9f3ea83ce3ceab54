"""The interface of a writer, the facts of its run, and the scalars that it has had already.

A file of ours is cut back to the step that a run resumes from. A service keeps what it has, so a
resumed run leaves out the scalars that were sent before: the same numbers, but for rounding.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from etils import epath

from bertjax.files import atomic, opening

SENT_FILE = "writers.json"  # in the workdir

# How a run ended. One that was stopped has saved its state, and the same command goes on with it.
Outcome = Literal["finished", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Run:
    """The run that a writer writes about.

    `name` is for people: the last two parts of the workdir. `identity` belongs to this run alone
    and is the same at every start in its workdir. `directory` is on this machine: it is the
    workdir, or is copied to a remote one. `config` has the options by their dotted names. The run
    goes on from `start_step`, 0 if it is new; `evaluates_again` says whether it repeats the
    evaluation of that step.
    """

    name: str
    identity: str
    directory: Path
    config: Mapping[str, Any]
    start_step: int
    evaluates_again: bool = False


class Writer(Protocol):
    """Takes what a run reports. Only process 0 has writers."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the scalars of a step by their names, `train/loss` and so on; NaN may be there."""
        ...

    def picture(self, path: Path) -> None:
        """Takes a PNG that was drawn, or drawn anew under its name; flushes the buffers."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Finishes; nothing is written afterwards."""
        ...


@dataclasses.dataclass(frozen=True)
class SentScalars:
    """The identity of a run, and for each service the last step of each scalar sent to it."""

    identity: str
    last_steps: Mapping[str, Mapping[str, int]]


def update_sent(
    workdir: epath.PathLike, services: Sequence[str], lines: Iterable[Mapping[str, Any]]
) -> SentScalars:
    """Returns the scalars sent in earlier starts of a run, and saves them for later starts.

    `lines` are all of metrics.jsonl, before it is cut back. Nothing was sent to a service that is
    new in this start.
    """
    path = epath.Path(workdir) / SENT_FILE
    before = _read_sent(path)
    in_file: dict[str, int] = {}
    for line in lines:
        for name in line.keys() - {"step"}:
            in_file[name] = max(line["step"], in_file.get(name, 0))
    last_steps = dict(before.last_steps)
    for service in services:
        if service not in before.last_steps:
            last_steps[service] = {}
            continue
        sent = before.last_steps[service]
        names = sorted({*sent, *in_file})
        last_steps[service] = {name: max(sent.get(name, 0), in_file.get(name, 0)) for name in names}
    scalars = SentScalars(before.identity, last_steps)
    atomic.write(path, json.dumps(dataclasses.asdict(scalars), indent=2) + "\n")
    return scalars


def _read_sent(path: epath.Path) -> SentScalars:
    try:
        text = opening.read(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return SentScalars(uuid.uuid4().hex, {})
    try:
        content = json.loads(text)
        return SentScalars(str(content["identity"]), {**content["last_steps"]})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); it says which run of W&B or MLflow this is. Remove it "
            "to start another one there"
        ) from error


class UnsentScalars:
    """A writer without the scalars up to `last_steps`, which were sent before."""

    def __init__(self, writer: Writer, last_steps: Mapping[str, int]):
        self._writer = writer
        self._last_steps = last_steps

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        unsent = {
            name: value for name, value in values.items() if step > self._last_steps.get(name, -1)
        }
        if unsent:
            self._writer.scalars(step, unsent)

    def picture(self, path: Path) -> None:
        self._writer.picture(path)

    def close(self, outcome: Outcome) -> None:
        self._writer.close(outcome)
