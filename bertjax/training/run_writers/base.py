"""What a writer is: three methods, and what it is told of its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

# How a run ended. One that was stopped has saved its state, and the same command goes on with it.
Outcome = Literal["finished", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a writer is told of the run that it writes of.

    `name` is for people: the last two parts of the workdir. `identity` is the same at every start
    of the run in its workdir, and no other run has it. `directory` is on this machine: what a
    writer puts there lies in the workdir, or is copied there if that is remote. `config` has the
    options by their dotted names. The run goes on from `start_step`, 0 if it is new. Where the
    evaluation of that step is to be made up for, `evaluates_again` is true.
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
        """Takes a PNG that was drawn, or drawn anew under its name; what is buffered goes out."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Finishes; nothing is written afterwards."""
        ...
