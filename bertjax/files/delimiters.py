"""The character between the columns of a CSV or TSV file: by an option, or found in the file.

Excel writes its country's list separator between columns, a semicolon where numbers have a decimal
comma. The header decides; the rows do not, since their texts may hold any of these characters.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

AUTO = "auto"
HELP = (
    "between the columns of .csv and .tsv: one character, or tab; auto: found in the header of a "
    ".csv (comma, semicolon, tab or |), tab for .tsv"
)
# Suffix -> what its header may be cut at; the first one where nothing decides.
CANDIDATES = {".csv": (",", ";", "\t", "|"), ".tsv": ("\t",)}

# A mark between two names, as ":" or a semicolon of full width.
_BETWEEN_WORDS = re.compile(r"(?<=\w)[^\w\s.-](?=\w)")
_NAMED = {"tab": "\t", "\\t": "\t"}
# The first line by which Excel is given the delimiter.
_STATED = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^"\r\n])"?\r?\n?')


def fault(option: str) -> str | None:
    """Returns the fault of an option's value, None without one."""
    one = character(option)
    if option == AUTO or (len(one) == 1 and one not in '"\r\n'):
        return None
    return f"is {option!r}; it must be {AUTO}, tab or one character, but not a quote or a line end"


def character(option: str) -> str:
    """Returns the character that an option names; "auto" stays."""
    return _NAMED.get(option, option)


def shown(delimiter: str) -> str:
    """Returns a delimiter as messages and options spell it."""
    return "tab" if delimiter == "\t" else delimiter


def stated(line: bytes) -> str:
    """Returns the delimiter that a first line `sep=;` states, "" if it is another line."""
    match = _STATED.fullmatch(line)
    return match[1].decode("latin1") if match else ""


def find(
    lines: Sequence[str],
    suffix: str,
    names_fault: Callable[[Sequence[str]], str | None],
) -> str:
    """Returns the delimiter of the first lines of a file.

    It is the first candidate that gives the header the required columns. If there is none, or no
    column is required, it is the first candidate that cuts the header.
    """
    candidates = CANDIDATES[suffix]
    headers = {one: _header(lines, one) for one in candidates} if len(candidates) > 1 else {}
    cutting = [one for one, names in headers.items() if len(names) > 1]
    fitting = [one for one, names in headers.items() if names and not names_fault(names)]
    both = [one for one in fitting if one in cutting]
    return (both or fitting or cutting or candidates)[0]


def looks_separated(names: Sequence[str], suffix: str, delimiter: str) -> str:
    """Returns a hint for a header that may be cut at the wrong character, "" without one."""
    if suffix == ".tsv" and are_quoted(names):
        return f"; in .tsv a quote is a character like others, {_RENAME}"
    others = [one for one in CANDIDATES[".csv"] if len(names) == 1 and one in names[0]]
    others = others or (_BETWEEN_WORDS.findall(names[0]) if len(names) == 1 else [])
    if not others:
        return ""
    remedy = f"; {_RENAME}" if suffix == ".tsv" else ""
    return (
        f"; it is read as separated by {shown(delimiter)!r} and looks separated by "
        f"{shown(others[0])!r}{remedy}"
    )


def are_quoted(fields: Sequence[str]) -> bool:
    """Returns whether a row looks as if its fields stood in quotes, with quotes inside doubled."""
    quoted = [it[1:-1] for it in fields if len(it) > 1 and it[0] == '"' == it[-1]]
    if quoted and len(quoted) == len(fields):
        return True
    return any('""' in inner and '"' not in inner.replace('""', "") for inner in quoted)


def column_names(fields: Iterable[str]) -> list[str]:
    """Returns the names in a header, in Unicode's form NFC: a name has one spelling."""
    return [unicodedata.normalize("NFC", name) for name in fields]


def _header(lines: Sequence[str], delimiter: str) -> list[str]:
    """Returns the first row that is not blank, [] if it is not CSV with this delimiter."""
    try:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        return column_names(next((fields for fields in reader if fields), []))
    except csv.Error:
        return []


_RENAME = "rename it to end in .csv"
