"""What a probe finds: one line of the doctor's table."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from typing import Literal

Status = Literal["ok", "slow", "fault"]

MOST_CHARACTERS = 160  # of an error's own words


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found and expected; "" where nothing is expected."""

    what: str
    found: str
    expected: str = ""
    status: Status = "ok"


def told(error: BaseException, workdir: str) -> str:
    """Returns the first line of an error, without the names of directories and accounts."""
    text = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    line = line.replace(workdir, "WORKDIR") if workdir else line
    line = line.replace(str(pathlib.Path.home()) + os.sep, "~" + os.sep)
    line = re.sub(r"(://)[^\s'\"/]*", r"\1...", line)  # a bucket, or a user and a password
    line = re.sub(r"[?&][^\s'\"]+", "?...", line)  # what an address carries
    return line[:MOST_CHARACTERS]
