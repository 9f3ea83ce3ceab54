import json

import numpy as np
import pytest

from bertjax.data import encoding, record_files, records
from tests import small_records
from tests.data import test_streams

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


def described(**fields):
    values = {
        "tokenizer": {"kind": "wordpiece", "sha256": "a" * 64, "vocab_size": 100},
        **{"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS},
        "pair_objective": "nsp",
        "shards": (records.Shard(file="0.tfrecord", examples=3, bytes=300),),
        "seed": 3,
        "arguments": {"input": "text"},
        "statistics": {"unigram_entropy": 6.5, "documents": 4},
    }
    return small_records.manifest(**values | fields)


def write(directory, *, counts=(3, 2), **fields):
    shards = tuple(
        record_files.write_shard(
            directory / f"{number}.tfrecord",
            test_streams.encoded(example(10 * number + place) for place in range(count)),
        )
        for number, count in enumerate(counts)
    )
    manifest = described(**{"shards": shards} | fields)
    manifest.save(directory)
    return manifest


def read(directory, manifest):
    paths = [str(directory / shard.file) for shard in manifest.shards]
    batch = next(iter(records.import_tensorflow().data.TFRecordDataset(paths).batch(100)))
    return {name: value.numpy() for name, value in records.parse_batch(batch, manifest).items()}


def test_what_is_encoded_is_parsed_again(tmp_path):
    batch = read(tmp_path, write(tmp_path))
    assert list(batch["input_ids"][:, 0]) == [0, 1, 2, 10, 11]
    for name, values in example(11).items():
        expected = values[0] if name == "next_sentence_labels" else values
        np.testing.assert_array_equal(batch[name][-1], expected)
        assert batch[name].dtype == (np.float32 if name == "masked_lm_weights" else np.int32)
    manifest = write(tmp_path, max_predictions_per_seq=0, pair_objective="none")
    assert set(read(tmp_path, manifest)) == set(records.TOKEN_FEATURES)


SERIES = {"values": records.Feature(("length", 3), "float32"), "place": records.Feature(())}


def write_series(directory, values):
    """Records that hold no text: numbers for every position and one for the row."""
    columns = {"values": values, "place": np.arange(len(values))}
    shard = record_files.write_shard(directory / "0.tfrecord", encoding.encode_batch(columns))
    no_text = {"tokenizer": {}, "max_predictions_per_seq": 0, "pair_objective": "none"}
    manifest = described(**no_text, shards=(shard,), features=SERIES)
    manifest.save(directory)
    return manifest


def test_records_hold_the_features_of_their_manifest_and_each_position_counts(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, LENGTH, 3)).astype(np.float32)
    batch = read(tmp_path, write_series(tmp_path, values))
    np.testing.assert_array_equal(batch["values"], values)
    assert batch["place"].tolist() == [0, 1, 2, 3] and batch["place"].dtype == np.int32
    np.testing.assert_array_equal(batch["input_mask"], np.ones((4, LENGTH)))
    stored = json.loads((tmp_path / "manifest.json").read_text())
    assert stored["features"]["values"] == [["length", 3], "float32"] and not stored["tokenizer"]
    opened = records.open(tmp_path).manifest
    assert opened.features == SERIES and opened.position_features == ("values", "input_mask")
    batch["values"][2, 1, 0] = np.nan
    assert records.first_misfit(batch, opened) == (
        2,
        "values holds nan, but numbers must be finite",
    )
    assert opened.tokenizer_sha256 is None


def test_the_features_of_text_follow_from_masks_and_pairs(tmp_path):
    features = {name: [["length"], "int32"] for name in records.TOKEN_FEATURES}
    masks = {name: [[2], "int32"] for name in records.MASK_FEATURES[:2]}
    masks["masked_lm_weights"] = [[2], "float32"]
    write(tmp_path)
    stored = json.loads((tmp_path / "manifest.json").read_text())["features"]
    assert stored == features | masks | {"next_sentence_labels": [[], "int32"]}
    changed_manifest(tmp_path, "pair_objective", value="none")
    assert records.open(tmp_path)  # the labels are not read
    for field, value in (("max_predictions_per_seq", 3), ("max_sequences_per_row", 4)):
        changed_manifest(tmp_path, field, value=value)
        with pytest.raises(ValueError, match=f"not a record manifest.*{field}"):
            records.open(tmp_path)


def test_records_are_known_again_by_what_is_read_and_not_by_what_is_told_besides():
    same = described()
    for told in (
        {"arguments": {"input": "/elsewhere/text", "an_option_of_tomorrow": 1}},
        {"statistics": {"unigram_entropy": 6.5, "documents": 4, "a_figure_of_tomorrow": 2}},
        {"tokenizer": dict(same.tokenizer, a_note_of_tomorrow="x")},
    ):
        assert described(**told).digest == same.digest
    other_shard = records.Shard(file="0.tfrecord", examples=3, bytes=301)
    for read in (
        {"max_seq_length": 7},
        {"max_predictions_per_seq": 3},
        {"pair_objective": "sop"},
        {"seed": 4},
        {"max_sequences_per_row": 2},
        {"shards": (other_shard,)},
        {"statistics": {"unigram_entropy": 6.6, "documents": 4}},
        {"statistics": {"unigram_entropy": 6.5, "documents": 4, "checksum": "0"}},
        {"tokenizer": dict(same.tokenizer, sha256="b" * 64)},
    ):
        assert described(**read).digest != same.digest


@pytest.mark.parametrize(
    ("name", "values", "fault"),
    [
        ("segment_ids", [[0], [1], [-2]], "segment_ids holds -2, but they count from 0"),
        (
            "input_ids",
            [[99], [0], [100]],
            "input_ids holds 100, but the vocabulary has 100 entries",
        ),
        ("masked_lm_ids", [[0], [1], [134]], "masked_lm_ids holds 134, but the vocabulary"),
        (
            "masked_lm_positions",
            [[0], [5], [6]],
            "masked_lm_positions holds 6, but it has 6 places",
        ),
        ("next_sentence_labels", [0, 1, 2], "next_sentence_labels holds 2"),
    ],
)
def test_the_first_row_with_a_number_that_fits_nowhere_is_found(name, values, fault):
    ids = np.full((3, 6), 99)
    batch = {"input_ids": ids, "segment_ids": np.zeros((3, 6)), "masked_lm_ids": ids[:, :0]}
    assert records.first_misfit(batch, described()) is None
    row, found = records.first_misfit(batch | {name: np.array(values)}, described())
    assert row == 2 and found.startswith(fault)


def test_a_fitting_record_set_opens_with_the_manifest_that_was_saved(tmp_path):
    manifest = write(tmp_path)
    opened = records.open(tmp_path)
    assert opened.manifest == manifest and manifest.num_examples == 5
    assert opened.shard_paths == [str(tmp_path / "0.tfrecord"), str(tmp_path / "1.tfrecord")]


def test_all_faults_are_reported_at_once(tmp_path):
    write(tmp_path)
    (tmp_path / "0.tfrecord").unlink()
    path = tmp_path / "1.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError) as error:
        records.open(tmp_path, lambda manifest: [f"of length {manifest.max_seq_length}"])
    message = str(error.value)
    assert "shard 0.tfrecord is missing" in message
    assert "shard 1.tfrecord has" in message and "truncated" in message
    assert "of length 6" in message


def test_a_missing_manifest_and_records_without_examples_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_pipelines.build"):
        records.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="a run reads one record directory: build one"):
        records.open("a,b")
    write(tmp_path, counts=(0,))
    with pytest.raises(ValueError, match="no examples"):
        records.open(tmp_path)


def test_a_file_that_is_no_manifest_is_named(tmp_path):
    contents = ["{", "[]", "{}", "null", "\xff\xfe", "[" * 200_000, '{"a":' * 200_000]
    contents.append(json.dumps({"format_version": records.FORMAT_VERSION, "colour": 2}))
    for content in contents:
        (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=r"manifest\.json is not a record manifest"):
            records.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format_version": 1}')
    with pytest.raises(ValueError, match="format_version 1"):
        records.open(tmp_path)


def changed_manifest(directory, *path, value):
    """Changes the field of a manifest that stands at a path of names and places."""
    fields = json.loads((directory / "manifest.json").read_text())
    place = fields
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (directory / "manifest.json").write_text(json.dumps(fields))


def test_a_shard_outside_of_the_directory_is_refused(tmp_path):
    directory = tmp_path / "records"
    directory.mkdir()
    write(directory)
    (tmp_path / "outside.tfrecord").write_bytes((directory / "0.tfrecord").read_bytes())
    for name in ("../outside.tfrecord", "/etc/passwd", "..", "", "gs://bucket/x", "a\\b", None):
        changed_manifest(directory, "shards", 0, "file", value=name)
        message = r"manifest\.json .*the name of a file in the directory"
        with pytest.raises(ValueError, match=message):
            records.open(directory)


def test_a_manifest_that_no_builder_wrote_is_refused(tmp_path):
    write(tmp_path)
    content = (tmp_path / "manifest.json").read_text()
    for path, value, fault in (
        (("shards", 0, "examples"), -3, r"shards\[0\].examples is -3"),
        (("shards", 0, "examples"), 2.5, "is 2.5; it must be a whole number"),
        (("shards", 0, "examples"), True, "is True"),
        (("shards", 1, "examples"), 10**15, r"1,000,000,000,000,000 examples in \d+ bytes"),
        (("shards", 0, "bytes"), "many", r"shards\[0\].bytes is 'many'"),
        (("shards", 1, "file"), "0.tfrecord", "a shard is named twice"),
        (("max_seq_length",), 0, "max_seq_length is 0; .*at least 1"),
        (("max_seq_length",), 10**9, "max_seq_length is 1000000000; .*at most 1,048,576"),
        (("max_predictions_per_seq",), -1, "max_predictions_per_seq is -1"),
        (("seed",), None, "seed is None"),
        (("tokenizer", "vocab_size"), -5, "tokenizer.vocab_size is -5"),
        (("statistics",), [], r"statistics is \[\]; it must be an object"),
        (("features", "input_ids"), [["length"], "int8"], "features.input_ids is .*int32"),
        (("features", "more"), [[0], "int32"], r"features.more.sizes\[0\] is 0"),
        (("features", "more"), [[2, "length"], "int32"], "more.* is 'length'; .*whole number"),
        (("features", "more"), "int32", "features.more is 'int32'; it must be a list"),
    ):
        (tmp_path / "manifest.json").write_text(content)
        changed_manifest(tmp_path, *path, value=value)
        message = rf"manifest\.json is not a record manifest:.*{fault}"
        with pytest.raises(ValueError, match=message):
            records.open(tmp_path)
    # All faults are named together.
    changed_manifest(tmp_path, "seed", value=-1)
    changed_manifest(tmp_path, "shards", 0, "file", value="../0.tfrecord")
    with pytest.raises(ValueError, match=r"seed is -1(.|\n)*shards\[0\].file is '\.\./0"):
        records.open(tmp_path)


def test_a_category_beyond_those_of_the_manifest_is_a_misfit():
    columns = {"columns": [{"name": "a"}, {"name": "b", "categories": ["[UNK]", "x"]}]}
    manifest = described(tokenizer={}, features=records.value_features(1), statistics=columns)
    cells = np.array([[[7.0], [1]], [[7], [2]]], np.float32)
    assert records.first_misfit({"values": cells[:1]}, manifest) is None
    row, fault = records.first_misfit({"values": cells}, manifest)
    assert row == 1 and "values holds 2.0, but numbers must be finite, and categories" in fault


def test_a_class_that_the_manifest_does_not_name_is_a_misfit():
    labels = {"labels": {"kind": "classes", "names": ["a", "b"]}}
    features = {**records.value_features(1), "labels": records.Feature(())}
    manifest = described(tokenizer={}, features=features, statistics=labels)
    assert records.first_misfit({"labels": np.array([0, 1])}, manifest) is None
    row, fault = records.first_misfit({"labels": np.array([0, 2])}, manifest)
    assert row == 1 and "labels holds 2, but the classes are 0 to 1" in fault


def test_tensorflow_is_kept_away_from_accelerators(monkeypatch):
    import tensorflow as tf

    calls = []
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda *arguments: calls.append(arguments)
    )
    records.import_tensorflow.cache_clear()
    assert records.import_tensorflow() is tf
    assert calls == [([], "GPU"), ([], "TPU")]


def test_braces_in_a_name_are_a_part_of_it_but_for_the_length():
    for template, name in (
        ("train_{max_seq_length}", "train_128"),
        ("{a}/{max_seq_length}/{0.__class__}{", "{a}/128/{0.__class__}{"),
        ("{max_seq_length:>9}", "{max_seq_length:>9}"),
    ):
        assert records.directory_of(template, 128) == name
