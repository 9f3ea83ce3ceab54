"""Translations to documents: a text and its translation are one of two lines.

Two files of lines are named SOURCE+TARGET, a table by its path.
"""

from __future__ import annotations

from collections.abc import Iterator

from etils import epath

from bertjax.data import parallel_texts, translations
from bertjax.files import opening
from data_pipelines.formats import base, input_files, text_files

NAME = "translations"


def files(location: str) -> list[str]:
    """Returns the table, or the two files, of a location."""
    if _exists(location):
        return [location]
    parts = location.split(translations.MARK)
    for middle in range(1, len(parts)):
        two = [translations.MARK.join(it) for it in (parts[:middle], parts[middle:])]
        if all(map(_exists, two)):
            return two
    return [location]


def _exists(path: str) -> bool:
    return epath.Path(path).exists()


def size(location: str) -> int:
    """Returns the bytes of all files; ValueError if one is a pipe, which is read once."""
    paths = files(location)
    if pipes := [path for path in paths if opening.is_pipe(path)]:
        raise ValueError(
            f"{pipes[0]} is a pipe, and the files of translations are read twice: write it to a "
            "file first, and give that"
        )
    return sum(map(input_files.size, paths))


def check(location: str, reading: base.Reading) -> None:
    """Raises ValueError unless both texts of the first line or row can be looked for."""
    for path in files(location):
        input_files.find(path)
    next(_pairs(location, reading), None)


def read(location: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields place and text of each pair; those that lack a text are counted and left out."""
    is_empty = True
    for pair in _pairs(location, reading):
        is_empty = False
        log.bytes_read += sum(len(it.encode("utf-8", "replace")) + 1 for it in pair[1:3])
        if pair.fault:
            log.problem("pairs_without_text", pair.place)
            continue
        texts = [" ".join(it.split()) for it in (pair.source, pair.target)]
        text = text_files.clean("\n".join(texts), pair.place, log)
        if len(text) > text_files.LONGEST_LINE_BYTES // 4:
            log.problem("long_lines", pair.place)
        else:
            yield pair.place, text
    if is_empty:
        log.problem("empty_files", location)


def _pairs(location: str, reading: base.Reading) -> Iterator[parallel_texts.Pair]:
    return parallel_texts.pairs(files(location), translations.languages(reading.language))
