"""Words that lose marks, letters' forms or joiners when a tokenizer normalizes a text.

Losing case is not counted: a rule that lower-cases is asked for by name.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Mapping

from bertjax.tokenization import normalization, tokenizer, wordpiece
from data_pipelines.reports import distinct

EXAMPLES_SHOWN = 3
KEEPS_ALL = ("none", "nfc")
# A share of the words from which on it is a warning.
MUCH = 0.01
# The number of pieces of text whose findings are kept, and the length up to which they are: longer
# ones, such as sentences without spaces, hardly come again.
PIECES_KEPT, LONGEST_KEPT = 65_536, 32

# How many words a piece between white space has beyond one, and how they change.
_Found = tuple[int, list[str]]


@dataclasses.dataclass
class LostMarks:
    """The number of words, of those that change, and how often each of the commonest changes.

    `kept(text)` is what a tokenizer's rules make of a text. Words are those between white space
    and punctuation; a CJK character is one.
    """

    kept: Callable[[str], str]
    lowercase: bool
    language: str = ""
    words: int = 0
    changed: int = 0
    changes: dict[str, int] = dataclasses.field(default_factory=dict)
    _found: dict[str, _Found] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, vocabulary: tokenizer.Tokenizer) -> LostMarks | None:
        """Returns a count for the rules of a tokenizer, None if they lose nothing."""
        if vocabulary.normalization in KEEPS_ALL or vocabulary.keeps_blanks:
            return None
        return cls(vocabulary.kept, vocabulary.lowercase, vocabulary.language)

    def add(self, text: str, times: int = 1) -> None:
        """Counts the words of a text that stands `times` times in the corpus."""
        pieces = text.split()
        self.words += times * len(pieces)
        for piece in [it for it in pieces if not it.isascii()]:
            more, changes = self._of_piece(piece)
            self.words += times * more
            for change in changes:
                self.changed += times
                self.changes[change] = self.changes.get(change, 0) + times
        if len(self.changes) > 2 * distinct.REPEATED_KEPT:
            self.changes = distinct.most_frequent(self.changes, distinct.REPEATED_KEPT)

    def _of_piece(self, piece: str) -> _Found:
        """Returns what was found when the same piece came before: most come often."""
        if (found := self._found.get(piece)) is None:
            words = wordpiece.split_words(piece, normalization="nfc")
            changes = [
                f"{word} -> {self._composed(self.kept(word)) or 'nothing'}"
                for word in ([] if self._loses_nothing(piece) else words)
                if not (word.isascii() or self._loses_nothing(word))
            ]
            found = len(words) - 1, changes
            if len(self._found) == PIECES_KEPT:
                self._found.clear()
            if len(piece) <= LONGEST_KEPT:
                self._found[piece] = found
        return found

    def _loses_nothing(self, text: str) -> bool:
        whole = normalization.marks_kept(text, lowercase=self.lowercase, language=self.language)
        return self._composed(self.kept(text)) == _joined(whole)

    def _composed(self, text: str) -> str:
        return _joined(unicodedata.normalize("NFC", text))


def _joined(text: str) -> str:
    """Returns the text without white space: rules set CJK characters and marks apart."""
    return "".join(text.split())


def described(share: float, changes: Iterable[str]) -> str:
    """Returns a sentence's part on what is lost."""
    return f"{percent(share)} of the words lose marks, as {', '.join(changes)}"


def percent(share: float) -> str:
    """Returns a share of words, which is more than nothing."""
    if share < 1e-4:
        return "less than 0.01%"
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}"


def commonest(changes: Mapping[str, int]) -> list[str]:
    """Returns the most frequent changes."""
    return list(distinct.most_frequent(changes, EXAMPLES_SHOWN))
