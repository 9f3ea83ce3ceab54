"""Where documents come from: every source is a generator of `Document`, in a fixed order.

A source is a comma-separated list of paths and globs of files, whose suffix says what they hold,
and of keywords of other sources. The table `FORMATS` lists all formats; a new one is
a module in `formats` and a row, from which options, checks and help follow. The cutting of
paragraphs into sentences belongs to `sentences`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from absl import logging
from etils import epath

from bertjax.data import fasta as fasta_files
from bertjax.files import atomic, directories, opening, path_lists
from data_pipelines.documents import languages
from data_pipelines.formats import (
    base,
    documentation,
    fasta,
    input_files,
    integers,
    table_files,
    text_files,
    tfds_source,
    translations,
    wikipedia,
)

# A warning of files that are given again names this number of them.
NAMES_SHOWN = 10
# The format of files without the suffix of another format.
TEXT = "text"

FORMATS: dict[str, base.Format] = {
    TEXT: base.Format(
        help="text",
        check=text_files.check,
        read=text_files.read,
        uses=("one_document_per_file", "encoding"),
    ),
    "json_lines": base.Format(
        help=".jsonl",
        suffixes=(".jsonl", ".ndjson", ".json"),
        check=table_files.check_json_lines,
        read=table_files.read_json_lines,
        uses=("text_field", "language_field", "encoding"),
        holds_integers=table_files.json_lines_hold_integers,
    ),
    "delimited": base.Format(
        help=".csv .tsv",
        suffixes=(".csv", ".tsv"),
        check=table_files.check_delimited,
        read=table_files.read_delimited,
        uses=("text_field", "language_field", "delimiter", "encoding"),
    ),
    "parquet": base.Format(
        help=".parquet",
        suffixes=(".parquet",),
        check=table_files.check_parquet,
        read=table_files.read_parquet,
        may_be_compressed=False,
        uses=("text_field", "language_field"),
        holds_integers=table_files.parquet_holds_integers,
    ),
    "npy": base.Format(
        help=".npy",
        suffixes=(".npy",),
        check=integers.check_npy,
        read=integers.read_npy,
        may_be_compressed=False,
        holds_integers=lambda location, reading: True,
    ),
    "fasta": base.Format(
        help=".fasta .fastq",
        suffixes=fasta_files.SUFFIXES,
        check=fasta.check,
        read=fasta.read,
        uses=("both_strands",),
    ),
    "wikipedia": base.Format(
        help="Wikipedia .xml",
        # Dumps in parts are named like articles1.xml-p1p41242.bz2.
        suffixes=(".xml", ".xml-p*"),
        check=wikipedia.check,
        read=wikipedia.read,
        prose=wikipedia.prose,
        names_documents=True,
    ),
    "tfds": base.Format(
        help="tfds:NAME",
        keyword="tfds:",
        check=tfds_source.check,
        read=tfds_source.read,
        size=tfds_source.size,
        uses=("text_field",),
        names_documents=True,
    ),
    "documentation": base.Format(
        help="documentation",
        keyword="documentation",
        read=documentation.read,
        size=lambda location: 0,
        names_documents=True,
    ),
    # Chosen by the languages of a text and its translation, en+fr, not by a suffix.
    translations.NAME: base.Format(
        help="translations as TABLE=en+fr or SOURCE+TARGET=en+fr",
        check=translations.check,
        read=translations.read,
        size=translations.size,
        files=translations.files,
    ),
}

Log = input_files.Log
Reading = base.Reading
_AS_A_RULE = Reading()


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and the name that stays its own whatever else the corpus holds.

    `text` is paragraphs separated by newlines; with `markup`, the name of a format, it is what
    `prose` turns into paragraphs. `held_out` is on which side of the split it is. `language` is the
    name of that of the text, "" if it is unknown.
    """

    id: str
    text: str
    markup: str = ""
    held_out: bool = False
    language: str = ""


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of a source that is read by itself: a file, or a dataset.

    Reading it adds `bytes` to `Log.bytes_read`; 0 if the size is unknown. `sha256` is that of the
    copy of a pipe, "" for others. `language` is the name of that of its text, "" if it is unknown.
    """

    format: str
    location: str
    bytes: int = 0
    sha256: str = ""
    language: str = ""


def help_text() -> str:
    """Returns what an input may be, for the help of an option."""
    files = ", ".join(one.help for one in FORMATS.values() if not one.keyword)
    others = ", or ".join(one.help for one in FORMATS.values() if one.keyword)
    packed = " ".join(opening.DECOMPRESSORS)
    return (
        f"files, pipes and globs ({files}; {packed}), - for standard input, {others}; several with "
        f"commas between them. INPUT=LANGUAGE names the language, and so does {languages.PLACE} in "
        "a path"
    )


def formats_that_use(name: str) -> str:
    """Returns the formats for which an option of `Reading` means something."""
    return ", ".join(one.help for one in FORMATS.values() if name in one.uses)


def documents(
    source: str, reading: Reading = _AS_A_RULE, log: Log | None = None
) -> Iterator[Document]:
    """Returns the documents of all units of `source`, after a look into each of them."""
    parts, record = units(source), Log() if log is None else log
    if not any(map(_is_pipe, parts)):
        check_units(parts, reading)
        return (document for unit in parts for document in read_unit(unit, reading, record))
    return _documents_of_pipes(parts, reading, record)


def _documents_of_pipes(parts: Sequence[Unit], reading: Reading, log: Log) -> Iterator[Document]:
    with tempfile.TemporaryDirectory(prefix="bertjax_input_") as scratch:
        copies = stored(parts, epath.Path(scratch))
        check_units(copies, reading)
        for unit in copies:
            yield from read_unit(unit, reading, log)


def stored(units: Sequence[Unit], directory: epath.Path) -> list[Unit]:
    """Returns the units with a copy in `directory` in the place of each pipe, read to its end.

    A pipe gives its text once, and a program looks into its input before it reads it.
    """
    copies = []
    for number, unit in enumerate(units):
        if _is_pipe(unit):
            # The name says how the text is written, as .jsonl.
            target = directory / f"{number}-{os.path.basename(unit.location)}"
            logging.info("%s is a pipe: its text is copied to %s", unit.location, target)
            size, sha256 = input_files.store(unit.location, target)
            unit = Unit(unit.format, str(target), size, sha256, unit.language)
        copies.append(unit)
    return copies


def stamps(units: Sequence[Unit]) -> dict[str, str]:
    """Returns by location what tells whether a file is as it was: its size and its time."""
    return {unit.location: " ".join(_stamps(unit)) for unit in units}


def _stamps(unit: Unit) -> Iterator[str]:
    for file in map(epath.Path, FORMATS[unit.format].files(unit.location)):
        is_file = bool(unit.bytes) and file.exists()
        status = file.stat() if is_file else None
        time = unit.sha256 or (status.mtime if status else 0)
        yield f"{status.length if status else unit.bytes} {time}"


def check_unchanged(units: Sequence[Unit], before: Mapping[str, str]) -> None:
    """Raises a ValueError that names the files that are not as they were at `stamps`."""
    now = stamps(units)
    if changed := [location for location in before if now.get(location) != before[location]]:
        raise ValueError(
            f"the input changed while it was read: {directories.described(changed)}. Run the "
            "command again once nothing writes there"
        )


def _is_pipe(unit: Unit) -> bool:
    # Each process has its own /dev/stdin and /dev/fd/63, even if they are files.
    is_of_process = unit.location.startswith(("/dev/", "/proc/self/"))
    is_file = not FORMATS[unit.format].keyword
    return is_file and (is_of_process or opening.is_pipe(unit.location))


def units(source: str) -> list[Unit]:
    """Returns the parts of `source` in the order in which they are read; no file comes twice.

    Files that are given again are warned of.
    """
    units = (unit for part in split(source) for unit in _units(part))
    first: dict[str, Unit] = {}
    again: list[str] = []
    for unit in units:
        # One file may be spelled in several ways.
        is_here = not FORMATS[unit.format].keyword and not atomic.is_remote(unit.location)
        key = os.path.abspath(unit.location) if is_here else unit.location
        if key in first:
            again.append(unit.location)
            if unit.language != (other := first[key].language):
                raise ValueError(
                    f"the input names {unit.location} twice, with the languages "
                    f"{other or '(none)'!r} and {unit.language or '(none)'!r}: name it once"
                )
        first.setdefault(key, unit)
    if again:
        names = ", ".join(dict.fromkeys(again[:NAMES_SHOWN]))
        more = f" and {len(again) - NAMES_SHOWN} more" if len(again) > NAMES_SHOWN else ""
        logging.warning("the input names %s%s more than once; each is read once", names, more)
    return list(first.values())


def split(source: str) -> list[str]:
    """Returns the parts of a source; a comma belongs to a name if only that is there."""

    def is_there(part: str) -> bool:
        path, _ = languages.of_part(part)
        return _keyword_format(path) is not None or input_files.is_there(languages.glob_of(path))

    return path_lists.rejoined(source.split(","), is_there)


def are_files(part: str) -> bool:
    """Returns whether a part of a source is a path or glob."""
    return _keyword_format(languages.of_part(part)[0]) is None


def by_field(
    units: Sequence[Unit], reading: Reading, field: str, directory: epath.Path
) -> list[Unit]:
    """Returns a unit for each language of each table, copied into `directory`, and the others.

    `field` is the column that holds the language. A unit whose language is known stays as it is.
    """
    found = []
    for number, unit in enumerate(units):
        form = FORMATS[unit.format]
        if unit.language:
            found.append(unit)
            continue
        if "language_field" not in form.uses:
            raise ValueError(
                f"language_field is {field!r}, but {unit.location} has no fields: only "
                f"{formats_that_use('language_field')} have; name its language as INPUT=LANGUAGE"
            )
        target = directory / f"{number}-languages"
        files = languages.separated(unit.location, form, reading, field, target)
        for name, path in files.items():
            found.append(Unit("json_lines", str(path), path.stat().length, language=name))
    return found


def check_units(units: Sequence[Unit], reading: Reading) -> None:
    """Opens every unit and reads its beginning, so that what cannot work is an error at once."""
    for unit in units:
        try:
            FORMATS[unit.format].check(unit.location, _reading_of(unit, reading))
        except text_files.WrongEncoding as error:
            texts = [it.location for it in units if "encoding" in FORMATS[it.format].uses]
            if len(texts) == 1:
                raise
            faults = text_files.encoding_faults(texts, reading.encoding)
            raise text_files.WrongEncoding(faults) from error


def read_unit(unit: Unit, reading: Reading, log: Log) -> Iterator[Document]:
    """Yields the documents of one unit that belong to `reading.split`."""
    form = FORMATS[unit.format]
    markup = unit.format if form.prose else ""
    sides = {"all": (False, True), "train": (False,), "heldout": (True,)}[reading.split]
    first, held_out = "", False
    for name, text in form.read(unit.location, _reading_of(unit, reading), log):
        # The parts of a long document stay on one side.
        if not (first and base.is_later_part(name, first)):
            first = name
            held_out = is_heldout(name if form.names_documents else text, reading.heldout_fraction)
        if held_out in sides:
            yield Document(name, text, markup, held_out, unit.language)


def _reading_of(unit: Unit, reading: Reading) -> Reading:
    return dataclasses.replace(reading, language=unit.language)


def is_heldout(key: str, heldout_fraction: float) -> bool:
    """Returns whether a document is held out: a function of its key and the fraction alone.

    The key is the document's text, so that neither where its file lies nor how that is written
    decides, copies are on one side, and a text may move to another line or file; of articles, TFDS
    examples and docstrings it is their name, which stays when the next edition changes a word.
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < heldout_fraction * 2**64


def prose(document: Document, log: Log | None = None) -> str:
    """Returns the text without markup, paragraphs separated by newlines.

    Slow for wikitext, so that it belongs into the workers. A page that cannot be parsed is
    recorded in `log` as "unparsable_pages", and its prose is empty.
    """
    if not document.markup:
        return document.text
    form = FORMATS.get(document.markup)
    if form is None or form.prose is None:
        raise ValueError(f"markup of document {document.id!r} is {document.markup!r}; not known")
    text = form.prose(document.text)
    if text is None and log is not None:
        log.problem("unparsable_pages", document.id)
    return text or ""


def _keyword_format(part: str) -> str | None:
    for name, form in FORMATS.items():
        takes_location = form.keyword.endswith(":")
        if form.keyword and (
            part.startswith(form.keyword) if takes_location else part == form.keyword
        ):
            return name
    return None


def _units(part: str) -> Iterator[Unit]:
    path, language = languages.of_part(part)
    name = _keyword_format(path)
    if name is None:
        yield from _file_units(path, language)
        return
    form = FORMATS[name]
    location = path.removeprefix(form.keyword) if form.keyword.endswith(":") else path
    yield Unit(name, location, form.size(location), language=language)


def _file_units(path: str, language: str) -> Iterator[Unit]:
    glob = languages.glob_of(path)
    two = translations.files(path) if languages.is_pair(language) else []
    for file in [path] if len(two) == 2 else input_files.find(glob, accepted=help_text()):
        of_file = language or languages.of_file(file, path)
        if languages.is_pair(of_file):
            yield Unit(translations.NAME, file, translations.size(file), language=of_file)
        else:
            yield dataclasses.replace(_file_unit(file), language=of_file)


def _file_unit(path: str) -> Unit:
    suffix, compression = opening.suffixes(path)
    fitting = (
        name
        for name, form in FORMATS.items()
        if any(fnmatch.fnmatchcase(suffix, pattern) for pattern in form.suffixes)
    )
    name = next(fitting, TEXT)
    form = FORMATS[name]
    if compression and not form.may_be_compressed:
        raise ValueError(f"{path} is compressed as a whole; {name} cannot be read so, unpack it")
    return Unit(name, path, form.size(path))
