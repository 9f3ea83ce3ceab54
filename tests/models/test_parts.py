"""An encoder's parts: chosen by the config, each replaceable; packed rows through all of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import models
from bertjax.models import parameters, visibility
from bertjax.tasks import pretraining
from tests import small_modules
from tests.models import test_encoder

LENGTHS = (5, 3, 7)


def apart():
    """Three sequences, a row each, of segments 0 and 1."""
    rng = np.random.default_rng(0)
    is_real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    made = {
        "input_ids": rng.integers(5, 96, is_real.shape) * is_real,
        "segment_ids": rng.integers(0, 2, is_real.shape) * is_real,
        "input_mask": is_real,
    }
    return {name: jnp.asarray(rows, jnp.int32) for name, rows in made.items()}


def packed(rows, gap=2):
    """The same in one row, with `gap` positions of padding after each."""
    parts = {name: [] for name in ("input_ids", "segment_ids", "sequence_ids")}
    for row, length in enumerate(LENGTHS):
        for name in ("input_ids", "segment_ids"):
            parts[name] += [*np.asarray(rows[name])[row, :length].tolist(), *[0] * gap]
        parts["sequence_ids"] += [row + 1] * length + [0] * gap
    return {name: jnp.asarray([numbers], jnp.int32) for name, numbers in parts.items()}


def sequences(hidden, gap=2):
    """The states of each sequence in a packed row."""
    starts = np.cumsum([0, *(length + gap for length in LENGTHS[:-1])])
    return [
        np.asarray(hidden)[0, start : start + n] for start, n in zip(starts, LENGTHS, strict=True)
    ]


def test_packed_rows_have_the_states_of_the_same_sequences_apart(tiny):
    model = small_modules.made(models.make_encoder, tiny)
    rows, states = apart(), jax.jit(model.hidden_states)
    for by_row, together in zip(states(rows), states(packed(rows)), strict=True):
        for row, found in enumerate(sequences(together)):
            np.testing.assert_allclose(found, by_row[row, : LENGTHS[row]], atol=1e-5)


def test_the_positions_of_a_batch_are_those_of_its_words_in_a_row_of_any_length(tiny):
    model = small_modules.made(models.make_encoder, tiny)
    rows = packed(apart())
    places = visibility.positions(rows)
    hidden = model(rows | {"positions": places})
    np.testing.assert_array_equal(hidden, model(rows))
    assert np.abs(hidden - model(rows | {"positions": places + 1})).max() > 1e-4
    short = dataclasses.replace(tiny, max_position_embeddings=max(LENGTHS))
    assert rows["input_ids"].shape[1] > short.max_position_embeddings
    assert np.isfinite(small_modules.made(models.make_encoder, short)(rows)).all()


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_no_gradient_goes_from_sequence_to_sequence_or_to_padding(tiny, remat):
    dropping = dataclasses.replace(tiny, remat=remat, attention_probs_dropout_prob=0.1)
    model = small_modules.made(models.make_encoder, dropping)
    rows = packed(apart())
    numbers = np.asarray(rows["sequence_ids"])
    visible = visibility.of(rows)
    embedded = model.embed(rows)

    def sum_of_second(embedded):
        states = model.contextualize(embedded, visible, key=jax.random.key(0))
        return jnp.where(numbers[:, :, None] == 2, states[-1] ** 3, 0.0).sum()

    gradient = np.asarray(jax.jit(jax.grad(sum_of_second))(embedded))
    assert np.all(gradient[numbers != 2] == 0)
    assert np.all(np.abs(gradient[numbers == 2]).max(axis=-1) > 0)

    def sum_of_all(embedded):
        return (model.contextualize(embedded, visible)[-1] ** 3).sum()

    assert np.isfinite(jax.jit(jax.grad(sum_of_all))(embedded)).all()


def test_each_layer_has_its_own_window_and_order(tiny):
    model = small_modules.made(models.make_encoder, tiny)
    model.layers[0].attention.window = 2
    model.layers[1].attention.left_to_right = True
    embedded = jax.random.normal(jax.random.key(0), (1, 12, tiny.hidden_size))
    visible = visibility.of({"input_mask": jnp.ones((1, 12), jnp.int32)})

    def reached(number, position):
        """The positions that the state of a layer at `position` depends on."""

        def state(embedded):
            return (model.contextualize(embedded, visible)[number][0, position] ** 3).sum()

        gradient = jax.jit(jax.grad(state))(embedded)
        return np.flatnonzero(np.abs(gradient[0]).max(axis=-1)).tolist()

    assert reached(1, 6) == [4, 5, 6, 7, 8]
    assert reached(2, 6) == list(range(9))  # 6 sees 0 to 6, of which 6 has seen 7 and 8


@pytest.fixture
def factorized(tiny):
    return dataclasses.replace(tiny, embedding_size=8)


def test_factorized_embeddings_are_tables_of_their_size_and_a_projection(factorized, batch):
    model = small_modules.made(models.make_encoder, factorized)
    p = jax.tree.map(np.float64, parameters.split(model)[1]["embeddings"])
    shapes = {name: p[name]["embedding"].shape for name in ("word", "position", "segment")}
    assert shapes == {"word": (96, 8), "position": (24, 8), "segment": (2, 8)}
    ids, segments = (np.asarray(batch[name]) for name in ("input_ids", "segment_ids"))
    summed = p["word"]["embedding"][ids] + p["segment"]["embedding"][segments]
    summed = summed + p["position"]["embedding"][: ids.shape[1]]
    normed = test_encoder.numpy_layer_norm(summed, p["norm"])
    expected = test_encoder.numpy_dense(normed, p["projection"])
    np.testing.assert_allclose(model.embed(batch), expected, atol=1e-5)


def test_without_segments_their_ids_are_not_read_and_have_no_table(tiny, batch):
    bare = dataclasses.replace(tiny, type_vocab_size=0)
    model = small_modules.made(models.make_encoder, bare)
    tables = parameters.split(model)[1]["embeddings"]
    assert tables.keys() == {"word", "position", "norm"}
    other = batch | {"segment_ids": 1 - batch["segment_ids"]}
    np.testing.assert_array_equal(model.embed(batch), model.embed(other))
    summed = np.asarray(tables["word"]["embedding"])[batch["input_ids"]]
    summed = summed + np.asarray(tables["position"]["embedding"])[: summed.shape[1]]
    expected = test_encoder.numpy_layer_norm(summed, jax.tree.map(np.asarray, tables["norm"]))
    np.testing.assert_allclose(model.embed(batch), expected, atol=1e-5)


def test_the_pooler_has_the_activation_that_the_config_chooses(tiny):
    hidden = jax.random.normal(jax.random.key(0), (3, 4, tiny.hidden_size))
    for name, act in {
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "gelu": test_encoder.numpy_gelu,
    }.items():
        pooler = small_modules.made(models.Pooler, dataclasses.replace(tiny, pooler_act=name))
        dense = jax.tree.map(np.asarray, parameters.split(pooler)[1]["dense"])
        expected = act(test_encoder.numpy_dense(np.asarray(hidden[:, 0]), dense))
        np.testing.assert_allclose(pooler(hidden[:, 0]), expected, atol=1e-5)


def test_a_masked_token_head_projects_down_to_the_embeddings(factorized, batch):
    task = pretraining.Pretraining(factorized)
    graphdef, params = parameters.split(small_modules.made(task.init))
    assert params["mlm_head"]["dense"]["kernel"].shape == (32, 8)

    def loss(params):
        return task.loss(parameters.merge(graphdef, params), batch, key=None)["mlm_loss"].total

    gradients = jax.jit(jax.grad(loss))(params)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients["mlm_head"]))
    assert np.abs(gradients["encoder"]["embeddings"]["projection"]["kernel"]).max() > 0


def test_a_factorized_model_has_the_floating_point_operations_of_its_products(factorized, tiny):
    length, rows = 16, 16
    whole, small = (pretraining.Pretraining(each, pair_loss="none") for each in (tiny, factorized))
    heads = 4 * (32 * (32 + 96) - 8 * (32 + 96))  # of four predictions
    difference = whole.train_flops(rows, length, 4) - small.train_flops(rows, length, 4)
    assert difference == 3 * rows * 2.0 * (heads - length * 8 * 32)
