"""Datasets of tensorflow-datasets to documents: one example, one document.

TensorFlow is imported when a dataset is named, not before.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from bertjax.data import records
from data_pipelines.formats import input_files, text_files

DEFAULT_SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class Name:
    """A dataset, by registered name or directory, and which of its splits (maybe a slice)."""

    dataset: str
    split: str

    @classmethod
    def parse(cls, location: str) -> Name:
        """Returns the parts of "NAME", "NAME:SPLIT", "DIRECTORY" or "DIRECTORY:SPLIT"."""
        dataset, _, split = location.partition(":")
        return cls(dataset, split or DEFAULT_SPLIT)


def check(location: str, text_field: str) -> None:
    """Opens a dataset, and downloads and prepares it if that was never done.

    Raises:
      ValueError: if there is no such dataset, split or field of text.
    """
    name = Name.parse(location)
    builder = _builder(name.dataset)
    # The fields before the splits: those are known before the dataset is downloaded.
    names = sorted(_text_fields(builder.info.features))
    if text_field not in names:
        raise ValueError(
            f"dataset {name.dataset!r} has no text in the field {text_field!r}; text_field must be "
            f"one of {', '.join(names) or '(it has no text)'}"
        )
    if not builder.info.splits:
        _prepare(builder)
    _check_split(builder, name)


def size(location: str) -> int:
    """Returns the bytes of the split, 0 where they are not known.

    Raises:
      ValueError: if there is no such dataset or split.
    """
    name = Name.parse(location)
    builder = _builder(name.dataset)
    if not builder.info.splits:
        return 0
    _check_split(builder, name)
    return int(getattr(builder.info.splits[name.split], "num_bytes", 0) or 0)


def documents(location: str, log: input_files.Log, *, text_field: str) -> Iterator[tuple[str, str]]:
    """Yields (id, text) of a split in the order of its files.

    The id is the dataset's name and the example's file and place in it, whichever slice is read.

    Raises:
      ValueError: if a file of the dataset is damaged.
    """
    name = Name.parse(location)
    builder = _builder(name.dataset)
    total, examples = size(location), builder.info.splits[name.split].num_examples
    for number, (tfds_id, encoded) in enumerate(_examples(builder, name, text_field)):
        log.bytes_read += total * (number + 1) // examples - total * number // examples
        place = f"{builder.info.full_name}/{tfds_id}"
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            log.problem("invalid_utf8_records", place)
            continue
        yield from text_files.tidied(place, text, log)


def _examples(builder: Any, name: Name, text_field: str) -> Iterator[tuple[str, bytes]]:
    """Yields (the id in the dataset, text) in the order of the files."""
    tf = records.import_tensorflow()
    import tensorflow_datasets as tfds

    path = text_field.split(".")
    dataset = builder.as_dataset(
        split=name.split,
        shuffle_files=False,
        read_config=tfds.ReadConfig(
            add_tfds_id=True, interleave_cycle_length=1, try_autocache=False
        ),
        decoders=tfds.decode.PartialDecoding(_nested(path)),
    )
    try:
        for example in tfds.as_numpy(dataset):
            value: Any = example
            for key in path:
                value = value[key]
            yield example["tfds_id"].decode(), value
    except tf.errors.OpError as error:
        raise ValueError(
            f"dataset {name.dataset!r} in {builder.data_dir} is damaged ({error.message}); delete "
            "and prepare it again"
        ) from error


def _builder(dataset: str) -> Any:
    records.import_tensorflow()
    import tensorflow_datasets as tfds

    try:
        if os.path.isdir(dataset):
            return tfds.builder_from_directory(dataset)
        return tfds.builder(dataset)
    except (ValueError, OSError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(
            f"input 'tfds:{dataset}' is neither a dataset that tensorflow-datasets knows nor the "
            f"directory of a prepared one ({first_line}); look its name up at "
            "https://www.tensorflow.org/datasets/catalog/overview"
        ) from error


def _prepare(builder: Any) -> None:
    logging.info("preparing the dataset %s in %s", builder.info.full_name, builder.data_dir)
    try:
        builder.download_and_prepare()
    # No connection, no room, or a package that only this dataset needs.
    except (OSError, ImportError) as error:
        raise ValueError(
            f"dataset {builder.info.full_name!r} cannot be downloaded and prepared ({error}); "
            "prepare it with tensorflow-datasets, maybe on another machine, and give its directory"
        ) from error


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
