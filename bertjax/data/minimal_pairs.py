"""Minimal pairs: two sentences that differ in one thing, of which one is right.

JSON lines with the fields of BLiMP (Warstadt et al. 2020, section 3): "sentence_good",
"sentence_bad", and where they are given "UID", the paradigm, and "linguistics_term", what it is
about.
"""

from __future__ import annotations

import dataclasses
import lzma

from etils import epath

from bertjax.data import json_text


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


def read(path: epath.PathLike) -> list[Pair]:
    """Returns the pairs of a file of JSON lines, which may be packed (.xz).

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and the line, if one is no pair; if there are none.
    """
    path = epath.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a file of minimal pairs, JSON lines")
    content = path.read_bytes()
    if path.suffix == ".xz":
        try:
            content = lzma.decompress(content)
        except lzma.LZMAError as error:
            raise ValueError(f"{path} is no whole .xz file ({error}); fetch it again") from error
    lines = enumerate(content.split(b"\n"), start=1)
    pairs = [_pair(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not pairs:
        raise ValueError(f"{path} holds no pairs; each line must be a JSON object of one")
    return pairs


def _pair(line: bytes, source: str) -> Pair:
    try:
        fields = json_text.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{source}: it is not JSON ({error}); each line must be an object"
        ) from None
    if not isinstance(fields, dict):
        raise ValueError(f"{source}: it is {fields!r:.60}; each line must be an object")
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        found = ", ".join(fields) or "nothing"
        raise ValueError(f"{source}: it has no {' and no '.join(missing)}; it has {found}")
    names = {**FIELDS, **{name: own for name, own in OPTIONAL.items() if name in fields}}
    for name in names:
        if not isinstance(fields[name], str):
            raise ValueError(f"{source}: {name} is {fields[name]!r:.60}; it must be a text")
    return Pair(**{own: fields[name] for name, own in names.items()})
