"""Claims about two kinds of rows in one batch: who sees whom, what is lost where, with what share.

Hybrid rows are masked or read from left to right; prefix rows have a first segment that is whole.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.tasks import mixed_rows, next_token, pretraining
from bertjax.training import optim, program, schedules, state
from configs import smoke
from tests import conftest, small_modules

pytestmark = pytest.mark.usefixtures("quick_runs")
SIZES = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
SHARE = 1 / 4  # four of the sixteen rows
MASKED, LAST = slice(12), slice(12, 16)
HYBRID = mixed_rows.Hybrid(SIZES, share=SHARE, mean="rows")
BY_TOKENS = dataclasses.replace(HYBRID, mean="tokens")
PREFIX = mixed_rows.PrefixRows(SIZES, share=SHARE)


@pytest.fixture(scope="module")
def batch():
    """Nothing is predicted at padding, as in records; prefix rows see other padding."""
    made = conftest.make_batch()
    is_real = np.take_along_axis(
        np.asarray(made["input_mask"]), np.asarray(made["masked_lm_positions"]), axis=1
    )
    return made | {"masked_lm_weights": made["masked_lm_weights"] * is_real}


def rows(batch, which):
    return {name: values[which] for name, values in batch.items()}


@pytest.fixture(scope="module")
def hybrid():
    return small_modules.made(HYBRID.init)


@pytest.fixture(scope="module")
def hybrid_means(hybrid, batch):
    return small_modules.run(functools.partial(BY_TOKENS.loss, key=None), hybrid, batch)


@pytest.fixture(scope="module")
def prefix():
    return small_modules.made(PREFIX.init)


def assert_same(means, wanted, names):
    for name in names:
        np.testing.assert_allclose(
            means[name].value(), wanted[name].value(), rtol=1e-5, err_msg=name
        )


def test_most_hybrid_rows_are_masked_and_each_mask_is_read_one_position_to_its_left(
    hybrid, batch, hybrid_means
):
    task, shifted = pretraining.Pretraining(SIZES, pair_loss="none"), rows(batch, MASKED)
    shifted["masked_lm_positions"] = jnp.maximum(shifted["masked_lm_positions"] - 1, 0)
    plain = small_modules.made(task.init)
    nnx.update(plain, nnx.state(hybrid))
    wanted = small_modules.run(task.evaluate, plain, shifted)
    assert_same(hybrid_means, wanted, ("mlm_loss", "mlm_accuracy"))


def test_the_last_hybrid_rows_are_those_of_a_left_to_right_model_without_masks(
    hybrid, batch, hybrid_means
):
    task = next_token.NextToken(dataclasses.replace(SIZES, left_to_right=True))
    plain = small_modules.made(task.init)
    nnx.update(plain.encoder, nnx.state(hybrid.encoder))
    nnx.update(plain.lm_head, nnx.state(hybrid.mlm_head))
    wanted = small_modules.run(task.evaluate, plain, HYBRID.as_last(rows(batch, LAST)))
    assert_same(hybrid_means, wanted, ("lm_loss", "lm_accuracy"))


def test_unmasked_rows_have_the_tokens_that_were_masked(batch):
    ids = np.array(batch["input_ids"])
    for row, (positions, tokens, weights) in enumerate(
        zip(*(batch[f"masked_lm_{it}"] for it in ("positions", "ids", "weights")), strict=True)
    ):
        for position, token, weight in zip(positions, tokens, weights, strict=True):
            if weight:
                ids[row, position] = token
    assert (ids != batch["input_ids"]).any()
    np.testing.assert_array_equal(HYBRID.as_last(batch)["input_ids"], ids)


def test_the_loss_weighs_kinds_of_rows_by_their_share_or_all_tokens_alike(batch, hybrid_means):
    assert HYBRID.objectives == {"mlm_loss": 3 / 4, "lm_loss": 1 / 4}
    assert BY_TOKENS.objectives == {"hybrid_loss": 1.0}
    counts = HYBRID.weights(batch)
    assert BY_TOKENS.weights(batch)["hybrid_loss"] == counts["mlm_loss"] + counts["lm_loss"]
    total = sum(
        float(hybrid_means[name].value()) * counts[name] for name in ("mlm_loss", "lm_loss")
    )
    mean = total / float(counts["mlm_loss"] + counts["lm_loss"])
    np.testing.assert_allclose(hybrid_means["hybrid_loss"].value(), mean, rtol=1e-6)
    # Pairs of prefix rows count with the share of whole rows.
    assert PREFIX.objectives == {"mlm_loss": 3 / 4, "nsp_loss": 3 / 4, "prefix_loss": 1 / 4}
    weights, counts = PREFIX.weights(batch), batch["masked_lm_weights"]
    assert weights["mlm_loss"] == counts[MASKED].sum()
    assert weights["prefix_loss"] == counts[LAST].sum()
    assert weights["nsp_loss"] == batch["example_weights"][MASKED].sum()


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["rows", "tokens"])
def test_micro_batches_have_the_gradient_of_the_whole_batch(batch, mean):
    def after_a_step(steps):
        learner = state.make_learner(
            dataclasses.replace(HYBRID, mean=mean),
            optimizer=optim.OptimizerOptions(eps=1e-2),
            schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
            seed=0,
            accumulation_steps=steps,
        )
        return jax.jit(lambda batch: learner.train_step(learner.init(), batch))(batch)

    whole, report = after_a_step(1)
    parts, of_parts = after_a_step(2)
    assert_same(of_parts.means, report.means, report.means)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, whole.params, parts.params)


def test_a_first_segment_does_not_see_the_second_nor_a_position_what_follows(prefix, batch):
    batch = rows(batch, slice(1))
    ids, segments = (np.array(batch[name][0]) for name in ("input_ids", "segment_ids"))
    length = int(np.sum(batch["input_mask"][0]))
    begin = int(np.argmax(segments))
    assert 2 < begin < length - 2
    read = jax.jit(lambda ids: prefix.encoder(PREFIX.as_last({**batch, "input_ids": ids})))
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


def test_prefix_rows_are_the_last_in_training_and_all_rows_again_in_an_evaluation(prefix, batch):
    def only(which):
        counts = np.zeros(16, np.float32)
        counts[which] = 1
        changed = {name: batch[name] for name in ("masked_lm_weights", "example_weights")}
        changed["masked_lm_weights"] *= counts[:, None]
        return batch | changed | {"example_weights": batch["example_weights"] * counts}

    evaluate = small_modules.compiled(PREFIX.evaluate, prefix)
    of_plain = small_modules.compiled(pretraining.Pretraining(SIZES).evaluate, prefix)
    trained = small_modules.run(functools.partial(PREFIX.loss, key=None), prefix, batch)
    whole, of_last = evaluate(batch), evaluate(only(LAST))
    of_masked, of_all = of_plain(only(MASKED)), of_plain(batch)
    assert of_masked.keys() | {"prefix_loss", "prefix_accuracy"} == trained.keys()
    assert_same(trained, of_masked, of_masked)
    assert_same(trained, of_last, ("prefix_loss", "prefix_accuracy"))
    assert_same(whole, of_all, of_all)
    assert abs(whole["prefix_loss"].value() - whole["mlm_loss"].value()) > 1e-4
    assert whole["prefix_loss"].weight == whole["mlm_loss"].weight


def make_config(objective, **changes):
    config = smoke.get_config()
    config.model.vocab_size = 96
    pair_loss = "none" if objective == "hybrid" else "nsp"
    config.pretraining.update(objective=objective, pair_loss=pair_loss)
    config.update_from_flattened_dict(changes)
    return config


@pytest.mark.parametrize(
    ("objective", "share", "batch_size", "message"),
    [
        ("hybrid", {"pretraining.causal_share": 0.3}, 24, "is 24; .* multiple of 10 .*: 20 or 30"),
        ("prefix_rows", {"pretraining.prefix_share": 1 / 3}, 16, "16; .* multiple of 3 .*15 or 18"),
    ],
)
def test_a_batch_that_has_no_whole_number_of_each_kind_is_refused(
    objective, share, batch_size, message
):
    config = program.resolve(make_config(objective, **share), "cpu")
    config.phases.phase1.global_batch_size = batch_size
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    with pytest.raises(ValueError, match=message):
        program.build(jobs.JOBS[config.task].abstract(config), mesh)
