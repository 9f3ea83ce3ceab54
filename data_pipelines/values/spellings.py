"""How numbers and times are spelt in text: a form of each column, which its training part decides.

A form is named by an example. Numbers with zeros in front, such as 007, are text in every form.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow
import pyarrow.compute

# Cells of numbers and times that are empty. Source: pandas, read_csv, na_values.
MISSING = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)
# The share of its cells by which a column is one of numbers, or of times.
LEAST_SHARE = 0.95
AUTO, MARKS = "auto", (".", ",")
PLAIN, ISO, CLOCK = "1234.5", "2026-01-31", "12:30"

LEADING_ZEROS = r"^[+-]?0\d+$"
_SPACES = "[ \u00a0\u2009\u202f]"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_TIME = rf"(?:[T ]{_CLOCK})?"
_DAY, _MONTH = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])"


@dataclasses.dataclass(frozen=True)
class Form:
    """A pattern of cells, and their values in float64: numbers, or seconds from 1970 or midnight.

    `decimal` and `group` are the marks of numbers, `group` between thousands.
    """

    kind: str
    pattern: str
    parse: Callable[[pyarrow.StringArray], np.ndarray]
    decimal: str = ""
    group: str = ""


def matches(texts: pyarrow.StringArray, pattern: str) -> np.ndarray:
    """Returns which texts match a pattern [texts]."""
    found = pyarrow.compute.match_substring_regex(texts, pattern)
    return found.to_numpy(zero_copy_only=False).astype(bool)


def decide(
    texts: pyarrow.StringArray, counts: np.ndarray, *, file_mark: str, decimal: str = AUTO
) -> str:
    """Returns the form of a column, "" for text, by how often its training part has each text.

    `file_mark` is the decimal mark that the file's delimiter speaks for, and `decimal` the one that
    an option names, or "auto". ValueError if two forms give different numbers.
    """
    total = counts.sum()
    if not total:
        return ""
    is_plain = (file_mark if decimal == AUTO else decimal) == "."
    if is_plain and counts[matches(texts, FORMS[PLAIN].pattern)].sum() == total:
        return PLAIN
    if (matches(texts, LEADING_ZEROS) & (counts > 0)).any():
        return ""
    forms = {
        name: form for name, form in FORMS.items() if decimal in (AUTO, form.decimal or decimal)
    }
    fitting = {name: matches(texts, form.pattern) for name, form in forms.items()}
    shares = {name: counts[fits].sum() / total for name, fits in fitting.items()}
    best = max(shares.values())
    if best < LEAST_SHARE:
        _check_mixed(texts, counts, [fitting[name] for name in NUMBERS if name in fitting])
        return ""
    names = [name for name, share in shares.items() if share == best]
    chosen = _in_file(names, file_mark)
    if decimal == AUTO:
        _check_proof(texts, counts, chosen, names, file_mark)
    return chosen


def _in_file(names: Sequence[str], file_mark: str) -> str:
    """Returns the first form, of forms that fit alike the one that the file's delimiter means."""
    if file_mark == "," and names[0] == PLAIN and "1.234,5" in names and "1234,5" not in names:
        return "1.234,5"
    return names[0]


def _check_mixed(
    texts: pyarrow.StringArray, counts: np.ndarray, fitting: Sequence[np.ndarray]
) -> None:
    """Raises a ValueError if a column is numbers, but none of the forms fits enough of them."""
    is_number = np.any(fitting, axis=0) & (counts > 0)
    if counts[is_number].sum() >= LEAST_SHARE * counts.sum():
        best = max(fitting, key=lambda fits: counts[fits].sum())
        one, other = _first(texts, best & is_number), _first(texts, is_number & ~best)
        raise ValueError(
            f"numbers are spelt as {one!r} and as {other!r}; spell all in one way, or name the "
            "decimal mark with --decimal"
        )


def _check_proof(
    texts: pyarrow.StringArray,
    counts: np.ndarray,
    chosen: str,
    names: Sequence[str],
    file_mark: str,
) -> None:
    """Raises a ValueError if the cells of the chosen form may mean other values."""
    occurs = counts > 0
    if FORMS[chosen].kind == "time":
        if {*names} >= _SLASHES:
            cell = _first(texts, occurs & matches(texts, FORMS[chosen].pattern))
            raise ValueError(
                f"{cell!r} may be of either of two days; write dates as {ISO}, or leave the column "
                "out"
            )
        return
    form = FORMS[chosen]
    if form.group in MARKS:
        group, mark = re.escape(form.group), re.escape(form.decimal)
        proof = rf"\d{group}\d{{3}}{group}\d{{3}}|\d{group}\d{{3}}{mark}"
        if (matches(texts, proof) & occurs & matches(texts, form.pattern)).any():
            return
        doubtful = rf"\d{group}\d{{3}}"
    elif chosen == "1234,5" and "1,234.5" in names and file_mark != ",":
        doubtful = r"\d,\d{3}$"
    else:
        return
    if (is_doubtful := matches(texts, doubtful) & occurs).any():
        raise ValueError(
            f"{_first(texts, is_doubtful)!r} may have decimals or thousands; name the decimal mark "
            "with --decimal=. or --decimal=,"
        )


def _first(texts: pyarrow.StringArray, chosen: np.ndarray) -> str:
    return texts[int(np.flatnonzero(chosen)[0])].as_py()


def parse(texts: pyarrow.StringArray, form: str) -> np.ndarray:
    """Returns the values of texts in a form, nan for texts that do not fit it."""
    values = np.full(len(texts), np.nan)
    fits = matches(texts, FORMS[form].pattern)
    values[fits] = FORMS[form].parse(texts if fits.all() else texts.filter(pyarrow.array(fits)))
    return values


def _numbers(decimal: str, group: str) -> Form:
    mark = re.escape(decimal)
    between = _SPACES if group == " " else re.escape(group)
    grouped = rf"[1-9]\d{{0,2}}(?:{between}\d{{3}})+|" if group else ""
    body = rf"(?:{grouped}0|[1-9]\d*)(?:{mark}\d*)?|{mark}\d+"
    pattern = rf"^[+-]?(?:(?:{body})(?:[eE][+-]?\d+)?|(?i:inf|infinity))$"

    def parsed(texts: pyarrow.StringArray) -> np.ndarray:
        if group:
            texts = pyarrow.compute.replace_substring_regex(texts, between, "")
        if decimal != ".":
            texts = pyarrow.compute.replace_substring(texts, decimal, ".")
        return texts.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)

    return Form("number", pattern, parsed, decimal, group)


def _times(kind: str, pattern: str, *rewritten: tuple[str, str], zone: str | None = None) -> Form:
    """Returns a form whose cells become ISO 8601 by regular expressions and replacements."""

    def parsed(texts: pyarrow.StringArray) -> np.ndarray:
        for old, new in (*rewritten, *_TO_ISO):
            texts = pyarrow.compute.replace_substring_regex(texts, old, new)
        stamp = pyarrow.timestamp("us", zone)
        try:
            moments = texts.cast(stamp)
        except pyarrow.ArrowInvalid:  # a 31st of February among them
            moments = pyarrow.array([_moment(it, stamp) for it in texts], stamp)
        values = moments.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
        return values / 1e6

    return Form(kind, pattern, parsed)


def _moment(text: pyarrow.StringScalar, stamp: pyarrow.DataType) -> pyarrow.Scalar | None:
    try:
        return text.cast(stamp)
    except pyarrow.ArrowInvalid:
        return None


# One digit of a day, a month or an hour; more than six of a second; a comma before them.
_TO_ISO = (
    (r"-(\d)-", r"-0\1-"), (r"-(\d)([T ]|$)", r"-0\1\2"), (r"([T ])(\d):", r"\10\2:"),
    (r",(\d)", r".\1"), (r"(\.\d{6})\d+", r"\1"), (r" +([Z+-])", r"\1"),
)  # fmt: skip
_SLASHES = {"31/01/2026", "01/31/2026"}

# The first form that fits most cells is taken.
FORMS = {
    PLAIN: _numbers(".", ""),
    "1234,5": _numbers(",", ""),
    "1,234.5": _numbers(".", ","),
    "1.234,5": _numbers(",", "."),
    "1 234.5": _numbers(".", " "),
    "1 234,5": _numbers(",", " "),
    "1'234.5": _numbers(".", "'"),
    ISO: _times("time", rf"^\d{{4}}-{_MONTH}-{_DAY}{_TIME}$"),
    "2026-01-31T12:30Z": _times(
        "time", rf"^\d{{4}}-{_MONTH}-{_DAY}{_TIME} ?(?:Z|[+-]\d{{2}}:?\d{{2}})$", zone="UTC"
    ),
    "31.01.2026": _times(
        "time", rf"^{_DAY}\.{_MONTH}\.\d{{4}}{_TIME}$", (r"^(\d+)\.(\d+)\.(\d{4})", r"\3-\2-\1")
    ),
    "31/01/2026": _times(
        "time", rf"^{_DAY}/{_MONTH}/\d{{4}}{_TIME}$", (r"^(\d+)/(\d+)/(\d{4})", r"\3-\2-\1")
    ),
    "01/31/2026": _times(
        "time", rf"^{_MONTH}/{_DAY}/\d{{4}}{_TIME}$", (r"^(\d+)/(\d+)/(\d{4})", r"\3-\1-\2")
    ),
    CLOCK: _times("clock", rf"^{_CLOCK}$", (r"^", "1970-01-01 ")),
}
NUMBERS = tuple(name for name, form in FORMS.items() if form.kind == "number")
