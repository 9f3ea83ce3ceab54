"""Tables that a program writes into a page, between two marks that bear its name."""

from __future__ import annotations

import pathlib


def write(page: pathlib.Path, name: str, text: str) -> None:
    """Puts the text between the page's two marks of that name.

    Raises:
      ValueError: if the page has no such marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no place for the table: {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
