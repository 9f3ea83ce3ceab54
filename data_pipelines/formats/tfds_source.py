"""Datasets of tensorflow-datasets to documents: one example, one document.

TensorFlow is imported when a dataset is named, not before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bertjax.data import tfds_datasets
from data_pipelines.formats import base, input_files, text_files

DEFAULT_SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class Name:
    """A dataset, by registered name or directory, and which of its splits (maybe a slice)."""

    dataset: str
    split: str

    @classmethod
    def parse(cls, location: str) -> Name:
        """Returns the parts of "NAME", "NAME:SPLIT", "DIRECTORY" or "DIRECTORY:SPLIT".

        A directory may have an address: the colon of gs:// is not a border.
        """
        scheme, separator, rest = location.rpartition("://")
        dataset, _, split = rest.partition(":")
        return cls(f"{scheme}{separator}{dataset}", split or DEFAULT_SPLIT)


def check(location: str, reading: base.Reading) -> None:
    """Prepares a dataset if necessary; ValueError unless it has the split and a text field."""
    name, text_field = Name.parse(location), reading.text_field
    builder = _builder(name.dataset)
    # The fields before the splits: those are known before the dataset is downloaded.
    names = sorted(_text_fields(builder.info.features))
    if text_field not in names:
        raise ValueError(
            f"dataset {name.dataset!r} has no text in the field {text_field!r}; text_field must be "
            f"one of {', '.join(names) or '(it has no text)'}"
        )
    tfds_datasets.prepare(
        builder, hint="prepare it with tensorflow-datasets, maybe elsewhere, and give its directory"
    )
    _check_split(builder, name)


def size(location: str) -> int:
    """Returns the bytes of the split, 0 where they are not known."""
    name = Name.parse(location)
    builder = _builder(name.dataset)
    if not builder.info.splits:
        return 0
    _check_split(builder, name)
    return int(getattr(builder.info.splits[name.split], "num_bytes", 0) or 0)


def read(location: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (id, text) of a split in the order of its files.

    The id is the dataset's name and the example's file and place in it, whichever slice is read.
    """
    name = Name.parse(location)
    builder = _builder(name.dataset)
    total, examples = size(location), builder.info.splits[name.split].num_examples
    for number, (tfds_id, encoded) in enumerate(_texts(builder, name, reading.text_field)):
        log.bytes_read += total * (number + 1) // examples - total * number // examples
        place = f"{builder.info.full_name}/{tfds_id}"
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            log.problem("invalid_utf8_records", place)
            continue
        yield from text_files.tidied(place, text, log)


def _texts(builder: Any, name: Name, text_field: str) -> Iterator[tuple[str, bytes]]:
    """Yields (the id in the dataset, text) in the order of the files."""
    import tensorflow_datasets as tfds

    path = text_field.split(".")
    decoders = tfds.decode.PartialDecoding(_nested(path))
    examples = tfds_datasets.examples(builder, name.split, add_tfds_id=True, decoders=decoders)
    for example in examples:
        value: Any = example
        for key in path:
            value = value[key]
        yield example["tfds_id"].decode(), value


def _builder(dataset: str) -> Any:
    return tfds_datasets.builder(
        dataset, hint="look its name up at https://www.tensorflow.org/datasets/catalog/overview"
    )


def _check_split(builder: Any, name: Name) -> None:
    try:
        builder.info.splits[name.split]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"dataset {name.dataset!r} has no split {name.split!r}; it has "
            f"{', '.join(sorted(builder.info.splits))} (give tfds:NAME:SPLIT, or a slice like "
            "train[:10%])"
        ) from error


def _text_fields(features: Any, prefix: str = "") -> list[str]:
    import tensorflow_datasets as tfds

    names = []
    for name, feature in features.items():
        if isinstance(feature, tfds.features.FeaturesDict):
            names += _text_fields(feature, f"{prefix}{name}.")
        elif (
            isinstance(feature, tfds.features.Tensor)
            and feature.shape == ()
            and np.dtype(feature.np_dtype).kind in "OSU"
        ):
            names.append(f"{prefix}{name}")
    return names


def _nested(path: list[str]) -> dict[str, Any]:
    """Returns {"a": {"b": True}} for ["a", "b"]."""
    return {path[0]: _nested(path[1:]) if path[1:] else True}
