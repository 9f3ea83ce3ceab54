r"""Images to records: squares of pixels, of which training makes crops, flips and patches.

    python -m data_pipelines.build_images --input='scans/**/*.png' --output=DIR --size=224

DIR gets a record directory for each part: train, heldout and test.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import io
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow
from PIL import Image, UnidentifiedImageError

from bertjax.cli import command_line
from bertjax.data import pictures, records
from bertjax.files import opening, tables
from bertjax.options import faults
from data_pipelines.values import value_records, value_tables

SCALINGS = ("standard", "imagenet", "half")
# Source: torchvision, the models' weights; facebookresearch/mae, main_pretrain.py.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MOST_MEASURED = 10_000  # training images whose channels are averaged
# A picture of more pixels is refused: it may be a file made to exhaust memory.
MOST_PIXELS = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The input, and what a row is."""

    taken = ("size", "patch", "channels", "scaling")
    kept = {"channel_means": "", "channel_deviations": "", "labels": "labels"}

    input: str = command_line.option(
        "a glob of picture files (PNG, JPEG and others that Pillow reads); a .parquet file with "
        "the bytes of such files; or a .npy or .npz file with uint8 [images, height, width] or "
        "[images, height, width, channels]"
    )
    size: int = command_line.option(
        "height and width; pictures are cut to squares", default=224, at_least=1, at_most=1 << 14
    )
    patch: int = command_line.option("height and width of a patch", default=16, at_least=1)
    channels: int = command_line.option("3: colours; 1: shades of grey", default=3)
    array: str = command_line.option(
        "the array of a .npz file, or the column of a .parquet file", default="images"
    )
    labels: str = command_line.option(
        "the array of a .npz file, or the column of a .parquet file, with the class of each image; "
        "or folder: the name of the folder that a picture is in; unset: none",
        default="",
    )
    scaling: str = command_line.option(
        "how each channel is scaled: standard, by the training part; imagenet, by the moments of "
        "ImageNet; half: from -1 to 1",
        choices=lambda: SCALINGS,
        default="standard",
    )
    parts: str = command_line.option(
        "images, or shares, of the parts train, heldout and test, with commas between them; they "
        "are dealt by a hash of their pixels, so that copies are in one part",
        default="0.8,0.1,0.1",
    )


class _Source(Protocol):
    """Pictures by their numbers."""

    def __len__(self) -> int: ...

    def image(self, number: int) -> Image.Image: ...

    def name(self, number: int) -> str: ...


@dataclasses.dataclass(frozen=True)
class _Files:
    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, number: int) -> str:
        return self.paths[number]

    def image(self, number: int) -> Image.Image:
        path = self.paths[number]
        return _opened(opening.read(path, opening.TOKENIZER_BYTES), path)


@dataclasses.dataclass(frozen=True)
class _Bytes:
    """A column of a table, with the bytes of a picture file in each row."""

    path: str
    column: pyarrow.ChunkedArray

    def __len__(self) -> int:
        return len(self.column)

    def name(self, number: int) -> str:
        return f"row {number + 1} of {self.path}"

    def image(self, number: int) -> Image.Image:
        held = self.column[number].as_py()
        # Hugging Face's datasets keep {"bytes": ..., "path": ...}.
        held = held.get("bytes") if isinstance(held, dict) else held
        if not isinstance(held, bytes):
            raise ValueError(f"{self.name(number)} has no bytes of a picture: {held!r:.60}")
        return _opened(held, self.name(number))


def _opened(content: bytes, name: str) -> Image.Image:
    """Returns the picture of a file; ValueError if it is none, or too large."""
    try:
        opened = Image.open(io.BytesIO(content))
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(
                f"{name} has {opened.width:,} x {opened.height:,} pixels, more than "
                f"{MOST_PIXELS:,}: make it smaller"
            )
        opened.load()
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{name} is not a whole picture: {error}") from error
    return opened


@dataclasses.dataclass(frozen=True)
class _Array:
    path: str
    pixels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, number: int) -> str:
        return f"{self.path}[{number}]"

    def image(self, number: int) -> Image.Image:
        pixels = self.pixels[number]
        return Image.fromarray(
            pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
        )


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a part."""

    source: _Source
    numbers: np.ndarray
    options: Options
    labels: np.ndarray | None = None

    @property
    def length(self) -> int:
        """[CLS] and the patches."""
        return 1 + (self.options.size // self.options.patch) ** 2

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        chosen = self.numbers[numbers].tolist()
        row = {records.PIXELS_FEATURE: np.stack([self._pixels(it) for it in chosen])}
        if self.labels is not None:
            row[records.LABELS_FEATURE] = self.labels[chosen]
        return row

    def _pixels(self, number: int) -> np.ndarray:
        options = self.options
        return pictures.resized(self.source.image(number), options.size, channels=options.channels)


Statistics = Mapping[str, Any]


class _Builder:
    """The pictures of an input, and their parts."""

    def __init__(self, options: Options, known: Statistics | None):
        if options.size % options.patch or options.channels not in (1, 3):
            raise ValueError(
                f"--size is {options.size}, --patch {options.patch} and --channels "
                f"{options.channels}; the size must be a multiple of the patch, and channels 1 or 3"
            )
        self.options, self.source = options, _source(options)
        self.parts = {"": np.arange(len(self.source))}
        if known is None:
            self.parts = value_records.by_part(_parts(self.source, options))
        self._labels: np.ndarray | None = None

    def fit(self) -> Statistics:
        """Returns the moments of the training part, and the classes of all parts."""
        options = self.options
        training = Pictures(self.source, self.parts["train"], options)
        means, deviations = _moments(training, options)
        fitted: dict[str, Any] = {
            "patch": options.patch, "channel_means": means, "channel_deviations": deviations
        }  # fmt: skip
        if options.labels:
            names = [str(name) for name in sorted({*_given_labels(self.source, options)})]
            fitted["labels"] = {"kind": "classes", "names": names}
        return self.adopt(fitted)

    def adopt(self, fitted: Statistics) -> Statistics:
        """Returns the decisions; ValueError if a picture is of another class."""
        options = self.options
        if not options.labels:
            return fitted
        if "labels" not in fitted:
            raise faults.unread("--labels", options.labels, f"{options.like} has no labels", "")
        given = [str(it) for it in _given_labels(self.source, options)]
        places = {name: at for at, name in enumerate(fitted["labels"]["names"])}
        if unknown := sorted({*given} - {*places}):
            raise ValueError(f"{options.like} has no image of the class {unknown[0]!r}")
        self._labels = np.array([places[it] for it in given], np.int32)
        return fitted

    def rows(self, fitted: Statistics, part: str) -> tuple[Pictures, Statistics]:
        """Returns the pictures of a part, and what its manifest keeps."""
        return Pictures(self.source, self.parts[part], self.options, self._labels), fitted

    def files(self, fitted: Statistics) -> value_records.Files:
        """Returns no further files."""
        return {}


def _restored(statistics: Statistics, path: str) -> Statistics:
    names = ("patch", "channel_means", "channel_deviations", "labels")
    return {name: statistics[name] for name in names if name in statistics}


def build(options: Options) -> dict[str, records.Manifest]:
    """Writes the records of all parts, and returns their manifests.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if a file is not a picture, or the options do not fit.
    """
    return value_records.build(options, _Builder, _restored)


def _given_labels(source: _Source, options: Options) -> list[Any]:
    """Returns the class of each image."""
    if options.labels == "folder":
        given = [os.path.basename(os.path.dirname(source.name(it))) for it in range(len(source))]
    elif options.input.endswith(".parquet"):
        table = tables.columns(options.input)
        column = value_tables.column(table, options.labels, options.input, "--labels")
        given = tables.in_microseconds(column).to_pylist()
        if None in given:
            raise ValueError(
                f"row {given.index(None) + 1} of {options.input} has no {options.labels!r}: leave "
                "such rows out"
            )
    else:
        if not options.input.endswith(".npz"):
            raise ValueError(
                f"--labels is {options.labels!r}, an array of a .npz file, and --input is "
                f"{options.input}: for picture files give --labels=folder"
            )
        with np.load(options.input, allow_pickle=False) as arrays:
            if options.labels not in arrays or len(arrays[options.labels]) != len(source):
                raise ValueError(
                    f"{options.input} has no array {options.labels!r} with a class for each of "
                    f"its {len(source):,} images: {', '.join(arrays)}"
                )
            given = arrays[options.labels].tolist()
    return given


def _source(options: Options) -> _Source:
    path = options.input
    if path.endswith((".npy", ".npz")):
        opening.check_regular(path)
        try:
            array = np.load(path, allow_pickle=False)
            array = array if isinstance(array, np.ndarray) else array[options.array]
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path} holds no plain array {options.array!r} of numpy: {error}"
            ) from error
        if (
            array.dtype != np.uint8
            or array.ndim not in (3, 4)
            or array.shape[3:] not in ((), (1,), (3,))
        ):
            raise ValueError(
                f"{path} has the shape {array.shape} of {array.dtype}; it must be uint8 [images, "
                "height, width], or with 1 or 3 channels behind"
            )
        return _Array(path, array)
    if path.endswith(".parquet"):
        table = tables.columns(path)
        return _Bytes(path, value_tables.column(table, options.array, path, "--array"))
    found = sorted(it for it in glob.glob(path, recursive=True) if os.path.isfile(it))
    if not found:
        raise FileNotFoundError(f"{path} matches no file; give a glob, such as 'scans/**/*.png'")
    return _Files(found)


def _parts(source: _Source, options: Options) -> np.ndarray:
    """Returns the number of the part of each image, -1 for none, by the order of their hashes."""
    whole = Pictures(source, np.arange(len(source)), options)
    digests = [
        hashlib.blake2b(whole.take(np.array([at]))[records.PIXELS_FEATURE].tobytes()).digest()
        for at in range(len(source))
    ]
    order = sorted(range(len(source)), key=digests.__getitem__)
    sizes = value_tables.part_sizes(options.parts, len(source), value_records.PARTS)
    by_place = np.repeat([*range(len(value_records.PARTS)), -1], [*sizes, len(source) - sum(sizes)])
    parts = np.empty(len(source), np.int64)
    last, part = b"", 0
    for place, number in enumerate(order):
        if digests[number] != last:  # a copy goes with the first
            last, part = digests[number], int(by_place[place])
        parts[number] = part
    return parts


def _moments(train: Pictures, options: Options) -> tuple[list[float], list[float]]:
    """Returns mean and deviation of each channel, of pixels from 0 to 1."""
    if not len(train):
        raise ValueError(f"no image of {options.input} is in the part train: raise its share")
    channels = options.channels
    if options.scaling == "half":
        return [0.5] * channels, [0.5] * channels
    if options.scaling == "imagenet":
        if channels != 3:
            raise ValueError(f"--scaling is imagenet, of 3 channels, and --channels is {channels}")
        return [*IMAGENET[0]], [*IMAGENET[1]]
    chosen = np.random.default_rng(options.seed).permutation(len(train))[:MOST_MEASURED]
    total = squares = np.zeros(channels)
    for first in range(0, len(chosen), value_records.ROWS_PER_BATCH):
        part = chosen[first : first + value_records.ROWS_PER_BATCH]
        shades = train.take(part)[records.PIXELS_FEATURE].astype(np.float64) / 255
        total = total + shades.mean(axis=(1, 2)).sum(axis=0)
        squares = squares + (shades**2).mean(axis=(1, 2)).sum(axis=0)
    mean = total / len(chosen)
    deviation = np.sqrt(np.maximum(squares / len(chosen) - mean**2, 0))
    return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def main(options: Options) -> None:
    """Builds and prints what was made."""
    for part, manifest in build(options).items():
        command_line.print_report(
            f"{part or options.output}: {manifest.num_examples:,} images, each of "
            f"{manifest.max_seq_length - 1} patches"
        )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
