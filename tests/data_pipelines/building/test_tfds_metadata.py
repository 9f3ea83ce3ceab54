"""A record directory is read by tensorflow-datasets as by our own reader."""

import dataclasses
import shutil

import numpy as np
import pytest

from bertjax.data import encoding, record_files, records
from data_pipelines.building import tfds_metadata
from tests import small_records
from tests.data_pipelines import decoded

# tensorflow-datasets 4.9 asks protobuf for what protobuf 7 will no longer tell.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

LENGTH, PREDICTIONS = 10, 3
COUNTS = (4, 3, 4)


def write(directory, *, static=True, pair_objective="nsp"):
    rng = np.random.default_rng(0)
    directory.mkdir(parents=True)
    shards = []
    for index, count in enumerate(COUNTS):
        batch = {name: rng.integers(0, 300, (count, LENGTH)) for name in records.TOKEN_FEATURES}
        if static:
            batch |= {
                name: rng.integers(0, 10, (count, PREDICTIONS)) for name in records.MASK_FEATURES
            }
            batch["masked_lm_weights"] = batch["masked_lm_weights"].astype(np.float32)
        if pair_objective != "none":
            batch["next_sentence_labels"] = rng.integers(0, 2, (count, 1))
        path = directory / record_files.shard_name(index, len(COUNTS))
        shards.append(record_files.write_shard(path, encoding.encode_batch(batch)))
    manifest = small_records.manifest(
        tokenizer={"kind": "wordpiece", "sha256": "a" * 64, "vocab_size": 300},
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS if static else 0,
        pair_objective=pair_objective,
        shards=tuple(shards),
    )
    manifest.save(directory)
    tfds_metadata.write(directory, manifest)
    return manifest


def by_tfds(directory):
    import tensorflow_datasets as tfds

    # One batch in the order of the files: the default interleaves the shards.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = tfds.builder_from_directory(str(directory)).as_dataset(
        split="train", read_config=config, batch_size=100
    )
    (batch,) = dataset.as_numpy_iterator()
    return batch


@pytest.mark.parametrize(
    ("static", "pair_objective"), [(True, "nsp"), (False, "sop"), (True, "none")]
)
def test_tfds_reads_what_we_read(tmp_path, static, pair_objective):
    write(tmp_path / "made", static=static, pair_objective=pair_objective)
    shutil.move(tmp_path / "made", tmp_path / "moved")
    found, expected = by_tfds(tmp_path / "moved"), decoded.read(tmp_path / "moved")
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        is_float = name == "masked_lm_weights"
        assert found[name].dtype == (np.float32 if is_float else np.int64)


def test_tfds_knows_sizes_and_origin(tmp_path):
    import tensorflow_datasets as tfds

    manifest = write(tmp_path / "made")
    info = tfds.builder_from_directory(str(tmp_path / "made")).info
    assert info.splits["train"].shard_lengths == list(COUNTS)
    assert info.dataset_size == sum(shard.bytes for shard in manifest.shards)
    for word in ("of 10 tokens", "15% masked, at most 3", "objective nsp", "wordpiece", "a" * 64):
        assert word in info.description
    first, *others = manifest.shards
    renamed = dataclasses.replace(first, file="records-0.tfrecord")
    manifest = dataclasses.replace(manifest, shards=(renamed, *others))
    with pytest.raises(ValueError, match="named records-0.tfrecord; .* needs bert-train.tfrecord"):
        tfds_metadata.write(tmp_path / "made", manifest)
