"""Pictures that are not square: records, pretraining, pictures of it, finetuning, no export."""

import numpy as np
import pytest

from bertjax import recipes
from bertjax.convert import __main__ as convert
from bertjax.data import records, value_masking
from bertjax.interactive import pictures
from data_pipelines import build_images
from tests import small_runs, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


def build(tmp_path, name, height, width, **changes):
    images = np.random.default_rng(0).integers(0, 256, (24, height, width), np.uint8)
    np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(24) % 2)
    given = {"size": f"{height}x{width}", "patch": 2, "channels": 1, "parts": "1"}
    build_images.build(
        build_images.Options(
            input=str(tmp_path / f"{name}.npz"), output=str(tmp_path / name), labels="labels",
            **(given | changes),
        )
    )  # fmt: skip
    return images, tmp_path / name / "train"


@pytest.mark.slow
def test_strips_are_pretrained_on_drawn_and_finetuned_but_not_exported(tmp_path):
    images, directory = build(tmp_path, "strips", 4, 16)
    assert records.Manifest.load(directory).features["pixels"].shape == (4, 16, 1)
    run = tmp_path / "run"
    small_runs.untrained(small_values.make_config("pixels", directory), run)
    drawn = pictures.hidden_values(run, directory, rows=2)
    shown = np.asarray(drawn.axes[0].images[0].get_array())
    assert (shown == images).all(axis=(1, 2)).any()
    with pytest.raises(ValueError, match="ViT-MAE has no grid_rows 2"):
        convert.convert(run, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    config = recipes.load("values").copy_and_resolve_references()
    config.init_from, config.global_batch_size = str(run), 8
    config.finetuning.train_file = str(directory)
    small_runs.untrained(config, tmp_path / "tuned")
    described = value_masking.described(records.Manifest.load(directory))
    # Squares of as many patches, and strips that stand.
    for name, sides in (("squares", (8, 8)), ("standing", (16, 4))):
        other = build(tmp_path, name, *sides)[1]
        config.finetuning.train_file = str(other)
        with pytest.raises(ValueError, match="build it with --like"):
            value_masking.check(described, records.open(other))
        with pytest.raises(ValueError, match="config.model.grid_rows is 2; it must be"):
            small_runs.untrained(config, tmp_path / "other")
