"""A record directory is read by tensorflow-datasets as by our own reader."""

import dataclasses
import shutil

import numpy as np
import pytest

from data_pipelines import build
from data_pipelines.building import tfds_metadata
from tests.data_pipelines import conftest, decoded

# tensorflow-datasets 4.9 asks protobuf for what protobuf 7 will no longer tell.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


def built(directory, vocabulary, **changes):
    (directory / "text.txt").write_text(conftest.made_up_text(12))
    changes = {"num_shards": 3} | changes
    places = directory / "text.txt", vocabulary, directory / "made"
    return build.build(conftest.options(*places, **changes))


def by_tfds(directory):
    import tensorflow_datasets as tfds

    # One batch in the order of the files: the default interleaves the shards.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = tfds.builder_from_directory(str(directory)).as_dataset(
        split="train", read_config=config, batch_size=1 << 20
    )
    (batch,) = dataset.as_numpy_iterator()
    return batch


@pytest.mark.parametrize(
    ("mask", "pair_objective"), [("token", "nsp"), ("none", "sop"), ("token", "none")]
)
def test_tfds_reads_what_we_read(tmp_path, vocabulary_directory, mask, pair_objective):
    built(tmp_path, vocabulary_directory, mask=mask, pair_objective=pair_objective)
    shutil.move(tmp_path / "made", tmp_path / "moved")
    found, expected = by_tfds(tmp_path / "moved"), decoded.read(tmp_path / "moved")
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        is_float = name == "masked_lm_weights"
        assert found[name].dtype == (np.float32 if is_float else np.int64)


def test_tfds_knows_sizes_and_origin(tmp_path, vocabulary_directory):
    import tensorflow_datasets as tfds

    manifest = built(tmp_path, vocabulary_directory)
    info = tfds.builder_from_directory(str(tmp_path / "made")).info
    assert info.splits["train"].shard_lengths == [shard.examples for shard in manifest.shards]
    assert info.dataset_size == sum(shard.bytes for shard in manifest.shards)
    most, sha256 = manifest.max_predictions_per_seq, manifest.tokenizer_sha256
    for word in (
        "of 32 tokens",
        f"15% masked, at most {most}",
        "objective nsp",
        "wordpiece",
        sha256,
    ):
        assert word in info.description
    first, *others = manifest.shards
    renamed = dataclasses.replace(first, file="records-0.tfrecord")
    manifest = dataclasses.replace(manifest, shards=(renamed, *others))
    with pytest.raises(ValueError, match="named records-0.tfrecord; .* needs bert-train.tfrecord"):
        tfds_metadata.write(tmp_path / "made", manifest)
