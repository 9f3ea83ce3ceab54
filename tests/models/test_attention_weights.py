"""The weights that are looked at are those by which the layers average their values."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import models
from bertjax.models import visibility
from tests import small_modules
from tests.conftest import TINY

LENGTH = 12
ROTARY = {"position_embedding": "rotary", "layer": "pre_norm", "window": 2, "global_every": 2}
KINDS = {
    "bert": {},
    "modern": {**ROTARY, "feed_forward": "gated"},
    "left_to_right": {"left_to_right": True},
    "shared": {"num_hidden_groups": 1, "inner_group_num": 2},
}
SEQUENCES = {
    "padded": {"input_mask": np.arange(LENGTH) < np.array([[12], [7]])},
    "packed": {"sequence_ids": np.array([[1] * 5 + [2] * 7, [1] * 4 + [2] * 3 + [0] * 5])},
}


def made(kind):
    config = dataclasses.replace(TINY, initializer_range=0.5, **KINDS[kind])
    return small_modules.made(models.make_encoder, config)


def inputs_of(rows):
    ids = np.random.default_rng(0).integers(5, TINY.vocab_size, (2, LENGTH))
    rest = {name: jnp.asarray(value, jnp.int32) for name, value in SEQUENCES[rows].items()}
    return {"input_ids": jnp.asarray(ids), **rest}


@pytest.mark.parametrize("rows", SEQUENCES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_averages_its_values_by_the_weights(kind, rows):
    encoder, inputs = made(kind), inputs_of(rows)
    visible, hidden = visibility.of(inputs), encoder.embed(inputs)
    used = [number for numbers in encoder.uses for number in numbers]
    found = encoder.attention_weights(inputs)
    assert len(found) == len(used)
    for number, weights in zip(used, found, strict=True):
        layer = encoder.layers[number]
        read = layer._attention_input(hidden)
        values = layer.attention.value(read).reshape(2, LENGTH, TINY.num_attention_heads, -1)
        context = jnp.einsum("BHLS,BSHK->BLHK", weights, values).reshape(2, LENGTH, -1)
        attended = layer.attention(read, visible)
        np.testing.assert_allclose(layer.attention.output(context), attended, atol=2e-5)
        hidden = layer(hidden, visible)
    np.testing.assert_allclose(
        encoder.hidden_states(inputs)[-1], _ended(encoder, hidden), atol=1e-5
    )


def _ended(encoder, hidden):
    return hidden if encoder.final_norm is None else encoder.final_norm(hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_sum_to_one_and_fall_on_nothing_that_is_not_seen(kind):
    for weights in made(kind).attention_weights(inputs_of("packed")):
        assert weights.shape == (2, TINY.num_attention_heads, LENGTH, LENGTH)
        np.testing.assert_allclose(weights[0].sum(axis=-1), 1, atol=1e-5)
        assert weights[0, :, :5, 5:].max() == weights[0, :, 5:, :5].max() == 0
        assert weights[1, :, :, 7:].max() == 0
        if KINDS[kind].get("left_to_right"):
            assert jnp.triu(weights, 1).max() == 0


def test_a_window_is_seen_in_the_weights_of_its_layers_alone():
    all_seen, windowed = made("modern").attention_weights(inputs_of("padded"))
    far = np.abs(np.subtract.outer(range(LENGTH), range(LENGTH))) > 2
    assert windowed[0, :, far].max() == 0 < all_seen[0, :, far].min()
