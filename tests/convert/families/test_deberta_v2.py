"""Claims about the files of microsoft/DeBERTa, which transformers has no class for."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bertjax import models
from bertjax.convert import families, formats, names, pretrained
from bertjax.models import parameters
from bertjax.tasks import pretraining, replaced_tokens
from configs import deberta_v3
from tests import small_modules
from tests.models.test_mask_decoder import POSITIONS, SIZES, make_batch

FAMILY = families.named("deberta-v2")
WORDS = "deberta.embeddings.word_embeddings"
FIELDS = {
    **{"model_type": "deberta-v2", "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 0},
    **{"position_buckets": 8, "relative_attention": True, "share_att_key": True},
    **{"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7},
    **{"position_biased_input": False, "max_relative_positions": -1},
}


def save(directory, module, head, **more):
    """Writes a module under the names of microsoft/DeBERTa; returns its parameters by our path."""
    flat = parameters.flat(parameters.split(module)[1])
    params = {path: np.asarray(leaf) for path, leaf in flat.items()}
    tensors = names.to_theirs(params, names.of_head(FAMILY.tensors, head))
    old = {
        "cls.predictions.transform.": "lm_predictions.lm_head.",
        "cls.predictions.": "lm_predictions.lm_head.",
    }
    for today, released in old.items():
        tensors = {name.replace(today, released): array for name, array in tensors.items()}
    safetensors.numpy.save_file({**tensors, **more}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(FIELDS))
    return params


def test_a_released_generator_is_read_with_its_positions_and_exported_by_us_alone(tmp_path):
    module = small_modules.made(pretraining.PretrainingModel, SIZES, pair_loss="none")
    params = save(tmp_path, module, "masked_lm")
    read = formats.read(tmp_path)
    assert (read.head, read.unused, read.config.mask_decoder) == ("masked_lm", (), True)
    assert read.params.keys() == params.keys()
    for path, array in params.items():
        np.testing.assert_array_equal(read.params[path], array, err_msg=path)
    again = pretraining.PretrainingModel
    graphdef, _ = parameters.split(small_modules.made(again, read.config, pair_loss="none"))
    ours = {path: jnp.asarray(array) for path, array in read.params.items()}
    found = parameters.merge(graphdef, parameters.nested(ours))
    batch, positions = make_batch(), jnp.asarray(POSITIONS)
    wanted = module.masked_logits(batch, positions)
    np.testing.assert_allclose(found.masked_logits(batch, positions), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="mask_decoder.*--format=bertjax"):
        formats.write(read, tmp_path / "hf", format="huggingface")
    bare = pretrained.select(read, "none")
    formats.write(bare, tmp_path / "bare", format="huggingface")  # the encoder has a class
    assert formats.read(tmp_path / "bare").params.keys() == bare.params.keys()


def test_a_released_discriminator_is_read_without_the_difference_to_its_generator(tmp_path):
    module = small_modules.made(replaced_tokens.Discriminator, SIZES)
    difference = np.full((60, 16), 9, np.float16)
    half = np.zeros((16, 16), np.float16)
    more = {
        f"{WORDS}._weight": difference,
        "deberta.embeddings.position_embeddings.weight": half,
        "deberta.embeddings.position_embeddings._weight": half,
        "lm_predictions.lm_head.bias": np.zeros(60, np.float16),
    }
    params = save(tmp_path, module, "replaced_tokens", **more)
    read = formats.read(tmp_path)
    assert read.head == "replaced_tokens" and not read.config.mask_decoder
    assert read.config.replaced_head == "with_first"
    assert read.params.keys() == params.keys()
    words = "encoder.embeddings.word.embedding"
    np.testing.assert_array_equal(read.params[words], params[words])
    with pytest.raises(ValueError, match="replaced_tokens"):
        formats.write(read, tmp_path / "hf", format="huggingface")


def test_the_difference_alone_is_no_table(tmp_path):
    module = small_modules.made(replaced_tokens.Discriminator, SIZES)
    save(tmp_path, module, "replaced_tokens")
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors[f"{WORDS}._weight"] = tensors.pop(f"{WORDS}.weight")
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(ValueError, match=rf"{WORDS}\.weight"):
        formats.read(tmp_path)


def test_without_buckets_each_distance_has_its_row(tmp_path):
    sizes = dataclasses.replace(SIZES, relative_buckets=16, relative_span=16, mask_decoder=False)
    module = small_modules.made(models.make_bare, sizes)
    save(tmp_path, module, "none")
    lacking = {
        name: FIELDS[name] for name in FIELDS.keys() - {"position_buckets", "layer_norm_eps"}
    }
    (tmp_path / "config.json").write_text(json.dumps(lacking))
    read = formats.read(tmp_path)
    assert (read.config.relative_buckets, read.config.relative_span) == (16, 16)
    assert read.config.layer_norm_eps == 1e-7  # transformers' default, not BERT's
    assert read.params["encoder.relative.table.embedding"].shape == (32, 16)


@pytest.mark.parametrize("size", deberta_v3.SIZES)
def test_generators_of_the_recipe_are_as_wide_and_half_as_deep(size):
    config = deberta_v3.get_config(size)
    generator = config.pretraining.generator
    assert 2 * generator.num_hidden_layers == config.model.num_hidden_layers
    for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
        assert generator[name] == config.model[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position_biased_input", True),
        ("relative_attention", False),
        ("relative_attention", None),  # which transformers takes for False
        ("share_att_key", False),
        ("conv_kernel_size", 3),
        ("pos_att_type", "p2p|c2p"),
    ],
)
def test_other_forms_of_attention_are_refused_by_name(tmp_path, name, value):
    save(tmp_path, small_modules.made(models.make_bare, SIZES), "none")
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | {name: value}))
    with pytest.raises(ValueError, match=name):
        formats.read(tmp_path)
