"""TFRecord files of encoded examples: their names, and how one is written whole and read with care.

What a record holds, and the manifest of a directory of such files, belong to `records`; the bytes
of examples and frames to `encoding`; the order in which training reads them to `streams`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from etils import epath

from bertjax.data import encoding, records
from bertjax.files import atomic

if TYPE_CHECKING:
    import tensorflow as tf

WRITE_BLOCK_BYTES = 4 << 20
_LENGTH = struct.Struct("<Q")  # of a record, at the beginning of its frame


def shard_name(index: int, count: int) -> str:
    """Returns the file name of a shard; tensorflow-datasets finds its files by such names."""
    return f"{records.DATASET_NAME}-train.tfrecord-{index:05d}-of-{count:05d}"


def write_shard(path: epath.PathLike, serialized: Iterable[bytes]) -> records.Shard:
    """Writes one TFRecord file of encoded examples, whole or not at all, and returns its entry."""
    path = epath.Path(path)
    count = size = 0
    try:
        with atomic.writing(path) as file:
            for block, examples in _blocks(serialized):
                file.write(block)
                count, size = count + examples, size + len(block)
    except OSError as error:
        if error.filename != str(path):
            raise
        message = f"{error.strerror}: the shard was not written and its draft is removed"
        raise OSError(error.errno, message, str(path)) from error
    return records.Shard(file=path.name, examples=count, bytes=size)


def _blocks(serialized: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yields framed records joined to a few MB, and the number of records."""
    frames: list[bytes] = []
    size = 0
    for record in serialized:
        frames.append(encoding.frame(record))
        size += len(frames[-1])
        if size >= WRITE_BLOCK_BYTES:
            yield b"".join(frames), len(frames)
            frames, size = [], 0
    yield b"".join(frames), len(frames)


def check_frames(path: epath.PathLike) -> None:
    """Raises a ValueError if a record of a shard says that it is longer than the file.

    TensorFlow would ask for that memory at once, and the system would end the process. A file of a
    store is not read twice for it.
    """
    if atomic.is_remote(path) or not os.path.exists(path):  # TensorFlow names a missing one
        return
    size, place = os.stat(path).st_size, 0
    if not size:
        return
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        while place + encoding.FRAME_BYTES <= size:
            (length,) = _LENGTH.unpack_from(content, place)
            if length > size:
                raise ValueError(
                    f"shard {path} cannot be read (its record at byte {place:,} says that it has "
                    f"{length:,} bytes, and the file has {size:,})"
                )
            place += encoding.FRAME_BYTES + length


def serialized(path: epath.PathLike) -> tf.data.Dataset:
    """Returns the tf.data.Dataset of the encoded records of a shard."""
    check_frames(path)
    return records.import_tensorflow().data.TFRecordDataset(os.fspath(path))
