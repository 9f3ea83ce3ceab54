"""Pictures of files, tables and arrays, in any mode of Pillow, as upright pictures of 8 bits.

A damaged, very large or rangeless picture is a ValueError of one line with its name.
"""

from __future__ import annotations

import dataclasses
import glob
import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow
from PIL import Image, ImageCms, ImageOps

from bertjax.files import opening, tables
from bertjax.options import faults
from data_pipelines.values import value_tables

# A picture of more pixels is refused: it may be a file made to exhaust memory. Pillow refuses more
# than 178,956,970 in words of its own.
MOST_PIXELS = 1 << 27
MOST_BYTES = 1 << 36  # of an .npz file
# Damaged files make Pillow raise all of these.
_FAULTS = (
    *(OSError, ValueError, TypeError, AttributeError, SyntaxError, AssertionError, LookupError),
    *(ArithmeticError, EOFError, MemoryError, RuntimeError, Image.DecompressionBombError),
    *(struct.error, zlib.error),
)


OF_16_BITS = (0.0, 65_535.0)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How pixels become grey or colours from 0 to 255.

    pixel_range: of more than 8 bits, the values that become 0 and 255; None: `OF_16_BITS` of 16
      bits, and pictures of more bits are refused
    background: the colour behind transparent pixels
    """

    channels: int
    background: tuple[int, ...]
    pixel_range: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of 8 bits, grey or RGB; its number of frames, and extremes of more than 8 bits."""

    image: Image.Image
    frames: int = 1
    extremes: tuple[float, float] | None = None


class DamagedError(ValueError):
    """A picture cannot be read."""


def of_bytes(content: bytes, name: str, rules: Rules) -> Picture:
    """Returns the first frame of the content of a file, turned as its EXIF says."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of notes around the pixels, such as damaged EXIF
            pixels, frames = _decoded(content, rules)
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(" <_io")[0]
        raise DamagedError(f"{name} cannot be read as a picture ({reason:.200})") from error
    if isinstance(pixels, Image.Image):
        return Picture(pixels, frames)
    return dataclasses.replace(of_array(pixels, name, rules), frames=frames)


def _decoded(content: bytes, rules: Rules) -> tuple[Image.Image | np.ndarray, int]:
    """Returns a picture of 8 bits, or the pixels of more; and the number of frames."""
    bound, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the line below names the sizes
    try:
        opened = Image.open(io.BytesIO(content))
    finally:
        Image.MAX_IMAGE_PIXELS = bound
    if opened.width * opened.height > MOST_PIXELS:
        sizes = f"{opened.width:,} x {opened.height:,}"
        raise ValueError(f"it has {sizes} pixels, more than {MOST_PIXELS:,}: make it smaller")
    if opened.format == "EPS":
        raise ValueError("it is PostScript, which Ghostscript would run: convert it to PNG")
    opened.load()
    picture = ImageOps.exif_transpose(opened)
    frames = getattr(opened, "n_frames", 1)
    if picture.mode not in ("I", "F") and not picture.mode.startswith("I;16"):
        return _of_8_bits(picture, rules), frames
    if picture.has_transparency_data:
        raise ValueError("it has more than 8 bits and a transparent colour: remove that")
    values = np.asarray(picture)
    if opened.format == "PPM" and picture.mode == "I":
        values = values.astype(np.uint16)  # Pillow stretches PGM of more than 8 bits to 16
    return values, frames


def _of_8_bits(picture: Image.Image, rules: Rules) -> Image.Image:
    if picture.mode == "LAB":
        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        picture = ImageCms.profileToProfile(picture, lab, rgb, outputMode="RGB") or picture
    if picture.has_transparency_data:
        under = Image.new("RGBA", picture.size, rules.background)
        picture = Image.alpha_composite(under, picture.convert("RGBA"))
    return picture.convert("L" if rules.channels == 1 else "RGB")


def of_array(values: np.ndarray, name: str, rules: Rules) -> Picture:
    """Returns the picture of numbers [height, width], or [height, width, channels] with 1 or 3."""
    values = values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values
    if values.dtype == np.uint8:
        return Picture(_of_8_bits(Image.fromarray(values), rules))
    smallest, largest = float(values.min()), float(values.max())
    if not np.isfinite([smallest, largest]).all():
        raise DamagedError(f"{name} has pixels that are nan or infinite: give them a value")
    low, high = _pixel_range(values, name, rules)
    shades = np.clip((values.astype(np.float64) - low) * (255 / (high - low)), 0, 255)
    image = Image.fromarray(np.rint(shades).astype(np.uint8))
    return Picture(_of_8_bits(image, rules), extremes=(smallest, largest))


def _pixel_range(values: np.ndarray, name: str, rules: Rules) -> tuple[float, float]:
    """Returns the values that become black and white."""
    if rules.pixel_range is None and values.dtype.newbyteorder("=") != np.uint16:
        low = np.fmin.reduce(values, axis=None)  # without nan
        high = np.fmax.reduce(values, axis=None)
        must = (
            f"given, such as {low:.9g},{high:.9g}, the smallest and the largest pixel of {name}, "
            f"which has {values.dtype}"
        )
        raise faults.wrong("--pixel_range", "", must)
    return rules.pixel_range or OF_16_BITS


@dataclasses.dataclass(frozen=True)
class Source:
    """The pictures of an input, and their names, by their numbers; only files have `paths`."""

    total: int
    name: Callable[[int], str]
    picture: Callable[[int], Picture]
    paths: Sequence[str] = ()


def source(path: str, name: str, rules: Rules) -> Source:
    """Returns the pictures of a glob, a table or an array file, in its array or column `name`."""
    suffix = opening.suffixes(path)[0]
    if suffix in (".npy", ".npz"):
        array = opening.open_array(path) if suffix == ".npy" else named_array(path, name, "--array")
        return _of_array(array, path, rules)
    if suffix == ".parquet":
        return _of_column(
            value_tables.column(tables.columns(path), name, path, "--array"), path, rules
        )
    paths = sorted(it for it in glob.glob(path, recursive=True) if os.path.isfile(it))
    if not paths:
        raise FileNotFoundError(f"{path} matches no file; give a glob, such as 'scans/**/*.png'")

    def picture(number: int) -> Picture:
        content = opening.read(paths[number], opening.TOKENIZER_BYTES)
        return of_bytes(content, paths[number], rules)

    return Source(len(paths), paths.__getitem__, picture, paths)


def _of_column(column: pyarrow.ChunkedArray, path: str, rules: Rules) -> Source:
    def name(number: int) -> str:
        return f"row {number + 1} of {path}"

    def picture(number: int) -> Picture:
        held = column[number].as_py()
        # Hugging Face's datasets keep {"bytes": ..., "path": ...}.
        held = held.get("bytes") if isinstance(held, dict) else held
        if not isinstance(held, bytes):
            raise DamagedError(f"{name(number)} has no bytes of a picture: {held!r:.60}")
        return of_bytes(held, name(number), rules)

    return Source(len(column), name, picture)


def _of_array(array: np.ndarray, path: str, rules: Rules) -> Source:
    is_number = array.dtype.kind in "uif" and 0 not in array.shape
    if not is_number or array.ndim not in (3, 4) or array.shape[3:] not in ((), (1,), (3,)):
        raise ValueError(
            f"{path} has the shape {array.shape} of {array.dtype}; it must be numbers [images, "
            "height, width], or with 1 or 3 channels behind"
        )
    if array.dtype != np.uint8:
        _pixel_range(array, path, rules)

    def name(number: int) -> str:
        return f"{path}[{number}]"

    return Source(len(array), name, lambda it: of_array(array[it], name(it), rules))


def named_array(path: str, name: str, option: str) -> np.ndarray:
    """Returns the array of an .npz file that an option names."""
    with opening.opened_arrays(path, MOST_BYTES) as arrays:
        if name in arrays.files:
            return arrays[name]
        known = arrays.files
    raise faults.unknown(option, name, known, f"the arrays of {path}")
