"""The parts of an input format, and the options with which it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from bertjax.files import delimiters, text_encodings
from bertjax.options import faults
from data_pipelines.formats import input_files

SPLITS = ("all", "train", "heldout")

# Between the name of a document that is too long and the number of its part, from 2 on.
PART = "#"


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read a source: what its name cannot say.

    `text_field` is the field, or dotted path of fields, that holds the text of JSON, Parquet and
    TFDS records. `delimiter` stands between the columns of CSV and TSV (see `delimiters`).
    `encoding` is Python's name for the encoding of text files. `language` is the language of a
    unit. With `both_strands` a sequence of DNA is also read as its reverse complement.
    """

    one_document_per_file: bool = False
    text_field: str = "text"
    delimiter: str = delimiters.AUTO
    encoding: str = text_encodings.UTF8
    split: str = "all"
    heldout_fraction: float = 0.02
    language: str = ""
    both_strands: bool = False

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise faults.unknown("split", self.split, SPLITS)
        if not 0 <= self.heldout_fraction < 1:
            raise faults.wrong("heldout_fraction", self.heldout_fraction, "at least 0 and below 1")
        if not all(self.text_field.split(".")):
            must = "the name of a field, or several with dots between them"
            raise faults.wrong("text_field", self.text_field, must)
        if fault := delimiters.fault(self.delimiter):
            raise ValueError(f"delimiter {fault}")
        if fault := text_encodings.fault(self.encoding):
            raise ValueError(f"encoding {fault}")


@dataclasses.dataclass(frozen=True)
class Format:
    """One kind of file or dataset.

    Files are recognized by `suffixes`, patterns of the ends of their names. A source that is not a
    file has a `keyword`, by which the input names it: that word alone or, if it ends with a colon,
    with the location after it. `help` is its name in the description of the input.

    `check(location, reading)` reads the beginning, so that errors come at once.
    `read(location, reading, log)` yields the id and the text of each document: paragraphs separated
    by newlines, or text that `prose` turns into them; that may be slow, since the workers do it.
    The parts of a document that is too long follow each other, named "ID", "ID#2", "ID#3", ....
    Both raise ValueError for a file or dataset that is damaged or not what its name says.
    `names_documents`: ids are the documents' own names (titles), not their places in a file.
    `size(location)` is the number that reading adds to `log.bytes_read`, 0 where it is unknown.
    `files(location)` are the files that it reads.
    `uses` are the fields of `Reading` that this format uses and some other format does not.
    `holds_integers(location, reading)` tells whether documents are token ids, for a vocabulary of
    integers.
    """

    help: str
    read: Callable[[str, Reading, input_files.Log], Iterator[tuple[str, str]]]
    check: Callable[[str, Reading], None] = lambda location, reading: None
    size: Callable[[str], int] = input_files.size
    files: Callable[[str], list[str]] = lambda location: [location]
    suffixes: tuple[str, ...] = ()
    keyword: str = ""
    prose: Callable[[str], str | None] | None = None
    may_be_compressed: bool = True
    uses: tuple[str, ...] = ()
    names_documents: bool = False
    holds_integers: Callable[[str, Reading], bool] = lambda location, reading: False


def part_name(name: str, number: int) -> str:
    """Returns the id of part `number`, from 1 on, of a document."""
    return name if number == 1 else f"{name}{PART}{number}"


def is_later_part(name: str, first: str) -> bool:
    """Returns whether an id is of a later part of the document whose first one is `first`."""
    rest = name.removeprefix(f"{first}{PART}")
    return rest != name and rest.isdecimal()
