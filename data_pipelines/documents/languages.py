"""The language of a text: by its file, by the path of the file, or by a column of a table.

A language is a name, such as `de`, `zh-Hant` or `eng_Latn`. No list of names is right for
everybody, so any that looks like one is taken. `en+fr` names texts with their translations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator

from etils import epath

from bertjax.data import translations
from bertjax.files import atomic
from data_pipelines.formats import base, input_files

# In the place of a language in the path of an input.
PLACE = "{language}"
_NAME = r"[A-Za-z]{2,8}(?:[_-][A-Za-z0-9]{1,8})*"
_IS_NAME = re.compile(_NAME)
_OF_FILE = rf"{_NAME}(?:{re.escape(translations.MARK)}{_NAME})?"
# Wildcard of a glob -> the regular expression that means the same.
_WILDCARDS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
_PARTS = re.compile(rf"({re.escape(PLACE)}|\*\*/|[*?])")


def fault(name: str) -> str:
    """Returns what is wrong with the name of a language, "" if nothing is."""
    if _IS_NAME.fullmatch(name):
        return ""
    return (
        f"is {name!r}; it must be the name of a language: 2 to 8 letters, and parts of letters and "
        "digits behind - or _, as in de, zh-Hant or eng_Latn"
    )


def is_pair(name: str) -> bool:
    """Returns whether a name is that of a text's language and of its translation's."""
    return translations.are_named(name)


def _is_name(name: str) -> bool:
    """Returns whether a name is one of a language or of two, as of translations."""
    names = translations.languages(name)
    return len(names) == len(set(names)) <= 2 and not any(map(fault, names))


def of_part(part: str) -> tuple[str, str]:
    """Returns path and language of a part of an input: `PATH=LANGUAGE`, or a path and "".

    The last `=` counts only before the name of a language, and where nothing is there by the whole
    name: folders of Parquet files are named `lang=de`.
    """
    path, _, name = part.rpartition("=")
    is_here = not atomic.is_remote(part) and input_files.is_there(glob_of(part))
    if not path or not _is_name(name) or is_here:
        return part, ""
    return path, name


def glob_of(path: str) -> str:
    """Returns the glob of the files that a path with {language} in it stands for."""
    return path.replace(PLACE, "*")


def of_file(file: str, path: str) -> str:
    """Returns what stands in a file's name where `path` has {language}, "" if it has none."""
    if PLACE not in path:
        return ""
    pattern, names = "", 0
    for part in _PARTS.split(path):
        if part == PLACE:
            pattern += "(?P=language)" if names else f"(?P<language>{_OF_FILE})"
            names += 1
        else:
            pattern += _WILDCARDS.get(part) or re.escape(part)
    match = re.fullmatch(pattern, file)
    if match is None:
        raise ValueError(
            f"{file} is one of the files of {path!r}, but has no name of a language in the place "
            f"of {PLACE}: give a narrower path, or INPUT=LANGUAGE for each"
        )
    return match["language"]


def separated(
    location: str, form: base.Format, reading: base.Reading, field: str, directory: epath.Path
) -> dict[str, epath.Path]:
    """Writes the texts of a table into a JSON lines file for each language; returns these.

    `field` is the column, or dotted path of fields, that holds the language. The files are in the
    encoding of `reading`, with the text in its field.
    """
    of_languages = dataclasses.replace(reading, text_field=field)
    try:
        form.check(location, of_languages)
    except ValueError as error:
        raise ValueError(f"language_field is {field!r}: {error}") from error
    paths: dict[str, epath.Path] = {}
    with contextlib.ExitStack() as stack:
        files = {}
        for name, text in _with_languages(location, form, reading, of_languages):
            if name not in files:
                paths[name] = directory / f"{name}.jsonl"
                directory.mkdir(parents=True, exist_ok=True)
                files[name] = stack.enter_context(
                    open(paths[name], "w", encoding=reading.encoding, newline="\n")
                )
            record: object = text
            for key in reversed(reading.text_field.split(".")):
                record = {key: record}
            files[name].write(json.dumps(record) + "\n")
    return paths


def _with_languages(
    location: str, form: base.Format, reading: base.Reading, of_languages: base.Reading
) -> Iterator[tuple[str, str]]:
    """Yields language and text of each row that has a text."""
    names = form.read(location, of_languages, input_files.Log())
    row, name = 0, ""
    for place, text in form.read(location, reading, input_files.Log()):
        wanted = _row(place)
        while row < wanted:
            of_row, name = next(names, ("", ""))
            row = _row(of_row) if of_row else wanted + 1
        if row > wanted or fault(name.strip()):
            found = "" if row > wanted else name.strip()
            raise ValueError(f"{place}: the language {fault(found)}: mend it or leave it out")
        yield name.strip(), text


def _row(place: str) -> int:
    """Returns the number of a row by the id of its document, of which a long one has parts."""
    return int(place.rpartition(":")[2].partition(base.PART)[0])
