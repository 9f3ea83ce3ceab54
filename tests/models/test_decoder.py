"""The decoder against a plain float64 numpy model, and what it may see."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.models import attention, decoder, parameters, visibility
from tests import small_modules
from tests.models import test_encoder as of_encoder

LENGTH, TARGET = 9, 6
VARIANTS = {
    "post_norm": {},
    "pre_norm": {"layer": "pre_norm"},
    "rotary": {"layer": "full_pre_norm", "position_embedding": "rotary", "type_vocab_size": 0},
    "windows": {"window": 2, "global_every": 2, "feed_forward": "gated"},
}


def rows(config, batch=3, seed=0):
    """Sources and targets with padding at their ends; the first source is full."""
    rng = np.random.default_rng(seed)
    made = {}
    for ids, mask, length in (
        ("input_ids", "input_mask", LENGTH),
        ("target_ids", "target_mask", TARGET),
    ):
        lengths = np.array([length, *rng.integers(2, length, batch - 1)])
        made[mask] = (np.arange(length) < lengths[:, None]).astype(np.int32)
        made[ids] = rng.integers(5, config.vocab_size, (batch, length)) * made[mask]
    return jax.tree.map(jnp.asarray, made)


def model_of(config, shares="embeddings", **changes):
    config = dataclasses.replace(config, **changes)
    return small_modules.made(decoder.EncoderDecoder, config, shares=shares)


def numpy_logits(batch, p, config, shares):
    source = {**batch, "segment_ids": np.zeros_like(batch["input_ids"])}
    states = of_encoder.numpy_hidden_states(source, p["encoder"], config)[-1]
    tables = p["encoder"]["embeddings"] | p["decoder"].get("embeddings", {})
    stack = p["encoder" if shares == "layers" else "decoder"]["layers"]
    ids, mask = np.asarray(batch["target_ids"]), np.asarray(batch["target_mask"])
    positions = np.asarray(batch.get("target_positions", np.arange(ids.shape[1])[None]))
    x = tables["word"]["embedding"][ids] + tables["position"]["embedding"][positions]
    x = of_encoder.numpy_layer_norm(x + tables["segment"]["embedding"][0], tables["norm"])
    left = np.tril(np.ones((ids.shape[1],) * 2, bool))[None]
    of_source = np.asarray(batch.get("source_mask", batch["input_mask"]))[:, None] != 0
    for number in range(config.num_hidden_layers):
        layer, cross = stack[str(number)], p["decoder"]["cross"][str(number)]
        heads = config.num_attention_heads
        added = of_encoder.numpy_attention(
            x, x, left & (mask[:, None] != 0), layer["attention"], heads
        )
        x = of_encoder.numpy_layer_norm(x + added, layer["attention_norm"])
        added = of_encoder.numpy_attention(
            x, states, np.repeat(of_source, len(left[0]), 1), cross["attention"], heads
        )
        x = of_encoder.numpy_layer_norm(x + added, cross["norm"])
        fed = of_encoder.numpy_gelu(of_encoder.numpy_dense(x, layer["intermediate"]))
        x = of_encoder.numpy_layer_norm(
            x + of_encoder.numpy_dense(fed, layer["output"]), layer["output_norm"]
        )
    head = p["mlm_head"]
    transformed = of_encoder.numpy_gelu(of_encoder.numpy_dense(x, head["dense"]))
    transformed = of_encoder.numpy_layer_norm(transformed, head["norm"])
    return transformed @ tables["word"]["embedding"].T + head["bias"]


@pytest.mark.parametrize("shares", decoder.SHARED)
def test_logits_equal_the_numpy_model(tiny, shares):
    model, batch = model_of(tiny, shares), rows(tiny)
    params = jax.tree.map(np.float64, parameters.split(model)[1])
    expected = numpy_logits(batch, params, tiny, shares)
    real = np.asarray(batch["target_mask"]) != 0
    np.testing.assert_allclose(np.asarray(model(batch))[real], expected[real], atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_with_a_memory_equal_the_whole_row(tiny, variant):
    model, batch = model_of(tiny, **VARIANTS[variant]), rows(tiny)
    whole = model.decoder(
        decoder.target_inputs({**batch, "target_mask": jnp.ones_like(batch["target_ids"])}),
        model.encoder(batch),
        decoder.source_of(batch),
        encoder=model.encoder,
    )
    beams = 2  # two targets of each source, the second with other words

    def targets(ids):
        return jnp.stack([ids, jnp.roll(ids, 1, axis=0)], axis=1).reshape(-1)

    memory = model.decoder.memory(
        model.encoder(batch),
        decoder.source_of(batch),
        rows=beams * len(whole),
        length=TARGET + 2,
        encoder=model.encoder,
    )
    step = jax.jit(lambda *arguments: model.decoder.step(*arguments, encoder=model.encoder))
    for at in range(TARGET):
        states, memory = step(targets(batch["target_ids"][:, at]), jnp.int32(at), memory)
        np.testing.assert_allclose(states[::beams], whole[:, at], atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_target_sees_its_left_and_the_real_source_alone(tiny, variant):
    model, batch = model_of(tiny, **VARIANTS[variant]), rows(tiny)
    source, states, at = model.encoder.embed(batch), model.encoder(batch), 3

    def predicted(embedded, states):
        visible, of_source = (
            visibility.Visibility(batch["target_mask"] != 0),
            decoder.source_of(batch),
        )
        hidden = model.decoder.contextualize(
            embedded, visible, states, of_source, encoder=model.encoder
        )
        return (hidden[0, at] ** 2).sum()

    target = source[:, :TARGET]
    of_target, of_states = jax.grad(predicted, argnums=(0, 1))(target, states)
    of_target, of_states = np.asarray(of_target), np.asarray(of_states)
    assert np.all(of_target[0, at + 1 :] == 0)
    assert np.any(of_target[0, at] != 0)
    assert np.all(of_target[1:] == 0)
    assert np.all(of_states[1:] == 0)
    assert np.all(np.any(of_states[0] != 0, axis=-1))


def test_padding_of_a_source_changes_nothing_and_gets_no_gradient(tiny):
    model, batch = model_of(tiny), rows(tiny)
    is_padding = np.asarray(batch["input_mask"]) == 0
    assert is_padding.any()
    other = {**batch, "input_ids": jnp.where(is_padding, 7, batch["input_ids"])}
    real = np.asarray(batch["target_mask"]) != 0
    np.testing.assert_array_equal(np.asarray(model(batch))[real], np.asarray(model(other))[real])

    def summed(states):
        hidden = model.decoder(
            decoder.target_inputs(batch), states, decoder.source_of(batch), encoder=model.encoder
        )
        return jnp.where(real[:, :, None], hidden**2, 0).sum()

    gradient = np.asarray(jax.grad(summed)(model.encoder(batch)))
    assert np.all(gradient[is_padding] == 0)
    assert np.all(np.any(gradient[~is_padding] != 0, axis=-1))


def test_a_source_mask_hides_positions_of_the_source_from_the_decoder_alone(tiny):
    model, batch = model_of(tiny), rows(tiny)
    hidden = batch["input_mask"].at[:, 1].set(0)
    states = model.encoder(batch)

    def summed(states):
        inputs = decoder.target_inputs(batch)
        source = decoder.source_of({**batch, "source_mask": hidden})
        return (model.decoder(inputs, states, source, encoder=model.encoder)[:, :2] ** 2).sum()

    gradient = np.asarray(jax.grad(summed)(states))
    assert np.all(gradient[:, 1] == 0)
    assert np.any(gradient[:, 0] != 0)


@pytest.mark.slow
def test_rematerialization_changes_nothing_but_memory(tiny):
    """The encoder's layers: test_encoder.py."""
    batch, key = rows(tiny), jax.random.key(3)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
    states = jax.random.normal(jax.random.key(0), (*batch["input_ids"].shape, tiny.hidden_size))

    def gradient(**changes):
        graphdef, params = parameters.split(
            model_of(tiny, num_hidden_layers=1, **dropout, **changes)
        )

        def loss(params):
            model = nnx.merge(graphdef, params)
            inputs, source = decoder.target_inputs(batch), decoder.source_of(batch)
            hidden = model.decoder(inputs, states, source, encoder=model.encoder, key=key)
            return (hidden**2 * states[:, :TARGET]).mean()

        return jax.tree.leaves(jax.jit(jax.grad(loss))(params))

    for ours, plain in zip(gradient(remat="dots"), gradient(), strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-6)


@pytest.mark.parametrize("length", [5, 1030])
def test_gradients_of_attention_over_other_rows_are_those_of_autodiff(length):
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.normal(size=(2, length, 2, 4)), jnp.float32)
    keys, values = jnp.asarray(rng.normal(size=(2, 2, 7, 2, 4)), jnp.float32)
    is_real = jnp.asarray(np.arange(7) < np.array([[7], [4]]))
    visible = visibility.Visibility(is_real)

    def plain(query, keys, values):
        scores = jnp.einsum("BLHK,BSHK->BHLS", query, keys)
        weights = jax.nn.softmax(jnp.where(is_real[:, None, None], scores, -jnp.inf))
        return (jnp.einsum("BHLS,BSHK->BLHK", weights, values) ** 2).sum()

    def ours(query, keys, values):
        options = {"dropout_rate": 0.0, "key": None}
        return (attention.attend(query, keys, values, visible, **options) ** 2).sum()

    expected = jax.grad(plain, argnums=(0, 1, 2))(query, keys, values)
    found = jax.grad(ours, argnums=(0, 1, 2))(query, keys, values)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [6, 1030])
def test_dropout_of_cross_attention_has_the_same_mask_in_both_passes(length):
    """The gradient of a sum that is linear in the values is the weights that were kept."""
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.normal(size=(1, length, 2, 4)), jnp.float32)
    keys, values = jnp.asarray(rng.normal(size=(2, 1, 7, 2, 4)), jnp.float32)
    visible = visibility.Visibility(jnp.ones((1, 7), bool))
    options = {"dropout_rate": 0.5, "key": jax.random.key(0)}

    def summed(values):
        return attention.attend(query, keys, values, visible, **options).sum()

    total, gradient = jax.value_and_grad(summed)(values)
    np.testing.assert_allclose((gradient * values).sum(), total, rtol=1e-4, atol=1e-3)


def test_shared_layers_leave_the_decoder_its_cross_attention(tiny):
    """Rothe et al. 2020: BERTShare of Base size has 137,881,146 parameters with its head."""
    base = models.EncoderConfig()
    shapes = nnx.eval_shape(lambda: decoder.EncoderDecoder(base, shares="layers", rngs=nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(parameters.split(shapes)[1])) == 137_881_146
    params = parameters.split(model_of(tiny, "layers"))[1]
    assert {*params["decoder"]} - {"layers"} == {"cross"}


def test_widths_and_layers_that_no_decoder_has_are_refused(tiny):
    with pytest.raises(ValueError, match="hidden_size is 64; it must be 32"):
        decoder.EncoderDecoder(tiny, dataclasses.replace(tiny, hidden_size=64), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="num_hidden_groups is 1"):
        decoder.Decoder(dataclasses.replace(tiny, num_hidden_groups=1), rngs=nnx.Rngs(0))
    model, batch = model_of(tiny), rows(tiny)
    with pytest.raises(ValueError, match="target_ids are the labels"):
        model({**batch, "labels": batch["target_ids"]})
    with pytest.raises(ValueError, match="target_ids are the labels"):
        jax.jit(lambda ids: model({**batch, "target_ids": ids, "labels": ids}))(batch["target_ids"])
    packed = dataclasses.replace(
        visibility.of(batch), sequence_ids=jnp.ones_like(batch["input_ids"])
    )
    with pytest.raises(ValueError, match="the source has a window"):
        model.decoder(
            decoder.target_inputs(batch), model.encoder(batch), packed, encoder=model.encoder
        )
