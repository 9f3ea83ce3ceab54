"""Columns and scaling of records travel with the weights, and are compared where they are read."""

import json

import pytest

from bertjax import evaluate, train
from bertjax.convert import __main__ as convert
from bertjax.convert import formats, workdir
from bertjax.data import records
from bertjax.workdirs import reader
from tests import small_runs, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


@pytest.fixture
def run(tmp_path):
    """An untrained run on pictures, and its export."""
    small_values.write(tmp_path / "train", "pixels")
    options = {"pretraining.normalized_patches": True, "model.max_position_embeddings": 17}
    config = small_values.make_config("pixels", tmp_path / "train", **options)
    small_runs.untrained(config, tmp_path / "run")
    convert.convert(tmp_path / "run", tmp_path / "hf")
    return tmp_path


def changed(directory, file, **fields):
    known = json.loads((directory / file).read_text())
    (directory / file).write_text(json.dumps(known | fields))


def scores(workdir, run):
    return evaluate.evaluate_checkpoint(workdir, str(run / "train"), batch_size=32)


@pytest.mark.parametrize("kind", ["patches", "cells", "pixels"])
def test_the_manifest_of_the_records_is_kept_and_converted(tmp_path, kind):
    manifest = small_values.write(tmp_path / "train", kind)
    small_runs.untrained(small_values.make_config(kind, tmp_path / "train"), tmp_path / "run")
    convert.convert(tmp_path / "run", tmp_path / "again", format="bertjax")
    assert records.Manifest.load(tmp_path / "again" / "training_data") == manifest
    card = (tmp_path / "again" / "README.md").read_text()
    assert ("| c2 | categories 0, 1, 2 |" in card) == (kind == "cells")
    assert ("| channel 0 | mean 0.5; deviation 0.25 |" in card) == (kind == "pixels")
    assert "| the labels | kind classes; names low, high |" in card
    config = workdir.as_workdir(formats.read(tmp_path / "again"), tmp_path).config
    known = reader.read(tmp_path / "run").config
    assert config.data.value_meaning == known.data.value_meaning != ""


def test_an_export_of_pictures_has_the_scaling_and_the_objective(run):
    read, first = formats.read(run / "hf"), formats.read(run / "run")
    assert read.objective == first.objective == {"normalized_patches": True, "masked_lm_prob": 0.5}
    convert.convert(run / "hf", run / "again", format="bertjax")
    convert.convert(run / "again", run / "twice")
    for name in ("config.json", "preprocessor_config.json"):
        assert (run / "twice" / name).read_text() == (run / "hf" / name).read_text()
    assert scores(run / "again", run) == scores(run / "run", run)


@pytest.mark.slow
def test_other_scaling_is_refused_where_it_counts_and_warned_of_in_training(run, caplog):
    changed(run / "hf", "preprocessor_config.json", image_mean=[0.4], resample=2)
    changed(run / "hf", "config.json", norm_pix_loss=False)
    convert.convert(run / "hf", run / "again", format="bertjax")
    assert (
        "{'resample': 2}, and the pictures of records are made with {'resample': 3}" in caplog.text
    )
    with pytest.raises(ValueError, match="scaling of .*train differ"):
        scores(run / "again", run)
    config = small_values.make_config("pixels", run / "train")
    config.model.max_position_embeddings = 17
    config.pretraining.normalized_patches = True
    config.init_from = str(run / "hf")
    train.train(config, run / "begun")
    assert f"normalized_patches is True in this run, and was False for {run / 'hf'}" in caplog.text
    assert f"channel_means is [0.5] in this run, and was [0.4] for {run / 'hf'}" in caplog.text


def test_a_card_says_how_16_bits_became_8_and_what_categories_are(run):
    manifest = records.Manifest.load(run / "run" / "training_data")
    assert "8 bits" not in (run / "hf" / "README.md").read_text()
    names = ["a|b", "c\nd", *map(str, range(30))]
    added = {
        "pixel_range": [0, 4095],
        "channels": [{"name": "x", "mean": 1.0, "deviation": 2.0, "categories": names}],
    }
    manifest.statistics.update(added)
    manifest.save(run / "run" / "training_data")
    convert.convert(run / "run", run / "again")
    card = (run / "again" / "README.md").read_text()
    assert "more than 8 bits 0 became 0 and 4095 became 255" in card
    assert r"categories a\|b, c d, 0, 1," in card and "17, ... 32 in all" in card


@pytest.mark.parametrize(
    "file,fields,message",
    [
        ("preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "image_mean and image_std"),
        ("preprocessor_config.json", {"image_mean": None}, "image_mean and image_std"),
        ("preprocessor_config.json", {"image_std": [0]}, "image_mean and image_std"),
        ("preprocessor_config.json", {"image_std": [float("nan")]}, "image_mean and image_std"),
        ("config.json", {"mask_ratio": 7}, "mask_ratio is 7"),
        ("config.json", {"mask_ratio": "x"}, "mask_ratio is 'x'"),
        ("config.json", {"norm_pix_loss": 1}, "norm_pix_loss is 1"),
    ],
)
def test_fields_that_say_nothing_are_refused_by_name(run, file, fields, message):
    changed(run / "hf", file, **fields)
    with pytest.raises(ValueError, match=message) as caught:
        formats.read(run / "hf")
    assert file in str(caught.value)
