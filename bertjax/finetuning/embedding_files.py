"""Files that embeddings are trained on and scored by: pairs, triplets, scored and labelled pairs.

Which columns a file must have follows from what is wanted of it, a key of `ROWS`; how tables are
read belongs to `data.tables`. Plain text (.txt) holds one text a line. Relevance files in BEIR's
layout belong to `retrieval_files`, how texts become vectors' rows to `embeddings`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.data import tables
from bertjax.finetuning import example_files, table_files

# Of NLI: the class of a pair on which the judges did not agree; such pairs are left out.
NO_LABEL = "-"
# A row by column.
_Fields = Mapping[str, Any]
QUERY, DOCUMENT = "query", "document"  # roles of texts; each has a prompt of its own
FaultyFile = example_files.FaultyFile
_TEXT_SUFFIX = ".txt"
_NEGATIVES = "negatives"  # a list, in JSON and Parquet
_NEGATIVE = re.compile(r"negative(_[0-9]+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """The texts of a row; `value` is their score from 0 to 1 or the name of their class, or None.

    With `roles` the first is an anchor, the second its positive, others are negatives. Without, the
    texts are of equal standing, and all of them QUERY. `source` is "file:line".
    """

    texts: tuple[str, ...]
    value: float | str | None
    source: str
    roles: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.roles:
            object.__setattr__(self, "roles", (QUERY,) * len(self.texts))


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the training set, and how often each of its rows is seen in an epoch."""

    path: str
    weight: float = 1.0


def files(value: str) -> list[File]:
    """Returns the files of an option: FILE or FILE=WEIGHT, with commas between them.

    Raises:
      ValueError: if a weight is not above 0, or a file is named twice.
    """
    found = []
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        # A path may have "=" in it: what follows the last one must be a number.
        weighted = re.fullmatch(r"(.+)=(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)", part)
        if not weighted:
            found.append(File(part))
            continue
        weight = _number(weighted[2])
        if not 0 < weight < math.inf:
            raise ValueError(f"{part!r} has the weight {weighted[2]}; it must be above 0")
        found.append(File(weighted[1], weight))
    paths = [file.path for file in found]
    if repeated := sorted({path for path in paths if paths.count(path) > 1}):
        raise ValueError(
            f"{repeated[0]} is named {paths.count(repeated[0])} times; to see its rows more often "
            f"give it a weight, {repeated[0]}=2"
        )
    return found


@dataclasses.dataclass(frozen=True)
class Layout:
    """A way in which a file holds rows: its columns, and what makes an example of a row.

    `columns` are those that must be there, each by one of several names. `example` returns None
    for a row that is left out.
    """

    columns: tuple[tuple[str, ...], ...]
    example: Callable[[_Fields, str], Example | None]

    def fits(self, names: Sequence[str]) -> bool:
        """Returns whether all columns are there."""
        return all(any(name in names for name in known) for known in self.columns)

    @property
    def told(self) -> str:
        """What messages call its columns."""
        return ", ".join(" or ".join(known) for known in self.columns)


def read(
    path: epath.PathLike, rows: str, *, score_range: tuple[float, float] = (0.0, 5.0)
) -> list[Example]:
    """Returns the examples of a file, in its order; `rows` is a key of ROWS.

    Scores lie in `score_range`, lowest and highest, and become numbers from 0 to 1.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if its kind is unknown, a column is missing, there are no rows, or rows have an
        empty text, no number or one out of range, no class, or not as many texts as the first: the
        first ten faults with their lines.
    """
    path = epath.Path(path)
    if path.suffix.lower() == _TEXT_SUFFIX:
        return _lines(path, rows)
    layouts = ROWS[rows](score_range)
    layout = _layout(path, layouts)
    faults, found, skipped = example_files.Faults(), [], 0

    def names_fault(names: Sequence[str]) -> str | None:
        if layout.fits(names):
            return example_files.missing_columns(names, ())
        return f"the columns are {', '.join(map(repr, names)) or 'none'}; needed are {layout.told}"

    for source, row in example_files.rows(path, faults, tables.Rules(names_fault=names_fault)):
        try:
            example = layout.example(row, source)
        except ValueError as error:
            faults.add(source, str(error))
            continue
        if example is None:
            skipped += 1
        else:
            found.append(example)
    _check_counts(found, faults)
    faults.check()
    if skipped:
        logging.info("%s: %d rows without a class (%r) are left out", path, skipped, NO_LABEL)
    if not found:
        raise FaultyFile(f"{path} has no rows; it must have at least one")
    logging.info("%s: %d examples of %d texts", path, len(found), len(found[0].texts))
    return _triplets(found, path) if layout.example is _nli else found


def holds(path: epath.PathLike) -> str:
    """Returns which of ROWS a file holds by its columns, the one that says most of them.

    Raises:
      ValueError: if its columns are those of none.
    """
    if epath.Path(path).suffix.lower() == _TEXT_SUFFIX:
        return "texts"
    names = tables.column_names(path)
    for rows in _BY_CONTENT:
        if any(
            layout.fits(names) for layout in ROWS[rows]((0.0, 1.0)) if layout.example is not _nli
        ):
            return rows
    raise FaultyFile(
        f"{path}: the columns are {', '.join(map(repr, names)) or 'none'}; known are "
        f"{told(_BY_CONTENT)}"
    )


def told(several: Iterable[str]) -> str:
    """Returns what messages call the columns of some of ROWS."""
    layouts = (layout for rows in several for layout in ROWS[rows]((0.0, 1.0)))
    return "; ".join(layout.told for layout in layouts)


def check_alike(by_file: Sequence[Sequence[Example]]) -> None:
    """Raises a ValueError if the examples of several files have not as many texts."""
    first = by_file[0][0]
    for example, *_ in by_file[1:]:
        if len(example.texts) != len(first.texts):
            raise FaultyFile(
                f"{example.source} has {len(example.texts)} texts with its negatives, "
                f"{first.source} has {len(first.texts)}: files that are mixed must have as many"
            )


def _layout(path: epath.Path, layouts: Sequence[Layout]) -> Layout:
    """Returns the layout that the file's columns fit; the first, if none fits, tells why."""
    names = tables.column_names(path)
    fitting = [layout for layout in layouts if layout.fits(names)]
    if not fitting and names:
        raise FaultyFile(
            f"{path}:1: the columns are {', '.join(map(repr, names))}; needed are "
            + "; or ".join(layout.told for layout in layouts)
        )
    return (fitting or layouts)[0]


def _lines(path: epath.Path, rows: str) -> list[Example]:
    """Returns the lines of a plain text that are not blank."""
    if rows != "texts":
        raise FaultyFile(
            f"{path} is plain text, of one text a line; needed is a table with the columns "
            f"{told([rows])}"
        )
    numbered = enumerate(example_files.lines(path), start=1)
    found = [Example((line,), None, f"{path}:{n}") for n, line in numbered if line.strip()]
    if not found:
        raise FaultyFile(f"{path} has no text; it must have at least one line")
    logging.info("%s: %d texts", path, len(found))
    return found


def _check_counts(examples: Sequence[Example], faults: example_files.Faults) -> None:
    """Adds a fault for each example that has not as many texts as the first."""
    for example in examples:
        if len(example.texts) != len(examples[0].texts):
            faults.add(
                example.source,
                f"it has {len(example.texts)} texts with its negatives, the first row, "
                f"{examples[0].source}, has {len(examples[0].texts)}: all must have as many",
            )


def _field(row: _Fields, *names: str) -> tuple[str, Any]:
    """Returns the first of these columns that is there, and its value."""
    name = next(name for name in names if name in row)
    return name, row[name]


def _texts(row: _Fields, *names: str) -> tuple[str, ...]:
    return tuple(table_files.text(row[name], name) for name in names)


def _with_negatives(row: _Fields, source: str) -> Example:
    names = sorted((name for name in row if _NEGATIVE.fullmatch(name)), key=_negative_number)
    found = []
    for name in [*names, *([_NEGATIVES] if _NEGATIVES in row else [])]:
        values = row[name] if isinstance(row[name], list | tuple) else [row[name]]
        found += [table_files.text(value, name) for value in values]
    return ranked((*_texts(row, "anchor", "positive"), *found), source)


def ranked(texts: tuple[str, ...], source: str) -> Example:
    """Returns the example of an anchor, its positive and any negatives."""
    return Example(texts, None, source, (QUERY, *(DOCUMENT,) * (len(texts) - 1)))


def _negative_number(name: str) -> int:
    return int(name.partition("_")[2] or 0)


def _scored(score_range: tuple[float, float]) -> Callable[[_Fields, str], Example]:
    low, high = score_range

    def example(row: _Fields, source: str) -> Example:
        value = row["score"]
        score = _number(value)
        if not low <= score <= high:
            raise ValueError(
                f"'score' is {_shown(value)}; it must be a number from {low:g} to {high:g}, "
                "config.finetuning.score_range"
            )
        return Example(_texts(row, *_PAIR), (score - low) / (high - low), source)

    return example


def _labelled(*text_names: str) -> Callable[[_Fields, str], Example | None]:
    def example(row: _Fields, source: str) -> Example | None:
        label = _class(row)
        return None if label == NO_LABEL else Example(_texts(row, *text_names), label, source)

    return example


def _nli(row: _Fields, source: str) -> Example | None:
    """The pair with its class, of which `_triplets` are made."""
    label = _class(row)
    if label not in (*_NLI, NO_LABEL):
        raise ValueError(
            f"the class is {label!r}; triplets are made of pairs of the classes {', '.join(_NLI)}"
        )
    return None if label == NO_LABEL else Example(_texts(row, *_PAIR), label, source)


def _triplets(pairs: Sequence[Example], path: epath.Path) -> list[Example]:
    """Returns (premise, what follows from it, what contradicts it), for each that follows.

    A premise with fewer contradictions than entailments has them again from the first.
    Source: Gao et al. 2021 (SimCSE), section 4, which takes one of each.
    """
    by_premise: dict[str, dict[str, list[Example]]] = {}
    for pair in pairs:
        of_premise = by_premise.setdefault(pair.texts[0], {name: [] for name in _NLI})
        of_premise[str(pair.value)].append(pair)
    found = []
    for premise, by_class in by_premise.items():
        contradictions = by_class["contradiction"]
        if contradictions:
            for place, pair in enumerate(by_class["entailment"]):
                negative = contradictions[place % len(contradictions)].texts[1]
                found.append(ranked((premise, pair.texts[1], negative), pair.source))
    if not found:
        raise FaultyFile(
            f"{path}: no sentence1 has both an entailment and a contradiction, of which triplets "
            "are made"
        )
    logging.info("%s: %d triplets of %d pairs", path, len(found), len(pairs))
    return found


def _class(row: _Fields) -> str:
    name, value = _field(row, *_LABEL)
    if value is None or isinstance(value, list | dict) or not str(value).strip():
        raise ValueError(f"{name!r} is {_shown(value)}; it must be a class")
    # As JSON spells what is no text: 1 is the class "1", true is "true".
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float:
    """Returns the number that a field holds, nan if it holds none."""
    try:
        return math.nan if isinstance(value, bool | list | dict) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


_PAIR = ("sentence1", "sentence2")
_LABEL = ("label", "gold_label")
_NLI = ("entailment", "neutral", "contradiction")
_PAIR_COLUMNS = tuple((name,) for name in _PAIR)

# What is wanted of a file -> the layouts that hold it, by the range of scores.
ROWS: Mapping[str, Callable[[tuple[float, float]], tuple[Layout, ...]]] = {
    "pairs": lambda _: (
        Layout((("anchor",), ("positive",)), _with_negatives),
        Layout((*_PAIR_COLUMNS, _LABEL), _nli),
    ),
    "scored": lambda score_range: (Layout((*_PAIR_COLUMNS, ("score",)), _scored(score_range)),),
    "labelled": lambda _: (Layout((*_PAIR_COLUMNS, _LABEL), _labelled(*_PAIR)),),
    "classes": lambda _: (Layout((("text",), _LABEL), _labelled("text")),),
    "texts": lambda _: (
        Layout((("text",),), lambda row, source: Example(_texts(row, "text"), None, source)),
    ),
    "two_texts": lambda _: (
        Layout(_PAIR_COLUMNS, lambda row, source: Example(_texts(row, *_PAIR), None, source)),
    ),
}
# Those that say most come first.
_BY_CONTENT = ("pairs", "scored", "labelled", "classes", "two_texts", "texts")
