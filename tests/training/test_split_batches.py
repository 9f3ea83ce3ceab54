"""A batch that is split into micro-batches or over devices has the gradients of the whole batch.

How the optimizer and three steps are split is in tests/devices; losses over all rows of a batch are
in test_whole_batch.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax import tasks
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.tasks import base, next_token, pretraining, replaced_tokens, span_boundary
from bertjax.training import optim, schedules, state
from tests import conftest

BERT = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
SHARED = dataclasses.replace(conftest.TINY, num_hidden_groups=1, embedding_size=16)  # ALBERT's
ELECTRA = dataclasses.replace(BERT, embedding_size=16)
GENERATOR = dataclasses.replace(
    ELECTRA, hidden_size=16, num_attention_heads=2, intermediate_size=24
)
TASKS = {
    "masked_tokens": pretraining.Pretraining(BERT),
    "masked_tokens, shared layers": pretraining.Pretraining(SHARED, pair_loss="sop"),
    "span_boundary": span_boundary.SpanBoundary(BERT, pair_loss="none"),
    # So cold that the likeliest token is drawn: each micro-batch has a key of its own.
    "replaced_tokens": replaced_tokens.ReplacedTokens(ELECTRA, GENERATOR, temperature=1e-6),
    "replaced_tokens, samples": replaced_tokens.ReplacedTokens(ELECTRA, GENERATOR),
    "next_token": next_token.NextToken(dataclasses.replace(BERT, left_to_right=True)),
}
# Each with micro-batches, devices that split rows, devices that split widths.
SPLITS = [
    ("masked_tokens", (4, 1, 1)),
    *(
        pytest.param(*it, marks=pytest.mark.slow)
        for it in [
            ("masked_tokens", (2, 2, 2)),
            ("masked_tokens, shared layers", (1, 4, 2)),
            ("span_boundary", (4, 1, 1)),
            ("replaced_tokens", (2, 2, 2)),
            ("replaced_tokens, samples", (1, 4, 2)),
            ("next_token", (4, 1, 1)),
        ]
    ),
]


def params_of(task):
    """Parameters none of which is as it began."""
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(
            (path[-1].key == "scale") + 0.1 * rng.standard_normal(leaf.shape)
        ),
        base.abstract_model(task)[1],
    )


def make_batch():
    """Rows with unequal numbers of masked tokens; the first four have none."""
    batch = conftest.make_batch()
    return batch | {"masked_lm_weights": batch["masked_lm_weights"].at[:4].set(0.0)}


def gradients(name, micro_batches, data, tensor):
    learner = state.make_learner(
        TASKS[name],
        optimizer=optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
        accumulation_steps=micro_batches,
    )
    params, mesh = (
        params_of(TASKS[name]),
        sharding.make_mesh(jax.devices()[: data * tensor], data=data, tensor=tensor),
    )
    placed = sharding.shardings(mesh, params, params, rule_table="fsdp_tensor")
    with jax.set_mesh(mesh):
        rows = jax.device_put(make_batch(), sharding.batch_sharding(mesh))
        step = jax.jit(learner._gradients, compiler_options=conftest.QUICK_COMPILER)
        return jax.device_get(step(jax.device_put(params, placed), rows, jax.random.key(0)))


@functools.cache
def whole(name):
    return gradients(name, 1, 1, 1)


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_gradients_and_losses_are_those_of_the_whole_batch(name, split):
    (grads, means), (expected, expected_means) = gradients(name, *split), whole(name)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), grads, expected
    )
    for loss, mean in expected_means.items():
        assert means[loss].value() == pytest.approx(mean.value(), rel=1e-4, nan_ok=True), loss
        np.testing.assert_allclose(means[loss].weight, mean.weight, rtol=1e-6, err_msg=loss)


def test_every_objective_is_split_and_every_rule_table_places_its_parameters():
    assert {name.partition(",")[0] for name in TASKS} == {*tasks.OBJECTIVES}
    assert {getattr(it, "values", it)[0] for it in SPLITS} == {*TASKS}
    mesh = sharding.make_mesh(jax.devices()[:4], data=2, tensor=2)
    for task in TASKS.values():
        params = base.abstract_model(task)[1]
        assert parameters.flat(params)
        for table in sharding.RULES:
            sharding.shardings(mesh, params, params, rule_table=table)
