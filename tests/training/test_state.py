"""The training step: micro-batches, skipped updates, keys; on one device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.finetuning import texts
from bertjax.models import parameters
from bertjax.tasks import pretraining
from bertjax.training import optim, schedules, state
from tests import conftest

# Where nothing of the compiled program is counted.
jit = functools.partial(jax.jit, compiler_options=conftest.QUICK_COMPILER)
ONE_LAYER = dataclasses.replace(conftest.TINY, num_hidden_layers=1)


@pytest.fixture
def tiny():
    """One layer: compiling is what takes time here."""
    return ONE_LAYER


def make_learner(config, *, accumulation_steps=1, pair_loss="nsp", seed=0, rate=1e-2, **optimizer):
    return state.make_learner(
        pretraining.Pretraining(config, pair_loss=pair_loss),
        optimizer=optim.OptimizerOptions(**optimizer),
        schedule=schedules.ScheduleOptions("linear", rate, 0, 100),
        seed=seed,
        accumulation_steps=accumulation_steps,
    )


@functools.cache
def small():
    """Compiled once for most tests: a learner, its first state, its step and its evaluation."""
    learner = make_learner(ONE_LAYER, ema_decay=0.9)
    evaluate = jit(functools.partial(means_of, learner))
    return learner, jit(learner.init)(), jit(learner.train_step), evaluate


def means_of(learner, params, batch):
    return state.evaluate_step(learner.task, learner.graphdef, params, batch)[0]


def flops(function, *arguments):
    lowered = jax.jit(function).lower(*arguments)
    return lowered.compile(conftest.QUICK_COMPILER).cost_analysis()["flops"]


def assert_trees_close(left, right, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), left, right)


def test_the_pass_for_the_weights_costs_nothing(batch):
    """The compiler drops all of the full-batch pass but the weights."""
    learner, start, _, _ = small()

    def plain(params, key):
        def loss(params):
            means = learner.task.loss(parameters.merge(learner.graphdef, params), batch, key=key)
            return sum(means[n].total / means[n].weight for n in learner.task.objectives)

        return jax.grad(loss)(params)

    params, key = start.params, jax.random.key(0)
    ours = flops(lambda params, key: learner._gradients(params, batch, key), params, key)
    assert ours < 1.1 * flops(plain, params, key)


def test_a_step_moves_the_average_too_and_a_non_finite_gradient_skips_both(batch):
    _, start, step, _ = small()
    train_state, _ = step(start, batch)
    average = jax.tree.map(lambda old, new: 0.9 * np.float64(old) + 0.1 * np.float64(new),
                           start.params, train_state.params)  # fmt: skip
    assert_trees_close(train_state.ema, average, rtol=1e-6, atol=1e-8)
    poisoned = batch | {"masked_lm_weights": batch["masked_lm_weights"] * jnp.nan}
    after, report = step(train_state, poisoned)
    assert not report.is_finite
    assert int(after.step) == int(train_state.step) + 1
    assert_trees_close(after.params, train_state.params, rtol=0, atol=0)
    assert_trees_close(after.opt_state, train_state.opt_state, rtol=0, atol=0)
    assert_trees_close(after.ema, train_state.ema, rtol=0, atol=0)
    healthy, report = step(after, batch)
    assert report.is_finite
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(healthy.params))


@pytest.mark.slow
def test_dropout_is_a_function_of_seed_and_step(tiny, batch):
    config = dataclasses.replace(tiny, hidden_dropout_prob=0.5)
    train_state = small()[1]
    learner, other = make_learner(config), make_learner(config, seed=1)
    step = jit(learner.train_step)

    def loss_at(number, step_inputs=learner.step_inputs):
        at = dataclasses.replace(train_state, step=jnp.asarray(number, jnp.int32))
        return float(step(at, batch, step_inputs)[1].means["mlm_loss"].total)

    assert loss_at(3) == loss_at(3)
    assert loss_at(3) != loss_at(4)
    assert loss_at(3) != loss_at(3, other.step_inputs)


def test_sentence_order_is_next_sentence_prediction_under_another_name(tiny, batch):
    sop, none = (make_learner(tiny, pair_loss=pair_loss) for pair_loss in ("sop", "none"))
    _, start, _, evaluate = small()
    params = start.params
    assert jax.tree.structure(params) == jax.tree.structure(jax.eval_shape(sop.init).params)
    assert dict(sop.task.objectives) == {"mlm_loss": 1.0, "sop_loss": 1.0}
    old, new = evaluate(params, batch), jit(functools.partial(means_of, sop))(params, batch)
    assert {name.replace("nsp", "sop") for name in old} == set(new)
    for name in ("loss", "accuracy"):
        assert old[f"nsp_{name}"].value() == new[f"sop_{name}"].value()
    start = jax.eval_shape(none.init)
    assert set(start.params) == {"encoder", "mlm_head"}
    _, report = jax.eval_shape(none.train_step, start, batch)
    assert set(report.means) == {"mlm_loss", "mlm_accuracy"}


def test_rows_of_weight_zero_count_for_nothing(batch):
    _, start, _, evaluate = small()
    weights = jnp.ones(16).at[13:].set(0.0)
    batch["example_weights"] = weights
    batch["masked_lm_weights"] *= weights[:, None]
    others = batch | {name: batch[name].at[13:].set(1) for name in ("input_ids", "segment_ids")}
    others["next_sentence_labels"] = jnp.where(weights > 0, batch["next_sentence_labels"], 1)
    means, with_others = evaluate(start.params, batch), evaluate(start.params, others)
    for name, mean in means.items():
        np.testing.assert_array_equal(mean.value(), with_others[name].value())
    assert means["nsp_loss"].weight == means["nsp_accuracy"].weight == 13
    assert means["mlm_loss"].weight == batch["masked_lm_weights"].sum()


def test_what_is_frozen_stays_bit_for_bit_whatever_its_update(tiny):
    """That it has no gradient and no moments is shown below and in test_optim.py."""
    frozen = (r"encoder\.(embeddings|layers\.0\.attention)\..*",)
    learner, params = make_learner(tiny, frozen=frozen), small()[1].params
    moved = learner._moved(params, jax.tree.map(jnp.ones_like, params), jnp.float32(0.1))
    is_same = jax.tree.map(lambda old, new: bool((old == new).all()), params, moved)["encoder"]
    layer = is_same["layers"]["0"]
    assert all(jax.tree.leaves((is_same["embeddings"], layer["attention"])))
    assert not any(jax.tree.leaves(layer["output"]))


def test_the_backward_pass_of_frozen_layers_is_not_computed(tiny, batch):
    def of_gradients(**options):
        learner = make_learner(tiny, **options)
        params = jax.eval_shape(learner.init).params
        return flops(learner._gradients, params, batch, jax.random.key(0))

    # Of three passes over the encoder one is left.
    assert of_gradients(frozen=(r"encoder\..*",)) < 0.7 * of_gradients()


@pytest.mark.slow
def test_a_multiplier_scales_the_first_step_of_its_parameters(tiny, batch):
    _, start, step, _ = small()
    scaled = jit(make_learner(tiny, head_multiplier=3.0).train_step)
    moves = [
        jax.tree.map(jnp.subtract, by(start, batch)[0].params, start.params)
        for by in (step, scaled)
    ]
    once, thrice = moves
    assert_trees_close(once["encoder"], thrice["encoder"], rtol=1e-3, atol=1e-6)
    tripled = jax.tree.map(lambda move: 3 * move, once["mlm_head"])
    assert_trees_close(tripled, thrice["mlm_head"], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_one_compiled_step_serves_other_seeds_and_rates(tiny, batch):
    config = dataclasses.replace(tiny, hidden_dropout_prob=0.5)
    shared, start = jit(make_learner(config).train_step), small()[1]
    for seed, rate in ((7, 1e-3), (-1, 1e-2)):
        own = make_learner(config, seed=seed, rate=rate)
        expected, report = jit(own.train_step)(start, batch)
        got, shared_report = shared(start, batch, own.step_inputs)
        assert_trees_close(got.params, expected.params, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(shared_report.learning_rate, rate, rtol=1e-6)
        assert float(report.means["mlm_loss"].total) == pytest.approx(
            float(shared_report.means["mlm_loss"].total), rel=1e-5
        )
    assert shared._cache_size() == 1


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_key_of_a_seed_is_the_one_of_the_python_int(impl):
    schedule = schedules.ScheduleOptions("linear", 1e-2, 0, 100)
    traced = jax.jit(lambda s: jax.random.key_data(jax.random.key(s, impl=impl)))
    for seed in (0, 5, 2**31 - 1, -3):
        key = traced(state.make_step_inputs(seed, schedule).seed)
        np.testing.assert_array_equal(key, jax.random.key_data(jax.random.key(seed, impl=impl)))


def test_answers_cost_no_second_forward_pass(tiny):
    task = texts.Classification(tiny, 3)
    learner = state.make_learner(
        task,
        optimizer=optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
    )
    rows = {name: jnp.ones((8, 16), jnp.int32) for name in ("input_ids", "input_mask")}
    rows |= {"segment_ids": jnp.zeros((8, 16), jnp.int32), "labels": jnp.zeros(8, jnp.int32)}
    rows |= {"example_weights": jnp.ones(8), "record_positions": jnp.arange(8)}
    params = jax.eval_shape(learner.init).params

    both = functools.partial(state.evaluate_step, task, learner.graphdef, with_answers=True)

    def metrics_alone(params, rows):
        return task.evaluate(parameters.merge(learner.graphdef, params), rows)

    assert flops(both, params, rows) < 1.1 * flops(metrics_alone, params, rows)
    means, answers = jax.eval_shape(both, params, rows)
    assert set(means) == {"loss", "accuracy"}
    assert set(answers) == {"logits", "predictions", "record_positions"}
