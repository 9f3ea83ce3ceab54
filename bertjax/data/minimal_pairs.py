"""Minimal pairs: two sentences that differ in one thing, of which one is right.

JSON lines with the fields of BLiMP (Warstadt et al. 2020, section 3): "sentence_good",
"sentence_bad", and where they are given "UID", the paradigm, and "linguistics_term", what it is
about.
"""

from __future__ import annotations

import dataclasses

from etils import epath

from bertjax.data import tables


@dataclasses.dataclass(frozen=True)
class Pair:
    """A sentence that is right and one that is wrong; `paradigm` and `phenomenon` may be ""."""

    good: str
    bad: str
    paradigm: str = ""
    phenomenon: str = ""


# Field of a line -> that of a pair.
FIELDS = {"sentence_good": "good", "sentence_bad": "bad"}
OPTIONAL = {"UID": "paradigm", "linguistics_term": "phenomenon"}


def read_pairs(path: epath.PathLike) -> list[Pair]:
    """Returns the pairs of a file of JSON lines, compressed or not.

    Raises:
      FileNotFoundError: if there is no such file.
      FaultyFile: naming the file and the line, if a line is not a pair; if there are no pairs.
    """
    pairs = [_pair(row, f"{path}:{row.number}") for row in tables.rows(path, suffix=".jsonl")]
    if not pairs:
        raise tables.FaultyFile(f"{path} holds no pairs; each line must be a JSON object of one")
    return pairs


def _pair(row: tables.Row, source: str) -> Pair:
    if row.fault:
        raise tables.FaultyFile(f"{source}: {row.fault.message}")
    fields = row.values
    if missing := [name for name in FIELDS if name not in fields]:
        names = ", ".join(fields) or "nothing"
        raise tables.FaultyFile(f"{source}: it has no {' and no '.join(missing)}; it has {names}")
    names = {**FIELDS, **{name: field for name, field in OPTIONAL.items() if name in fields}}
    for name in names:
        if not isinstance(fields[name], str):
            raise tables.FaultyFile(f"{source}: {name} is {fields[name]!r:.60}; it must be a text")
    return Pair(**{field: fields[name] for name, field in names.items()})
