"""Claims about rows with a prefix: who sees whom, what is lost where, and which rows they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.tasks import mixed_rows, pretraining
from bertjax.training import config_faults, program
from configs import smoke
from tests import conftest, small_modules

pytestmark = pytest.mark.usefixtures("quick_runs")
SIZES = dataclasses.replace(conftest.TINY, num_hidden_layers=2)
SHARE = 1 / 4  # four of the sixteen rows
TASK = mixed_rows.PrefixRows(SIZES, share=SHARE)


@pytest.fixture(scope="module")
def batch():
    """Nothing is predicted at padding, as in records; what that sees differs."""
    made = conftest.make_batch()
    is_real = np.take_along_axis(
        np.asarray(made["input_mask"]), np.asarray(made["masked_lm_positions"]), axis=1
    )
    return made | {"masked_lm_weights": made["masked_lm_weights"] * is_real}


@pytest.fixture(scope="module")
def model():
    return small_modules.made(TASK.init)


@pytest.fixture(scope="module")
def split(model):
    return nnx.split(model)


def rows(batch, which):
    return {name: values[which] for name, values in batch.items()}


def losses(split, batch):
    graphdef, params = split
    return jax.jit(lambda batch: TASK.loss(nnx.merge(graphdef, params), batch, key=None))(batch)


def test_most_rows_are_those_of_masked_tokens(split, model, batch):
    means = losses(split, batch)
    wanted = pretraining.Pretraining(SIZES).evaluate(model, rows(batch, slice(12)))
    assert wanted.keys() | {"prefix_loss", "prefix_accuracy"} == means.keys()
    for name, mean in wanted.items():
        np.testing.assert_allclose(means[name].value(), mean.value(), rtol=1e-5, err_msg=name)


def test_a_first_segment_does_not_see_the_second_nor_a_position_what_follows(model, batch):
    batch = rows(batch, slice(1))
    ids, segments = (np.array(batch[name][0]) for name in ("input_ids", "segment_ids"))
    length = int(np.sum(batch["input_mask"][0]))
    begin = int(np.argmax(segments))
    assert 2 < begin < length - 2
    read = jax.jit(lambda ids: model.encoder(TASK.as_last({**batch, "input_ids": ids})))
    before = np.asarray(read(jnp.asarray(ids)[None]))[0]
    reached = np.zeros((length, length), bool)
    for place in range(length):
        changed = ids.copy()
        changed[place] = 7 if ids[place] != 7 else 8
        after = np.asarray(read(jnp.asarray(changed)[None]))[0]
        reached[:, place] = np.abs(after - before).max(axis=1)[:length] > 1e-6
    place = np.arange(length)
    expected = (place[None] < begin) | ((place[None] <= place[:, None]) & (place[:, None] >= begin))
    np.testing.assert_array_equal(reached, expected)


def test_an_evaluation_reads_all_rows_in_both_ways(split, model, batch):
    graphdef, params = split
    evaluate = jax.jit(lambda batch: TASK.evaluate(nnx.merge(graphdef, params), batch))
    whole = evaluate(batch)
    last = losses(split, rows(batch, slice(12, 16)))  # one of four is a prefix row: the last
    alone = evaluate(rows(batch, slice(15, 16)))
    np.testing.assert_allclose(alone["prefix_loss"].value(), last["prefix_loss"].value(), rtol=1e-5)
    wanted = pretraining.Pretraining(SIZES).evaluate(model, batch)
    for name, mean in wanted.items():
        np.testing.assert_allclose(whole[name].value(), mean.value(), rtol=1e-5, err_msg=name)
    assert abs(whole["prefix_loss"].value() - whole["mlm_loss"].value()) > 1e-4
    assert whole["prefix_loss"].weight == whole["mlm_loss"].weight


def test_each_kind_counts_with_its_share_and_pairs_with_that_of_whole_rows(batch):
    shares = {"mlm_loss": 3 / 4, "nsp_loss": 3 / 4, "prefix_loss": 1 / 4}
    assert TASK.objectives == shares
    weights = TASK.weights(batch)
    counts = batch["masked_lm_weights"]
    assert weights["mlm_loss"] == counts[:12].sum() and weights["prefix_loss"] == counts[12:].sum()
    assert weights["nsp_loss"] == batch["example_weights"][:12].sum()


def changed(**options):
    config = smoke.get_config()
    config.model.vocab_size = 96
    config.pretraining.update(objective="prefix_rows", **options)
    return config


def test_a_batch_that_has_no_whole_number_of_each_kind_is_refused():
    config = program.resolve(changed(prefix_share=1 / 3), "cpu")
    config.phases.phase1.global_batch_size = 16
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    with pytest.raises(ValueError, match=r"is 16; it must be a multiple of 3 .*: 15 or 18"):
        program.build(jobs.JOBS[config.task].abstract(config), mesh)


def test_options_that_do_not_go_together_are_named():
    assert not list(mixed_rows.prefix_rows_faults(changed()))
    config = changed(prefix_share=1.0)
    config.model.update(window=8, left_to_right=True)
    found = "\n".join(mixed_rows.prefix_rows_faults(config))
    assert "window is 8; it" in found and "left_to_right is True; it" in found
    with pytest.raises(ValueError, match="prefix_share is 1.0; it must be between 0 and 1"):
        config_faults.validate(changed(prefix_share=1.0))
    config = changed(prefix_share=0.5)
    config.pretraining.objective = "masked_tokens"
    with pytest.raises(ValueError, match="prefix_share is 0.5, but .*'masked_tokens'"):
        config_faults.validate(config)
