r"""Images to records: pixels at one size, of which training makes crops, flips and patches.

    python -m data_pipelines.build_images --input='scans/**/*.png' --output=DIR --size=224

DIR gets a record directory for each part: train, heldout and test.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from PIL import Image, ImageColor

from bertjax.cli import command_line
from bertjax.data import pictures, records
from bertjax.files import opening, tables
from bertjax.options import faults
from data_pipelines.values import (
    class_labels,
    picture_files,
    picture_survey,
    value_records,
    value_tables,
)

SCALINGS = ("standard", "imagenet", "half")
# Source: torchvision, the models' weights; facebookresearch/mae, main_pretrain.py.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MOST_MEASURED = 10_000  # training images whose channels are averaged
MOST_SIDE = 1 << 14
DEFAULT_PARTS = "0.8,0.1,0.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The input, and what a row is."""

    taken = ("size", "patch", "channels", "scaling", "pixel_range", "background")
    kept = {"channel_means": "", "channel_deviations": "", "labels": "labels"}

    input: str = command_line.option(
        "a glob of picture files (PNG, JPEG and others that Pillow reads); a .parquet file with "
        "the bytes of such files; or a .npy or .npz file with [images, height, width] or "
        "[images, height, width, channels]"
    )
    size: str = command_line.option(
        "height and width, such as 224, or 32x128 for strips; the middle of pictures is cut to it",
        default="224",
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
    pixel_range: str = command_line.option(
        "the values that become black and white in pictures of more than 8 bits, such as 0,4095; "
        "unset: 0 and 65535 in those of 16 bits, and others are refused",
        default="",
    )
    background: str = command_line.option(
        "the colour behind transparent pixels, such as black or #808080", default="white"
    )
    skip_damaged: bool = command_line.option(
        "leave out pictures that cannot be read, and log them", default=False
    )
    parts: str = command_line.option(
        "images, or shares, of the parts train, heldout and test, with commas between them; they "
        f"are dealt by a hash of their pixels, so that copies are in one part; unset: "
        f"{DEFAULT_PARTS}, or with like one part",
        default="",
    )

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width; ValueError if the patch does not divide them."""
        try:
            height, *width = map(int, str(self.size).split("x"))
            (width,) = width or [height]
        except ValueError:
            height = width = 0
        are_possible = all(0 < it <= MOST_SIDE and not it % self.patch for it in (height, width))
        if not are_possible or self.channels not in (1, 3):
            raise ValueError(
                f"--size is {self.size}, --patch {self.patch} and --channels {self.channels}; the "
                f"size must be a side of pictures, or two such as 32x128, up to {MOST_SIDE:,} and "
                "multiples of the patch, and channels 1 or 3"
            )
        return height, width

    @property
    def rules(self) -> picture_files.Rules:
        """How pictures are read; ValueError for an option that is not possible."""
        try:
            background = ImageColor.getrgb(self.background)[:3]
        except ValueError:
            must = "the name of a colour, or #rrggbb"
            raise faults.wrong("--background", self.background, must) from None
        pixel_range = None
        if self.pixel_range:
            try:
                low, high = map(float, self.pixel_range.split(","))
            except ValueError:
                low = high = 0.0
            if not 0 < high - low < np.inf:
                must = "the values of black and of white, the larger one last, such as 0,4095"
                raise faults.wrong("--pixel_range", self.pixel_range, must)
            pixel_range = low, high
        return picture_files.Rules(self.channels, background, pixel_range)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a part."""

    source: picture_files.Source
    numbers: np.ndarray
    options: Options
    labels: np.ndarray | None = None

    @property
    def length(self) -> int:
        """[CLS] and the patches."""
        height, width = (it // self.options.patch for it in self.options.sides)
        return 1 + height * width

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        chosen = self.numbers[numbers].tolist()
        row = {records.PIXELS_FEATURE: np.stack([self._pixels(it) for it in chosen])}
        if self.labels is not None:
            row[records.LABELS_FEATURE] = self.labels[chosen]
        return row

    def _pixels(self, number: int) -> np.ndarray:
        return _resized(self.source.picture(number).image, self.options)


def _resized(image: Image.Image, options: Options) -> np.ndarray:
    return pictures.resized(image, options.sides, channels=options.channels)


Statistics = Mapping[str, Any]


class _Builder:
    """The pictures of an input, and their parts."""

    def __init__(self, options: Options, known: Statistics | None):
        self.options = options
        self.source = picture_files.source(options.input, options.array, options.rules)
        labels = _labels(self.source, options) if options.labels else None
        self._digests, survey = _surveyed(self.source, options)
        rows = np.array([*self._digests])
        self._pixel_range = survey.pixel_range
        self.parts = {"": rows}
        if known is None or options.parts:
            parts = value_records.by_part(_parts([*self._digests.values()], options))
            self.parts = {part: rows[places] for part, places in parts.items()}
        self._classes = []
        if labels is not None:
            where = f"{options.labels!r} of {options.input}"
            self._classes = class_labels.read(labels, where, [*self._digests], self.source.name)
        self._labels: np.ndarray | None = None

    def fit(self) -> Statistics:
        """Returns the moments of the training part, and the classes of all parts."""
        training = Pictures(self.source, self.parts["train"], self.options)
        means, deviations = _moments(training, self.options)
        fitted: dict[str, Any] = {
            "patch": self.options.patch, "channel_means": means, "channel_deviations": deviations
        }  # fmt: skip
        return self.adopt(fitted | self._pixel_range)

    def adopt(self, fitted: Statistics) -> Statistics:
        """Returns the decisions; ValueError if a picture is of another class.

        If the records have no labels, this input decides the classes.
        """
        if not self._classes:
            return fitted
        if "labels" not in fitted:
            names = [str(name) for name in sorted({*self._classes})]
            fitted = {**fitted, "labels": {"kind": "classes", "names": names}}
        places = {name: at for at, name in enumerate(fitted["labels"]["names"])}
        if unknown := sorted({*map(str, self._classes)} - {*places}):
            raise ValueError(f"{self.options.like} has no image of the class {unknown[0]!r}")
        self._labels = np.zeros(self.source.total, np.int32)
        self._labels[[*self._digests]] = [places[str(it)] for it in self._classes]
        return fitted

    def rows(self, fitted: Statistics, part: str) -> tuple[Pictures, Statistics]:
        """Returns the pictures of a part, and what its manifest keeps."""
        return Pictures(self.source, self.parts[part], self.options, self._labels), fitted

    def files(self, fitted: Statistics) -> value_records.Files:
        """Returns no further files."""
        return {}


def _restored(statistics: Statistics, path: str) -> Statistics:
    names = ("patch", "channel_means", "channel_deviations", "pixel_range", "labels")
    return {name: statistics[name] for name in names if name in statistics}


def build(options: Options) -> dict[str, records.Manifest]:
    """Writes the records of all parts, and returns their manifests.

    Raises:
      FileNotFoundError: if there is no input.
      ValueError: if a file is not a picture, or the options do not fit.
    """
    return value_records.build(options, _Builder, _restored)


def _labels(source: picture_files.Source, options: Options) -> Any:
    """Returns the label of each image as the input has it."""
    path, name = options.input, options.labels
    suffix = opening.suffixes(path)[0]
    if source.paths:
        if name != "folder":
            raise faults.wrong("--labels", name, "folder, for picture files")
        labels: Any = [os.path.basename(os.path.dirname(it)) for it in source.paths]
    elif suffix == ".npz":
        labels = picture_files.named_array(path, name, "--labels")
    elif suffix == ".parquet":
        column = value_tables.column(tables.columns(path), name, path, "--labels")
        labels = tables.in_microseconds(column).to_pylist()
    else:
        raise faults.unread("--labels", name, f"{path} has no labels: give a .npz file", "")
    total = len(labels) if isinstance(labels, list) or labels.ndim else 0
    if total != source.total:
        must = f"an array with a label for each of the {source.total:,} images"
        raise faults.wrong("--labels", name, f"{must}; it has {total:,}")
    return labels


def _surveyed(
    source: picture_files.Source, options: Options
) -> tuple[dict[int, bytes], picture_survey.Survey]:
    """Returns the hash of each whole picture by its number, and a survey of all of them.

    Raises:
      ValueError: if a picture is damaged and such are not skipped, or --pixel_range is missing.
    """
    digests: dict[int, bytes] = {}
    survey = picture_survey.Survey(options.rules, options.sides)
    for number in range(source.total):
        try:
            picture = source.picture(number)
        except picture_files.DamagedError as fault:
            if not options.skip_damaged:
                raise ValueError(f"{fault}. --skip_damaged leaves out such pictures") from fault
            logging.warning("%s. It is left out", fault)
            continue
        survey.add(source.name(number), picture)
        digests[number] = hashlib.blake2b(_resized(picture.image, options).tobytes()).digest()
    if not digests:
        raise ValueError(f"{options.input} has no picture that can be read")
    if skipped := source.total - len(digests):
        logging.warning("--skip_damaged: %d of %d pictures are left out", skipped, source.total)
    survey.report()
    return digests, survey


def _parts(digests: Sequence[bytes], options: Options) -> np.ndarray:
    """Returns the number of the part of each image, -1 for none, by the order of their hashes."""
    total = len(digests)
    order = sorted(range(total), key=digests.__getitem__)
    sizes = value_tables.part_sizes(options.parts or DEFAULT_PARTS, total, value_records.PARTS)
    by_place = np.repeat([*range(len(value_records.PARTS)), -1], [*sizes, total - sum(sizes)])
    parts = np.empty(total, np.int64)
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
    least, most = np.full(channels, 255), np.zeros(channels, int)
    for first in range(0, len(chosen), value_records.ROWS_PER_BATCH):
        part = chosen[first : first + value_records.ROWS_PER_BATCH]
        pixels = train.take(part)[records.PIXELS_FEATURE]
        least = np.minimum(least, pixels.min(axis=(0, 1, 2)))
        most = np.maximum(most, pixels.max(axis=(0, 1, 2)))
        shades = pixels.astype(np.float64) / 255
        total = total + shades.mean(axis=(1, 2)).sum(axis=0)
        squares = squares + (shades**2).mean(axis=(1, 2)).sum(axis=0)
    mean = total / len(chosen)
    deviation = np.sqrt(np.maximum(squares / len(chosen) - mean**2, 0))
    # The deviation of a constant need not be 0 once it is rounded.
    return mean.tolist(), np.where(least < most, deviation, 1.0).tolist()


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
