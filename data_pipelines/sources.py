"""Where documents come from: every source is a generator of `Document`, in a fixed order.

A source is a comma-separated list of
  - paths and globs of files. The suffix says what they hold: `.jsonl .ndjson .json` JSON lines,
    `.parquet` a table, `.xml` a Wikipedia dump, any other plain text; each but Parquet may be
    compressed: `.gz .bz2 .xz .zst`;
  - `tfds:NAME[:split]`, a dataset of tensorflow-datasets, by name or by directory;
  - `documentation`, the built-in corpus.
Here the formats meet; how each is read belongs to `text_files`, `tables`, `wikipedia`,
`tfds_source` and `documentation`, the cutting of paragraphs into sentences to `sentences`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence

from data_pipelines.formats import (
    documentation,
    input_files,
    tables,
    text_files,
    tfds_source,
    wikipedia,
)

DOCUMENTATION = "documentation"
TFDS_PREFIX = "tfds:"
SPLITS = ("all", "train", "heldout")
FORMATS = {
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
    ".parquet": "parquet",
    ".xml": "wikipedia",
}

Log = input_files.Log


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and the name that stays its own whatever else the corpus holds.

    `text` is paragraphs separated by newlines; with markup "wikitext" it is what an author of
    Wikipedia typed, which `prose` turns into paragraphs.
    """

    id: str
    text: str
    markup: str = ""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read a source: what its name cannot say.

    `text_field` is the field, or dotted path of fields, that holds the text of JSON, Parquet and
    TFDS records.

    Raises:
      ValueError: if split, fraction or field are not what they must be.
    """

    one_document_per_file: bool = False
    text_field: str = "text"
    split: str = "all"
    heldout_fraction: float = 0.02

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}; known are {', '.join(SPLITS)}")
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(
                f"heldout_fraction is {self.heldout_fraction}; it must be at least 0 and below 1"
            )
        if not all(self.text_field.split(".")):
            raise ValueError(
                f"text_field is {self.text_field!r}; it must be the name of a field, or several "
                "with dots between them"
            )


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of a source that is read by itself: a file, or a dataset.

    `bytes` is what `Log.bytes_read` grows by while it is read; 0 where nobody knows it before.
    """

    format: str
    location: str
    bytes: int = 0


def documents(
    source: str, reading: Reading = Reading(), log: Log | None = None
) -> Iterator[Document]:
    """Returns the documents of all units of `source`, after a look into each of them.

    Raises:
      FileNotFoundError: if a path or glob matches no file.
      ValueError: if a file or dataset cannot be read as what it seems to be; while iterating too,
        if it turns out to be damaged further on.
    """
    found = units(source)
    check(found, reading)
    record = Log() if log is None else log
    return (document for unit in found for document in read(unit, reading, record))


def units(source: str) -> list[Unit]:
    """Returns the parts of `source` in the order in which they are read; no file comes twice.

    Raises:
      FileNotFoundError: if a path or glob matches no file.
      ValueError: if a path is a directory.
    """
    found: list[Unit] = []
    for part in source.split(","):
        if part == DOCUMENTATION:
            found.append(Unit(DOCUMENTATION, part))
        elif part.startswith(TFDS_PREFIX):
            location = part.removeprefix(TFDS_PREFIX)
            found.append(Unit("tfds", location, tfds_source.size(location)))
        else:
            found += [_file_unit(path) for path in input_files.find(part)]
    first: dict[str, Unit] = {}
    for unit in found:
        first.setdefault(_same_whatever_the_spelling(unit), unit)
    return list(first.values())


def check(units: Sequence[Unit], reading: Reading = Reading()) -> None:
    """Opens every unit and reads its beginning, so that what cannot work is an error at once.

    Raises:
      ValueError: if one cannot be read as what it seems to be.
    """
    for unit in units:
        if unit.format == "text":
            text_files.check(unit.location)
        elif unit.format == "json_lines":
            tables.check_json_lines(unit.location, reading.text_field)
        elif unit.format == "parquet":
            tables.check_parquet(unit.location, reading.text_field)
        elif unit.format == "wikipedia":
            wikipedia.check(unit.location)
        elif unit.format == "tfds":
            tfds_source.check(unit.location, reading.text_field)


def read(unit: Unit, reading: Reading, log: Log) -> Iterator[Document]:
    """Yields the documents of one unit that belong to `reading.split`.

    Raises:
      ValueError: if the unit turns out to be damaged.
    """
    markup = "wikitext" if unit.format == "wikipedia" else ""
    wanted = reading.split == "heldout"
    for name, text in _pairs(unit, reading, log):
        if reading.split == "all" or is_heldout(name, reading.heldout_fraction) == wanted:
            yield Document(name, text, markup)


def is_heldout(document_id: str, heldout_fraction: float) -> bool:
    """Returns whether a document is held out: a function of its id and the fraction alone."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < heldout_fraction * 2**64


def prose(document: Document, log: Log | None = None) -> str:
    """Returns the text without markup, paragraphs separated by newlines.

    Slow for wikitext, so that it belongs into the workers. A page that cannot be parsed is
    recorded in `log` as "unparsable_pages", and its prose is empty.
    """
    if not document.markup:
        return document.text
    if document.markup != "wikitext":
        raise ValueError(f"markup of document {document.id!r} is {document.markup!r}; not known")
    text = wikipedia.prose(document.text)
    if text is None and log is not None:
        log.problem("unparsable_pages", document.id)
    return text or ""


def _pairs(unit: Unit, reading: Reading, log: Log) -> Iterator[tuple[str, str]]:
    path, field = unit.location, reading.text_field
    match unit.format:
        case "text":
            return text_files.documents(
                path, log, one_document_per_file=reading.one_document_per_file
            )
        case "json_lines":
            return tables.json_lines(path, log, text_field=field)
        case "parquet":
            return tables.parquet_rows(path, log, text_field=field)
        case "wikipedia":
            return wikipedia.articles(path, log)
        case "tfds":
            return tfds_source.documents(path, log, text_field=field)
        case "documentation":
            return documentation.documents()
    raise ValueError(f"unit {path!r} has the format {unit.format!r}, which is not known")


def _file_unit(path: str) -> Unit:
    suffix, compression = input_files.suffixes(path)
    # Wikipedia's dumps in parts are named like articles1.xml-p1p41242.bz2.
    name = FORMATS.get(".xml" if suffix.startswith(".xml-p") else suffix, "text")
    if name == "parquet" and compression:
        raise ValueError(f"{path} is compressed as a whole; Parquet cannot be read so, unpack it")
    return Unit(name, path, input_files.size(path))


def _same_whatever_the_spelling(unit: Unit) -> str:
    return (
        unit.location
        if unit.format in (DOCUMENTATION, "tfds") or input_files.is_remote(unit.location)
        else os.path.abspath(unit.location)
    )
