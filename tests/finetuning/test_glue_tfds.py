"""Claims about GLUE from TFDS: small prepared datasets, whose files are shuffled as TFDS does."""

import numpy as np
import pytest

from bertjax.data import records
from bertjax.finetuning import glue_files

# tensorflow-datasets 4.9.10 still asks protobuf for it.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

TEXTS = ("a", "b", "c", "d")


def prepared(directory, texts, label, splits):
    """Writes a dataset: for each split, (idx, label) in the order of the file."""
    tf = records.import_tensorflow()
    import tensorflow_datasets as tfds

    directory.mkdir(parents=True)
    numbers = tfds.features.Scalar(np.int32)
    columns = {name: tfds.features.Text() for name in texts}
    features = tfds.features.FeaturesDict({**columns, "idx": numbers, "label": label(tfds)})
    infos = []
    for split, rows in splits.items():
        path = directory / f"made-{split}.tfrecord-00000-of-00001"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for idx, value in rows:
                row = {name: f"{name} {TEXTS[idx]}" for name in texts}
                encoded = features.encode_example({**row, "idx": idx, "label": value})
                writer.write(features.serialize_example(encoded))
        template = tfds.core.ShardedFileTemplate(
            data_dir=directory, dataset_name="made", filetype_suffix="tfrecord"
        )
        infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(rows)], num_bytes=100, filename_template=template
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=directory, features=features, split_infos=infos, check_data=False
    )
    return f"tfds:{directory}"


def classes(*names):
    return lambda tfds: tfds.features.ClassLabel(names=names)


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    return prepared(
        tmp_path_factory.mktemp("tfds") / "mnli" / "2.0.0",
        ("premise", "hypothesis"),
        classes("entailment", "neutral", "contradiction"),
        {
            "train": [(2, 0), (0, 1), (1, 2)],
            "validation_matched": [(0, 0)],
            "validation_mismatched": [(0, 2)],
            "test_matched": [(1, -1), (0, -1)],
        },
    )


def test_rows_come_in_the_order_of_the_official_file_with_our_classes(mnli):
    found = glue_files.read_split(mnli, "mnli", "train")
    names = [glue_files.TASKS["mnli"].label_names[example.label] for example in found]
    assert names == ["neutral", "contradiction", "entailment"]
    assert [e.texts for e in found] == [(f"premise {t}", f"hypothesis {t}") for t in TEXTS[:3]]
    assert found[2].source == f"{mnli}:train:2"
    assert [e.label for e in glue_files.read_split(mnli, "mnli", "dev_matched")] == [1]
    assert [e.label for e in glue_files.read_split(mnli, "mnli", "dev_mismatched")] == [0]
    tests = glue_files.read_split(mnli, "mnli", "test_matched")
    assert [(e.texts[0], e.label) for e in tests] == [("premise a", None), ("premise b", None)]


def test_classes_that_the_files_number_are_found_by_their_names(tmp_path):
    rows = {"train": [(0, 0), (1, 1)]}
    location = prepared(tmp_path / "c", ("sentence",), classes("unacceptable", "acceptable"), rows)
    assert [e.label for e in glue_files.read_split(location, "cola", "train")] == [0, 1]
    location = prepared(
        tmp_path / "m", ("sentence1", "sentence2"), classes("equivalent", "not_equivalent"), rows
    )
    assert [e.label for e in glue_files.read_split(location, "mrpc", "train")] == [1, 0]


def test_scores_are_numbers(tmp_path):
    location = prepared(
        tmp_path / "stsb",
        ("sentence1", "sentence2"),
        lambda tfds: tfds.features.Scalar(np.float32),
        {"train": [(0, 2.5), (1, 5.0)], "validation": [(0, 5.5)]},
    )
    assert [e.label for e in glue_files.read_split(location, "stsb", "train")] == [2.5, 5.0]
    with pytest.raises(ValueError, match="stsb:validation:0: score is 5.5"):
        glue_files.read_split(location, "stsb", "dev")


def test_what_is_not_there_and_classes_of_another_task_are_errors(mnli, tmp_path):
    pair = ("sentence1", "sentence2")
    named = classes("entailment", "not_entailment")
    nameless = prepared(tmp_path / "rte", pair, named, {"train": [(0, 0), (1, -1)]})
    other = prepared(tmp_path / "other", pair, classes("no", "entailment"), {"train": [(0, 0)]})
    for location, task, split, message in (
        (mnli, "rte", "train", "there is no column 'sentence1' or 'sentence2'; .*'hypothesis'"),
        (mnli, "ax", "test", "no split 'test'; it has test_matched, train, validation_matched"),
        ("tfds:no_such_dataset", "rte", "train", "neither a dataset that .*give tfds:glue/rte"),
        (f"{mnli}/..", "rte", "train", "nor the directory of a prepared one"),
        (nameless, "rte", "train", "rte:train:1: label '-1' is unknown"),
        (other, "rte", "train", "has the classes no, entailment; task rte has entail"),
    ):
        with pytest.raises(ValueError, match=message):
            glue_files.read_split(location, task, split)


def test_a_damaged_file_is_an_error_that_names_the_dataset(tmp_path):
    rows = {"train": [(0, 0), (1, 1)]}
    location = prepared(tmp_path / "d", ("sentence",), classes("negative", "positive"), rows)
    (file,) = (tmp_path / "d").glob("*.tfrecord-*")
    whole = file.read_bytes()
    file.write_bytes(whole[:20] + bytes(8) + whole[28:])
    with pytest.raises(ValueError, match="is damaged"):
        glue_files.read_split(location, "sst2", "train")
