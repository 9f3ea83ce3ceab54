"""Masked values: what is read, what is predicted, and the losses, against float64 numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import models, recipes
from bertjax.data import value_masking
from bertjax.models import values
from bertjax.tasks import masked_values
from tests import small_modules

SIZES = {
    **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "type_vocab_size": 0},
    **{"intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"vocab_size": 1, "max_position_embeddings": 16},
}
PATCHES = models.EncoderConfig(**SIZES, embeddings="patches", value_width=3)
COLUMNS = models.EncoderConfig(
    **SIZES, embeddings="columns", columns=(0, 4, 0, 3), position_embedding="none"
)
ROWS, LENGTH = 5, 7


def patches(seed=0, **changes):
    """Rows of patches with holes, of which the last is a copy that counts for nothing."""
    rng = np.random.default_rng(seed)
    observed = (rng.random((ROWS, LENGTH, 3)) < 0.8).astype(np.int32)
    observed[:, 0] = 0  # a place for the whole row
    batch = {
        "values": rng.normal(3, 2, (ROWS, LENGTH, 3)).astype(np.float32),
        "observed": observed,
        "hidden": (rng.random((ROWS, LENGTH)) < 0.4).astype(np.int32),
        "input_mask": np.ones((ROWS, LENGTH), np.int32),
        "example_weights": np.array([1, 1, 1, 1, 0], np.float32),
    }
    return batch | changes


def cells(seed=0):
    """Rows of a table: numbers and codes."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, n, ROWS) if n else rng.normal(size=ROWS) for n in COLUMNS.columns]
    return {
        "values": np.stack(drawn, axis=1)[:, :, None].astype(np.float32),
        "observed": (rng.random((ROWS, 4, 1)) < 0.8).astype(np.int32),
        "hidden": (rng.random((ROWS, 4)) < 0.5).astype(np.int32),
        "input_mask": np.ones((ROWS, 4), np.int32),
        "example_weights": np.array([1, 1, 1, 1, 0], np.float32),
    }


def made(task, batch):
    return small_modules.made(task.init), jax.tree.map(jnp.asarray, batch)


@pytest.mark.parametrize(
    ("config", "hidden_input"), [(PATCHES, "vector"), (PATCHES, "zeros"), (COLUMNS, "vector")]
)
def test_a_value_that_was_not_observed_or_is_hidden_changes_nothing(config, hidden_input):
    task = masked_values.MaskedValues(dataclasses.replace(config, hidden_input=hidden_input))
    model, batch = made(task, patches() if config is PATCHES else cells())
    unread = (batch["observed"] == 0) | (batch["hidden"][:, :, None] != 0)
    values = batch["values"]
    states = small_modules.compiled(lambda model, batch: model.encoder(batch), model)
    plain, of_unread, of_seen = (
        states(batch | {"values": shown})
        for shown in (values, jnp.where(unread, 2, values), jnp.where(unread, values, values + 1))
    )
    np.testing.assert_array_equal(of_unread, plain)
    assert np.abs(of_seen - plain).max() > 1e-3


@pytest.mark.parametrize(
    ("error", "normalized_rows", "normalized_patches"),
    [
        *(("squared", False, False), ("squared", True, True)),
        *(("absolute", True, False), ("huber", False, True)),
    ],
)
def test_the_loss_of_patches_is_the_mean_over_what_was_hidden_and_observed(
    error, normalized_rows, normalized_patches
):
    config = dataclasses.replace(PATCHES, normalized_rows=normalized_rows)
    task = masked_values.MaskedValues(config, error=error, normalized_patches=normalized_patches)
    batch = patches()
    model, ours = made(task, batch)

    def outputs(model, batch):
        return model.value_head(model.encoder(batch)), task.loss(model, batch, key=None)

    predicted, means = small_modules.run(outputs, model, ours)
    predicted = np.asarray(predicted, np.float64)
    target = batch["values"].astype(np.float64)
    if normalized_rows:
        seen = np.ma.masked_array(target, batch["observed"] == 0)
        mean, variance = (it(axis=(1, 2))[:, None, None] for it in (seen.mean, seen.var))
        target = (target - mean.data) / np.sqrt(variance.data + 1e-5)
    if normalized_patches:
        deviation = np.sqrt(target.var(axis=2, keepdims=True, ddof=1) + 1e-6)
        target = (target - target.mean(axis=2, keepdims=True)) / deviation
    off = predicted - target
    by_name = {
        "squared": off**2,
        "absolute": np.abs(off),
        "huber": np.where(np.abs(off) < 1, off**2 / 2, np.abs(off) - 0.5),
    }
    counted = (batch["observed"] * batch["hidden"][:, :, None] != 0)[:4]
    np.testing.assert_allclose(
        means["value_loss"].value(), by_name[error][:4][counted].mean(), rtol=1e-4
    )
    assert means["value_loss"].weight == counted.sum() == task.weights(ours)["value_loss"]
    assert {*task.objectives} == {*task.weights(ours)}


def test_numbers_and_categories_of_columns_have_a_loss_each():
    task, batch = masked_values.MaskedValues(COLUMNS), cells()
    model, ours = made(task, batch)

    def losses(model, batch):
        heads = model.column_head(model.encoder(batch))
        return heads, task.loss(model, batch, key=None), task.evaluate(model, batch)

    heads, means, scores = small_modules.run(losses, model, ours)
    outputs = [np.asarray(it, np.float64) for it in heads]
    counted = (batch["observed"][:, :, 0] * batch["hidden"] != 0)[:4]
    squares, entropies = [], []
    for at, count in enumerate(COLUMNS.columns):
        for row in np.flatnonzero(counted[:, at]):
            value, output = batch["values"][row, at, 0], outputs[at][row]
            if count:
                entropies.append(np.log(np.exp(output).sum()) - output[int(value)])
            else:
                squares.append((output[0] - value) ** 2)
    np.testing.assert_allclose(means["value_loss"].value(), np.mean(squares), rtol=1e-5)
    np.testing.assert_allclose(means["category_loss"].value(), np.mean(entropies), rtol=1e-5)
    weights = {name: float(it) for name, it in task.weights(ours).items()}
    assert weights == {"value_loss": len(squares), "category_loss": len(entropies)}
    # The accuracy of the most frequent category is logged next to the model's.
    is_most = [
        batch["values"][row, at, 0] == 1 for at in (1, 3) for row in np.flatnonzero(counted[:, at])
    ]
    assert scores["most_frequent_accuracy"].value() == pytest.approx(np.mean(is_most))


def of_row(values, shown, place):
    """The mean shown, the last value shown before a place, and the line to the next one."""
    places = np.flatnonzero(shown)
    before, after = places[places < place], places[places > place]
    first = before[-1] if len(before) else after[0]
    last = after[0] if len(after) else before[-1]
    share = (place - first) / max(last - first, 1)
    line = values[first] + share * (values[last] - values[first])
    return values[shown].mean(), values[first], line


@pytest.mark.parametrize("normalized_rows", [False, True])
def test_baselines_are_the_mean_the_last_value_and_the_line_of_what_is_shown(normalized_rows):
    config = dataclasses.replace(PATCHES, normalized_rows=normalized_rows)
    task, batch = masked_values.MaskedValues(config), patches(seed=4)
    model, ours = made(task, batch)

    def targets_and_means(model, batch):
        return model.encoder.embeddings.targets(batch), task.evaluate(model, batch)

    targets, means = small_modules.run(targets_and_means, model, ours)
    targets = np.asarray(targets, np.float64).reshape(ROWS, -1)
    shown = (batch["observed"] * (batch["hidden"] == 0)[:, :, None] != 0).reshape(ROWS, -1)
    counted = (batch["observed"] * batch["hidden"][:, :, None] != 0).reshape(ROWS, -1)
    errors = [
        np.array(of_row(targets[row], shown[row], place)) - targets[row, place]
        for row in range(4) for place in np.flatnonzero(counted[row])
    ]  # fmt: skip
    expected = np.mean(np.square(errors), axis=0)
    names = ("mean_loss", "last_value_loss", "interpolation_loss")
    np.testing.assert_allclose([means[it].value() for it in names], expected, rtol=1e-4)


def test_a_row_that_shows_nothing_has_finite_baselines_and_images_have_no_order():
    task, batch = masked_values.MaskedValues(PATCHES), patches()
    batch["hidden"][0] = 1
    means = small_modules.run(task.evaluate, *made(task, batch))
    assert all(np.isfinite(it.value()) for it in means.values())
    task = masked_values.MaskedValues(
        dataclasses.replace(PATCHES, position_embedding="sines_of_grid")
    )
    squares = {name: it[:, :5] if it.ndim > 1 else it for name, it in batch.items()}
    means = jax.eval_shape(task.evaluate, *made(task, squares))
    assert "mean_loss" in means and "last_value_loss" not in means


def test_the_baselines_of_replaced_cells_call_none_replaced():
    found = masked_values.chance({"replaced_loss": 0.5, "replaced_share": 0.2})
    expected = {"always_no_loss": 0.5004, "always_no_accuracy": 0.8}
    assert found == pytest.approx(expected, abs=1e-4)
    for averages in ({"value_loss": 1.2}, {"replaced_share": 0.0}, {"replaced_share": 1.0}):
        assert masked_values.chance(averages) == {}


def test_only_cells_whose_value_changed_count_as_replaced():
    task = masked_values.MaskedValues(COLUMNS, predicts="replaced")
    batch = cells()
    shown = batch["values"].copy()
    hidden = batch["hidden"][:, :, None] != 0
    shown[hidden] = np.roll(shown, 1, axis=0)[hidden]
    batch["shown_values"] = shown

    def outputs(model, batch):
        heads = jnp.concatenate(model.replaced_head(model.encoder(batch)), axis=1)
        return heads, task.loss(model, batch, key=None)

    logits, means = small_modules.run(outputs, *made(task, batch))
    logits = np.asarray(logits, np.float64)[:4]
    changed = (shown != batch["values"])[:4, :, 0]
    assert 0 < changed.sum() < hidden[:4].sum()  # some are replaced by an equal one
    losses = np.log1p(np.exp(np.where(changed, -logits, logits)))
    seen = batch["observed"][:4, :, 0] != 0
    np.testing.assert_allclose(means["replaced_loss"].value(), losses[seen].mean(), rtol=1e-5)


def test_the_share_of_observed_positions_is_hidden_by_row_and_groups_whole():
    rng = np.random.default_rng(1)
    batch = patches()
    del batch["hidden"]
    options = value_masking.Options(0.5)
    observed = value_masking.observed_positions(batch)
    hidden = value_masking.draw(batch, rng, options)["hidden"]
    assert ((hidden == 0) | observed).all() and not hidden[:, 0].any()
    expected = np.maximum(np.rint(observed.sum(axis=1) * 0.5), 1)
    np.testing.assert_array_equal(hidden.sum(axis=1), expected)
    rare = value_masking.draw(batch, rng, value_masking.Options(0.01))["hidden"]
    np.testing.assert_array_equal(rare.sum(axis=1), observed.any(axis=1))  # one at the least
    groups = np.array([0, 0, 1, 1, 0, 1, 1], np.int32)  # [CLS] and two channels of three
    whole = batch | {
        "continues_word": np.tile(groups, (ROWS, 1)), "observed": np.ones_like(batch["observed"])
    }  # fmt: skip
    whole["observed"][:, 0] = 0
    drawn = value_masking.draw(whole, rng, dataclasses.replace(options, strategy="whole_word"))
    of_groups = drawn["hidden"][:, 1:].reshape(ROWS, 2, 3)
    assert {*of_groups.sum(axis=2).ravel().tolist()} == {0, 3}


def test_exchanged_cells_are_those_of_the_same_column_and_no_function_of_the_batch():
    donors = (
        np.arange(40, dtype=np.float32).reshape(10, 4, 1), np.ones((10, 4, 1), np.int32)
    )  # fmt: skip
    donors[1][:, 2] = 0
    options = value_masking.Options(0.6, exchanges=True)
    batch = cells()
    drawn = value_masking.draw(batch, np.random.default_rng(3), options, donors)
    hidden, shown = drawn["hidden"] != 0, drawn["shown_values"][:, :, 0]
    cells_before = batch["values"][:, :, 0]
    np.testing.assert_array_equal(shown[~hidden], cells_before[~hidden])
    np.testing.assert_array_equal(shown[:, 2], cells_before[:, 2])  # whose donors have none
    for column in (0, 1, 3):
        taken = shown[:, column][hidden[:, column]]
        assert ((taken % 4) == column).all() and len(taken)
    other = cells(seed=8) | {name: batch[name] for name in ("observed", "input_mask")}
    again = value_masking.draw(other, np.random.default_rng(3), options, donors)
    is_exchanged = hidden & (np.arange(4) != 2)
    np.testing.assert_array_equal(again["shown_values"][:, :, 0][is_exchanged], shown[is_exchanged])


def test_computed_places_are_their_definitions():
    table = values.sines(5, 6)
    angles = np.arange(5)[:, None] / 10_000 ** (2 * np.arange(3) / 6)
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-6)
    grid = values.sines_of_grid(10, 8)  # 3 x 3 behind [CLS]; 8 numbers: two angles, column and row
    assert (grid[0] == 0).all()
    strip = values.sines_of_grid(13, 8, 2)  # 2 rows of 6
    for table, rows, columns in ((grid, 3, 3), (strip, 2, 6)):
        for row, column in np.ndindex(rows, columns):
            angles = np.array([[column, column / 100], [row, row / 100]])
            by_hand = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).ravel()
            np.testing.assert_allclose(table[1 + columns * row + column], by_hand, atol=1e-6)
    for given in ((8, 8), (13, 8), (13, 8, 5)):
        with pytest.raises(ValueError, match=f"the input has {given[0]} positions"):
            values.sines_of_grid(*given)


def test_a_model_of_masked_autoencoders_must_hide_values_from_this_objective():
    config = recipes.load("mae:mini")
    config.pretraining.objective = "masked_values"
    (fault,) = masked_values.faults(config)
    assert "hidden_input is 'none'" in fault and "'vector'" in fault
    config.model.hidden_input = "vector"
    assert not list(masked_values.faults(config))
