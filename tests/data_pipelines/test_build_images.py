"""Images to records: files and arrays, squares, parts without copies, and what training reads."""

import io
import os

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from bertjax import config as config_lib
from bertjax.data import records, streams, value_masking
from bertjax.jobs import pretraining_data
from data_pipelines import build_images
from tests.data_pipelines import decoded

COUNT = 60


@pytest.fixture
def digits():
    return np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8), dtype=np.uint8)


def options(path, output, **changes):
    given = {"size": "8", "patch": 4, "channels": 1, "parts": "0.7,0.3"}
    return build_images.Options(input=str(path), output=str(output), **(given | changes))


def pixels_of(directory):
    return decoded.read(directory)["pixels"]


def test_an_array_and_files_give_the_same_pictures_each_in_one_part(tmp_path, digits):
    np.savez(tmp_path / "d.npz", images=digits)
    for number, picture in enumerate(digits):
        Image.fromarray(picture).save(tmp_path / f"{number:03}.png")
    made = {}
    for name, path in (("array", tmp_path / "d.npz"), ("files", tmp_path / "*.png")):
        manifests = build_images.build(options(path, tmp_path / name))
        assert [it.num_examples for it in manifests.values()] == [42, 18]
        parts = [pixels_of(tmp_path / name / part) for part in ("train", "heldout")]
        assert parts[0].dtype == np.uint8 and parts[0].shape == (42, 8, 8, 1)
        made[name] = [{it.tobytes() for it in part} for part in parts]
        assert made[name][0] | made[name][1] == {it.tobytes() for it in digits}
        assert not made[name][0] & made[name][1]
    assert made["array"] == made["files"]


@pytest.mark.parametrize("is_of_datasets", [False, True])
def test_the_bytes_of_a_table_are_pictures_with_their_classes(tmp_path, digits, is_of_datasets):
    files = []
    digits = digits[:20]
    for picture in digits:
        Image.fromarray(picture).save(file := io.BytesIO(), format="png")
        files.append(file.getvalue())
    cells = [{"bytes": it, "path": None} for it in files] if is_of_datasets else files
    labels = ["even" if picture.sum() % 2 == 0 else "odd" for picture in digits]
    table = pyarrow.table({"image": cells, "sum": labels})
    parquet.write_table(table, tmp_path / "t.parquet")
    build_images.build(
        options(tmp_path / "t.parquet", tmp_path / "r", array="image", labels="sum", parts="1.0")
    )
    found = decoded.read(tmp_path / "r" / "train")
    assert len(found["pixels"]) == 20
    for picture, label in zip(found["pixels"], found["labels"].tolist(), strict=True):
        assert label == int(picture.sum()) % 2  # even, odd


def test_copies_are_in_one_part(tmp_path, digits):
    np.save(tmp_path / "d.npy", np.concatenate([digits[:20]] * 3))
    build_images.build(options(tmp_path / "d.npy", tmp_path / "r"))
    train, heldout = (
        {it.tobytes() for it in pixels_of(tmp_path / "r" / part)} for part in ("train", "heldout")
    )
    assert train and heldout and not train & heldout


def test_pictures_of_other_shapes_become_squares_of_their_middle(tmp_path):
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, 20:60] = (200, 100, 50)
    for number in range(4):
        Image.fromarray(wide).save(tmp_path / f"{number}.jpg", quality=95)
    build_images.build(
        options(tmp_path / "*.jpg", tmp_path / "r", size="20", patch=10, channels=3, parts="1.0")
    )
    for picture in pixels_of(tmp_path / "r" / "train"):
        assert np.abs(picture[2:-2, 2:-2].astype(int) - (200, 100, 50)).max() < 12


@pytest.mark.parametrize("shade", range(1, 255, 23))
def test_a_channel_of_one_shade_is_not_scaled_by_what_rounding_leaves(tmp_path, shade):
    np.savez(tmp_path / "d.npz", images=np.full((7, 8, 8), shade, np.uint8))
    build_images.build(options(tmp_path / "d.npz", tmp_path / "r", parts="1"))
    statistics = records.Manifest.load(tmp_path / "r" / "train").statistics
    assert statistics["channel_deviations"] == [1.0]


def test_training_reads_patches_of_crops_and_evaluation_those_of_the_picture(tmp_path, digits):
    np.save(tmp_path / "d.npy", digits)
    build_images.build(options(tmp_path / "d.npy", tmp_path / "r"))
    record_set = records.open(tmp_path / "r" / "train")
    chosen = config_lib.default_config().pretraining
    chosen.update(masking="dynamic", masked_lm_prob=0.5, least_crop=0.3, flips=True)
    trained = pretraining_data.draw_masks(record_set, chosen, is_training=True)
    order = streams.Order(8, 0)
    first = next(streams.train_batches(record_set, order, draw_masks=trained))
    again = next(streams.train_batches(record_set, order, draw_masks=trained))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert first["values"].shape == (8, 5, 16) and (first["hidden"].sum(axis=1) == 2).all()
    assert not first["hidden"][:, 0].any()
    scaling = value_masking.scaling_of(record_set.manifest)
    plain = pretraining_data.draw_masks(record_set, chosen)
    batch = next(streams.evaluation_batches(record_set, batch_size=8, draw_masks=plain))
    assert {"pixels"} & {*batch, *first} == set()  # no model reads them
    expected = pixels_of(tmp_path / "r" / "train")[:8]
    np.testing.assert_array_equal(scaling.pixels(batch["values"], channels=1), expected)
    np.testing.assert_allclose(batch["values"][:, 1:].mean(), 0, atol=0.2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("d.npz", {"patch": 3}, "--size is 8, --patch 3"),
        ("d.npz", {"array": "pictures"}, "--array is 'pictures'; known are images"),
        ("d.npz", {"scaling": "imagenet"}, "--scaling is imagenet, of 3 channels"),
        ("t.parquet", {"array": "image"}, "row 2 of .*t.parquet has no bytes of a picture"),
        ("t.parquet", {}, "--array is 'images'; known are image"),
        ("*.png", {}, "a.png cannot be read as a picture .* --skip_damaged"),
        ("*.gif", {}, "matches no file"),
        ("d.npz", {"pixel_range": "9,9"}, "--pixel_range is '9,9'"),
        ("d.npz", {"background": "whyte"}, "--background is 'whyte'"),
        ("d.npz", {"labels": "folder"}, "--labels is 'folder'; known are images"),
        ("*.png", {"labels": "y"}, "--labels is 'y'; it must be folder"),
        ("pipe.npz", {}, "pipe.npz is a named pipe"),
        ("pipe.npy", {}, "pipe.npy is a named pipe"),
        ("objects.npz", {}, "objects.npz is damaged .*allow_pickle"),
        ("empty.npy", {}, "empty.npy cannot be read as an array"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, digits, name, changes, message):
    np.savez(tmp_path / "d.npz", images=digits)
    Image.fromarray(digits[0]).save(file := io.BytesIO(), format="png")
    cells = pyarrow.table({"image": [file.getvalue(), None]})
    parquet.write_table(cells, tmp_path / "t.parquet")
    (tmp_path / "a.png").write_bytes(b"\x89PNG nothing")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", images=np.array([{}], object), allow_pickle=True)
    os.mkfifo(tmp_path / "pipe.npz")
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        build_images.build(options(tmp_path / name, tmp_path / "r", **changes))
    assert "\n" not in str(caught.value) and not (tmp_path / "r").exists()


def test_damaged_pictures_are_skipped_with_their_labels(tmp_path, digits, caplog):
    for number, picture in enumerate(digits[:6]):
        folder = tmp_path / ("even" if number % 2 == 0 else "odd")
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    (tmp_path / "none").mkdir()
    whole = (tmp_path / "even" / "0.png").read_bytes()
    for name in ("none/1.png", "even/1.png"):
        (tmp_path / name).write_bytes(whole[:50])
    build_images.build(
        options(
            tmp_path / "*" / "*.png", tmp_path / "r", labels="folder", parts="1", skip_damaged=True
        )
    )
    made = decoded.read(tmp_path / "r" / "train")
    classes = {it.tobytes(): number % 2 for number, it in enumerate(digits[:6])}
    rows = zip(made["pixels"], made["labels"].tolist(), strict=True)
    assert {it.tobytes(): label for it, label in rows} == classes
    names = records.Manifest.load(tmp_path / "r" / "train").statistics["labels"]["names"]
    assert names == ["even", "odd"]
    said = caplog.text
    assert "none/1.png" in said and "even/1.png" in said and "2 of 8 pictures are left out" in said


def test_labels_that_the_other_records_have_not_come_from_the_new_ones(tmp_path, digits):
    np.savez(tmp_path / "d.npz", images=digits, y=np.array([b"a", b"b"] * 30))
    build_images.build(options(tmp_path / "d.npz", tmp_path / "old"))
    like = {"like": str(tmp_path / "old" / "train"), "labels": "y", "parts": "0.5,0.5"}
    made = build_images.build(options(tmp_path / "d.npz", tmp_path / "new", **like))
    old = records.Manifest.load(tmp_path / "old" / "train").statistics
    for part in ("train", "heldout"):
        kept = made[part].statistics
        assert kept["labels"] == {"kind": "classes", "names": ["a", "b"]}
        assert kept["channel_means"] == old["channel_means"]
        rows = decoded.read(tmp_path / "new" / part)
        places = {it.tobytes(): number % 2 for number, it in enumerate(digits)}
        assert [places[it.tobytes()] for it in rows["pixels"]] == rows["labels"].tolist()


def test_arrays_of_more_than_8_bits_are_read_by_the_same_range(tmp_path, digits, caplog):
    digits[0, 0, :2] = 0, 255
    wanted = {it.tobytes() for it in digits}
    arrays = {"a": (digits * np.uint16(257), ""), "b": (digits / 255.0, "0,1")}
    for name, (array, pixel_range) in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        given = options(
            tmp_path / f"{name}.npy", tmp_path / name, parts="1", pixel_range=pixel_range
        )
        kept = build_images.build(given)["train"].statistics
        assert {it.tobytes() for it in pixels_of(tmp_path / name / "train")} == wanted
        assert kept["pixel_range"] == ([0, 1] if pixel_range else [0, 65_535])
    assert not caplog.text
    with pytest.raises(ValueError, match=r"--pixel_range .* such as 0,1, .* .*b.npy, .*float64"):
        build_images.build(options(tmp_path / "b.npy", tmp_path / "c"))
    like = {"like": str(tmp_path / "b" / "train"), "parts": ""}
    build_images.build(options(tmp_path / "b.npy", tmp_path / "d", **like))
    np.testing.assert_array_equal(pixels_of(tmp_path / "d")[..., 0], digits)


def test_what_pictures_lose_is_logged_once(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    dark = Image.fromarray(np.full((8, 12), 4095, np.uint16))
    dark.putpixel((0, 0), 0)
    for name in "ab":
        dark.save(tmp_path / f"{name}.png")
    Image.new("L", (8, 8)).save(
        tmp_path / "c.gif", save_all=True, append_images=[Image.new("L", (8, 8), 9)]
    )
    build_images.build(options(tmp_path / "*.*", tmp_path / "r", parts="1"))
    for text in (
        "22.2% of a picture on average, at most 33.3%",
        "1 of 3 pictures have several frames, at most 2, in",
        "range from 0 to 65535 is used: the pixels of more than 8 bits are from 0 to 4095; give",
        "the pixels of 8 bits are from 0 to 0 of 255",
    ):
        assert caplog.text.count(text) == 1
    caplog.clear()
    build_images.build(options(tmp_path / "*.*", tmp_path / "s", parts="1", pixel_range="0,2000"))
    assert "from 0 to 4095, beyond --pixel_range" in caplog.text
    assert "1 of 3 pictures have 8 bits" in caplog.text
