"""`--like`: new data become records by the scaling, the columns and the classes of others."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pyarrow
import pytest
from pyarrow import csv

from bertjax.data import records, value_rows
from data_pipelines import build_images, build_series, build_tables
from tests.data_pipelines import decoded


def table(path, rows, seed, **changed):
    rng = np.random.default_rng(seed)
    made = {"a": rng.normal(3, 2, rows), "town": rng.choice(["Oslo", "Rome"], rows).tolist(),
            "sold": rng.choice(["yes", "no"], rows).tolist()}  # fmt: skip
    csv.write_csv(pyarrow.table(made | changed), path)
    return made | changed


def test_rows_of_a_table_keep_their_order_and_the_scaling_of_others(tmp_path):
    table(tmp_path / "old.csv", 200, 0)
    new = table(tmp_path / "new.csv", 3, 1, town=["Rome", "Bern", None])
    old = build_tables.Options(
        input=str(tmp_path / "old.csv"), output=str(tmp_path / "old"), label="sold",
        scaling="standard",
    )  # fmt: skip
    build_tables.build(old)
    like = dataclasses.replace(
        old, input=str(tmp_path / "new.csv"), output=str(tmp_path / "new"), label="",
        scaling="none", like=str(tmp_path / "old" / "train"),
    )  # fmt: skip
    build_tables.build(like)
    made, kept = decoded.read(tmp_path / "new"), records.Manifest.load(tmp_path / "old" / "train")
    (_, number, towns) = kept.statistics["columns"]
    expected = (new["a"] - number["mean"]) / number["deviation"]
    np.testing.assert_allclose(made["values"][:, 1, 0], expected, rtol=1e-6)
    code = towns["categories"].index("Rome")
    assert made["values"][:, 2, 0].tolist() == [code, 0, 0]  # Rome, [UNK], none
    assert made["observed"][:, 2, 0].tolist() == [1, 1, 0]
    assert made["labels"].tolist() == [("no", "yes").index(it) for it in new["sold"]]
    table(tmp_path / "bare.csv", 4, 2)
    bare = csv.read_csv(tmp_path / "bare.csv").drop_columns(["sold"])
    csv.write_csv(bare, tmp_path / "bare.csv")
    options = {"input": str(tmp_path / "bare.csv"), "output": str(tmp_path / "bare")}
    build_tables.build(dataclasses.replace(like, **options))
    assert "labels" not in decoded.read(tmp_path / "bare")
    table(tmp_path / "odd.csv", 4, 3, a=["x", "y", "x", "y"])
    options = {"input": str(tmp_path / "odd.csv"), "output": str(tmp_path / "odd")}
    with pytest.raises(ValueError, match="'a' of .*odd.csv holds numbers"):
        build_tables.build(dataclasses.replace(like, **options))


def test_all_windows_of_a_series_come_in_order_with_the_scaling_of_others(tmp_path):
    series = np.cumsum(np.random.default_rng(0).normal(size=(300, 2)), axis=0)
    np.save(tmp_path / "old.npy", series[:200])
    np.save(tmp_path / "new.npy", series[180:])
    old = build_series.Options(
        input=str(tmp_path / "old.npy"), output=str(tmp_path / "old"), window=16, patch=4,
        horizon=3,
    )  # fmt: skip
    build_series.build(old)
    like = build_series.Options(
        input=str(tmp_path / "new.npy"), output=str(tmp_path / "new"),
        like=str(tmp_path / "old" / "train"),
    )  # fmt: skip
    build_series.build(like)
    made = decoded.read(tmp_path / "new")["values"].reshape(-1, 2, 16)  # windows, channels
    train = series[:140]
    scaled = (series[180:] - train.mean(axis=0)) / train.std(axis=0)
    assert len(made) == 120 - 15
    for at in (0, 50, 104):
        np.testing.assert_allclose(made[at], scaled[at : at + 16].T, rtol=1e-4, atol=1e-5)
    np.save(tmp_path / "three.npy", np.zeros((50, 3)))
    with pytest.raises(ValueError, match="channel_2, but .* has channel_0, channel_1"):
        build_series.build(dataclasses.replace(like, input=str(tmp_path / "three.npy")))


def test_images_come_in_order_with_the_patches_and_classes_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(value_rows, "READ_AT_ONCE", 8)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "old.npz", images=images, labels=np.arange(40) % 3)
    np.savez(tmp_path / "new.npz", images=images[:5] // 2, labels=np.array([2, 2, 0, 1, 0]))
    old = build_images.Options(
        input=str(tmp_path / "old.npz"), output=str(tmp_path / "old"), size="8", patch=4,
        channels=1, labels="labels",
    )  # fmt: skip
    build_images.build(old)
    like = dataclasses.replace(
        old, input=str(tmp_path / "new.npz"), output=str(tmp_path / "new"), patch=2,
        like=str(tmp_path / "old" / "train"),
    )  # fmt: skip
    build_images.build(like)
    manifest = records.Manifest.load(tmp_path / "old" / "train").statistics
    mean, deviation = manifest["channel_means"][0], manifest["channel_deviations"][0]
    made = value_rows.columns(records.open(tmp_path / "new"))
    assert made["values"].shape == (5, 5, 16) and made["labels"].tolist() == [2, 2, 0, 1, 0]
    first = (images[:5, :4, :4] // 2 / 255 - mean) / deviation
    np.testing.assert_allclose(made["values"][:, 1], first.reshape(5, 16), rtol=1e-4, atol=1e-5)
    np.savez(tmp_path / "other.npz", images=images[:2], labels=np.array([0, 7]))
    with pytest.raises(ValueError, match="no image of the class '7'"):
        build_images.build(dataclasses.replace(like, input=str(tmp_path / "other.npz")))


def test_records_of_another_program_are_refused(tmp_path):
    np.save(tmp_path / "s.npy", np.arange(100.0) % 7)
    build_series.build(
        build_series.Options(
            input=str(tmp_path / "s.npy"), output=str(tmp_path / "r"), window=8, patch=4
        )
    )
    table(tmp_path / "t.csv", 5, 0)
    options = build_tables.Options(
        input=str(tmp_path / "t.csv"), output=str(tmp_path / "t"),
        like=str(tmp_path / "r" / "train"),
    )  # fmt: skip
    with pytest.raises(ValueError, match="which another program made"):
        build_tables.build(options)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Options of a table and a series whose records --like is to name."""
    place = tmp_path_factory.mktemp("first")
    table(place / "t.csv", 40, 0)
    np.save(place / "s.npy", np.random.default_rng(0).normal(size=(60, 2)))
    shared = {"input": str(place / "t.csv"), "label": "sold", "parts": "1"}
    of_table = build_tables.Options(**shared, output=str(place / "t"), scaling="standard")
    of_series = build_series.Options(
        input=str(place / "s.npy"), output=str(place / "s"), window=8, patch=4, horizon=2,
    )  # fmt: skip
    build_tables.build(of_table)
    build_series.build(of_series)
    return {"t": of_table, "s": of_series}


GONE = object()
# The place of a manifest that is changed, the value that it gets, and the fault.
DAMAGES = [
    ("t", ("statistics", "columns"), GONE, "has no statistics.columns"),
    ("t", ("statistics", "labels"), GONE, "has no statistics.labels"),
    ("t", ("statistics", "label_column"), GONE, "has no statistics.label_column"),
    ("t", ("statistics", "columns"), [{"name": "a"}], "columns must have 3 entries; it has 1"),
    ("t", ("statistics", "columns", 1, "name"), None, r"columns\[1\].name is None; .* a text"),
    ("t", ("statistics", "columns", 1, "kind"), GONE, "kind of a is None; known are number"),
    ("t", ("statistics", "columns", 1, "form"), "x", "form of a is 'x'; known are"),
    ("t", ("statistics", "columns", 1, "mean"), float("nan"), "mean is nan; .* finite"),
    ("t", ("statistics", "columns", 1, "deviation"), 0, "deviation is 0; .* above 0"),
    ("t", ("statistics", "columns", 1, "quantiles"), [0, 2, 1], "that do not fall"),
    ("t", ("statistics", "columns", 2, "categories"), ["[UNK]", "Oslo", "Oslo"], "different texts"),
    ("t", ("statistics", "columns", 2, "categories"), GONE, r"columns\[2\].categories is missing"),
    ("t", ("statistics", "labels", "kind"), [], r"labels.kind is \[\]; known are classes"),
    ("t", ("statistics", "labels", "names"), ["no"], r"have the classes \['no'\], label_column"),
    ("s", ("statistics", "channels", 0, "mean"), 10**400, "mean is 1000.*a finite number"),
    ("s", ("statistics", "channels", 1, "deviation"), GONE, "deviation is missing"),
    ("s", ("statistics", "labels", "horizon"), 10**9, "horizon is 1000000000; .* at most"),
    ("s", ("statistics", "labels", "horizon"), 3, r"shape of labels is \[2\]; .*\[3\]"),
    ("s", ("arguments", "window"), "8", "window is '8'; it must be a whole number"),
    ("s", ("arguments", "patch"), 0, "--patch is 0; it must be at least 1"),
    ("s", ("arguments", "patch"), GONE, "has no arguments.patch"),
]


@pytest.mark.parametrize(("which", "path", "value", "fault"), DAMAGES)
def test_a_damaged_manifest_is_named_with_its_fault_in_one_line(
    first, tmp_path, which, path, value, fault
):
    like, options = tmp_path / "like", first[which]
    shutil.copytree(options.output + "/train", like)
    fields = json.loads((like / "manifest.json").read_text())
    place = fields
    for name in path[:-1]:
        place = place[name]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (like / "manifest.json").write_text(json.dumps(fields))
    again = dataclasses.replace(options, like=str(like), output=str(tmp_path / "out"), parts="")
    with pytest.raises(ValueError, match=fault) as caught:
        {"t": build_tables, "s": build_series}[which].build(again)
    assert "\n" not in str(caught.value) and [it.name for it in tmp_path.iterdir()] == ["like"]


def test_a_manifest_with_names_of_tomorrow_is_read(first, tmp_path):
    """Fields that are not known here change nothing."""
    options = first["t"]
    shutil.copytree(options.output + "/train", tmp_path / "like")
    fields = json.loads((tmp_path / "like" / "manifest.json").read_text())
    expected = decoded.files(options.output + "/train", "*tfrecord*")
    fields["statistics"]["columns"][1]["of_tomorrow"] = {"a": [1]}
    fields["statistics"]["of_tomorrow"] = None
    (tmp_path / "like" / "manifest.json").write_text(json.dumps(fields))
    again = dataclasses.replace(
        options, like=str(tmp_path / "like"), output=str(tmp_path / "out"), parts="1"
    )
    build_tables.build(again)
    assert decoded.files(tmp_path / "out" / "train", "*tfrecord*") == expected


# Name of an input -> how it is made.
BAD_FILES = {
    "pipe.npy": os.mkfifo,
    "pipe.csv": os.mkfifo,
    "directory.npy": os.mkdir,
    "device.parquet": lambda path: os.symlink("/dev/zero", path),
    "empty.npy": lambda path: path.write_bytes(b""),
    "objects.npy": lambda path: np.save(path, np.array([{}, 1], object), allow_pickle=True),
    "header.npy": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535),
    "short.parquet": lambda path: path.write_bytes(b"PAR1PAR1"),
    "damaged.csv.gz": lambda path: path.write_bytes(b"\x1f\x8b\x08\x00\x00"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_table_is_named_in_one_line(tmp_path, name):
    BAD_FILES[name](tmp_path / name)
    builders = [build_series] if name.endswith(".npy") else [build_series, build_tables]
    for builder in builders:
        options = builder.Options(input=str(tmp_path / name), output=str(tmp_path / "out"))
        with pytest.raises(ValueError, match=name) as caught:
            builder.build(options)
        assert "\n" not in str(caught.value) and [it.name for it in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("option", ["time_column", "series_column", "grid", "channels"])
def test_an_option_that_names_columns_is_refused_for_an_array(first, option):
    with pytest.raises(ValueError, match=f"--{option} is '1h', but an array has no names"):
        build_series.build(dataclasses.replace(first["s"], **{option: "1h"}))
