"""Plain text files to documents; and what counts as clean text, for the other formats too.

Paragraphs are lines. They come out stripped, without control characters, never blank, and no
longer than `LONGEST_LINE_BYTES`, documents no longer than `LONGEST_DOCUMENT`, so that memory is
bounded whatever the input. Whatever is changed or left out is counted in the log.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from bertjax.files import text_encodings
from data_pipelines.formats import base, input_files

LONGEST_LINE_BYTES = 1 << 20
LONGEST_DOCUMENT = 16_000_000  # characters
# With fewer invalid lines, a head counts as damaged and not as text in another encoding.
ENOUGH_LINES = 8
# An error names this number of files in other encodings.
FILES_SHOWN = 10

# Control characters that become spaces, so that the words at both sides stay apart.
_WHITE_CONTROLS = {
    "\x0b": "vertical tab",
    "\x0c": "form feed",
    "\x1c": "file separator",
    "\x1d": "group separator",
    "\x1e": "record separator",
    "\x1f": "unit separator",
    "\x85": "next line",
}
_NAMES = _WHITE_CONTROLS | {"\x00": "NUL", "\x08": "backspace", "\x1b": "escape"}
_NAMED = 3  # different control characters of a line
# JSON can spell surrogates, which are not characters, and no encoder takes them.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_C0_CONTROLS = bytes(code for code in [*range(32), 127] if code not in b"\t\n\r")
# Begins the two bytes of every C1 control in UTF-8.
_C1_LEAD = b"\xc2"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (id, paragraphs separated by newlines) of a text file.

    A blank line ends a document unless `reading.one_document_per_file`. Ids are "path:first line",
    or the path alone for the one document of a file; those of later parts of what is too long for
    one document end in "#2", "#3", ....
    """
    paragraphs: list[str] = []
    name, part, size, documents = "", 1, 0, 0
    for number, text in lines(path, log, reading.encoding):
        is_full = size + len(text) > LONGEST_DOCUMENT
        if paragraphs and (is_full or not (text or reading.one_document_per_file)):
            goes_on = is_full and bool(text)
            if goes_on:
                log.problem("long_documents", name)
            yield base.part_name(name, part), "\n".join(paragraphs)
            paragraphs, size, part = [], 0, part + 1 if goes_on else 1
        if text:
            if not paragraphs and part == 1:
                name = path if reading.one_document_per_file else f"{path}:{number}"
                documents += 1
            paragraphs.append(text)
            size += len(text) + 1
    if paragraphs:
        yield base.part_name(name, part), "\n".join(paragraphs)
    if not documents:
        log.problem("empty_files", path)


def lines(
    path: str, log: input_files.Log, encoding: str = text_encodings.UTF8
) -> Iterator[tuple[int, str]]:
    r"""Yields (number from 1, clean stripped text) of the lines, pieces of long ones separately.

    Only "\n" ends a line, or "\r" in files that have no other end. Lines that are not in the
    encoding are counted and left out.
    """
    with input_files.opened(path, log, encoding) as file:
        for number, piece in _pieces(file, path, log):
            try:
                text = piece.decode()
            except UnicodeDecodeError:
                log.problem("invalid_utf8_lines", f"{path}:{number}")
                continue
            # The bytes tell faster than the text that nothing is to be done, as nearly always.
            if len(piece.translate(None, _C0_CONTROLS)) != len(piece) or _C1_LEAD in piece:
                text = clean(text, f"{path}:{number}", log)
            if "\r" in (text := text.strip()):
                log.problem("carriage_returns", f"{path}:{number}")
            yield number, text


def clean(text: str, place: str, log: input_files.Log) -> str:
    """Returns text without control characters; those that are white space become spaces."""
    controls = dict.fromkeys(_CONTROLS.findall(text))
    if not controls:
        return text
    kind = "c1_controls" if text_encodings.C1_CONTROLS.search(text) else "control_characters"
    if controls.keys() <= _WHITE_CONTROLS.keys():
        kind = "controls_as_spaces"
    named = [f"U+{ord(it):04X} {_NAMES.get(it, '')}".strip() for it in controls]
    log.problem(kind, f"{place} ({', '.join(named[:_NAMED])})")
    return _CONTROLS.sub(lambda match: " " if match.group() in _WHITE_CONTROLS else "", text)


def tidied(name: str, text: str, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields one text as documents, by the rules for text files; nothing if it is blank.

    There is more than one only if the text is too long; then later ids end in "#2", "#3", ....
    """
    text = clean(text, name, log)
    paragraphs = [line for paragraph in text.split("\n") if (line := paragraph.strip())]
    if not paragraphs:
        log.problem("empty_documents", name)
    elif len(text) <= LONGEST_LINE_BYTES // 4:
        # Too short to be cut, as nearly always; a character has four bytes at most.
        yield name, "\n".join(paragraphs)
    else:
        yield from _parts(
            name, [part for line in paragraphs for part in _cut(line, name, log)], log
        )


class WrongEncoding(ValueError):
    """The beginning of a file is not text in the encoding that was given."""


def check(path: str, reading: base.Reading) -> None:
    """Raises WrongEncoding unless the beginning of a file is text in the encoding of `reading`."""
    first = input_files.head(path, text_encodings.HEAD_BYTES)
    if fault := _encoding_fault(path, first, reading.encoding):
        advice = text_encodings.advice(first, "--encoding")
        raise WrongEncoding(f"{path} is not {fault}; {advice}")


def encoding_faults(paths: Sequence[str], encoding: str) -> str:
    """Returns the files that are not in the encoding, with a guess for each, and a remedy."""
    wrong, others_decide = [], False
    for path in paths:
        first = input_files.head(path, text_encodings.HEAD_BYTES)
        if _encoding_fault(path, first, encoding):
            wrong.append(path)
        else:
            others_decide |= not first.isascii()
    guesses = {
        path: text_encodings.guess(input_files.head(path, text_encodings.HEAD_BYTES))
        for path in wrong[:FILES_SHOWN]
    }
    shown = [f"{path}: {guess.described}" for path, guess in guesses.items()]
    if len(wrong) > FILES_SHOWN:
        shown.append(f"and {len(wrong) - FILES_SHOWN} more")
    alike = {guess.encodings for guess in guesses.values()}
    convert = "convert each of them with `iconv -f ENCODING -t utf-8 FILE > NEW_FILE`"
    if len(alike) == 1 and len(alternatives := alike.pop()) == 1:
        convert = convert.replace("ENCODING", text_encodings.iconv_name(alternatives[0]))
        if text_encodings.is_utf8(encoding) and not others_decide:
            convert = f"give --encoding={alternatives[0]}, or {convert}"
    name = "UTF-8" if text_encodings.is_utf8(encoding) else encoding
    return "\n  ".join([f"{len(wrong)} of {len(paths)} files are not {name}; {convert}:", *shown])


def _encoding_fault(path: str, first: bytes, encoding: str) -> str:
    """Returns why the beginning of a file is not in an encoding: "UTF-8 text", "" if it is."""
    if text_encodings.is_utf8(encoding) and text_encodings.is_wide_or_binary(first):
        return "UTF-8 text"
    whole = text_encodings.as_utf8(io.BytesIO(first), encoding, path).read()
    if len(first) == text_encodings.HEAD_BYTES:
        whole = whole[: whole.rfind(b"\n") + 1]
    written = [line for line in whole.split(b"\n") if line.strip()]
    beyond_ascii = [line for line in written if not line.isascii()]
    # Bytes that are not UTF-8 do not come back.
    invalid = sum(line.decode(errors="ignore").encode() != line for line in beyond_ascii)
    if 2 * invalid > len(written) or (invalid >= ENOUGH_LINES and 2 * invalid > len(beyond_ascii)):
        name = "UTF-8" if text_encodings.is_utf8(encoding) else encoding
        return (
            f"{name} text: {invalid} of the {len(beyond_ascii)} lines with characters beyond ASCII "
            "at its beginning are not"
        )
    return ""


def _pieces(file: BinaryIO, path: str, log: input_files.Log) -> Iterator[tuple[int, bytes]]:
    """Yields (number, line), long lines in several pieces of the same number."""
    number, rest, was_cut = 1, b"", False
    while piece := rest + file.readline(LONGEST_LINE_BYTES - len(rest)):
        if number == 1 and not was_cut:
            piece = piece.removeprefix(_BYTE_ORDER_MARK)
        if len(piece) == LONGEST_LINE_BYTES and not piece.endswith(b"\n"):
            if not was_cut:
                log.problem("long_lines", f"{path}:{number}")
            end = _place_to_cut(piece)
            yield number, piece[:end]
            rest, was_cut = piece[end:], True
            continue
        # The rest of a long line must not look like a blank line.
        if not (was_cut and piece.isspace()):
            yield number, piece
        number, rest, was_cut = number + 1, b"", False


def _place_to_cut(piece: bytes) -> int:
    after_space = max(piece.rfind(b" "), piece.rfind(b"\t")) + 1
    if after_space > 0:
        return after_space
    end = len(piece) - 1
    # At most three bytes continue a character; more of them are not UTF-8.
    while end > len(piece) - 4 and piece[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _cut(line: str, place: str, log: input_files.Log) -> Iterator[str]:
    """Yields a paragraph in pieces that are not too long."""
    encoded = line.encode()
    if len(encoded) <= LONGEST_LINE_BYTES:
        yield line
        return
    log.problem("long_lines", place)
    start = 0
    while start < len(encoded):
        piece = encoded[start : start + LONGEST_LINE_BYTES]
        end = len(piece) if start + len(piece) == len(encoded) else _place_to_cut(piece)
        if text := piece[:end].decode().strip():
            yield text
        start += end


def _parts(name: str, paragraphs: list[str], log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields the paragraphs as one document, or as several if they are too long for one."""
    start, size, number = 0, 0, 1
    for index, paragraph in enumerate(paragraphs):
        if size + len(paragraph) > LONGEST_DOCUMENT:
            log.problem("long_documents", name)
            yield base.part_name(name, number), "\n".join(paragraphs[start:index])
            start, size, number = index, 0, number + 1
        size += len(paragraph) + 1
    yield base.part_name(name, number), "\n".join(paragraphs[start:])
