"""The interface of a writer: three methods, and the facts of its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

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
