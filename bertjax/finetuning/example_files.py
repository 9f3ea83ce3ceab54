"""Functions that readers of examples share: rows of files, texts in fields, lists of faults."""

from __future__ import annotations

import collections
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.files import delimiters, tables
from bertjax.tokenization import token_ids

MAX_FAULTS = 10
# The numbers of lines that are listed for the faults after those.
MAX_LINES = 100
EMPTY_REMEDY = "fill it in, or leave the row out"


class Faults:
    """The faults of a file, reported at once: the first ten, and the lines of the others."""

    def __init__(self):
        self._first: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def add(self, source: str, fault: str) -> None:
        """Adds a fault at a "file:line"."""
        self._count += 1
        if len(self._first) < MAX_FAULTS:
            self._first.append(f"{source}: {fault}")
        elif len(self._lines) < MAX_LINES:
            self._lines.append(source.rpartition(":")[2].removeprefix("line "))

    def __len__(self) -> int:
        return self._count

    def summary(self) -> str:
        """Returns the one fault, or their number, the first of them and the lines of others."""
        if self._count == 1:
            return self._first[0]
        if not self._lines:
            return "\n".join([f"{self._count} faults:", *self._first])
        more = self._count - MAX_FAULTS - MAX_LINES
        others = f"others are in the lines {', '.join(dict.fromkeys(self._lines))}"
        others += f" and {more} more" if more > 0 else ""
        return "\n".join([f"{self._count} faults, the first {MAX_FAULTS}:", *self._first, others])

    def check(self) -> None:
        """Raises ValueError if there was a fault."""
        if self._count:
            raise ValueError(self.summary())


class UnknownLabels:
    """The labels of a file that training does not know: each is one fault, however often it stands.

    A file of another label set has thousands of rows, and a few labels.
    """

    def __init__(self):
        self._first: dict[str, str] = {}
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, source: str, labels: Iterable[str]) -> None:
        """Takes unknown labels at a "file:line"."""
        for label in labels:
            self._first.setdefault(label, source)
            self._counts[label] += 1

    def report(self, faults: Faults, noun: str, known: Sequence[str]) -> None:
        """Adds a fault for each label, at its first place; `noun` is what holds it."""
        for label, source in self._first.items():
            more = self._counts[label] - 1
            rows = f" ({more:,} more have it)" if more else ""
            faults.add(source, f"{noun} is {label!r}; known are {', '.join(known)}{rows}")


def lines(path: epath.PathLike) -> list[str]:
    """Returns the lines of a UTF-8 file, without their ends or a byte-order mark."""
    return list(tables.text_lines(path))


def rows(
    path: epath.PathLike, faults: Faults, rules: tables.Rules, suffix: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields "file:line" and the values of the rows of a table; the others add to `faults`."""
    for row in tables.rows(path, rules, suffix):
        source = f"{path}:{row.number}"
        if row.fault:
            faults.add(source, row.fault.message)
        else:
            yield source, with_names(row.values)


def with_names(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields with their names in Unicode's form NFC, as headers have them."""
    if all(map(str.isascii, fields)):
        return fields
    return dict(zip(delimiters.column_names(fields), fields.values(), strict=True))


def missing_columns(names: Sequence[str], required: Sequence[str]) -> str | None:
    """Returns the fault of the names of columns, None if all required names are among them."""
    missing = [name for name in required if name not in names]
    if missing:
        return (
            f"there is no column {' or '.join(map(repr, missing))}; the columns are "
            f"{', '.join(map(repr, names)) or '(none, the file is empty)'}"
        )
    repeated = sorted({name for name in required if list(names).count(name) > 1})
    if repeated:
        return f"there are several columns {', '.join(map(repr, repeated))}; names must be unique"
    return None


def text(value: Any, name: str) -> str:
    """Returns the text of a field; ValueError if it is empty or no text."""
    if not isinstance(value, str):
        remedy = f": {EMPTY_REMEDY}" if value is None else ""
        raise ValueError(f"{name!r} is {value!r:.60}; it must be a text{remedy}")
    if not value.strip():
        raise ValueError(f"{name!r} is empty; it must be a text: {EMPTY_REMEDY}")
    return value


def class_name(value: Any, name: str) -> str:
    """Returns the class that a field holds; ValueError if it holds none.

    It has no white space around it, and Unicode's form NFC: letters and marks of their own, or both
    in one character, are one class. Other values are spelt as JSON spells them: 1 is the class "1".
    """
    if isinstance(value, list | tuple | dict | bytes):
        raise ValueError(f"{name!r} is {value!r:.60}; it must be one value, the name of a class")
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value)
    if not value.strip():
        raise ValueError(f"{name!r} is empty; it must be a class: {EMPTY_REMEDY}")
    return normalized(value.strip())


def normalized(label: str) -> str:
    """Returns a label in Unicode's form NFC, in which one label has one spelling, for UTF-8."""
    return unicodedata.normalize("NFC", token_ids.without_surrogates(label))


def number(value: Any, decimal_mark: str = ".") -> float:
    """Returns the number that a field holds, nan if it holds none.

    `decimal_mark` is the mark in the file: with "," the text "4,5" is 4.5.
    """
    if decimal_mark == "," and isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
        value = value.replace(",", ".")
    try:
        return math.nan if isinstance(value, bool | list | dict) else float(value)
    except (TypeError, ValueError):
        return math.nan


def number_hint(value: Any) -> str:
    """Returns what to do about a missing or oddly spelt number, "" where nothing helps."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return f": {EMPTY_REMEDY}"
    has_comma = isinstance(value, str) and re.search("[0-9],[0-9]", value)
    return "; write it with a decimal point and without other marks, as 4.5" if has_comma else ""


def json_text(fields: Mapping[str, Any], key: str) -> str:
    """Returns the text under a key of a JSON object; ValueError if there is none."""
    return text(_field(fields, key), key)


def json_texts(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Returns the texts in the list under a key, at least one; ValueError if one is not text."""
    value = _field(fields, key)
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(isinstance(it, str) and it.strip() for it in value):
        raise ValueError(
            f"{key!r} is {value!r:.60}; it must be a list of texts, none of them empty"
        )
    return tuple(value)


def json_lists(fields: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], ...]:
    """Returns the lists of texts in the list under a key; ValueError if one is empty."""
    value = _field(fields, key)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{key!r} is {value!r:.60}; it must be a list of lists of texts")
    return tuple(
        json_texts({f"{key}[{place}]": it}, f"{key}[{place}]") for place, it in enumerate(value)
    )


def _field(fields: Mapping[str, Any], key: str) -> Any:
    if key not in fields:
        names = ", ".join(map(repr, fields)) or "none"
        raise ValueError(f"the key {key!r} is missing; its keys are {names}")
    return fields[key]


_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")
