"""Claims about EuroBERT's files that need no transformers; tests/interop has the others."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert import families, formats, huggingface_config
from bertjax.models import parameters
from tests.convert import outputs
from tests.interop import exports

REAL = np.array([[1] * 9, [1] * 5 + [0] * 4])
ROWS = {"input_ids": np.arange(18).reshape(2, 9) % 16, "input_mask": REAL}


def make(head, **changes):
    sizes = {"num_attention_heads": 4, "hidden_size": 16, "num_key_value_heads": 2}
    sizes |= {"rotary_base": 250.0, "layer_norm_eps": 1e-5}
    made = exports.make(families.named("eurobert"), head, **sizes | changes)
    # The size of released embeddings, whose squares are not far above epsilon.
    made.params["encoder.embeddings.word.embedding"][:] *= 0.02 / 0.2
    for path, array in made.params.items():
        array[:] += path.endswith("scale")
    return made


def silu(x):
    return x / (1 + np.exp(-x))


def states(tensors, fields, *, tiled=False, first_norm=True, after=False, **wrong):
    """The last states by definition, in float64, of the tensors and fields of an export.

    The options are mistakes, and the names of fields with wrong values.
    """
    fields = fields | wrong
    heads, shared = fields["num_attention_heads"], fields["num_key_value_heads"]
    batch, length = REAL.shape

    def norm(x, name):
        scale = tensors[f"model.{name}.weight"].astype(np.float64)
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + fields["rms_norm_eps"]) * scale

    def dense(x, name):
        return x @ tensors[f"model.{name}.weight"].T.astype(np.float64)

    def turned(x):
        half = x.shape[-1] // 2
        base = fields.get("rope_theta", fields["rope_parameters"]["rope_theta"])
        angles = np.arange(length)[:, None, None] * base ** (-np.arange(half) / half)
        low, high = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def attention(x, name):
        query, key, value = (
            dense(x, f"{name}.{it}_proj").reshape(batch, length, many, -1)
            for it, many in (("q", heads), ("k", shared), ("v", shared))
        )
        query, key = turned(query), turned(key)
        served = np.arange(heads) % shared if tiled else np.arange(heads) // (heads // shared)
        scores = np.einsum("blhk,bshk->bhls", query, key[:, :, served]) * query.shape[-1] ** -0.5
        scores += np.where(REAL, 0, -1e30)[:, None, None]
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        context = np.einsum("bhls,bshk->blhk", share, value[:, :, served])
        return dense(context.reshape(batch, length, -1), f"{name}.o_proj")

    x = tensors["model.embed_tokens.weight"][ROWS["input_ids"]].astype(np.float64)
    x = (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True) if after else x
    for number in range(fields["num_hidden_layers"]):
        layer = f"layers.{number}"
        is_normed = number or first_norm
        normed = norm(x, f"{layer}.input_layernorm") if is_normed else x
        x = x + attention(normed, f"{layer}.self_attn")
        normed = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (dense(normed, f"{layer}.mlp.{it}_proj") for it in ("gate", "up"))
        x = x + dense(silu(gate) * up, f"{layer}.mlp.down_proj")
    return norm(x, "norm")


def exported(made, directory):
    formats.write(made, directory, format="huggingface")
    fields = json.loads((directory / "config.json").read_text("utf-8"))
    return safetensors.numpy.load_file(directory / "model.safetensors"), fields


def ours(made, **options):
    graphdef, params = outputs.module_of(made, **options)
    rows = {name: jnp.asarray(array, jnp.int32) for name, array in ROWS.items()}
    return np.asarray(outputs.outputs_of(made.head, parameters.merge(graphdef, params), rows)[0])


MISTAKES = {
    "base": {"rope_theta": 10_000.0},
    "keys_tiled": {"tiled": True},
    "epsilon_of_llama": {"rms_norm_eps": 1e-6},
    "epsilon_of_bert": {"rms_norm_eps": 1e-12},
    "first_layer_without_norm": {"first_norm": False},
    "norm_after_embeddings": {"after": True},
}


def test_the_states_are_the_definition_and_no_mistake_passes_for_it(tmp_path):
    made = make("masked_lm")
    tensors, fields = exported(made, tmp_path)
    table = tensors["lm_head.weight"].astype(np.float64).T
    right, got = states(tensors, fields) @ table, ours(made)
    largest, is_real = np.abs(right).max(), REAL != 0
    np.testing.assert_allclose(got[is_real], right[is_real], atol=1e-5 * largest)
    for name, mistake in MISTAKES.items():
        wrong = states(tensors, fields, **mistake) @ table
        assert np.abs(wrong - got)[is_real].max() > 1e-4 * largest, name
    tied = states(tensors, fields) @ tensors["model.embed_tokens.weight"].T
    assert np.abs(tied - got)[is_real].max() > 0.1 * largest


def test_a_head_of_keys_serves_its_queries_as_if_it_stood_there_for_each(tmp_path):
    made = make("masked_lm")
    params = dict(made.params)
    for path, array in params.items():
        if path.endswith(("key.kernel", "value.kernel")):
            by_head = array.reshape(len(array), 2, -1)
            params[path] = np.repeat(by_head, 2, axis=1).reshape(len(array), -1)
    config = dataclasses.replace(made.config, num_key_value_heads=4)
    assert config.num_key_value_heads == 0  # one name for it
    whole = dataclasses.replace(made, config=config, params=params)
    np.testing.assert_allclose(ours(whole), ours(made), atol=1e-5)
    _, fields = exported(whole, tmp_path)
    assert fields["num_key_value_heads"] == 4


def test_a_classifier_pools_in_three_ways(tmp_path):
    made = make("sequence_classification")
    tensors, fields = exported(made, tmp_path)
    hidden, real = states(tensors, fields), REAL[:, :, None]

    def classified(x):
        x = x @ tensors["dense.weight"].T + tensors["dense.bias"]
        x = x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))
        return x @ tensors["classifier.weight"].T + tensors["classifier.bias"]

    count = real.sum(axis=1)
    expected = {
        "late": (classified(hidden) * real).sum(axis=1) / count,
        "mean": classified((hidden * real).sum(axis=1) / count),
        "cls": classified(hidden[:, 0]),
    }
    for pooling, logits in expected.items():
        np.testing.assert_allclose(ours(made, pooling=pooling), logits, atol=1e-5)
        formats.write(
            dataclasses.replace(made, pooling=pooling), tmp_path / pooling, format="huggingface"
        )
        assert formats.read(tmp_path / pooling).pooling == pooling
    apart = [np.abs(expected["late"] - expected[it]).max() for it in ("mean", "cls")]
    assert min(apart) > 1e-3


def test_the_older_field_of_the_pooling_is_read_with_a_warning(caplog):
    caplog.set_level("INFO", logger="absl")
    fields = {"model_type": "eurobert"}
    for more, pooling, warns in (
        ({}, "late", False),
        ({"clf_pooling": "late"}, "late", False),
        ({"clf_pooling": "mean"}, "mean", True),
        ({"clf_pooling": "mean", "classifier_pooling": "bos"}, "cls", False),
    ):
        caplog.clear()
        read = huggingface_config.parse_config(fields | more, source="config.json")
        assert (read.pooling, "clf_pooling" in caplog.text) == (pooling, warns)
    with pytest.raises(ValueError, match="classifier_pooling is 'max'; known are late, mean, bos"):
        huggingface_config.parse_config(fields | {"clf_pooling": "max"}, source="config.json")
