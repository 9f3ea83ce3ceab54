"""Tables that a program writes into a page, between two marks that bear its name."""

from __future__ import annotations

import pathlib


def write(page: pathlib.Path, name: str, text: str) -> None:
    """Puts the text between the page's two marks of that name.

    Raises:
      ValueError: if the page has no such marks.
    """
    before, _, after = _parts(page, name)
    begin, end = _marks(name)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def read(page: pathlib.Path, name: str) -> str:
    """Returns the text between the page's two marks of that name.

    Raises:
      ValueError: as `write`.
    """
    return _parts(page, name)[1].strip()


def _parts(page: pathlib.Path, name: str) -> tuple[str, str, str]:
    begin, end = _marks(name)
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    text, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no place for the table: {begin} and {end}")
    return before, text, after


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
