"""MAE compared with transformers: predictions, losses, gradients, files and exports."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from bertjax.convert import formats
from bertjax.models import parameters, values
from bertjax.tasks import masked_autoencoder
from tests import lazily

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

SIDE, PATCH, SHARE = 12, 4, 0.6
LENGTH = (SIDE // PATCH) ** 2 + 1


def of_torch(folder, channels):
    """A random model of theirs, saved. Theirs begins with a decoder without positions."""
    config = transformers.ViTMAEConfig(
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 24, "image_size": SIDE, "patch_size": PATCH},
        **{"num_channels": channels, "decoder_hidden_size": 8, "decoder_num_hidden_layers": 2},
        **{"decoder_num_attention_heads": 2, "decoder_intermediate_size": 12},
        **{"layer_norm_eps": 1e-6, "norm_pix_loss": True, "mask_ratio": SHARE},
    )
    torch.manual_seed(0)
    model = transformers.ViTMAEForPreTraining(config)
    places = (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for table in places:
            table.copy_(torch.tensor(values.sines_of_grid(LENGTH, table.shape[-1])[None]))
    model.save_pretrained(folder)
    return model.eval()


def ours_of(read):
    task = masked_autoencoder.MaskedAutoencoder(
        read.config, read.decoder, SHARE, normalized_patches=True
    )
    graph, _ = parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))
    leaves = {path: jnp.asarray(it) for path, it in read.params.items()}
    return task, graph, parameters.nested(leaves)


def batch_of(pixels, mask):
    """Theirs are [channels, rows, columns]; `mask` is 1 at removed patches."""
    rows, channels = pixels.shape[:2]
    side = SIDE // PATCH
    cut = pixels.transpose(0, 2, 3, 1).reshape(rows, side, PATCH, side, PATCH, channels)
    cut = cut.transpose(0, 1, 3, 2, 4, 5).reshape(rows, side * side, -1)
    cells = np.concatenate([np.zeros_like(cut[:, :1]), cut], axis=1)
    observed = np.ones(cells.shape, np.int32)
    observed[:, 0] = 0
    return {
        "values": jnp.asarray(cells),
        "observed": jnp.asarray(observed),
        "hidden": jnp.pad(jnp.asarray(mask, jnp.int32), ((0, 0), (1, 0))),
        "input_mask": jnp.ones(cells.shape[:2], jnp.int32),
        "example_weights": jnp.ones(rows),
    }


@pytest.mark.parametrize("channels", [3, 1])
def test_predictions_losses_and_gradients_are_theirs(tmp_path, channels):
    theirs = of_torch(tmp_path / "hf", channels)
    read = formats.read(tmp_path / "hf")
    assert (read.head, read.unused) == ("masked_autoencoder", ())
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(3, channels, SIDE, SIDE)).astype(np.float32)
    noise = rng.random((3, LENGTH - 1)).astype(np.float32)
    out = theirs(pixel_values=torch.tensor(pixels), noise=torch.tensor(noise))
    out.loss.backward()
    task, graph, params = ours_of(read)
    batch = batch_of(pixels, out.mask.numpy())

    def objective(params):
        mean = task.loss(parameters.merge(graph, params), batch, key=None)["value_loss"]
        return mean.total / mean.weight

    loss, gradient = jax.jit(jax.value_and_grad(objective))(params)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
    predict = jax.jit(lambda params: task.predictions(parameters.merge(graph, params), batch))
    predicted = predict(params)[:, 1:]
    np.testing.assert_allclose(predicted, out.logits.detach().numpy(), atol=1e-5)
    of_cls = theirs.vit.embeddings.cls_token.grad.numpy().ravel()
    ours = parameters.flat(gradient)
    np.testing.assert_allclose(ours["encoder.embeddings.empty.embedding"][0], of_cls, atol=1e-5)
    of_patches = theirs.vit.embeddings.patch_embeddings.projection.weight.grad.numpy()
    np.testing.assert_allclose(
        ours["encoder.embeddings.patches.kernel"],
        of_patches.transpose(2, 3, 1, 0).reshape(-1, 16),
        atol=1e-5,
    )


def test_an_export_loads_without_a_word_and_comes_back(tmp_path, capfd):
    theirs = of_torch(tmp_path / "hf", 3)
    read = formats.read(tmp_path / "hf")
    formats.write(read, tmp_path / "again", format="huggingface")
    capfd.readouterr()
    model, found = transformers.ViTMAEForPreTraining.from_pretrained(
        tmp_path / "again", output_loading_info=True
    )
    assert not any(found.values()), found
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, atol=1e-6, rtol=0)
    names = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    assert "decoder.decoder_layers.1.output.dense.bias" in names  # which version 4 reads, too
    encoder = formats.read(tmp_path / "again", head="none")
    formats.write(encoder, tmp_path / "encoder", format="huggingface")
    _, found = transformers.ViTMAEModel.from_pretrained(
        tmp_path / "encoder", output_loading_info=True
    )
    assert not any(found.values()), found
    formats.write(read, tmp_path / "run", format="bertjax")
    run = formats.read(tmp_path / "run")
    assert (run.config, run.decoder, run.head) == (read.config, read.decoder, read.head)
    for path, array in read.params.items():
        np.testing.assert_array_equal(run.params[path], array)


def test_positions_that_were_trained_and_images_that_are_no_squares_are_refused(tmp_path):
    of_torch(tmp_path / "hf", 3)
    path = tmp_path / "hf" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["decoder.decoder_pos_embed"] *= 2
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(ValueError, match="decoder_pos_embed is not the table of sines"):
        formats.read(tmp_path / "hf")
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(fields | {"image_size": [12, 16]}))
    with pytest.raises(ValueError, match="must be a square of square patches"):
        formats.read(tmp_path / "hf")
