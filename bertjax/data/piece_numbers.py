"""A sentencepiece model with other numbers for its pieces: the special ones that weights have.

What a model's bytes mean is written out here: the library's own class for them wants a newer
protobuf than TensorFlow allows. Source: sentencepiece_model.proto; protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Tags of fields, (field number << 3) | wire type. All fields of a model are length-delimited.
_PIECE, _NAME, _SCORE, _TYPE = 0x0A, 0x0A, 0x15, 0x18
_LENGTH_DELIMITED = 2
_UNKNOWN, _CONTROL = 2, 3  # types of pieces

UNKNOWN_NAME = "<unk>"


def renumbered(model: bytes, *, before: Sequence[str], first: int, after: Sequence[str]) -> bytes:
    """Returns the model with other special pieces in front and at its end.

    The names `before` are followed by its pieces from number `first` on and by the names `after`.
    None of them comes from text; <unk> stands for what is unknown.

    Raises:
      ValueError: if the bytes are no model, or one of the names is among the pieces that stay.
    """
    fields = list(_fields(model))
    kept = [content for tag, content in fields if tag == _PIECE][first:]
    names = {name.encode() for name in (*before, *after)}
    if twice := sorted(names & {_name(piece) for piece in kept}):
        shown = ", ".join(name.decode() for name in twice)
        raise ValueError(
            f"its pieces from {first} on hold {shown}, which have ids of their own: it is another "
            "model than that of the weights"
        )
    pieces = [*map(_special, before), *kept, *map(_special, after)]
    others = [(tag, content) for tag, content in fields if tag != _PIECE]
    return b"".join(_field(*each) for each in [*((_PIECE, piece) for piece in pieces), *others])


def _special(name: str) -> bytes:
    kind = _UNKNOWN if name == UNKNOWN_NAME else _CONTROL
    return _field(_NAME, name.encode()) + bytes([_SCORE, 0, 0, 0, 0, _TYPE, kind])


def _name(piece: bytes) -> bytes:
    """Returns the name of a piece; it is the first of its fields."""
    tag, name = next(_fields(piece), (None, b""))
    if tag != _NAME:
        raise ValueError("it is no sentencepiece model: a piece has no name")
    return name


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + _varint(len(content)) + content


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of length-delimited fields."""
    place = 0
    while place < len(data):
        tag = data[place]
        if tag >> 7 or tag & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"its {len(data)} bytes are no sentencepiece model")
        length, place = _read_varint(data, place + 1)
        if place + length > len(data):
            raise ValueError(f"its {len(data)} bytes are no whole sentencepiece model")
        yield tag, data[place : place + length]
        place += length


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns a number, and where it ends."""
    number = shift = 0
    while True:
        if place >= len(data) or shift > 28:
            raise ValueError(f"its {len(data)} bytes are no sentencepiece model")
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
