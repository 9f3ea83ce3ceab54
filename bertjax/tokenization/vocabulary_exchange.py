"""Another vocabulary for trained embeddings: the old rows that each new row is initialized from.

A new piece with the string of an old one keeps its row, and a special token the row of its role.
Any other piece starts as the mean of the pieces that the old tokenizer cuts its string into, at a
word's start or inside a word, whichever way the two kinds of vocabulary mark that.
Source of the mean: Gee et al. 2022, "Fast vocabulary transfer for language model compression",
section 3.1.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.tokenization import (
    byte_bpe,
    integers,
    library_tokenizer,
    sentence_piece,
    token_ids,
    wordpiece,
)

# Where a piece stands: after a space, within a word, or wherever BERT's rules set its first
# character apart (punctuation and CJK), with no space before it. Entries that show where words end
# stand at the end of one, which is taken for all of it, or before its end.
START, INSIDE, APART, UNENDED = "start", "inside", "apart", "unended"
ROLES = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
CHUNK = 8192  # rows whose means are computed at once, in float64
PROBES = 8  # letters that a piece inside a word is tried behind
LONGEST_CHARACTER = 4  # bytes in UTF-8
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Piece(NamedTuple):
    """The string of an entry without the mark of its place, in UTF-8, and the place."""

    text: bytes
    place: str


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The old rows of every new entry: `ids`, one entry after the other, `counts` of each.

    An entry without any (`counts` 0) has no string that the old vocabulary knows. `is_kept` is true
    for entries that have the row of their string or role. `num_old` is the number of old entries.
    """

    ids: Int[np.ndarray, " rows"]
    counts: Int[np.ndarray, " new"]
    is_kept: Bool[np.ndarray, " new"]
    num_old: int

    def rows(self, table: Float[np.ndarray, " old *width"]) -> Float[np.ndarray, " new *width"]:
        """Returns the means of the rows of `table`, an entry's each; of all where it has none.

        Means are computed in float64; a row that is kept is the same to the bit.
        """
        mean = table[: self.num_old].mean(axis=0, dtype=np.float64)
        made = np.empty((len(self.counts), *table.shape[1:]), table.dtype)
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        for first in range(0, len(made), CHUNK):
            counts = self.counts[first : first + CHUNK]
            some = np.flatnonzero(counts)
            begin, end = ends[first], ends[first + len(counts)]
            part = np.broadcast_to(mean, (len(counts), *mean.shape)).copy()
            if len(some):
                old = table[self.ids[begin:end]].astype(np.float64)
                sums = np.add.reduceat(old, ends[first + some] - begin, axis=0)
                part[some] = sums / counts[some].reshape(-1, *[1] * mean.ndim)
            made[first : first + len(counts)] = part
        return made

    def __str__(self) -> str:
        kept, fresh = int(self.is_kept.sum()), int((self.counts == 0).sum())
        means = self.counts[~self.is_kept & (self.counts > 0)]
        average = f" of {means.mean():.2f} old rows on average" if len(means) else ""
        return (
            f"{kept:,} of {len(self.counts):,} entries keep the row of their string or role; "
            f"{len(means):,} start as the mean of their old pieces{average}; {fresh:,} have no "
            "known piece and start as the mean of all old rows plus a random row"
        )


def fault(old: token_ids.Tokenizer, new: token_ids.Tokenizer) -> str:
    """Returns why two vocabularies cannot be exchanged, "" if they can."""
    kinds = [vocabulary.kind for vocabulary in (old, new)]
    if integers.IntegerTokenizer.kind not in kinds:
        return ""
    return (
        f"the source's vocabulary is of the kind {kinds[0]}, the data's of the kind {kinds[1]}: "
        "integers have no strings to find a row by"
    )


def between(old: token_ids.Tokenizer, new: token_ids.Tokenizer) -> Exchange:
    """Returns the exchange of `old` for `new`, which may be of different kinds.

    Pieces that the old vocabulary cannot spell count as nothing, and so does the mark of a word's
    start where nothing else is known. Among equal old entries the one with the new entry's id
    is taken, or the last, as tokenizing does.
    """
    same: dict[Piece, list[int]] = {}
    old_pieces = list(pieces(old))
    for token_id, piece in enumerate(old_pieces):
        if token_id not in old.special_ids:
            same.setdefault(piece, []).append(token_id)
    roles = _same_roles(old, new)
    of_entries: list[Sequence[int]] = []
    cut: dict[int, Piece] = {}
    for token_id, piece in enumerate(pieces(new)):
        equal = roles.get(token_id, same.get(piece))
        if equal is None:
            cut[token_id] = piece
        of_entries.append(
            [token_id] if equal and token_id in equal else equal[-1:] if equal else ()
        )
    is_kept = np.array(list(map(bool, of_entries)))
    for token_id, ids in zip(cut, _cut(old, same, list(cut.values())), strict=True):
        known = [each for each in ids if each != old.unk_id]
        of_entries[token_id] = known if any(old_pieces[each].text for each in known) else ()
    ids, counts = token_ids.flat(of_entries)
    return Exchange(ids, counts, is_kept, old.vocab_size)


def pieces(vocabulary: token_ids.Tokenizer) -> Iterator[Piece]:
    """Yields the string and the place of every entry."""
    base = vocabulary.base
    read = MARKS[_marks(base)]
    for token_id, entry in enumerate(vocabulary.vocabulary):
        if token_id < base.vocab_size:
            yield read(entry)
        else:
            yield Piece(_utf8(entry.strip()), START)


def _marks(base: token_ids.Tokenizer) -> str:
    is_library = isinstance(base, library_tokenizer.LibraryTokenizer)
    return base.marks if is_library else KIND_MARKS[base.kind]


def _same_roles(old: token_ids.Tokenizer, new: token_ids.Tokenizer) -> dict[int, list[int]]:
    """Returns the old row of each special token's id, [] where the old ones lack the role."""
    roles: dict[int, list[int]] = {}
    for role in ROLES:
        theirs = getattr(old, role)
        roles.setdefault(getattr(new, role), [theirs] if theirs >= 0 else [])
    return roles


def _cut(
    old: token_ids.Tokenizer, same: Mapping[Piece, list[int]], wanted: Sequence[Piece]
) -> list[list[int]]:
    """Returns the ids, unknown ones too, that the old tokenizer has for each piece in its place."""
    texts = [_decoded(piece.text) for piece in wanted]
    result: list[list[int]] = [[] for _ in wanted]
    blank = " " if old.keeps_blanks else ""
    words, inside = ([], [])
    for place, (text, piece) in enumerate(zip(texts, wanted, strict=True)):
        if not text.strip():
            result[place] = _of_bytes(old, same, piece)
        else:
            (words if piece.place in (START, UNENDED) else inside).append(place)
    within = _inside(old, same, [texts[place] for place in inside])
    words += [place for place, ids in zip(inside, within, strict=True) if ids is None]
    encoded = old.encode_batch([f"{blank}{texts[place]}" for place in words])
    for place, ids in zip([*inside, *words], [*within, *encoded], strict=True):
        result[place] = ids or []
    return result


def _inside(
    old: token_ids.Tokenizer, same: Mapping[Piece, list[int]], texts: Sequence[str]
) -> list[list[int] | None]:
    """Returns the ids of texts that go on with a word; None where that cannot be found out.

    They are what follows a letter, where that letter keeps the tokens that it has alone.
    """
    if isinstance(base := old.base, wordpiece.WordPieceTokenizer):
        return list(map(base.encode_inside, texts))
    result: list[list[int] | None] = [None] * len(texts)
    blank = " " if old.keeps_blanks else ""
    for probe in _probes(same):
        before = old.encode(f"{blank}{probe}")
        places = [place for place, ids in enumerate(result) if ids is None]
        if old.unk_id in before:
            continue
        encoded = old.encode_batch([f"{blank}{probe}{texts[place]}" for place in places])
        for place, ids in zip(places, encoded, strict=True):
            if ids[: len(before)] == before:
                result[place] = ids[len(before) :]
    return result


def _probes(same: Mapping[Piece, list[int]]) -> list[str]:
    """Returns letters among the pieces, the small ASCII ones from z on first."""
    texts = (_decoded(piece.text) for piece in same if len(piece.text) <= LONGEST_CHARACTER)
    letters = {it for it in texts if len(it) == 1 and it.isalpha() and _place(it) == INSIDE}
    ordered = sorted(letters, key=lambda it: (it.isascii(), it.islower(), it), reverse=True)
    return ordered[:PROBES]


def _of_bytes(old: token_ids.Tokenizer, same: Mapping[Piece, list[int]], piece: Piece) -> list[int]:
    """Returns the ids of bytes that are not a text alone: white space, or a part of a character."""
    base = old.base
    if _marks(base) == "bytes":
        return base.merged(b" " * (piece.place == START) + piece.text)
    of_bytes = [same.get(Piece(bytes([byte]), INSIDE)) for byte in piece.text]
    return [ids[-1] for ids in of_bytes if ids] if all(of_bytes) else []


def _decoded(text: bytes) -> str:
    """Returns the text of bytes, "" where they are not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return ""


def _utf8(text: str) -> bytes:
    return token_ids.without_surrogates(text).encode()


def _place(text: str) -> str:
    return APART if text and wordpiece.is_set_apart(text[0]) else INSIDE


def _of_continued(entry: str) -> Piece:
    inner = entry.removeprefix(wordpiece.CONTINUATION)
    if inner and inner != entry:
        return Piece(_utf8(inner), INSIDE)
    return Piece(_utf8(entry), APART if _place(entry) == APART else START)


def _of_started(entry: str) -> Piece:
    if byte := _BYTE.fullmatch(entry):
        return Piece(bytes([int(byte[1], 16)]), INSIDE)
    text = entry.replace(sentence_piece.WORD_START, " ")
    return Piece(_utf8(text[1:]), START) if text[:1] == " " else Piece(_utf8(text), _place(text))


def _of_byte_characters(entry: str) -> Piece:
    text = byte_bpe.as_bytes(token_ids.without_surrogates(entry))
    if text.startswith(b" "):
        return Piece(text[1:], START)
    return Piece(text, _place(text.decode(errors="replace")))


def _of_ended(entry: str) -> Piece:
    text = entry.removesuffix(library_tokenizer.WORD_END)
    return Piece(_utf8(text), UNENDED if text == entry else START)


# How entries show their places -> what reads one: "##ing" goes on with a word; "▁the" starts one;
# so does "Ġthe", in the characters of bytes; "kot</w>" ends one.
MARKS: dict[str, Callable[[str], Piece]] = {
    "continued": _of_continued,
    "started": _of_started,
    "bytes": _of_byte_characters,
    "ended": _of_ended,
}
# Kind of tokenizer -> its marks; a tokenizer.json has its own.
KIND_MARKS = {
    wordpiece.WordPieceTokenizer.kind: "continued",
    sentence_piece.SentencePieceTokenizer.kind: "started",
    byte_bpe.ByteBpeTokenizer.kind: "bytes",
}
