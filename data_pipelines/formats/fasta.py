"""Sequences of FASTA and FASTQ files: each is a document of one paragraph, without white space.

A document's name is the first word of its header. A "*" at the end of a protein, for the stop of
its translation, is left out, and so are the qualities of FASTQ. The other strand of a sequence is
read as a later part of its document, so that both are on one side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator

from data_pipelines.formats import base, input_files, text_files

_HEADERS = (">", "@")
# A base, or the IUPAC code of several, -> that of the other strand.
_BASES, _COMPLEMENTS = "ACGTUNRYSWKMBDHV", "TGCAANYRSWMKVHDB"
_OTHER_STRAND = str.maketrans(_BASES + _BASES.lower(), _COMPLEMENTS + _COMPLEMENTS.lower())


def check(path: str, reading: base.Reading) -> None:
    """Raises a ValueError unless a file begins with the header of a sequence."""
    del reading
    first = input_files.head(path, 1 << 10).lstrip()[:1].decode("latin-1")
    if first and first not in (*_HEADERS, ";"):
        raise ValueError(
            f"{path} begins with {first!r}; FASTA begins with '>' and a name, FASTQ with '@'. For "
            "sequences without headers name the file .txt, a sequence in each line"
        )


def read(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (name, sequence)."""
    lines = text_files.lines(path, log)
    has_any = False
    for name, sequence in _records(path, lines):
        has_any = True
        parts = [*text_files.tidied(name, sequence.removesuffix("*"), log)]
        yield from parts
        if reading.both_strands and parts:
            other = text_files.tidied(name, reverse_complement(sequence, name), log)
            for number, (_, text) in enumerate(other, start=len(parts) + 1):
                yield base.part_name(name, number), text
    if not has_any:
        log.problem("empty_files", path)


def reverse_complement(sequence: str, name: str) -> str:
    """Returns the other strand of a sequence of DNA or RNA, as DNA, in its reading direction."""
    if others := {*sequence.upper()} - {*_BASES}:
        raise ValueError(
            f"the sequence {name} has {', '.join(sorted(others))}, which are not bases of DNA: "
            "leave out --both_strands"
        )
    return sequence.translate(_OTHER_STRAND)[::-1]


def _records(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    name, parts = "", []
    for number, line in lines:
        if line.startswith("@") and not parts:
            if name:
                yield name, ""
            name = ""
            yield _name(line, path, number), _of_fastq(path, number, lines)
        elif line.startswith(">"):
            if name:
                yield name, "".join(parts)
            name, parts = _name(line, path, number), []
        elif line and not line.startswith(";"):
            if not name:
                raise ValueError(
                    f"{path}:{number} is {line!r:.60}, before any header: FASTA begins with '>' "
                    "and a name"
                )
            parts.append("".join(line.split()))
    if name:
        yield name, "".join(parts)


def _name(header: str, path: str, number: int) -> str:
    return (header[1:].split() or [f"{path}:{number}"])[0]


def _of_fastq(path: str, number: int, lines: Iterator[tuple[int, str]]) -> str:
    """Returns the sequence of a record whose header is at `number`: four lines in all."""
    texts = [text for _, (_, text) in zip(range(3), lines, strict=False)]
    if len(texts) < 3 or not texts[1].startswith("+") or len(texts[2]) != len(texts[0]):
        raise ValueError(
            f"{path}:{number} begins a record of FASTQ that is not one: it must be '@NAME', the "
            "sequence, '+' and as many qualities as letters, a line each. The file may be cut; "
            "fetch it again"
        )
    return texts[0]
