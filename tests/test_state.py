"""The training step: micro-batches, skipped updates, keys; on one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import optim, state
from bertjax.tasks import pretraining


def make_learner(config, *, accumulation_steps=1, pair_loss="nsp", seed=0):
    return state.make_learner(
        pretraining.Pretraining(config, pair_loss=pair_loss),
        optimizer=optim.OptimizerOptions(),
        schedule=optim.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=seed,
        accumulation_steps=accumulation_steps,
    )


def assert_trees_close(left, right, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), left, right)


def test_split_and_merge_are_inverse(tiny):
    learner = make_learner(tiny)
    params = learner.init().params
    assert set(params["encoder"]["layers"]) == {"0", "1"}
    _, again = state.split(state.merge(learner.graphdef, params))
    assert jax.tree.structure(params) == jax.tree.structure(again)


@pytest.mark.parametrize("accumulation_steps", [2, 8])
def test_unequal_micro_batches_equal_one_batch(tiny, batch, accumulation_steps):
    weights_per_row = np.asarray(batch["masked_lm_weights"]).sum(axis=1)
    assert len(set(weights_per_row.tolist())) > 1  # else a mean of means would pass too
    whole, parts = make_learner(tiny), make_learner(tiny, accumulation_steps=accumulation_steps)
    key = jax.random.key(0)
    params = whole.init().params
    gradients = [jax.jit(learner._gradients)(params, batch, key) for learner in (whole, parts)]
    assert_trees_close(*gradients, rtol=1e-4, atol=1e-6)


def test_the_pass_for_the_weights_costs_nothing(tiny, batch):
    """The compiler drops all of the full-batch pass but the weights."""
    learner = make_learner(tiny)

    def plain(params, key):
        def loss(params):
            means = learner.task.loss(state.merge(learner.graphdef, params), batch, key=key)
            return sum(means[n].total / means[n].weight for n in learner.task.objectives)

        return jax.grad(loss)(params)

    params, key = learner.init().params, jax.random.key(0)
    ours = jax.jit(lambda p, k: learner._gradients(p, batch, k)).lower(params, key).compile()
    plain_flops = jax.jit(plain).lower(params, key).compile().cost_analysis()["flops"]
    assert ours.cost_analysis()["flops"] < 1.1 * plain_flops


def test_a_non_finite_gradient_skips_the_update_and_says_so(tiny, batch):
    learner = make_learner(tiny)
    step = jax.jit(learner.train_step)
    train_state, _ = step(learner.init(), batch)
    poisoned = batch | {"masked_lm_weights": batch["masked_lm_weights"] * jnp.nan}
    after, report = step(train_state, poisoned)
    assert not report.is_finite
    assert int(after.step) == int(train_state.step) + 1
    assert_trees_close(after.params, train_state.params, rtol=0, atol=0)
    assert_trees_close(after.opt_state, train_state.opt_state, rtol=0, atol=0)
    healthy, report = step(after, batch)
    assert report.is_finite
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(healthy.params))


def test_dropout_is_a_function_of_seed_and_step(tiny, batch):
    config = dataclasses.replace(tiny, hidden_dropout_prob=0.5)
    learner = make_learner(config)
    train_state = learner.init()
    step = jax.jit(learner.train_step)

    def loss_at(number, learner_step=step):
        at = dataclasses.replace(train_state, step=jnp.asarray(number, jnp.int32))
        return float(learner_step(at, batch)[1].means["mlm_loss"].total)

    assert loss_at(3) == loss_at(3)
    assert loss_at(3) != loss_at(4)
    assert loss_at(3) != loss_at(3, jax.jit(dataclasses.replace(learner, seed=1).train_step))


def test_sentence_order_is_next_sentence_prediction_under_another_name(tiny, batch):
    nsp, sop = (make_learner(tiny, pair_loss=pair_loss) for pair_loss in ("nsp", "sop"))
    params = nsp.init().params
    assert jax.tree.structure(params) == jax.tree.structure(sop.init().params)
    assert dict(sop.task.objectives) == {"mlm_loss": 1.0, "sop_loss": 1.0}
    old, new = nsp.eval_step(params, batch), sop.eval_step(params, batch)
    assert {name.replace("nsp", "sop") for name in old} == set(new)
    for name in ("loss", "accuracy"):
        assert old[f"nsp_{name}"].value() == new[f"sop_{name}"].value()


def test_without_pair_loss_there_is_no_pair_head(tiny, batch):
    learner = make_learner(tiny, pair_loss="none")
    assert set(learner.init().params) == {"encoder", "mlm_head"}
    _, report = jax.jit(learner.train_step)(learner.init(), batch)
    assert set(report.means) == {"mlm_loss", "mlm_accuracy"}


def test_rows_of_weight_zero_count_for_nothing(tiny, batch):
    learner = make_learner(tiny)
    params = learner.init().params
    padded = {name: jnp.concatenate([rows, rows[:3]]) for name, rows in batch.items()}
    weights = jnp.ones(19).at[16:].set(0.0)
    padded["example_weights"] = weights
    padded["masked_lm_weights"] = padded["masked_lm_weights"] * weights[:, None]
    for name, mean in learner.eval_step(params, batch).items():
        other = learner.eval_step(params, padded)[name]
        np.testing.assert_allclose(mean.value(), other.value(), rtol=1e-6)


def test_training_on_one_batch_learns_it(tiny, batch):
    learner = make_learner(tiny)
    step = jax.jit(learner.train_step)
    train_state = learner.init()
    losses = []
    for _ in range(60):
        train_state, report = step(train_state, batch)
        losses.append(report.means["mlm_loss"].value())
    assert losses[0] > 4.0
    assert losses[-1] < 0.5
