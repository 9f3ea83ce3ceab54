"""Fonts for texts of any script in pictures: the installed fonts that have the characters."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable

import matplotlib
from absl import logging
from matplotlib import font_manager, ft2font

# It has a box with the name of the script in place of each character.
_LAST_RESORT = "Last Resort"
# The beginning of the Unicode name of characters -> the package of Debian that has a font for them.
_PACKAGES = {
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"), "fonts-noto-cjk"),
    "": "fonts-noto-core",
}


def families(texts: Iterable[str]) -> list[str]:
    """Returns the names of fonts that together have the characters of texts, matplotlib's first.

    Characters that no font of this machine has are warned of, with a package to install.
    """
    chosen = list(matplotlib.rcParams["font.family"])
    missing = {ord(one) for text in texts for one in text if one.isprintable() and one != " "}
    missing -= _characters(font_manager.findfont(font_manager.FontProperties(family=chosen)))
    if not missing:
        return chosen
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:  # installed since matplotlib's list
        font_manager.fontManager.addfont(path)
    fonts = {font.fname: font.name for font in font_manager.fontManager.ttflist}
    fonts = {path: name for path, name in sorted(fonts.items()) if _LAST_RESORT not in name}
    while missing and fonts:
        best = max(fonts, key=lambda path: len(missing & _characters(path)))
        if not missing & _characters(best):
            break
        chosen.append(fonts.pop(best))
        missing -= _characters(best)
    if missing:
        first = chr(min(missing))
        logging.warning(
            "no font of this machine has %d characters of the picture, such as %s (U+%04X): "
            "install one, for example with `apt install %s`",
            len(missing), first, ord(first), _package(first),
        )  # fmt: skip
    return chosen


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(ft2font.FT2Font(path).get_charmap())
    except RuntimeError:  # not a font that matplotlib can read
        return frozenset()


def _package(character: str) -> str:
    name = unicodedata.name(character, "")
    return next(package for begin, package in _PACKAGES.items() if name.startswith(begin))
