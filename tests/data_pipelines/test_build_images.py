"""Images to records: files and arrays, squares, parts without copies, and what training reads."""

import io

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
    given = {"size": 8, "patch": 4, "channels": 1, "parts": "0.7,0.3"}
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
        options(tmp_path / "*.jpg", tmp_path / "r", size=20, patch=10, channels=3, parts="1.0")
    )
    for picture in pixels_of(tmp_path / "r" / "train"):
        assert np.abs(picture[2:-2, 2:-2].astype(int) - (200, 100, 50)).max() < 12


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
        ("d.npz", {"array": "pictures"}, "holds no plain array 'pictures'"),
        ("d.npz", {"scaling": "imagenet"}, "--scaling is imagenet, of 3 channels"),
        ("t.parquet", {"array": "image"}, "row 2 of .*t.parquet has no bytes of a picture"),
        ("t.parquet", {}, "--array is 'images'; known are image"),
        ("*.png", {}, "a.png is not a whole picture"),
        ("*.gif", {}, "matches no file"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, digits, name, changes, message):
    np.savez(tmp_path / "d.npz", images=digits)
    Image.fromarray(digits[0]).save(file := io.BytesIO(), format="png")
    cells = pyarrow.table({"image": [file.getvalue(), None]})
    parquet.write_table(cells, tmp_path / "t.parquet")
    (tmp_path / "a.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_images.build(options(tmp_path / name, tmp_path / "r", **changes))
