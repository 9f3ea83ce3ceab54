"""Minimal pairs, and other comparisons of texts of which the first is right.

A row of a file is a comparison; its fields say which of FORMATS it has. Source of the formats, and
of what is scored: babylm-org/babylm-eval, strict/evaluation_pipeline/sentence_zero_shot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bertjax.files import opening, tables


class Continuation(NamedTuple):
    """A text that is scored after a context, which is only read; nothing stands between them."""

    context: str
    text: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Texts, the right one first; `phenomenon` may be ""."""

    texts: tuple[Continuation, ...]
    paradigm: str
    phenomenon: str = ""


Fields = Mapping[str, Any]


class Value(NamedTuple):
    """A kind of value: its name, and whether a value is of it."""

    name: str
    fits: Callable[[Any], bool]


TEXT = Value("a text", lambda value: isinstance(value, str))
COUNT = Value("a number", lambda value: isinstance(value, int) or str(value).isdigit())
TEXTS = Value(
    "a list of at least two texts",
    lambda value: isinstance(value, list) and len(value) > 1 and all(map(TEXT.fits, value)),
)


class Format(NamedTuple):
    """The fields of a row, and what they mean.

    `texts` makes a row's contexts and continuations, the right one first. `paradigm` and
    `phenomenon` take a row and the name of its file, without suffixes. The accuracy is the mean
    over all `groups`, paradigms or phenomena; a phenomenon is the mean over its paradigms.
    """

    fields: Mapping[str, Value]
    texts: Callable[[Fields], list[tuple[str, str]]]
    paradigm: Callable[[Fields, str], str]
    phenomenon: Callable[[Fields, str], str] = lambda row, file: ""
    groups: str = "paradigms"


SENTENCES = "sentences"

FORMATS: dict[str, Format] = {
    # BLiMP, Warstadt et al. 2020, section 3.
    SENTENCES: Format(
        dict.fromkeys(("sentence_good", "sentence_bad"), TEXT),
        lambda row: [("", row["sentence_good"]), ("", row["sentence_bad"])],
        paradigm=lambda row, file: str(row.get("UID") or file),
        phenomenon=lambda row, file: str(row.get("linguistics_term") or ""),
    ),
    # EWoK, Ivanova et al. 2024. A file of the challenge has each row also with 1 and 2 exchanged.
    "ewok": Format(
        dict.fromkeys(("Context1", "Context2", "Target1", "Target2", "Domain"), TEXT),
        lambda row: [(row["Context1"], f" {row[name]}") for name in ("Target1", "Target2")],
        paradigm=lambda row, file: row["Domain"],
    ),
    # COMPS, Misra et al. 2023.
    "comps": Format(
        dict.fromkeys(("prefix_acceptable", "prefix_unacceptable", "property_phrase"), TEXT),
        lambda row: [
            (f"{row[name]} ", row["property_phrase"])
            for name in ("prefix_acceptable", "prefix_unacceptable")
        ],
        paradigm=lambda row, file: file,
    ),
    # Entity tracking, Kim and Schuster 2023: files regular, ambiref and move_contents.
    "entity_tracking": Format(
        {"input_prefix": TEXT, "options": TEXTS, "numops": COUNT},
        lambda row: [(row["input_prefix"], option) for option in row["options"]],
        paradigm=lambda row, file: f"{file}_{row['numops']}_ops",
        phenomenon=lambda row, file: file,
        groups="phenomena",
    ),
}


def read(path: epath.PathLike) -> tuple[str, list[Comparison]]:
    """Returns the format and the comparisons of a file, or of all files of a directory."""
    name, comparisons = "", []
    for file in _files(epath.Path(path)):
        suffix, compression = opening.suffixes(file)
        stem = file.name[: len(file.name) - len(suffix + compression)]
        for row in tables.rows(file, suffix=suffix if suffix in tables.FORMATS else ".jsonl"):
            source = f"{file}:{row.number}"
            if row.fault:
                raise ValueError(f"{source}: {row.fault.message}")
            name = name or _format_of(row.values, source)
            comparisons.append(_comparison(row.values, stem, FORMATS[name], source))
    if not comparisons:
        raise ValueError(f"{path} holds no pairs; each line must be a JSON object of one")
    return name, comparisons


def first_of_each(comparisons: Sequence[Comparison], most: int) -> list[Comparison]:
    """Returns the first comparisons of each paradigm, at most `most`; 0: all."""
    taken: dict[str, int] = {}
    kept = []
    for one in comparisons:
        taken[one.paradigm] = taken.get(one.paradigm, 0) + 1
        if not most or taken[one.paradigm] <= most:
            kept.append(one)
    return kept


def _files(path: epath.Path) -> Iterator[epath.Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.iterdir()):
        if opening.suffixes(file)[0] in tables.FORMATS:
            yield file


def _format_of(row: Fields, source: str) -> str:
    for name, it in FORMATS.items():
        if it.fields.keys() <= row.keys():
            return name
    known = "; ".join(", ".join(it.fields) for it in FORMATS.values())
    raise ValueError(
        f"{source}: it has {', '.join(row) or 'nothing'}; it must have the fields of one of the "
        f"known formats: {known}"
    )


def _comparison(row: Fields, file: str, form: Format, source: str) -> Comparison:
    if missing := [name for name in form.fields if name not in row]:
        names = ", ".join(row) or "nothing"
        raise ValueError(f"{source}: it has no {' and no '.join(missing)}; it has {names}")
    for name, value in form.fields.items():
        if not value.fits(row[name]):
            raise ValueError(f"{source}: {name} is {row[name]!r:.60}; it must be {value.name}")
    texts = tuple(Continuation(*text) for text in form.texts(row))
    return Comparison(texts, form.paradigm(row, file), form.phenomenon(row, file))
