"""The script of each character, scripts that write no space between words, and combining marks."""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np
from fontTools.unicodedata import Scripts
from jaxtyping import Int, UInt8

# Blocks of Unicode: Thai, Lao, Tibetan, Myanmar, Khmer, Tai Le and New Tai Lue, Tai Tham, Balinese,
# Chinese and Japanese with kana and bopomofo, Yi, Javanese, Tai Viet. (Korean has spaces.)
UNSPACED_BLOCKS = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\u2fdf"
    "\u3005-\u3007\u3021-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf"
    "\ua980-\ua9df\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
# From this share of the characters on, figures of words between spaces mean nothing.
UNSPACED_SHARE = 0.2

_UNSPACED = re.compile(f"[{UNSPACED_BLOCKS}]+")

# The first two numbers: white space, and digits, punctuation and signs, for which Unicode has the
# values Common, Inherited and Unknown.
SPACE, COMMON = 0, 1
_CODES = sorted({*Scripts.VALUES} - {"Zyyy", "Zinh", "Zzzz"})
# Number of a script -> its name in Unicode.
NAMES = ("white space", "Common", *(Scripts.NAMES[code].replace("_", " ") for code in _CODES))


def numbers(text: str) -> UInt8[np.ndarray, " characters"]:
    """Returns the number of each character's script.

    Source: Unicode Standard Annex 24, the property Script.
    """
    return _table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]


def filled(
    numbers: UInt8[np.ndarray, " characters"], starts: Int[np.ndarray, " characters"]
) -> UInt8[np.ndarray, " characters"]:
    """Returns the scripts of texts, white space and signs counted to the letter before them.

    At the beginning of a text it is the first letter. `starts` has the place of each character's
    text, and every text has a letter.

    Source: Unicode Standard Annex 24, section 5.1.
    """
    places = np.arange(len(numbers))
    is_letter = numbers > COMMON
    before = np.maximum.accumulate(np.where(is_letter, places, -1))
    after = np.minimum.accumulate(np.where(is_letter, places, len(numbers))[::-1])[::-1]
    return numbers[np.where(before >= starts, before, after)]


@functools.cache
def _table() -> UInt8[np.ndarray, " code_points"]:
    of_code = {code: number for number, code in enumerate(_CODES, start=COMMON + 1)}
    values = np.array([of_code.get(code, COMMON) for code in Scripts.VALUES], np.uint8)
    table = np.repeat(values, np.diff([*Scripts.RANGES, 0x110000]))
    table[[point for point in range(0x3001) if chr(point).isspace()]] = SPACE
    return table


def unspaced_characters(text: str) -> int:
    """Returns the number of characters of scripts that write no space between words."""
    return 0 if text.isascii() else sum(map(len, _UNSPACED.findall(text)))


def marks(text: str) -> int:
    """Returns the number of marks that combine with a letter: vowel signs, viramas, tones."""
    if text.isascii():
        return 0
    return sum(unicodedata.category(character) in ("Mn", "Mc") for character in text)
