"""The BiLSTM against NumPy, and on a frozen encoder: what it reads, its dropout, its size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.models import feature_based, lstm, parameters
from tests import small_modules

SIZE = 5


def test_features_are_the_last_four_layers_and_logits_depend_on_nothing_else(tiny, batch):
    deep = dataclasses.replace(tiny, num_hidden_layers=5)
    model = small_modules.made(feature_based.FeatureBasedTagger, deep, num_labels=3, lstm_size=SIZE)
    states = model.encoder.hidden_states(batch)
    outputs = jnp.concatenate(states[2:], axis=-1)
    for layer in model.lstm:
        outputs = layer(outputs, batch["input_mask"] != 0)
    np.testing.assert_allclose(model(batch), model.classifier(outputs), atol=1e-5)
    assert model.lstm[0].forward.input.kernel.shape == (4 * deep.hidden_size, 4 * SIZE)
    assert len(model.lstm) == 2


@pytest.mark.slow
def test_the_frozen_encoder_has_no_dropout_and_the_lstm_has(tiny, batch):
    dropping = dataclasses.replace(tiny, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    made = feature_based.FeatureBasedTagger(
        dropping, num_labels=3, lstm_size=SIZE, rngs=nnx.Rngs(0)
    )
    call = jax.jit(lambda model, key: model(batch, key=key))
    keys = [jax.random.key(n) for n in (0, 1)]
    assert jnp.abs(call(made, keys[0]) - call(made, keys[1])).max() > 0
    made.dropout_rate = 0.0
    np.testing.assert_array_equal(call(made, keys[0]), call(made, keys[1]))


def test_the_paper_size_is_two_layers_of_768_over_four_layers(tiny):
    base = dataclasses.replace(
        tiny, hidden_size=768, num_attention_heads=12, num_hidden_layers=12, intermediate_size=3072
    )
    model = nnx.eval_shape(
        lambda: feature_based.FeatureBasedTagger(base, num_labels=9, rngs=nnx.Rngs(0))
    )
    _, params = parameters.split(model)
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(params[name])) for name in params}
    gates, width = 4 * 768, 768
    layer = lambda inputs: 2 * ((inputs + width) * gates + gates)  # noqa: E731
    assert sizes["lstm"] == layer(4 * 768) + layer(2 * 768)
    assert sizes["classifier"] == 2 * 768 * 9 + 9


BATCH, LENGTH, IN = 3, 7, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(cell_of, inputs):
    """One row through the equations, in float64."""
    kernel, bias = (
        np.asarray(part[...], np.float64) for part in (cell_of.input.kernel, cell_of.input.bias)
    )
    recurrent = np.asarray(cell_of.recurrent.kernel[...], np.float64)
    hidden = cell = np.zeros(SIZE)
    outputs = []
    for now in np.asarray(inputs, np.float64):
        write, forget, candidate, read = np.split(now @ kernel + bias + hidden @ recurrent, 4)
        cell = sigmoid(forget + 1) * cell + sigmoid(write) * np.tanh(candidate)
        hidden = sigmoid(read) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


def test_both_directions_are_the_equations_on_the_real_part_of_each_row():
    layer = small_modules.made(lstm.BidirectionalLstm, IN, SIZE)
    layer.backward.input.bias = nnx.Param(jnp.linspace(-1, 1, 4 * SIZE))
    inputs = jax.random.normal(jax.random.key(0), (BATCH, LENGTH, IN))
    lengths = np.array([7, 4, 1])
    outputs = jax.jit(layer)(inputs, jnp.asarray(np.arange(LENGTH) < lengths[:, None]))
    for row, length in enumerate(lengths):
        forward = reference(layer.forward, inputs[row, :length])
        backward = reference(layer.backward, inputs[row, :length][::-1])[::-1]
        wanted = np.zeros((LENGTH, 2 * SIZE))
        wanted[:length] = np.concatenate([forward, backward], axis=-1)
        np.testing.assert_allclose(outputs[row], wanted, atol=1e-6)
