"""MAE: the encoder sees what is visible and nothing else; its loss is the mean over the rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import recipes
from bertjax.models import values, visibility
from bertjax.tasks import masked_autoencoder
from tests import small_modules
from tests.tasks import test_masked_values

CONFIG = dataclasses.replace(
    test_masked_values.PATCHES, layer="full_pre_norm", position_embedding="sines"
)
DECODER = dataclasses.replace(CONFIG, hidden_size=4, num_attention_heads=1, num_hidden_layers=2)
LENGTH, ROWS = test_masked_values.LENGTH, test_masked_values.ROWS


def made(**options):
    task = masked_autoencoder.MaskedAutoencoder(CONFIG, DECODER, 0.5, **options)
    batch = test_masked_values.patches(hidden=hidden_at([1, 3, 6]))
    batch["observed"][:, 1:] = 1
    return task, small_modules.made(task.init), jax.tree.map(jnp.asarray, batch)


def hidden_at(places):
    return np.isin(np.arange(LENGTH), places)[None].repeat(ROWS, 0).astype(np.int32)


def test_predictions_depend_on_visible_values_and_no_others():
    """Also in rows with other numbers of hidden positions than the task has."""
    task, model, batch = made()
    assert [task.visible(it) for it in (LENGTH, LENGTH + 1)] == [4, 5]  # of patches
    predictions = small_modules.compiled(task.predictions, model)
    for places in ([1, 3, 6], [1, 2, 3, 4, 5], [2]):
        hidden, values = hidden_at(places), batch["values"]
        predicted, of_hidden, of_seen = (
            np.asarray(predictions(batch | {"hidden": jnp.asarray(hidden), "values": shown}))
            for shown in (
                values,
                jnp.where(hidden[:, :, None] != 0, 9.0, values),
                values.at[:, np.flatnonzero(hidden[0] == 0)[1]].add(1.0),
            )
        )
        np.testing.assert_array_equal(of_hidden, predicted)
        assert np.isfinite(predicted).all()
        assert np.abs(of_seen - predicted).max(axis=(1, 2)).min() > 1e-5


def test_the_encoder_has_the_states_of_the_visible_positions_alone():
    task, model, batch = made()
    shown = np.flatnonzero(np.asarray(batch["hidden"][0]) == 0)
    places = np.zeros((ROWS, LENGTH), np.int32)
    places[:, shown] = np.arange(len(shown))
    is_visible = np.zeros((ROWS, LENGTH), bool)
    is_visible[:, shown] = True

    def both(model, batch):
        embedded = model.encoder.embed({k: v for k, v in batch.items() if k != "hidden"})[:, shown]
        every = visibility.Visibility(jnp.ones(embedded.shape[:2], bool))
        alone = model.encoder.contextualize(embedded, every)[-1]
        inputs = model.decoder.embeddings(alone, jnp.asarray(places), jnp.asarray(is_visible))
        whole = visibility.Visibility(jnp.ones((ROWS, LENGTH), bool))
        states = model.decoder.contextualize(inputs, whole)[-1]
        return task.predictions(model, batch), model.value_head(states)

    np.testing.assert_allclose(*small_modules.run(both, model, batch), atol=1e-6)


@pytest.mark.parametrize("normalized", [False, True])
def test_the_loss_is_the_mean_square_over_hidden_patches(normalized):
    task, model, batch = made(normalized_patches=normalized)

    def outputs(model, batch):
        return task.predictions(model, batch), task.loss(model, batch, key=None)

    predicted, means = small_modules.run(outputs, model, batch)
    target = np.asarray(batch["values"], np.float64)
    if normalized:
        deviation = np.sqrt(target.var(axis=2, keepdims=True, ddof=1) + 1e-6)
        target = (target - target.mean(axis=2, keepdims=True)) / deviation
    of_patches = ((np.asarray(predicted, np.float64) - target) ** 2).mean(axis=2)[:4]
    hidden = np.asarray(batch["hidden"])[:4] != 0
    np.testing.assert_allclose(means["value_loss"].value(), of_patches[hidden].mean(), rtol=1e-5)
    assert means["value_loss"].weight == task.weights(batch)["value_loss"]


def test_gradients_reach_all_parameters():
    task, model, batch = made()
    graph, params = nnx.split(model)

    def loss(params):
        return task.loss(nnx.merge(graph, params), batch, key=None)["value_loss"].total

    grads = jax.jit(jax.grad(loss))(params)
    unused = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(grads))
        if not np.abs(leaf).max()
    ]
    # Nothing is missing here, and what hides a position is the decoder's own vector.
    assert all("missing" in name or "hidden_vector" in name or "key" in name for name in unused)


def test_the_smallest_recipe_begins_with_patches_that_their_places_do_not_drown():
    """With a deviation of 0.02 and patches of 2 x 2 they were 1/17 of the places."""
    sizes = recipes.load("mae:mini").model
    width, hidden = 4, sizes.hidden_size
    config = dataclasses.replace(
        CONFIG, hidden_size=hidden, value_width=width, initializer_range=sizes.initializer_range,
        position_embedding="sines_of_grid",
    )  # fmt: skip
    embeddings = values.PatchEmbeddings(config, rngs=nnx.Rngs(0))
    patches = np.random.default_rng(0).normal(size=(8, 17, width)).astype(np.float32)
    of_patches = np.asarray(embeddings.patches(jnp.asarray(patches))).std()
    assert of_patches > values.sines_of_grid(17, hidden)[1:].std() / 5
