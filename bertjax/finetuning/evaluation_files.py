"""The files of the evaluation sets, by the names of the sets.

Names come from config.finetuning.eval_files, or from the paths themselves. The readers know what a
file holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from etils import epath

_NAME = re.compile(r"[\w.-]+")
_RESERVED = ("train", "test", "mean")  # the names of other sets, jobs.MEAN among them

OPTION = "config.finetuning.eval_files"


def named(value: str, option: str = OPTION) -> dict[str, str]:
    """Returns the paths of NAME=PATH pairs with commas between them, by name, in their order.

    The first "=" ends the name, so a path may hold others, but no comma. `option` is for messages.
    """
    pairs = [_pair(part) for part in value.split(",") if part.strip()]
    faults = [fault for pair in pairs if (fault := _fault(*pair))]
    for noun, each in zip(("name", "path"), zip(*pairs, strict=True), strict=False):
        repeated = sorted({it for it in each if it and each.count(it) > 1})
        faults += [f"the {noun} {it!r} stands {each.count(it)} times" for it in repeated]
    if faults:
        raise ValueError(f"{option} is {value!r}: {'; '.join(faults)}")
    return dict(pairs)


def are_named(value: str) -> bool:
    """Returns whether a value is NAME=PATH pairs, and not the path of a file with "=" in it."""
    pairs = [_pair(part) for part in value.split(",") if part.strip()]
    if not pairs or not all(_NAME.fullmatch(name) and path for name, path in pairs):
        return False
    # epath reads the characters before "://" as the name of a file system.
    return "://" in value or not epath.Path(value).exists()


def unnamed(paths: Sequence[str], alone: str) -> dict[str, str]:
    """Returns the paths by the names of their sets: `alone` of one, else what tells them apart.

    Those are the names of files without suffix, with the directory before them where they repeat.
    """
    if len(paths) == 1:
        return {alone: paths[0]}
    stems = [epath.Path(path).stem for path in paths]
    names = [
        stem if stems.count(stem) == 1 else f"{epath.Path(path).parent.name}_{stem}"
        for stem, path in zip(stems, paths, strict=True)
    ]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"config.finetuning.eval_file has several sets that would be called {repeated[0]!r}; "
            "rename a file or its directory"
        )
    return dict(zip(names, paths, strict=True))


def _pair(part: str) -> tuple[str, str]:
    name, _, path = part.partition("=")
    return name.strip(), path.strip()


def _fault(name: str, path: str) -> str:
    if not path:
        return f"{name!r} must be NAME=PATH, such as en=dev_en.tsv"
    if not _NAME.fullmatch(name):
        return f"the name of {path} is {name!r}; it must be letters, digits, '.', '_' and '-' alone"
    if name in _RESERVED:
        return f"the name of {path} is {name!r}, which means another set: give another name"
    return ""
