"""Encoders whose layers share parameters, beside the same encoder in which none does.

Source: ALBERT, Lan et al. 2020, section 3.1; num_hidden_groups and inner_group_num of its code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.devices import sharding
from bertjax.models import lora, parameters
from bertjax.tasks import base, pretraining
from bertjax.training import optim, schedules, state
from tests import small_modules

SHARED = models.EncoderConfig(
    vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=20,
    max_position_embeddings=8, embedding_size=6, num_hidden_groups=2, hidden_dropout_prob=0.2,
    remat="full",
)  # fmt: skip
UNSHARED = dataclasses.replace(SHARED, num_hidden_groups=0, remat="none")
# Depth 0 and 1 are of group 0, depth 2 of group 1.
USES = ((0,), (0,), (1,))
IN_A_ROW = dataclasses.replace(SHARED, inner_group_num=2)


def unshared(params):
    """The same parameters with a copy for every use."""
    layers = {str(depth): params["layers"][str(used)] for depth, (used,) in enumerate(USES)}
    return {**params, "layers": layers}


def batch():
    ids = jax.random.randint(jax.random.key(1), (2, 8), 0, 30)
    return {"input_ids": ids, "input_mask": jnp.asarray(np.arange(8) < np.array([[8], [5]]))}


def test_a_layer_of_the_depth_applies_those_of_its_group():
    assert SHARED.layer_uses == USES
    assert UNSHARED.layer_uses == ((0,), (1,), (2,))
    assert IN_A_ROW.layer_uses == ((0, 1), (0, 1), (2, 3))
    albert = dataclasses.replace(IN_A_ROW, num_hidden_layers=12, num_hidden_groups=1)
    assert set(albert.layer_uses) == {(0, 1)} and len(albert.layer_uses) == 12
    for layers in range(1, 100):  # rounding takes no layer into its neighbour's group
        own = dataclasses.replace(UNSHARED, num_hidden_layers=layers, num_hidden_groups=layers)
        assert own.layer_uses == tuple((i,) for i in range(layers))


@pytest.mark.slow
def test_states_are_those_of_the_unshared_encoder_and_the_gradient_is_the_sum_over_uses():
    """The shared encoder, recomputed, has the dropout of every depth, too."""
    params = parameters.split(small_modules.made(models.make_encoder, SHARED))[1]

    def states_and_gradients(config, params):
        abstract = nnx.eval_shape(lambda: models.make_encoder(config, rngs=nnx.Rngs(0)))
        graphdef, _ = parameters.split(abstract)

        def loss(params):
            encoder = parameters.merge(graphdef, params)
            states = encoder.hidden_states(batch(), key=jax.random.key(2))
            return jnp.square(states[-1] - 0.5).sum(), states

        (_, states), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return states, grads

    states, grads = states_and_gradients(SHARED, params)
    alone, expected = states_and_gradients(UNSHARED, unshared(params))
    assert len(states) == len(alone) == 4
    for mine, theirs in zip(states, alone, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    summed = jax.tree.map(jnp.add, expected["layers"]["0"], expected["layers"]["1"])
    expected = {**expected, "layers": {"0": summed, "1": expected["layers"]["2"]}}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), grads, expected)


def test_flops_count_every_use_and_the_projection():
    assert SHARED.forward_flops(8) == UNSHARED.forward_flops(8)
    deeper = dataclasses.replace(UNSHARED, num_hidden_layers=6)
    assert IN_A_ROW.forward_flops(8) == deeper.forward_flops(8)
    square = dataclasses.replace(SHARED, embedding_size=0)
    always = dataclasses.replace(square, embedding_projection="always")
    assert always.forward_flops(8) - square.forward_flops(8) == 2 * 8 * 16 * 16


def test_a_projection_of_the_same_width_is_there_if_asked_for():
    for projection in ({}, {"embedding_projection": "always"}):
        config = dataclasses.replace(SHARED, embedding_size=16, **projection)
        made = nnx.eval_shape(lambda config=config: models.make_encoder(config, rngs=nnx.Rngs(0)))
        tables = parameters.split(made)[1]["embeddings"]
        assert ("projection" in tables) == bool(projection)


@pytest.fixture(scope="module")
def task():
    return pretraining.Pretraining(IN_A_ROW, pair_loss="sop")


def test_a_shared_layer_has_the_mean_rate_of_its_depths(task):
    learner = state.make_learner(
        task,
        optimizer=optim.OptimizerOptions(layer_decay=0.5, head_multiplier=3.0),
        schedule=schedules.ScheduleOptions("linear", 1e-3, 1, 2),
        seed=0,
    )
    rates = learner.rate_multipliers

    def rate(tree):
        (found,) = set(jax.tree.leaves(tree))
        return found

    by_layer = [rate(rates["encoder"]["layers"][number]) for number in "0123"]
    assert by_layer == [(0.125 + 0.25) / 2] * 2 + [0.5] * 2
    assert rate(rates["encoder"]["embeddings"]) == 0.5**4
    assert rate(rates["pooler"]) == 1.0 and rate(rates["mlm_head"]) == 3.0


def test_lora_and_freezing_name_the_stored_layers(task):
    module = nnx.eval_shape(lambda: task.init(nnx.Rngs(0)))
    lora.attach(module, lora.LoraOptions(rank=2), rngs=nnx.Rngs(1))
    params = parameters.split(module)[1]
    assert set(params["lora"]["encoder"]["layers"]) == {"0", "1", "2", "3"}
    uses = parameters.layer_uses(*parameters.split(module))
    assert uses == {"encoder": IN_A_ROW.layer_uses}
    rates = optim.rate_multipliers(optim.OptimizerOptions(layer_decay=0.5), params, uses)
    assert set(jax.tree.leaves(rates["lora"]["encoder"]["layers"]["2"])) == {0.5}
    frozen = optim.frozen_parameters((r"encoder\.layers\.0\..*",), params)
    assert all(jax.tree.leaves(frozen["encoder"]["layers"]["0"]))
    assert not any(jax.tree.leaves(frozen["encoder"]["layers"]["1"]))


def test_every_table_of_rules_places_shared_layers(task):
    params = base.abstract_model(task)[1]
    mesh = sharding.make_mesh(jax.devices()[:4], data=2, tensor=2)
    for rule_table in sharding.RULES:
        placed = sharding.shardings(mesh, params, params, rule_table=rule_table)
        query = placed["encoder"]["layers"]["3"]["attention"]["query"]["kernel"].spec
        projection = placed["encoder"]["embeddings"]["projection"]["kernel"].spec
        kernel = {"data_parallel": (), "tensor": (None, "tensor"), "fsdp": ("data", None)}
        assert tuple(query) == kernel.get(rule_table, ("data", "tensor"))
        assert tuple(projection) == (("data", None) if "fsdp" in rule_table else ())
