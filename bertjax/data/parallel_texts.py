"""Parallel texts: each text of a list is a translation of the one at its place in another list.

They are two files of lines (Moses, Tatoeba), or a table of two columns: a TSV file without a
header, or CSV, JSON lines or Parquet with the columns' names.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertjax.files import opening, path_lists, tables

COLUMNS = ("source", "target")


class Pair(NamedTuple):
    """A text and its translation, or the fault of a line or row without two texts.

    `place` is "FILE:NUMBER", counted from 1.
    """

    place: str
    source: str
    target: str
    fault: str = ""


def read(paths: str) -> tuple[list[str], list[str]]:
    """Returns the texts of `paths`, "SOURCE,TARGET" or one table, in the order of the files."""
    files = path_lists.rejoined(paths.split(","), os.path.exists)
    if len(files) > 2:
        raise ValueError(f"{paths!r} names {len(files)} files; give SOURCE,TARGET or one table")
    sources, targets = [], []
    for pair in pairs(files):
        if pair.fault:
            raise ValueError(f"{pair.place}: {pair.fault}")
        sources.append(pair.source)
        targets.append(pair.target)
    if not sources:
        raise ValueError(f"{paths} holds no texts")
    return sources, targets


def pairs(files: Sequence[str], columns: Sequence[str] = ()) -> Iterator[Pair]:
    """Yields the pairs of two files of lines, or of one table.

    A table of more than two columns must have `columns`, the names of two. A first row of these
    names is not a pair.
    """
    return _of_lines(*files) if len(files) == 2 else _of_table(files[0], columns)


def _pair(places: Sequence[str], source: str, target: str) -> Pair:
    texts = source.strip(), target.strip()
    for place, text in zip(places, texts, strict=True):
        if not text:
            return Pair(place, *texts, "the text is empty; leave the pair out")
    return Pair(places[0], *texts)


def _of_lines(source: str, target: str) -> Iterator[Pair]:
    lines = itertools.zip_longest(tables.text_lines(source), tables.text_lines(target))
    for number, (one, other) in enumerate(lines, start=1):
        if one is None or other is None:
            longer, shorter = (source, target) if other is None else (target, source)
            raise ValueError(
                f"{longer} has more lines than {shorter}, which has {number - 1:,}; line n of one "
                "must be a translation of line n of the other"
            )
        yield _pair((f"{source}:{number}", f"{target}:{number}"), one, other)


def _of_table(path: str, columns: Sequence[str]) -> Iterator[Pair]:
    is_named = opening.suffixes(path)[0] != ".tsv"
    names = tables.column_names(path) if is_named else COLUMNS
    if columns and set(columns) <= set(names):
        names = tuple(columns)
    if len(names) != 2:
        wanted = f", or {' and '.join(columns)} among others" if columns else ""
        raise ValueError(
            f"{path} has {len(names)} columns ({', '.join(names)}); give a table of two, source "
            f"and target{wanted}"
        )
    for row in tables.rows(path, tables.Rules(names=() if is_named else COLUMNS)):
        values = [row.values.get(name) for name in names]
        if row.number == 1 and values == [*columns]:
            continue  # a TSV file has a header after all
        place = f"{path}:{row.number}"
        if row.fault or not all(isinstance(value, str) for value in values):
            reason = row.fault.message if row.fault else f"it holds {row.values!r:.100}"
            yield Pair(place, "", "", f"{reason}; a row must be two texts")
        else:
            yield _pair((place, place), *map(str, values))
