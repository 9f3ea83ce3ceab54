"""Parallel texts: each text of a list is a translation of the one at its place in another list.

They are two files of lines (Moses, Tatoeba), or a table of two columns: a TSV file without a
header, or CSV, JSON lines or Parquet with the columns' names.
"""

from __future__ import annotations

import os

from bertjax.data import path_lists, tables

COLUMNS = ("source", "target")


def read(paths: str) -> tuple[list[str], list[str]]:
    """Returns the texts of `paths`, "SOURCE,TARGET" or one table, in the order of the files.

    Raises:
      FileNotFoundError: if there is no such file.
      FaultyFile: naming file and line, if a text is missing or empty, or if the files
        have different numbers of lines.
      ValueError: if there are more than two files.
    """
    files = path_lists.rejoined(paths.split(","), os.path.exists)
    if len(files) > 2:
        raise ValueError(f"{paths!r} names {len(files)} files; give SOURCE,TARGET or one table")
    first, second = (_lines(files[0]), _lines(files[1])) if len(files) == 2 else _table(files[0])
    if len(first) != len(second):
        raise tables.FaultyFile(
            f"{files[0]} has {len(first):,} lines and {files[1]} has {len(second):,}; line n of "
            "one must be a translation of line n of the other"
        )
    if not first:
        raise tables.FaultyFile(f"{paths} holds no texts")
    for name, texts in zip((files[0], files[-1]), (first, second), strict=True):
        if "" in texts:
            raise tables.FaultyFile(
                f"{name}:{texts.index('') + 1}: the text is empty; leave the pair out"
            )
    return first, second


def _lines(path: str) -> list[str]:
    return [line.strip() for line in tables.text_lines(path)]


def _table(path: str) -> tuple[list[str], list[str]]:
    is_named = tables.suffixes(path)[0] != ".tsv"
    names = tables.column_names(path) if is_named else COLUMNS
    if len(names) != 2:
        raise tables.FaultyFile(
            f"{path} has {len(names)} columns ({', '.join(names)}); give a table of two, source "
            "and target"
        )
    sides: tuple[list[str], list[str]] = ([], [])
    for row in tables.rows(path, tables.Rules(names=() if is_named else COLUMNS)):
        values = [row.values.get(name) for name in names]
        if row.fault or not all(isinstance(value, str) for value in values):
            reason = row.fault.message if row.fault else f"it holds {row.values!r:.100}"
            raise tables.FaultyFile(f"{path}:{row.number}: {reason}; a row must be two texts")
        for side, value in zip(sides, values, strict=True):
            side.append(str(value).strip())
    return sides
