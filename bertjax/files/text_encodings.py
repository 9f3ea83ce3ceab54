"""Encodings and line ends of text files: readers of lines get UTF-8 and line feeds in any case.

An option names the encoding. A guess (by charset_normalizer, from the beginning of a file) is only
for messages. Files of old Macs end their lines with carriage returns.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import re
from collections.abc import Iterator
from typing import Any

import charset_normalizer

UTF8 = "utf-8"
HELP = "of text, CSV, TSV and JSON lines, for example cp1251, cp932 or utf-16"
# Bytes of a file by which its encoding is guessed.
HEAD_BYTES = 1 << 16

# Random bytes hold 11% of control characters, text almost none, and UTF-16 of most scripts half.
_MAXIMUM_CONTROL_SHARE, _WIDE_CONTROL_SHARE = 0.04, 0.2
_CONTROLS = bytes(code for code in [*range(32), 127] if code not in b"\t\n\r\f\x1b")
_SHOWN_CHARACTERS = 40
# Bytes of a text, three lines or so, below which charset_normalizer's order says little. Then its
# candidates count whose share of odd characters ("chaos") is near the best, and whose letters are
# at least half as frequent in a language ("coherence").
ENOUGH_BYTES, _CHAOS_BETWEEN, _COHERENCE_SHARE, _MOST_CANDIDATES = 300, 0.03, 0.5, 4
_BINARY = "binary"
_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16  # that are read of a file at a time

_UTF_16 = ("utf-16", "utf-16-le", "utf-16-be")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# The encodings that files have where they do not have UTF-8. Rarer ones, such as those of old
# printers, fit short texts by chance.
_GUESSED = (
    *(f"cp{number}" for number in range(1250, 1259)),
    *("cp850", "cp852", "cp866", "cp874", "cp932", "cp949", "big5", "gb18030", "euc_jp"),
    *("iso2022_jp", "iso8859_2", "iso8859_5", "koi8_r", "koi8_u", "mac_roman", "mac_cyrillic"),
)
# Encodings among them that few files have today.
_RARE = ("cp1258", "cp850", "cp852", "mac_roman", "mac_cyrillic")
# Languages that are written in cp1252, and other encodings that have most of their letters.
_LATIN = ("cp1250", "cp1254", "cp1257", "cp1258", "mac_roman")
_WESTERN = (
    "Unknown",
    *("Danish", "Dutch", "English", "Finnish", "French", "German", "Icelandic", "Indonesian"),
    *("Italian", "Norwegian", "Portuguese", "Spanish", "Swedish"),
)
# Letters of these languages in files of old Macs; as cp1252 their bytes are rare letters and signs.
_MAC_LETTERS = "äåáàâçéèêùúûüö".encode("mac_roman")

_ICONV = {
    "mac-roman": "macintosh", "iso2022-jp": "iso-2022-jp",
    "utf-16-le": "utf-16le", "utf-16-be": "utf-16be",
}  # fmt: skip

# Text in cp1252 that was read as latin1 holds them in place of dashes and quotes; U+0085 alone is
# also a line end of some systems.
C1_CONTROLS = re.compile("[\x80-\x84\x86-\x9f]")
C1_FAULT = (
    "the text holds C1 controls (U+0080 to U+009F), as if cp1252 had been read as latin1: convert "
    "it again from the file that it comes from, or name the encoding of that file, cp1252"
)

# Stands for bytes that an encoding lacks: no UTF-8 has it, so that they are not UTF-8 either.
_INVALID = "\udcff"
_INVALID_HANDLER = "bertjax.invalid"
codecs.register_error(_INVALID_HANDLER, lambda error: (_INVALID, getattr(error, "end", 0)))


def fault(option: str) -> str | None:
    """Returns the fault of the name of an encoding, None without one."""
    try:
        bytes(4).decode(option, "replace")
    except (LookupError, ValueError):  # not known, or not of text
        return f"is {option!r}; it must be an encoding of text that Python knows, such as cp1251"
    return None


def is_utf8(encoding: str) -> bool:
    """Returns whether an encoding is UTF-8 under any of its names."""
    return codecs.lookup(encoding).name == UTF8


def as_utf8(file: Any, encoding: str, path: Any) -> Any:
    """Returns a file of UTF-8 that holds the text of an open one in `encoding`.

    Bytes that the encoding lacks become one that is not UTF-8. Line ends are as in
    `with_line_feeds`. `path` is for messages.
    """
    if is_utf8(encoding):
        return with_line_feeds(file)
    return with_line_feeds(_opened(_decoded(file, encoding, path)))


def with_line_feeds(file: Any) -> Any:
    r"""Returns a file of the same bytes, in which "\n" ends each line if "\r" alone does so.

    That is so if there is "\r", and no "\n", in its first `_CHUNK_BYTES`. In all other files a lone
    "\r" is a character like others.
    """
    return _opened(_lines_fed(file))


@dataclasses.dataclass(frozen=True)
class Guess:
    """The encoding of bytes that are not UTF-8: `encodings` are those that it may be.

    There are several where the text is too short to tell, and none where nothing fits; then
    `remedy` says what to do, unless that is for the owner of the file to know.
    """

    described: str
    encodings: tuple[str, ...] = ()
    remedy: str = ""


def guess(head: bytes) -> Guess:
    """Returns the encoding that the beginning of a file seems to have."""
    head = head.removeprefix(codecs.BOM_UTF8)
    if _is_mostly_utf8(head):
        return Guess("other lines of the file are UTF-8", remedy="mend this one")
    candidates = _candidates(head)
    if not candidates:
        return Guess("its encoding is not recognized")
    if candidates == [_BINARY]:
        described = "it holds random bytes or other binary data, not text"
        return Guess(described, remedy="give another file")
    texts = [
        " ".join(head.decode(encoding, "replace").lstrip("\ufeff").split())
        for encoding in candidates
    ]
    # Where they differ is shown, or else the first letter beyond ASCII.
    columns = enumerate(itertools.zip_longest(*texts))
    telling = (
        place
        for place, (first, *others) in columns
        if (set(others) - {first} if others else not first.isascii())
    )
    start = max(0, next(telling, 0) - _SHOWN_CHARACTERS // 2)
    named = ", or ".join(
        f"{encoding}, which reads {text[start:][:_SHOWN_CHARACTERS]!r}"
        for encoding, text in zip(candidates, texts, strict=True)
    )
    few = "there is too little text to tell; perhaps it is" if len(texts) > 1 else "it looks like"
    return Guess(f"{few} {named}", tuple(candidates))


def advice(head: bytes, option: str = "") -> str:
    """Returns what bytes that are not UTF-8 look like, and what to do: "it looks like ...".

    `option` names the encoding for the reader of the file, if it has such an option.
    """
    guessed = guess(head)
    if guessed.remedy:
        return f"{guessed.described}: {guessed.remedy}"
    if not guessed.encodings:
        named = f"and name it with {option}" if option else "and convert the file to UTF-8"
        return f"{guessed.described}: ask where the file comes from, {named}"
    encoding = guessed.encodings[0] if len(guessed.encodings) == 1 else "ENCODING"
    convert = f"convert it with `iconv -f {iconv_name(encoding)} -t utf-8`"
    remedy = f"give {option}={encoding}, or {convert}" if option else convert
    which = "" if len(guessed.encodings) == 1 else ", with the one that reads right"
    return f"{guessed.described}: {remedy}{which}"


def iconv_name(encoding: str) -> str:
    """Returns the name by which iconv knows an encoding of Python."""
    return _ICONV.get(encoding, encoding)


def is_wide_or_binary(head: bytes) -> bool:
    """Returns whether the beginning of a file is UTF-16, UTF-32 or no text, but not UTF-8."""
    if head.startswith(tuple(_BYTE_ORDER_MARKS)):
        return True
    return _controls(head) > _WIDE_CONTROL_SHARE * len(head)


def _candidates(head: bytes) -> list[str]:
    """Returns the encodings that bytes may have; `_BINARY` stands for other data.

    Only a short text has several, which read it in different ways. Measured with the
    declaration of human rights: charset_normalizer's two best miss three lines of Latvian and of
    Estonian in cp1257, and name two encodings for most long files; its best alone misses 7 of 18
    files in cp1252.
    """
    if wide := _wide(head):
        return [wide]
    if _controls(head) > _MAXIMUM_CONTROL_SHARE * len(head):
        return [_BINARY]
    whole = head[: head.rfind(b"\n") + 1] or head
    matches = charset_normalizer.from_bytes(
        whole, cp_isolation=list(_GUESSED), preemptive_behaviour=False
    )
    best = matches.best()
    if best is None:
        return []
    encoding = best.encoding
    if encoding in _LATIN and best.language in _WESTERN and _decodes(whole, "cp1252"):
        beyond_ascii = [byte for byte in whole if byte > 127]
        is_of_mac = 4 * sum(byte in _MAC_LETTERS for byte in beyond_ascii) > len(beyond_ascii)
        encoding = "mac_roman" if is_of_mac else "cp1252"
    found = [encoding.replace("_", "-")]
    if len(whole) >= ENOUGH_BYTES:
        return found
    texts = {whole.decode(encoding, "replace")}
    near = [
        it
        for it in matches
        if it.chaos <= best.chaos + _CHAOS_BETWEEN
        and it.coherence >= _COHERENCE_SHARE * best.coherence
    ]
    for match in sorted(near, key=lambda it: it.encoding in _RARE):
        if str(match) not in texts and len(texts) < _MOST_CANDIDATES:
            texts.add(str(match))
            found.append(match.encoding.replace("_", "-"))
    return found


def _wide(head: bytes) -> str:
    """Returns the name of UTF-16 or UTF-32 if bytes are that, with a byte-order mark or not."""
    marks = (name for mark, name in _BYTE_ORDER_MARKS.items() if head.startswith(mark))
    if name := next(marks, ""):
        return name if _is_text(head, name) else ""
    if _controls(head) <= _MAXIMUM_CONTROL_SHARE * len(head):
        return ""
    return next((name for name in _UTF_16[1:] if _is_text(head, name)), "")


def _controls(data: bytes) -> int:
    return len(data) - len(data.translate(None, _CONTROLS))


def _is_text(head: bytes, encoding: str) -> bool:
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    odd = sum(not (one.isprintable() or one in "\ufeff\t\n\r\f") or one == "\ufffd" for one in text)
    return odd <= _MAXIMUM_CONTROL_SHARE * len(text)


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_mistaken(head: bytes, encoding: str) -> bool:
    """Returns whether the beginning of a file is UTF-8, and another text in `encoding`."""
    whole = head if len(head) < HEAD_BYTES else head[: head.rfind(b"\n") + 1]
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return not _controls(whole) and text != whole.decode(encoding, "replace")


def _is_mostly_utf8(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n") if not line.isascii()]
    return 2 * sum(_decodes(line, UTF8) for line in lines) > len(lines)


def _decoded(file: Any, encoding: str, path: Any) -> Iterator[bytes]:
    """Yields the text of an open file as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(_INVALID_HANDLER)
    is_checked, content = False, b"not at the end"
    while content:
        content = file.read(_CHUNK_BYTES)
        if not is_checked and _is_mistaken(content[:HEAD_BYTES], encoding):
            raise ValueError(
                f"{path} is UTF-8, and another text if it is read as {encoding}: leave the "
                f"encoding out, and convert files that are in {encoding} with "
                f"`iconv -f {encoding} -t utf-8`"
            )
        is_checked = True
        text = decoder.decode(content, final=not content)
        yield text.encode("utf-8", "surrogateescape")


def _lines_fed(file: Any) -> Iterator[bytes]:
    # Bytes that a pipe holds now are enough: a whole chunk may take long.
    read = getattr(file, "read1", file.read)
    head = b""
    while b"\n" not in head and len(head) < _CHUNK_BYTES and (piece := read(_PIECE_BYTES)):
        head += piece
    pieces = itertools.chain([head], iter(lambda: read(_PIECE_BYTES), b""))
    if b"\n" in head or b"\r" not in head:
        yield from pieces
        return
    ended = b""
    for piece in pieces:
        # "\r\n", further on, is one end, even if it lies in two pieces.
        rest = piece.removeprefix(b"\n") if ended == b"\r" else piece
        ended = piece[-1:]
        yield rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _opened(pieces: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Pieces(pieces), _PIECE_BYTES)


class _Pieces(io.RawIOBase):
    """A file that is made in pieces, as it is read."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces, self._rest = filter(None, pieces), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._pieces, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
