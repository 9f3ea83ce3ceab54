"""Batches of arrays to the bytes of record files: `tf.train.Example` messages, TFRecord frames.

The wire formats are written here in numpy, a whole batch at once, because making a protobuf object
per example takes a hundred times longer than all the rest of writing it. Names of features
belong to `records`, files to `record_files`.

Source: protobuf.dev, "Encoding" (varints, length-delimited fields, packed repeated numbers);
tensorflow/core/example/{example,feature}.proto; tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Mapping, Sequence

import google_crc32c
import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt8

# Tags of the fields, (field number << 3) | 2: all of them are length-delimited.
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
_EXAMPLE_FEATURES, _FEATURES_ENTRY, _ENTRY_KEY, _ENTRY_VALUE = _FIRST, _FIRST, _FIRST, _SECOND
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST, _LIST_VALUE = _FIRST, _SECOND, _THIRD, _FIRST

# Rows that are put together at a time: bounds the memory; fewer take longer each.
_ROWS_AT_A_TIME = 1024

# Values below this are looked up: a vocabulary fits, and the table (512 KiB) does not hurt.
_TABLE_SIZE = 1 << 16

# Source: tensorflow/core/lib/hash/crc32c.h, kMaskDelta.
_CRC_MASK_DELTA = 0xA282EAD8


@dataclasses.dataclass(frozen=True)
class _Block:
    """Some bytes of every row, side by side: of `places` those that `keep` marks (None: all).

    The first dimension is the rows, or one for what all rows share; `length` is the number of
    bytes kept, an array where rows differ.
    """

    places: UInt8[np.ndarray, "rows width"]
    keep: Bool[np.ndarray, "rows width"] | None
    length: int | Int[np.ndarray, " rows"]


def encode_batch(batch: Mapping[str, np.ndarray]) -> list[bytes]:
    """Returns every row of the arrays [rows, ...] as a serialized tf.train.Example.

    Arrays of floats become float lists (float32), those of uint8 one string of bytes, and all
    others int64 lists. The bytes are those of
    protobuf's `SerializeToString(deterministic=True)`.
    """
    arrays = {name: _rows_of_numbers(name, np.asarray(batch[name])) for name in sorted(batch)}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"the arrays of a batch must have equally many rows, but have {counts}")
    rows = next(iter(counts.values()))
    encoded: list[bytes] = []
    for start in range(0, rows, _ROWS_AT_A_TIME):
        part = {name: array[start : start + _ROWS_AT_A_TIME] for name, array in arrays.items()}
        encoded += _encode(part, min(_ROWS_AT_A_TIME, rows - start))
    return encoded


def frame(record: bytes) -> bytes:
    """Returns a record as it stands in a TFRecord file: length, data, a checksum after each."""
    checksum = _MASKED_CRC.pack(_masked_crc(google_crc32c.value(record)))
    return b"".join((_frame_header(len(record)), record, checksum))


def _rows_of_numbers(name: str, array: np.ndarray) -> Shaped[np.ndarray, "rows n"]:
    """Returns the array as [rows, values] after checking that its values can be encoded."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {array.dtype}; it must hold numbers")
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number; it must be an array [rows, ...]")
    if array.dtype.kind in "iu" and array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= 1 << 63:
            raise ValueError(
                f"{name} holds {low if low < 0 else high}; integer features of records must lie "
                "between 0 and 2^63-1"
            )
    if (
        array.dtype.kind in "ub" and array.dtype != np.uint8
    ):  # numpy mixes neither with the signed numbers of a shift
        array = array.astype(np.int64)
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


def _encode(arrays: Mapping[str, Shaped[np.ndarray, "rows n"]], rows: int) -> list[bytes]:
    entries: list[_Block] = []
    for name, array in arrays.items():
        tag, encoded = _LISTS.get(array.dtype.kind, (_INT64_LIST, _varints))
        # An empty list has no values field at all.
        numbers = _field(_LIST_VALUE, [encoded(array)]) if array.shape[1] else []
        feature = _field(tag, numbers)
        key = _field(_ENTRY_KEY, [_constant(name.encode())])
        entries += _field(_FEATURES_ENTRY, [*key, *_field(_ENTRY_VALUE, feature)])
    return _split_rows(_field(_EXAMPLE_FEATURES, entries), rows)


def _field(tag: bytes, content: Sequence[_Block]) -> list[_Block]:
    """Returns a length-delimited field: its tag, the number of bytes that follow, its content."""
    length = sum(block.length for block in content)
    as_array = np.atleast_1d(np.asarray(length, np.int64))[:, None]
    return [_constant(tag), _varints(as_array), *content]


def _constant(data: bytes) -> _Block:
    return _Block(np.frombuffer(data, np.uint8)[None, :], None, len(data))


def _floats(values: Shaped[np.ndarray, "rows n"]) -> _Block:
    places = np.ascontiguousarray(values, "<f4").view(np.uint8)
    return _Block(places, None, places.shape[1])


def _bytes(values: UInt8[np.ndarray, "rows n"]) -> _Block:
    return _Block(np.ascontiguousarray(values), None, values.shape[1])


def _varints(values: Shaped[np.ndarray, "rows n"]) -> _Block:
    """Returns the values in base 128, lowest digits first, 128 added to all but the last digit."""
    highest = int(values.max(initial=0))
    if highest < 128:
        return _Block(values.astype(np.uint8), None, values.shape[1])
    if highest < _TABLE_SIZE:
        digits, used = (table.take(values).view(np.uint8) for table in _varint_tables())
    else:
        digits, used = _varint_digits(values, -(-highest.bit_length() // 7))
    used = used.view(np.bool_)
    length = np.count_nonzero(used, axis=1)
    if len(values) == 1:  # a length that all rows share
        return _Block(digits[used][None, :], None, int(length[0]))
    return _Block(digits, used, length)


@functools.cache
def _varint_tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns four digit bytes and four flags, each as one uint32, of all small values."""
    digits, used = _varint_digits(np.arange(_TABLE_SIZE)[:, None], 4)
    return digits.view(np.uint32)[:, 0], used.view(np.uint32)[:, 0]


def _varint_digits(
    values: Shaped[np.ndarray, "rows n"], width: int
) -> tuple[UInt8[np.ndarray, "rows digits"], UInt8[np.ndarray, "rows digits"]]:
    """Returns `width` digits of each value, and 1 where a digit belongs to the number, else 0."""
    digits = np.empty((*values.shape, width), np.uint8)
    used = np.empty((*values.shape, width), np.uint8)
    for place in range(width):
        rest = values >> (7 * place)
        digits[..., place] = (rest & 127) | ((rest > 127) << 7)
        used[..., place] = rest > 0 if place else 1
    return digits.reshape(len(values), -1), used.reshape(len(values), -1)


def _split_rows(blocks: Sequence[_Block], rows: int) -> list[bytes]:
    """Returns the kept bytes of the blocks, joined for each row."""
    edges = np.cumsum([0, *(block.places.shape[1] for block in blocks)]).tolist()
    places = np.empty((rows, edges[-1]), np.uint8)
    keep = np.ones((rows, edges[-1]), np.bool_)
    for block, begin, end in zip(blocks, edges[:-1], edges[1:], strict=True):
        places[:, begin:end] = block.places
        if block.keep is not None:
            keep[:, begin:end] = block.keep
    # Three times as fast as places[keep], which copies run by run.
    data = places.reshape(-1).take(np.flatnonzero(keep)).tobytes()
    lengths = sum(block.length for block in blocks)
    ends = np.cumsum(np.broadcast_to(lengths, rows)).tolist()
    return [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


# Kind of an array's type -> the list that holds it, and its bytes; others are int64 lists.
_LISTS = {"f": (_FLOAT_LIST, _floats), "u": (_BYTES_LIST, _bytes)}

FRAME_BYTES = 16  # around each record in a TFRecord file
_LENGTH, _MASKED_CRC = struct.Struct("<Q"), struct.Struct("<I")


@functools.lru_cache(maxsize=4096)  # Records of one directory have a few hundred lengths.
def _frame_header(length: int) -> bytes:
    packed = _LENGTH.pack(length)
    return packed + _MASKED_CRC.pack(_masked_crc(google_crc32c.value(packed)))


def _masked_crc(crc: int) -> int:
    """Returns a checksum made unlike one, so that checksums of data with checksums stay sound."""
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + _CRC_MASK_DELTA) & 0xFFFFFFFF
