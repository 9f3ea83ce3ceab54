"""The way to open a file that somebody else wrote; every error names the file.

Inputs (texts and tables) are opened as streams. They may be compressed and of any size, and they
may be pipes, which are read once. Settings, tokenizers, arrays and models must be regular files;
`read` also limits their size.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import pathlib
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow
from etils import epath

from bertjax.files import atomic, text_encodings

SETTINGS_BYTES = 64 * 2**20  # of JSON
TOKENIZER_BYTES = 512 * 2**20  # of a vocabulary, a model of sentencepiece or a tokenizer.json
# The most that an array of .npz grows by when it is unpacked: zeros shrink to a thousandth, and
# counts of tokens or hashes to a third.
MOST_GROWTH = 50
BUFFER_BYTES = 1 << 20

# A file opened for bytes; the files of gzip, bz2 and remote places have no class in common.
File = Any

_READING_FAULTS = (EOFError, lzma.LZMAError, zlib.error, OSError)
# Damaged headers of .npy and .npz raise all of these.
_ARRAY_FAULTS = (
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError, OSError, MemoryError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, RuntimeError),
)
_OPENED_PIPES: set[int] = set()  # by their inodes


@contextlib.contextmanager
def opened(
    path: epath.PathLike, encoding: str | None = None, count: Callable[[int], None] | None = None
) -> Iterator[File]:
    """Opens the decompressed bytes of an input; with `encoding` its text as UTF-8.

    `count` is called with the number of stored bytes at each read. A file that changes until the
    `with` block ends is an error then.
    """
    path = epath.Path(path)
    _check_input(path)
    compression = suffixes(path)[1]
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(path.open("rb"))
            stack.enter_context(_unchanged(file, path))
            if count:
                file = io.BufferedReader(_CountedFile(file, count), BUFFER_BYTES)
            if compression:
                file = stack.enter_context(DECOMPRESSORS[compression](file))
            yield text_encodings.as_utf8(file, encoding, path) if encoding else file
    except _READING_FAULTS as error:
        # Errors of the system have numbers; those of gzip, bz2 and arrow have none.
        if not isinstance(error, OSError) or error.errno is None:
            raise ValueError(
                f"{path} is damaged or not what its suffix {compression or '(none)'} says "
                f"({error}); fetch or compress it again, or leave it out"
            ) from error
        if error.filename not in (None, str(path)):
            raise  # of another file, which the block opened
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error


def _check_input(path: epath.Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a file")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give the path of a file in it")
    if is_pipe(path):
        if (pipe := os.stat(path).st_ino) in _OPENED_PIPES:
            raise ValueError(
                f"{path} is a pipe, which can be read once, and this program reads its files "
                "several times: write the text into a file and give that"
            )
        _OPENED_PIPES.add(pipe)


def suffixes(path: epath.PathLike) -> tuple[str, str]:
    """Returns the suffixes of format and compression, each maybe empty: ".jsonl", ".gz"."""
    name = pathlib.PurePath(str(path).lower())
    if name.suffix in DECOMPRESSORS:
        return pathlib.PurePath(name.stem).suffix, name.suffix
    return name.suffix, ""


def is_pipe(path: epath.PathLike) -> bool:
    """Returns whether a path is a pipe or a device, which can be read once."""
    local = os.fspath(path)
    is_other = os.path.exists(local) and not (os.path.isfile(local) or os.path.isdir(local))
    return "://" not in local and is_other


def check_regular(path: epath.PathLike) -> None:
    """Raises a ValueError if a path is a pipe, a device or a directory, whose reader might wait."""
    if atomic.is_remote(path):
        return
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe"}
        kind = kinds.get(stat.S_IFMT(mode), "a device or a socket")
        raise ValueError(f"{path} is {kind}; it must be a file")


def read(path: epath.PathLike, most_bytes: int = SETTINGS_BYTES) -> bytes:
    """Returns the content of a regular file, also behind links, of at most `most_bytes`."""
    path = epath.Path(path)
    check_regular(path)
    size = path.stat().length
    if size > most_bytes:
        raise ValueError(
            f"{path} has {size:,} bytes; a file of this kind has at most {most_bytes:,}. Is it the "
            "right file?"
        )
    return path.read_bytes()


def read_tokenizer(path: epath.PathLike) -> bytes:
    """Returns the content of a vocabulary, a model or a tokenizer.json."""
    return read(path, TOKENIZER_BYTES)


@contextlib.contextmanager
def opened_arrays(
    path: epath.PathLike, most_bytes: int = TOKENIZER_BYTES
) -> Iterator[np.lib.npyio.NpzFile]:
    """Opens the arrays of an .npz by their names; none may hold Python objects."""
    content = read(path, most_bytes)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_GROWTH * len(content) + SETTINGS_BYTES:
            raise ValueError(f"{len(content):,} bytes would become {size:,}")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            yield stored
    except _ARRAY_FAULTS as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz by their names; none may hold Python objects."""
    with opened_arrays(path) as stored:
        return {name: stored[name] for name in stored.files}


def open_array(path: epath.PathLike) -> np.ndarray:
    """Returns the array of an .npy file, memory-mapped if it is local."""
    check_regular(path)
    try:
        if atomic.is_remote(path):
            content = io.BytesIO(epath.Path(path).read_bytes())
            return np.load(content, allow_pickle=False)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except _ARRAY_FAULTS as error:
        reason = (str(error).splitlines() or ["there is not enough memory"])[0]
        raise ValueError(f"{path} cannot be read as an array ({reason})") from error


@contextlib.contextmanager
def _unchanged(file: File, path: epath.PathLike) -> Iterator[None]:
    """Raises a ValueError in the end if an open file of a disk has changed meanwhile."""
    before = _stamp(file)
    yield
    if _stamp(file) != before:
        raise ValueError(
            f"{path} changed while it was read; run the command again once nothing writes it"
        )


def _stamp(file: File) -> tuple[int, int] | None:
    try:
        status = os.fstat(file.fileno())
    except (AttributeError, OSError, ValueError):
        return None  # no file of a disk
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


class _CountedFile(io.RawIOBase):
    """A file that reports the number of bytes at each read."""

    def __init__(self, file: File, count: Callable[[int], None]):
        self._file = file
        self._count = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if hasattr(self._file, "readinto1"):
            length = self._file.readinto1(buffer)
        else:
            # The files of remote places know no more than `read`.
            content = self._file.read(len(buffer))
            length = len(content)
            buffer[:length] = content
        self._count(length)
        return length


def _zstandard(file: File) -> File:
    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    # For lines, which arrow's streams do not have.
    return io.BufferedReader(stream, BUFFER_BYTES)  # pyright: ignore[reportArgumentType]


DECOMPRESSORS: dict[str, Callable[[File], File]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstandard,
}
