"""The files with which tensorflow-datasets opens a record directory as a dataset.

After `write`, `tfds.builder_from_directory(DIR).as_dataset(split="train")` gives the records, in
any project and wherever the directory has been moved to. `as_data_source` does not: tensorflow-
datasets has no random access to TFRecord files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from etils import epath

from bertjax.data import record_files, records

SPLIT = "train"


def write(directory: epath.PathLike, manifest: records.Manifest) -> None:
    """Writes dataset_info.json and features.json; the same bytes for the same manifest.

    The features are those stored: int64 tokens [max_seq_length], and where the records have them
    masks [max_predictions_per_seq] and the label, a scalar, or [max_sequences_per_row] of them.
    """
    for index, shard in enumerate(manifest.shards):
        name = record_files.shard_name(index, len(manifest.shards))
        if shard.file != name:
            raise ValueError(
                f"shard {index} is named {shard.file}; tensorflow-datasets needs {name}: rename "
                "the shards in the directory and in its manifest"
            )
    records.import_tensorflow()  # before tensorflow-datasets does, to keep it off accelerators
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(directory),
        dataset_name=records.DATASET_NAME,
        split=SPLIT,
        filetype_suffix="tfrecord",
    )
    split = tfds.core.SplitInfo(
        name=SPLIT,
        shard_lengths=[shard.examples for shard in manifest.shards],
        num_bytes=sum(shard.bytes for shard in manifest.shards),
        filename_template=template,
    )
    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        features=_features(manifest),
        split_infos=[split],
        version=f"{manifest.format_version}.0.0",
        description=_description(manifest),
        # The check reads an example through a builder: seconds, and the tests have done it.
        check_data=False,
    )


def _features(manifest: records.Manifest) -> Any:
    import tensorflow_datasets as tfds

    def stored(feature: records.Feature) -> Any:
        if feature.dtype == "uint8":
            return tfds.features.Text()  # bytes as they are
        dtype = np.float32 if feature.dtype == "float32" else np.int64
        if not feature.shape:
            return tfds.features.Scalar(dtype)
        return tfds.features.Tensor(shape=feature.sizes(manifest.max_seq_length), dtype=dtype)

    return tfds.features.FeaturesDict({n: stored(it) for n, it in manifest.features.items()})


def _description(manifest: records.Manifest) -> str:
    described = manifest.tokenizer
    if not described:
        return (
            f"Rows of {manifest.max_seq_length} positions with {', '.join(manifest.features)}. "
            f"Made with bertjax; everything else is in {records.MANIFEST_FILE}."
        )
    masks = (
        f"{manifest.masked_lm_prob:.0%} masked, at most {manifest.max_predictions_per_seq}"
        if manifest.has_static_masks
        else "masks left to training"
    )
    return (
        f"BERT pretraining examples of {manifest.max_seq_length} tokens, {masks}; pair objective "
        f"{manifest.pair_objective}. Tokenizer: {described['kind']}, {described['vocab_size']} "
        f"entries, sha256 {described['sha256']}. Made with bertjax; everything else is in "
        f"{records.MANIFEST_FILE}."
    )
