"""The BiLSTM on a frozen encoder: what it reads, its dropout, its size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.models import feature_based, parameters
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
