import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from bertjax.data import records

LENGTH, PREDICTIONS = 6, 2


def example(first_token=7):
    return {
        "input_ids": np.arange(first_token, first_token + LENGTH),
        "input_mask": np.array([1, 1, 1, 1, 0, 0]),
        "segment_ids": np.array([0, 0, 1, 1, 0, 0]),
        "masked_lm_positions": np.array([1, 0]),
        "masked_lm_ids": np.array([99, 0]),
        "masked_lm_weights": np.array([1.0, 0.0], np.float32),
        "next_sentence_labels": np.array([1]),
    }


def write(directory, *, counts=(3, 2), **fields):
    shards = tuple(
        records.write_shard(
            directory / f"{number}.tfrecord",
            [records.encode(example(10 * number + place)) for place in range(count)],
        )
        for number, count in enumerate(counts)
    )
    values = {
        "tokenizer": {"kind": "wordpiece", "sha256": "a" * 64, "vocab_size": 100},
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "masked_lm_prob": 0.15,
        "pair_objective": "nsp",
        "shards": shards,
        "seed": 3,
        "arguments": {"input": "text"},
        "statistics": {"unigram_entropy": 6.5},
    }
    manifest = records.Manifest(**values | fields)
    manifest.save(directory)
    return manifest


def read(directory, manifest):
    paths = [str(directory / shard.file) for shard in manifest.shards]
    batch = next(iter(tf.data.TFRecordDataset(paths).batch(100)))
    return {name: value.numpy() for name, value in records.parse_batch(batch, manifest).items()}


def test_what_is_encoded_is_parsed_again(tmp_path):
    batch = read(tmp_path, write(tmp_path))
    assert list(batch["input_ids"][:, 0]) == [0, 1, 2, 10, 11]
    for name, values in example(11).items():
        expected = values[0] if name == "next_sentence_labels" else values
        np.testing.assert_array_equal(batch[name][-1], expected)


def test_integers_are_int32_and_weights_float32(tmp_path):
    dtypes = {name: values.dtype for name, values in read(tmp_path, write(tmp_path)).items()}
    assert dtypes.pop("masked_lm_weights") == np.float32
    assert set(dtypes.values()) == {np.dtype(np.int32)}


def test_records_without_masks_or_pairs_give_token_features_only(tmp_path):
    manifest = write(tmp_path, max_predictions_per_seq=0, pair_objective="none")
    assert set(read(tmp_path, manifest)) == set(records.TOKEN_FEATURES)


def test_a_record_of_the_original_script_is_read(tmp_path):
    def feature(values):
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    original = {name: feature(values.tolist()) for name, values in example().items()}
    serialized = tf.train.Example(features=tf.train.Features(feature=original))
    manifest = write(tmp_path)
    batch = records.parse_batch(tf.constant([serialized.SerializeToString()]), manifest)
    np.testing.assert_array_equal(batch["input_ids"][0], example()["input_ids"])
    np.testing.assert_array_equal(batch["masked_lm_weights"][0], [1.0, 0.0])
    assert batch["next_sentence_labels"].shape == (1,)


def test_a_manifest_loads_as_it_was_saved(tmp_path):
    manifest = write(tmp_path)
    assert records.Manifest.load(tmp_path) == manifest
    assert manifest.num_examples == 5
    assert [path.name for path in tmp_path.glob("*draft*")] == []


def test_a_fitting_record_set_opens(tmp_path):
    manifest = write(tmp_path)
    opened = records.open(
        tmp_path, tokenizer_sha256="a" * 64, max_seq_length=LENGTH, pair_objective="nsp"
    )
    assert opened.manifest == manifest
    assert opened.shard_paths == [str(tmp_path / "0.tfrecord"), str(tmp_path / "1.tfrecord")]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"tokenizer_sha256": "b" * 64}, "vocabulary has sha256 aaaaaaaaaaaa.*bbbbbbbbbbbb"),
        ({"max_seq_length": 128}, "max_seq_length is 6, the run wants 128"),
        ({"pair_objective": "nsp"}, "pair_objective is 'none', the run wants 'nsp'"),
    ],
    ids=["vocabulary", "length", "pairs"],
)
def test_records_for_another_run_are_refused(tmp_path, wanted, message):
    write(tmp_path, pair_objective="none")
    with pytest.raises(ValueError, match=message):
        records.open(tmp_path, **wanted)


def test_all_faults_are_reported_at_once(tmp_path):
    write(tmp_path)
    (tmp_path / "0.tfrecord").unlink()
    path = tmp_path / "1.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError) as error:
        records.open(tmp_path, max_seq_length=128)
    message = str(error.value)
    assert "shard 0.tfrecord is missing" in message
    assert "shard 1.tfrecord has" in message and "truncated" in message
    assert "max_seq_length is 6" in message


def test_records_without_examples_are_refused(tmp_path):
    write(tmp_path, counts=(0,))
    with pytest.raises(ValueError, match="no examples"):
        records.open(tmp_path)


def test_a_missing_manifest_says_how_to_get_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_pipelines.build"):
        records.open(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format_version": 1, "colour": 2}'])
def test_a_file_that_is_no_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is not a record manifest"):
        records.open(tmp_path)


def test_tensorflow_is_kept_away_from_accelerators(monkeypatch):
    calls = []
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda *arguments: calls.append(arguments)
    )
    records.import_tensorflow.cache_clear()
    assert records.import_tensorflow() is tf
    assert calls == [([], "GPU"), ([], "TPU")]


def test_another_format_version_is_refused(tmp_path):
    fields = dataclasses.asdict(write(tmp_path)) | {"format_version": 2}
    (tmp_path / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="format_version 2"):
        records.open(tmp_path)
