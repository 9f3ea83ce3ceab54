"""Sequences of FASTA and FASTQ files: each is a document of one paragraph, without white space.

A document's name is the first word of its header. A "*" at the end of a protein, for the stop of
its translation, is left out, and so are the qualities of FASTQ.
"""

from __future__ import annotations

from collections.abc import Iterator

from data_pipelines.formats import base, input_files, text_files

_HEADERS = (">", "@")


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
    """Yields (name, sequence).

    Raises:
      ValueError: if a line belongs to no sequence, or a record of FASTQ is cut.
    """
    del reading
    lines = text_files.lines(path, log)
    has_any = False
    for name, sequence in _records(path, lines):
        has_any = True
        yield from text_files.tidied(name, sequence.removesuffix("*"), log)
    if not has_any:
        log.problem("empty_files", path)


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
