"""Claims about masked and left-to-right rows in one batch: who sees whom, what is lost where."""

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
from bertjax.training import config_faults, optim, program, schedules, state
from configs import smoke
from tests import conftest, small_modules

pytestmark = pytest.mark.usefixtures("quick_runs")
SIZES = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
SHARE = 1 / 4  # four of the sixteen rows


def task_of(mean="rows"):
    return mixed_rows.Hybrid(SIZES, share=SHARE, mean=mean)


@pytest.fixture(scope="module")
def batch():
    return conftest.make_batch()


@pytest.fixture(scope="module")
def model():
    return small_modules.made(task_of().init)


@pytest.fixture(scope="module")
def means(model, batch):
    graphdef, params = nnx.split(model)
    task = task_of("tokens")
    losses = jax.jit(lambda batch: task.loss(nnx.merge(graphdef, params), batch, key=None))
    return losses(batch)


def test_most_rows_are_masked_and_each_mask_is_read_one_position_to_its_left(model, batch, means):
    masked = {name: values[:12] for name, values in batch.items()}
    shifted = masked | {
        "masked_lm_positions": jnp.maximum(masked["masked_lm_positions"] - 1, 0),
    }
    plain = pretraining.PretrainingModel(SIZES, pair_loss="none", rngs=nnx.Rngs(0))
    nnx.update(plain, nnx.state(model))
    wanted = pretraining.Pretraining(SIZES, pair_loss="none").evaluate(plain, shifted)
    for name in ("mlm_loss", "mlm_accuracy"):
        np.testing.assert_allclose(means[name].value(), wanted[name].value(), rtol=1e-5)


def test_the_last_rows_are_those_of_a_left_to_right_model_without_masks(model, batch, means):
    sizes = dataclasses.replace(SIZES, left_to_right=True)
    task = next_token.NextToken(sizes)
    plain = task.init(nnx.Rngs(0))
    nnx.update(plain.encoder, nnx.state(model.encoder))
    nnx.update(plain.lm_head, nnx.state(model.mlm_head))
    last = task_of().as_last({name: values[12:] for name, values in batch.items()})
    wanted = task.evaluate(plain, last)
    for name in ("lm_loss", "lm_accuracy"):
        np.testing.assert_allclose(means[name].value(), wanted[name].value(), rtol=1e-5)


def test_unmasked_rows_have_the_tokens_that_were_masked(batch):
    ids = np.array(batch["input_ids"])
    for row, (positions, tokens, weights) in enumerate(
        zip(*(batch[f"masked_lm_{it}"] for it in ("positions", "ids", "weights")), strict=True)
    ):
        for position, token, weight in zip(positions, tokens, weights, strict=True):
            if weight:
                ids[row, position] = token
    assert (ids != batch["input_ids"]).any()
    np.testing.assert_array_equal(task_of().as_last(batch)["input_ids"], ids)


def test_the_loss_weighs_kinds_of_rows_by_their_share_or_all_tokens_alike(batch, means):
    by_rows, by_tokens = task_of(), task_of("tokens")
    assert by_rows.objectives == {"mlm_loss": 3 / 4, "lm_loss": 1 / 4}
    assert by_tokens.objectives == {"hybrid_loss": 1.0}
    counts = by_rows.weights(batch)
    assert by_tokens.weights(batch)["hybrid_loss"] == counts["mlm_loss"] + counts["lm_loss"]
    total = sum(float(means[name].value()) * counts[name] for name in ("mlm_loss", "lm_loss"))
    mean = total / float(counts["mlm_loss"] + counts["lm_loss"])
    np.testing.assert_allclose(means["hybrid_loss"].value(), mean, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["rows", "tokens"])
def test_micro_batches_have_the_gradient_of_the_whole_batch(batch, mean):
    def after_a_step(steps):
        learner = state.make_learner(
            task_of(mean),
            optimizer=optim.OptimizerOptions(eps=1e-2),
            schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
            seed=0,
            accumulation_steps=steps,
        )
        return jax.jit(lambda batch: learner.train_step(learner.init(), batch))(batch)

    whole, report = after_a_step(1)
    parts, of_parts = after_a_step(2)
    for name, value in report.means.items():
        np.testing.assert_allclose(of_parts.means[name].value(), value.value(), rtol=1e-5)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, whole.params, parts.params)


def changed(**options):
    config = smoke.get_config()
    config.model.vocab_size = 96
    config.pretraining.update(objective="hybrid", pair_loss="none", **options)
    return config


def test_a_batch_that_has_no_whole_number_of_each_kind_is_refused():
    config = program.resolve(changed(causal_share=0.3), "cpu")
    config.phases.phase1.global_batch_size = 24
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    with pytest.raises(ValueError, match=r"is 24; it must be a multiple of 10 .*: 20 or 30"):
        program.build(jobs.JOBS[config.task].abstract(config), mesh)


def test_options_of_hybrid_rows_are_refused_where_nothing_reads_them():
    config = changed(causal_share=0.25)
    config.pretraining.objective = "masked_tokens"
    with pytest.raises(ValueError, match="causal_share is 0.25, but .*'masked_tokens'"):
        config_faults.validate(config)


def test_options_that_do_not_go_together_are_named():
    assert not list(mixed_rows.hybrid_faults(changed()))
    with pytest.raises(ValueError) as caught:
        config_faults.validate(changed(causal_share=1.0, hybrid_mean="row"))
    found = str(caught.value)
    assert "causal_share is 1.0" in found and "hybrid_mean is 'row'; known are rows, to" in found
    config = changed()
    config.update_from_flattened_dict({"pretraining.pair_loss": "nsp", "model.left_to_right": True})
    found = "\n".join(mixed_rows.hybrid_faults(config))
    assert "pair_loss is 'nsp'; it" in found and "left_to_right is True; it" in found
