"""Settings, tokenizers and arrays that others wrote: read whole, if they are files of a sane size.

Corpora and weights have no limit of size, and are not read here.
"""

from __future__ import annotations

import io
import os
import stat
import tokenize
import zipfile
import zlib

import numpy as np
from etils import epath

from bertjax.files import atomic

SETTINGS_BYTES = 64 * 2**20  # of JSON
TOKENIZER_BYTES = 512 * 2**20  # of a vocabulary, a model of sentencepiece or a tokenizer.json
# Damaged headers of .npy and .npz raise all of these.
_ARRAY_FAULTS = (
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError, OSError, MemoryError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, RuntimeError),
)
# The most that an array of .npz grows by when it is unpacked: zeros shrink to a thousandth, and
# counts of tokens or hashes to a third.
MOST_GROWTH = 50


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
            f"{path} has {size:,} bytes, and such a file at most {most_bytes:,}: it is another one"
        )
    return path.read_bytes()


def read_tokenizer(path: epath.PathLike) -> bytes:
    """Returns the content of a vocabulary, a model or a tokenizer.json."""
    return read(path, TOKENIZER_BYTES)


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz by their names; none may hold Python objects."""
    content = read(path, TOKENIZER_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_GROWTH * len(content) + SETTINGS_BYTES:
            raise ValueError(f"{len(content):,} bytes would become {size:,}")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except _ARRAY_FAULTS as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def open_array(path: epath.PathLike) -> np.ndarray:
    """Returns the array of an .npy file, which is read as it is used where it lies on a disk."""
    try:
        if atomic.is_remote(path):
            content = io.BytesIO(epath.Path(path).read_bytes())
            return np.load(content, allow_pickle=False)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except _ARRAY_FAULTS as error:
        raise ValueError(f"{path} cannot be read as an array ({error})") from error
