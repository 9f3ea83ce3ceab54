"""The pictures that transformers makes from files by an export: the losses are ours."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from bertjax.convert import __main__ as convert
from bertjax.convert import formats
from bertjax.data import records, value_rows
from bertjax.models import parameters
from data_pipelines import build_images
from tests import lazily, small_runs, small_values
from tests.interop import test_card_examples
from tests.interop import test_masked_autoencoder as mae

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

SIZE, PATCH = 32, 8
SIDES = [(97, 64), (64, 97), (150, 70), (71, 45), (60, 60), (200, 33), (41, 97), (80, 61)]
LENGTH = (SIZE // PATCH) ** 2 + 1


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pictures, their records, a run on these and its export."""
    directory = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIDES):
        coarse = rng.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height))
        picture.save(directory / f"{number}.jpg", quality=95)
    options = {"input": str(directory / "*.jpg"), "size": str(SIZE), "patch": PATCH, "parts": "1"}
    build_images.build(build_images.Options(output=str(directory / "records"), **options))
    like = {"like": str(directory / "records" / "train"), "input": options["input"]}
    build_images.build(build_images.Options(output=str(directory / "again"), **like))
    config = small_values.make_config("pixels", directory / "records" / "train")
    config.model.max_position_embeddings = config.phases.phase1.max_seq_length = LENGTH
    config.global_batch_size = 16
    config.pretraining.update(normalized_patches=True, masked_lm_prob=0.6)
    small_runs.untrained(config, directory / "run")
    convert.convert(directory / "run", directory / "exported")
    return directory


def theirs(made, processor):
    model = transformers.ViTMAEForPreTraining.from_pretrained(made / "exported").eval()
    paths = [made / f"{number}.jpg" for number in range(len(SIDES))]
    pictures = [transformers.image_utils.load_image(str(path)) for path in paths]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    noise = torch.tensor(np.random.default_rng(1).random((len(SIDES), LENGTH - 1)))
    with torch.no_grad():
        return model(pixel_values=pixels, noise=noise)


@pytest.mark.parametrize("name", ["ViTImageProcessorPil", "BitImageProcessorPil"])
def test_the_loss_on_their_pictures_is_that_on_records(made, name):
    processor = getattr(transformers, name).from_pretrained(made / "exported")
    out = theirs(made, processor)
    read = formats.read(made / "run")
    rows = value_rows.columns(records.open(made / "again"))
    cells = rows["values"]
    batch = {
        **{name: rows[name] for name in ("values", "observed")},
        "input_mask": np.ones(cells.shape[:2], np.int32),
        "hidden": np.pad(out.mask.numpy().astype(np.int32), ((0, 0), (1, 0))),
        "example_weights": np.ones(len(cells), np.float32),
    }
    task, graph, params = mae.ours_of(read)
    batch = {name: jnp.asarray(array) for name, array in batch.items()}
    mean = task.loss(parameters.merge(graph, params), batch, key=None)["value_loss"]
    np.testing.assert_allclose(mean.total / mean.weight, out.loss.item(), atol=1e-3)


def test_the_processor_of_an_export_is_found_by_its_name(made):
    processor = transformers.AutoImageProcessor.from_pretrained(made / "exported", backend="pil")
    assert type(processor).__name__ == "BitImageProcessorPil"
    statistics = records.Manifest.load(made / "records" / "train").statistics
    assert [*processor.image_mean] == statistics["channel_means"]
    assert [*processor.image_std] == statistics["channel_deviations"]
    fields = json.loads((made / "exported" / "config.json").read_text())
    assert (fields["norm_pix_loss"], fields["mask_ratio"]) == (True, 0.6)


def test_the_code_of_the_card_reads_a_picture(made, monkeypatch):
    monkeypatch.chdir(made)
    Image.open("0.jpg").save("picture.png")
    assert "tensor(" in test_card_examples.printed(made / "exported")
