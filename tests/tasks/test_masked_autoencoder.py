"""MAE: the encoder sees what is visible and nothing else; its loss is the mean over the rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax import recipes
from bertjax.models import values
from bertjax.tasks import masked_autoencoder
from tests.tasks import test_masked_values

CONFIG = dataclasses.replace(
    test_masked_values.PATCHES, layer="full_pre_norm", position_embedding="sines"
)
DECODER = dataclasses.replace(CONFIG, hidden_size=4, num_attention_heads=1, num_hidden_layers=2)
LENGTH = test_masked_values.LENGTH


def made(share=0.5, **options):
    task = masked_autoencoder.MaskedAutoencoder(CONFIG, DECODER, share, **options)
    hidden = np.zeros((test_masked_values.ROWS, LENGTH), np.int32)
    hidden[:, [1, 3, 6]] = 1
    batch = test_masked_values.patches(hidden=hidden)
    batch["observed"][:, 1:] = 1
    return task, task.init(nnx.Rngs(0)), jax.tree.map(jnp.asarray, batch)


def test_predictions_depend_on_visible_values_and_no_others():
    task, model, batch = made()
    assert task.visible(LENGTH) == 4
    predicted = task.predictions(model, batch)
    hidden = batch["hidden"][:, :, None] != 0
    others = batch | {"values": jnp.where(hidden, 9.0, batch["values"])}
    np.testing.assert_array_equal(task.predictions(model, others), predicted)
    seen = batch | {"values": batch["values"].at[:, 2].add(1.0)}
    assert np.abs(task.predictions(model, seen) - predicted).max(axis=(1, 2)).min() > 1e-5


def test_the_encoder_has_the_states_of_the_visible_positions_alone():
    task, model, batch = made()
    shown = np.flatnonzero(np.asarray(batch["hidden"][0]) == 0)
    embedded = model.encoder.embed({k: v for k, v in batch.items() if k != "hidden"})[:, shown]
    from bertjax.models import visibility

    alone = model.encoder.contextualize(
        embedded, visibility.Visibility(jnp.ones(embedded.shape[:2], bool))
    )[-1]
    places = np.zeros((len(alone), LENGTH), np.int32)
    places[:, shown] = np.arange(len(shown))
    is_visible = np.zeros((len(alone), LENGTH), bool)
    is_visible[:, shown] = True
    inputs = model.decoder.embeddings(alone, jnp.asarray(places), jnp.asarray(is_visible))
    whole = visibility.Visibility(jnp.ones((len(alone), LENGTH), bool))
    expected = model.value_head(model.decoder.contextualize(inputs, whole)[-1])
    np.testing.assert_allclose(task.predictions(model, batch), expected, atol=1e-6)


def test_rows_with_other_numbers_of_hidden_positions_show_nothing_that_is_hidden():
    task, model, batch = made()
    for places in ([1, 2, 3, 4, 5], [2]):
        hidden = np.zeros((test_masked_values.ROWS, LENGTH), np.int32)
        hidden[:, places] = 1
        changed = batch | {"hidden": jnp.asarray(hidden)}
        others = changed | {"values": jnp.where(hidden[:, :, None] != 0, 9.0, batch["values"])}
        predicted = task.predictions(model, changed)
        np.testing.assert_array_equal(task.predictions(model, others), predicted)
        assert np.isfinite(predicted).all()


def test_the_loss_is_the_mean_square_over_hidden_patches_normalized_or_not():
    for normalized in (False, True):
        task, model, batch = made(normalized_patches=normalized)
        predicted = np.asarray(task.predictions(model, batch), np.float64)
        target = np.asarray(batch["values"], np.float64)
        if normalized:
            deviation = np.sqrt(target.var(axis=2, keepdims=True, ddof=1) + 1e-6)
            target = (target - target.mean(axis=2, keepdims=True)) / deviation
        of_patches = ((predicted - target) ** 2).mean(axis=2)[:4]
        hidden = np.asarray(batch["hidden"])[:4] != 0
        means = task.loss(model, batch, key=None)
        np.testing.assert_allclose(
            means["value_loss"].value(), of_patches[hidden].mean(), rtol=1e-5
        )
        assert means["value_loss"].weight == task.weights(batch)["value_loss"]


def test_gradients_reach_all_parameters():
    task, model, batch = made()
    graph, params = nnx.split(model)
    grads = jax.grad(lambda p: task.loss(nnx.merge(graph, p), batch, key=None)["value_loss"].total)(
        params
    )
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
