"""Opens datasets of tensorflow-datasets; errors name the dataset.

Their examples are read by `bertjax.finetuning.glue_files` and
`data_pipelines.formats.tfds_source`. TensorFlow is imported when a dataset is named, not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from absl import logging

from bertjax.data import records


def builder(name: str, *, hint: str) -> Any:
    """Returns the builder of a registered name, or of the directory of a prepared dataset."""
    records.import_tensorflow()
    import tensorflow_datasets as tfds

    try:
        is_directory = "://" in name or os.path.isdir(name)
        return tfds.builder_from_directory(name) if is_directory else tfds.builder(name)
    except (ValueError, OSError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(
            f"'tfds:{name}' is neither a dataset that tensorflow-datasets knows nor the directory "
            f"of a prepared one ({first_line}); {hint}"
        ) from error


def prepare(builder: Any, *, hint: str) -> None:
    """Downloads and prepares the dataset if that was never done."""
    if builder.info.splits:
        return
    logging.info("preparing the dataset %s in %s", builder.info.full_name, builder.data_dir)
    try:
        builder.download_and_prepare()
    # No connection, no room, or a package that only this dataset needs.
    except (OSError, ImportError) as error:
        raise ValueError(
            f"dataset {builder.info.full_name!r} cannot be downloaded and prepared ({error}); "
            f"{hint}"
        ) from error


def examples(
    builder: Any, split: str, *, add_tfds_id: bool = False, decoders: Any = None
) -> Iterator[dict[str, Any]]:
    """Yields the examples of a split, in numpy, in the order of its files."""
    tf = records.import_tensorflow()
    import tensorflow_datasets as tfds

    read_config = tfds.ReadConfig(
        add_tfds_id=add_tfds_id, interleave_cycle_length=1, try_autocache=False
    )
    dataset = builder.as_dataset(
        split=split, shuffle_files=False, read_config=read_config, decoders=decoders
    )
    try:
        yield from tfds.as_numpy(dataset)
    except tf.errors.OpError as error:
        raise ValueError(
            f"dataset {builder.info.full_name!r} in {builder.data_dir} is damaged "
            f"({error.message}); delete and prepare it again"
        ) from error
