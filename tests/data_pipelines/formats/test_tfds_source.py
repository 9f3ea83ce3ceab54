import pathlib

import numpy as np
import pytest

from bertjax.data import records, tfds_datasets
from data_pipelines.formats import base, input_files, tfds_source

# tensorflow-datasets 4.9.10 still asks protobuf for it.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

TEXTS = [f"text {number}\n\nend" for number in range(40)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    """The directory of a prepared dataset; its split "train" has two files."""
    tf = records.import_tensorflow()
    import tensorflow_datasets as tfds

    directory = tmp_path_factory.mktemp("tfds") / "made" / "1.0.0"
    directory.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {
            "text": tfds.features.Text(),
            "label": tfds.features.Scalar(np.int64),
            "more": {"body": tfds.features.Text()},
        }
    )
    files = {"train": [TEXTS[:25], TEXTS[25:]], "test": [[b"caf\xe9", "last"]]}
    splits = []
    for split, parts in files.items():
        for number, texts in enumerate(parts):
            name = f"made-{split}.tfrecord-{number:05d}-of-{len(parts):05d}"
            with tf.io.TFRecordWriter(str(directory / name)) as writer:
                for text in texts:
                    example = {"text": text, "label": 1, "more": {"body": f"body of {text}"}}
                    encoded = features.encode_example(example)
                    writer.write(features.serialize_example(encoded))
        splits.append(
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=[len(texts) for texts in parts],
                num_bytes=1000,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=directory, dataset_name="made", filetype_suffix="tfrecord"
                ),
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=directory, features=features, split_infos=splits, check_data=False
    )
    return str(directory)


def read(location, text_field="text"):
    log = input_files.Log()
    return list(tfds_source.read(location, base.Reading(text_field=text_field), log)), log


def test_the_train_split_is_read_in_order_by_default(dataset):
    found, log = read(dataset)
    assert [text for _, text in found] == [text.replace("\n\n", "\n") for text in TEXTS]
    assert log.bytes_read == tfds_source.size(dataset) > 0
    assert len({name for name, _ in found}) == len(TEXTS)
    assert read(f"{dataset}:train[10:20]")[0] == found[10:20]


def test_a_split_stands_behind_the_name_or_the_address(monkeypatch):
    import tensorflow_datasets as tfds

    for location, dataset, split in (
        ("wikipedia/20230601.en", "wikipedia/20230601.en", "train"),
        ("made:train[10%:20%]", "made", "train[10%:20%]"),
        ("/data/made/1.0.0:test", "/data/made/1.0.0", "test"),
        ("gs://bucket/made/1.0.0", "gs://bucket/made/1.0.0", "train"),
        ("s3://bucket/made/1.0.0:test[:5]", "s3://bucket/made/1.0.0", "test[:5]"),
    ):
        assert tfds_source.Name.parse(location) == tfds_source.Name(dataset, split)
    # An address is opened as a directory.
    monkeypatch.setattr(tfds, "builder_from_directory", lambda name: f"of {name}")
    assert tfds_datasets.builder("gs://bucket/made", hint="") == "of gs://bucket/made"


def test_fields_may_be_nested_and_texts_that_are_not_utf8_are_counted(dataset):
    found, log = read(f"{dataset}:test")
    assert [text for _, text in found] == ["last"]
    assert log.counts == {"invalid_utf8_records": 1}
    found, _ = read(f"{dataset}:test", "more.body")
    assert found[1][1] == "body of last"


def test_what_is_not_there_is_an_error_that_says_what_is(dataset):
    for location, field, message in (
        (dataset, "label", "one of more.body, text"),
        (dataset, "body", "one of more.body, text"),
        (f"{dataset}:dev", "text", "no split 'dev'; it has test, train"),
        ("no_such_dataset", "text", "neither a dataset that tensorflow-datasets knows"),
        (f"{dataset}/..", "text", "nor the directory of a prepared one"),
    ):
        with pytest.raises(ValueError, match=message):
            tfds_source.check(location, base.Reading(text_field=field))


def test_a_damaged_dataset_is_an_error_that_names_it(dataset):
    file = sorted(pathlib.Path(dataset).glob("*train*"))[1]
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:40] + bytes(20) + whole[60:])
        with pytest.raises(ValueError, match="is damaged"):
            read(dataset)
    finally:
        file.write_bytes(whole)
