"""Sequences of FASTA and FASTQ files: each is a document of one paragraph.

`bertjax.data.fasta` reads them. The other strand of a sequence is read as a later part of its
document, so that both are on one side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator

from bertjax.data import fasta
from bertjax.files import text_encodings
from data_pipelines.formats import base, input_files, text_files

# A base, or the IUPAC code of several, -> that of the other strand.
_BASES, _COMPLEMENTS = "ACGTUNRYSWKMBDHV", "TGCAANYRSWMKVHDB"
_OTHER_STRAND = str.maketrans(_BASES, _COMPLEMENTS)


def check(path: str, reading: base.Reading) -> None:
    """Raises a ValueError unless a file begins with the header of a sequence."""
    del reading
    first = input_files.head(path, text_encodings.HEAD_BYTES)
    if text_encodings.is_wide_or_binary(first):
        raise ValueError(f"{path} is not UTF-8 text; {text_encodings.advice(first, '')}")
    if first.strip() and not fasta.begins(first):
        raise ValueError(
            f"{path} begins with {first.decode(errors='replace').strip()[0]!r}; FASTA begins with "
            "'>' and a name, FASTQ with '@'. For sequences without headers name the file .txt, a "
            "sequence in each line"
        )


def read(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (name, sequence)."""
    has_any = False
    with input_files.opened(path, log) as file:
        for _, name, sequence in fasta.sequences(file, path):
            has_any = True
            parts = [*text_files.tidied(name, sequence, log)]
            yield from parts
            if reading.both_strands and parts:
                other = text_files.tidied(name, reverse_complement(sequence, name), log)
                for number, (_, text) in enumerate(other, start=len(parts) + 1):
                    yield base.part_name(name, number), text
    if not has_any:
        log.problem("empty_files", path)


def reverse_complement(sequence: str, name: str) -> str:
    """Returns the other strand of a sequence of DNA or RNA, as DNA, in its reading direction."""
    if others := {*sequence} - {*_BASES}:
        raise ValueError(
            f"the sequence {name} has {', '.join(sorted(others))}, which are not bases of DNA: "
            "leave out --both_strands"
        )
    return sequence.translate(_OTHER_STRAND)[::-1]
