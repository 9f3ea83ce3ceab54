"""Scripts that write no space between words, and marks that belong to the letter before them."""

from __future__ import annotations

import re
import unicodedata

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


def unspaced_characters(text: str) -> int:
    """Returns the number of characters of scripts that write no space between words."""
    return 0 if text.isascii() else sum(map(len, _UNSPACED.findall(text)))


def marks(text: str) -> int:
    """Returns the number of marks that combine with a letter: vowel signs, viramas, tones."""
    if text.isascii():
        return 0
    return sum(unicodedata.category(character) in ("Mn", "Mc") for character in text)
