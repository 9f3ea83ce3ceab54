"""The parts of modern encoders: norms, rotary positions, gates, pre-norm layers, sizes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.devices import sharding
from bertjax.models import activations, classification, feed_forwards, norms, parameters, rotary
from bertjax.tasks import base
from bertjax.tasks import pretraining as task
from tests import small_modules

SMALL = models.EncoderConfig(
    vocab_size=37, hidden_size=12, num_hidden_layers=4, num_attention_heads=3, intermediate_size=10,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=0,
    layer="pre_norm", feed_forward="gated", norm="scale_only", layer_norm_eps=1e-5, use_bias=False,
    position_embedding="rotary", rotary_base=160.0, local_rotary_base=10.0,
    window=2, global_every=3, pooler="normed", pooler_act="gelu",
)  # fmt: skip


def batch(length=11, rows=2):
    rng = np.random.default_rng(0)
    return {
        "input_ids": jnp.asarray(rng.integers(0, 37, (rows, length)), jnp.int32),
        "input_mask": jnp.ones((rows, length), jnp.int32),
    }


@pytest.mark.parametrize("mean", [0.5, 30.0])
@pytest.mark.parametrize("name", sorted(norms.NORMS))
def test_norms_and_their_gradients_are_those_of_float64(name, mean):
    rng = np.random.default_rng(0)
    x, scale, grad = rng.normal(mean, 1, (5, 16)), rng.normal(1, 0.3, 16), rng.normal(size=(5, 16))
    bias = rng.normal(size=16) if name == "layer_norm" else np.zeros(16)
    module = norms.NORMS[name](16, epsilon=1e-5, dtype=jnp.dtype("float32"))
    graphdef, params = parameters.split(module)
    values = {"scale": scale, "bias": bias}
    params = {key: jnp.asarray(values[key], jnp.float32) for key in params}
    assert ("bias" in params) == (name == "layer_norm")

    def formula(x, scale, bias):
        middle = 0.0 if name == "rms_norm" else x.mean(axis=-1, keepdims=True)
        variance = ((x - middle) ** 2).mean(axis=-1, keepdims=True)
        return (x - middle) / np.sqrt(variance + 1e-5) * scale + bias

    def ours(x, params):
        return parameters.merge(graphdef, params)(x)

    y, backward = jax.vjp(ours, jnp.asarray(x, jnp.float32), params)
    error = 1 + mean**2  # one pass over x gives mean and variance
    np.testing.assert_allclose(y, formula(x, scale, bias), atol=3e-6 * error)
    grad_x, grad_params = backward(jnp.asarray(grad, jnp.float32))
    inputs, gradients = {"x": x, "scale": scale, "bias": bias}, {"x": grad_x} | grad_params
    for input_name, gradient in gradients.items():
        direction = rng.normal(size=inputs[input_name].shape)
        sides = [
            (formula(**inputs | {input_name: inputs[input_name] + s * direction}) * grad).sum()
            for s in (1e-6, -1e-6)
        ]
        slope = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-4 * error)


def test_rotary_positions_turn_pairs_by_their_place():
    rng = np.random.default_rng(0)
    x, places = rng.normal(size=(2, 5, 3, 8)), np.array([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
    expected = np.empty_like(x)
    for row, token in np.ndindex(2, 5):
        for pair in range(4):
            angle = places[row, token] * 100.0 ** (-pair / 4)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            both = x[row, token][:, [pair, pair + 4]] @ turn.T
            expected[row, token][:, [pair, pair + 4]] = both
    found = rotary.turned(jnp.asarray(x, jnp.float32), jnp.asarray(places), 100.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_gate_multiplies_what_is_activated():
    config = dataclasses.replace(SMALL, hidden_act="silu")
    module = small_modules.made(models.make_encoder, config, seed=1)
    layer = module.layers[1]
    x = np.random.default_rng(0).normal(size=(1, 3, 12))
    found = feed_forwards.FEED_FORWARDS["gated"].apply(layer, jnp.asarray(x, jnp.float32))
    into, gate, out = (
        np.asarray(getattr(layer, name).kernel[...], np.float64)
        for name in ("intermediate", "gate", "output")
    )
    inner = x @ into
    np.testing.assert_allclose(found, (inner / (1 + np.exp(-inner)) * (x @ gate)) @ out, rtol=1e-5)


def test_local_layers_see_their_window_and_global_ones_all():
    """A token moves another beyond all windows only through layers 0 and 3, which are global."""
    config = dataclasses.replace(SMALL, num_hidden_layers=3)
    graphdef, params = parameters.split(small_modules.made(models.make_encoder, config, seed=1))
    module = parameters.merge(graphdef, jax.tree.map(lambda x: 5 * x, params))

    def last(inputs_at_first, local_only):
        visible = models.Visibility(jnp.ones((1, 16), bool))
        hidden = jnp.asarray(np.random.default_rng(0).normal(size=(1, 16, 12)), jnp.float32)
        hidden = hidden.at[0, 0].add(inputs_at_first)
        chosen = module.layers[1:] if local_only else module.layers
        for layer in chosen:
            hidden = layer(hidden, visible)
        return hidden[0]

    moved = np.abs(last(1.0, True) - last(0.0, True)).max(axis=-1)
    assert (moved[:5] > 0).all()  # two local layers of two to each side
    assert (moved[5:] == 0).all()
    assert (np.abs(last(1.0, False) - last(0.0, False)).max(axis=-1) > 0).all()


def test_packed_sequences_are_what_they_are_alone_and_only_distances_count():
    module = jax.jit(small_modules.made(models.make_encoder, SMALL, seed=2))
    whole = batch(length=18, rows=1)["input_ids"]
    numbers = jnp.asarray([[1] * 8 + [2] * 8 + [0] * 2])
    packed = module({"input_ids": whole, "sequence_ids": numbers})
    alone = {"input_ids": whole[0, :16].reshape(2, 8), "input_mask": jnp.ones((2, 8))}
    np.testing.assert_allclose(packed[0, :16].reshape(2, 8, -1), module(alone), atol=2e-5)
    # With rotary positions all of a sequence may move along the row.
    places = jnp.broadcast_to(jnp.arange(8) + 500, (2, 8))
    moved = module(alone | {"positions": places})
    np.testing.assert_allclose(moved, module(alone), atol=1e-4)


def test_kernels_before_a_residual_start_smaller():
    config = dataclasses.replace(SMALL, depth_scaled_init=True, hidden_size=48, num_hidden_layers=2)
    module = models.make_encoder(config, rngs=nnx.Rngs(0))
    sigma = 0.02 * 0.88  # of what two sigmas leave of a normal distribution
    layer: Any = module.layers[1]
    for name, factor in {"intermediate": 1.0, "gate": 1.0, "output": 0.5}.items():
        found = float(getattr(layer, name).kernel[...].std())
        assert found == pytest.approx(sigma * factor, rel=0.15)
    assert float(layer.attention.output.kernel[...].std()) == pytest.approx(sigma / 2, rel=0.15)


def test_no_bias_but_those_of_last_layers():
    def biases(init):
        module = nnx.eval_shape(lambda: init(nnx.Rngs(0)))
        return {it for it in parameters.flat(parameters.split(module)[1]) if it.endswith("bias")}

    assert biases(task.Pretraining(SMALL, pair_loss="none").init) == {"mlm_head.bias"}
    for kind in (classification.SequenceClassifier, classification.TokenClassifier):
        classifier = biases(lambda rngs, kind=kind: kind(SMALL, num_labels=3, rngs=rngs))
        assert classifier == {"classifier.bias"}


def test_a_normed_pooler_stands_before_every_head():
    made = small_modules.made(classification.TokenClassifier, SMALL, seed=3, num_labels=2)
    inputs = batch(length=5)
    states = np.asarray(made.encoder(inputs), np.float64)
    inner = states @ np.asarray(made.pooler.dense.kernel[...], np.float64)
    inner = np.asarray(activations.ACTIVATIONS["gelu"](jnp.asarray(inner, jnp.float32)), np.float64)
    inner -= inner.mean(axis=-1, keepdims=True)
    inner /= np.sqrt((inner**2).mean(axis=-1, keepdims=True) + 1e-5)
    inner *= np.asarray(made.pooler.norm.scale[...])
    expected = inner @ np.asarray(made.classifier.kernel[...]) + np.asarray(
        made.classifier.bias[...]
    )
    np.testing.assert_allclose(made(inputs), expected, atol=2e-4)


def test_the_rules_of_sharding_cover_it():
    _, params = base.abstract_model(task.Pretraining(SMALL, pair_loss="none"))
    for table in sharding.RULES:
        tensor = 2 if "tensor" in table else 1
        mesh = sharding.make_mesh(jax.devices()[:2], data=2 // tensor, tensor=tensor)
        placed = parameters.flat(sharding.shardings(mesh, params, params, rule_table=table))
        gate, up = (f"encoder.layers.1.{name}.kernel" for name in ("gate", "intermediate"))
        assert placed[gate].spec == placed[up].spec


def test_flops_count_gates_and_what_windows_leave():
    length, hidden, wide = 11, 12, 10
    dense = 4 * hidden**2 + 3 * hidden * wide
    seen = [11, 5, 5, 11]  # layers 0 and 3 are global, the others see two to each side
    expected = sum(2.0 * length * (dense + 2 * count * hidden) for count in seen)
    assert SMALL.forward_flops(length) == expected
