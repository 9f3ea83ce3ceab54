"""Sequences of FASTA and FASTQ files, for every program that reads them.

A sequence's name is the first word of its header. Its letters are cleaned by the rules of
`tokenization.letters`; the qualities of FASTQ are left out. A byte that is not UTF-8 is U+FFFD.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertjax.files import text_encodings
from bertjax.tokenization import letters

SUFFIXES = (".fasta", ".fa", ".fas", ".faa", ".fna", ".ffn", ".frn", ".fsa", ".fastq", ".fq")
_HEADERS = (b">", b"@", b";")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Sequence(NamedTuple):
    """A sequence, and the line of its header, from 1."""

    number: int
    name: str
    letters: str


def begins(head: bytes) -> bool:
    """Returns whether a file is FASTA or FASTQ, by its beginning."""
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(_HEADERS)


def sequences(
    file: Iterable[bytes], path: str, alphabet: frozenset[str] = frozenset()
) -> Iterator[Sequence]:
    """Yields the sequences of an open file, whose lines end in line feeds, for an alphabet.

    Raises:
      ValueError: for a line before any header, or a record of FASTQ that is not one.
    """
    # Files that were put together may have marks inside.
    lines = enumerate((line.removeprefix(_BYTE_ORDER_MARK).strip() for line in file), start=1)
    header, parts = None, []
    for number, line in lines:
        if line.startswith((b">", b"@")):
            if header:
                yield Sequence(*header, _text(parts, alphabet))
            header, parts = _header(line, path, number), []
            if line.startswith(b"@"):
                yield Sequence(*header, _text([_of_fastq(path, number, lines)], alphabet))
                header = None
        elif line and not line.startswith(b";"):
            if not header:
                if text_encodings.is_wide_or_binary(line):
                    raise ValueError(f"{path} is not UTF-8 text; {text_encodings.advice(line)}")
                raise ValueError(
                    f"{path}:{number} is {line[:60].decode(errors='replace')!r}, before any "
                    "header: FASTA begins with '>' and a name"
                )
            parts.append(line)
    if header:
        yield Sequence(*header, _text(parts, alphabet))


def _text(parts: list[bytes], alphabet: frozenset[str]) -> str:
    return letters.cleaned(b"".join(parts).decode(errors="replace"), alphabet)


def _header(line: bytes, path: str, number: int) -> tuple[int, str]:
    words = line[1:].decode(errors="replace").split(maxsplit=1)
    return number, words[0] if words else f"{path}:{number}"


def _of_fastq(path: str, number: int, lines: Iterator[tuple[int, bytes]]) -> bytes:
    """Returns the sequence of a record whose header is at `number`: four lines in all."""
    texts = [text for _, text in itertools.islice(lines, 3)]
    if len(texts) < 3 or not texts[1].startswith(b"+") or len(texts[2]) != len(texts[0]):
        raise ValueError(
            f"{path}:{number} begins a record of FASTQ that is not one: it must be '@NAME', the "
            "sequence, '+' and as many qualities as letters, a line each. The file may be cut; "
            "fetch it again"
        )
    return texts[0]
