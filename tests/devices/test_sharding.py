"""Meshes and rule tables: eight fake devices compute what one does, and lie as declared."""

import dataclasses
import functools
import importlib
import math

import jax
import numpy as np
import pytest

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.finetuning import low_rank, texts
from bertjax.models import lora, parameters, placement
from bertjax.planning import compiled
from bertjax.tasks import base as tasks_base
from bertjax.tasks import pretraining
from bertjax.training import optim, program, schedules, state
from tests import conftest, small_modules

MESHES = {
    "data_parallel": {"data": 8},
    "fsdp": {"data": 8},
    "tensor": {"data": 2, "tensor": 4},
    "fsdp_tensor": {"data": 4, "tensor": 2},
}


def make_learner(config, accumulation_steps=1):
    return state.make_learner(
        pretraining.Pretraining(config),
        optimizer=optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
        accumulation_steps=accumulation_steps,
    )


def three_steps(learner, batch, mesh, rule_table):
    shapes = jax.eval_shape(learner.init)
    placed = sharding.shardings(mesh, shapes.params, shapes, rule_table=rule_table)
    rows = sharding.batch_sharding(mesh)
    everywhere = jax.sharding.NamedSharding(mesh, sharding.P())
    with jax.set_mesh(mesh):
        train_state = jax.jit(learner.init, out_shardings=placed)()
        step = jax.jit(
            learner.train_step,
            in_shardings=(placed, rows),
            out_shardings=(placed, everywhere),
            donate_argnums=0,
        )
        losses = []
        for _ in range(3):
            train_state, report = step(train_state, jax.device_put(batch, rows))
            losses.append([mean.value() for mean in report.means.values()])
    return losses, jax.device_get(train_state.params)


@pytest.fixture(scope="module")
def on_one_device():
    """Three steps of one layer, in two micro-batches each, with dropout: its masks must not depend
    on where the rows lie."""
    config = dataclasses.replace(
        conftest.TINY,
        num_hidden_layers=1,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    learner = make_learner(config, accumulation_steps=2)
    batch = conftest.make_batch()
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    return learner, batch, three_steps(learner, batch, mesh, "data_parallel")


@pytest.mark.slow
@pytest.mark.parametrize("rule_table", MESHES)
def test_eight_devices_equal_one(on_one_device, rule_table):
    learner, batch, (expected_losses, expected_params) = on_one_device
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES[rule_table])
    losses, params = three_steps(learner, batch, mesh, rule_table)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    # Adam divides by the root of tiny squares: where a gradient is zero but for rounding (biases of
    # the keys), a weight may move by a share of the learning rate.
    close = functools.partial(np.testing.assert_allclose, atol=2e-3)
    jax.tree.map(close, params, expected_params)


@pytest.mark.slow
@pytest.mark.parametrize("rule_table", ["fsdp", "data_parallel"])
@pytest.mark.parametrize(("recipe", "devices"), [("bert_base", 4), ("bert_large", 16)])
def test_recipes_lower_on_their_own_mesh_and_shard_as_declared(recipe, devices, rule_table):
    config = importlib.import_module(f"configs.{recipe}").get_config()
    config.sharding = rule_table
    assert config.mesh.data * config.mesh.tensor == devices
    mesh = sharding.make_mesh(jax.devices()[:devices], **config.mesh)
    job = jobs.JOBS[config.task].outline(program.resolve(config, "tpu"))
    built = program.build(job, mesh)
    shapes = built.abstract_state
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    share = sharding.bytes_per_device(shapes, placed) / whole
    assert share == 1.0 if rule_table == "data_parallel" else share < 1.05 / devices
    with jax.set_mesh(mesh):
        batch = compiled.abstract_batch(built, job.phases[-1])
        lowered = built.train_step.lower(shapes, batch, built.abstract_knobs)
    new_state, _ = lowered.out_info
    assert jax.tree.structure(new_state) == jax.tree.structure(shapes)
    kernel = placed.params["encoder"]["layers"]["7"]["attention"]["query"]["kernel"]
    moment = next(leaf for leaf in placed.opt_state if hasattr(leaf, "mu")).mu
    moment = moment["encoder"]["layers"]["7"]["attention"]["query"]["kernel"]
    expected = sharding.P() if rule_table == "data_parallel" else sharding.P("data", None)
    assert kernel.spec == moment.spec == expected
    assert f'"{"data"}"' in lowered.as_text()


def test_a_dimension_that_does_not_divide_is_named(tiny):
    params = jax.eval_shape(make_learner(tiny).init).params
    mesh = sharding.make_mesh(jax.devices()[:5], data=5)
    with pytest.raises(ValueError, match=r"embeddings\.word\.embedding has a dimension of 32.* 5 "):
        sharding.shardings(mesh, params, params, rule_table="fsdp")


def test_a_mesh_that_the_devices_do_not_fill_is_an_error():
    with pytest.raises(ValueError, match=r"data=4 x tensor=1 = 4 devices, but there are 3"):
        sharding.make_mesh(jax.devices()[:3], data=4)
    with pytest.raises(ValueError, match="at least 1"):
        sharding.make_mesh(jax.devices(), data=0)


def test_models_run_under_a_mesh_of_other_axis_names(tiny, batch):
    task = pretraining.Pretraining(tiny)
    graphdef, params = parameters.split(small_modules.made(task.init))
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,),
                         devices=jax.devices()[:2])  # fmt: skip
    with jax.set_mesh(mesh):
        means = jax.jit(lambda p: task.loss(parameters.merge(graphdef, p), batch, key=None))(params)
    assert np.isfinite(means["mlm_loss"].value())


@pytest.mark.parametrize(
    "rows, heads, slices", [(8, 4, (2, 2)), (6, 4, (6, 2)), (8, 3, (2, 3)), (1, 1, (1, 1))]
)
def test_each_device_works_on_its_slices_of_the_axes_that_divide(rows, heads, slices):
    seen = []

    def double(x, row):
        seen.append((x.shape, row.shape))
        return [2 * x + row[:, None]]

    x, row = np.arange(rows * heads).reshape(rows, heads), np.arange(rows)
    specs = [sharding.P(sharding.DATA, sharding.TENSOR), sharding.P(sharding.DATA)]

    def run(x, row):
        return placement.per_device(double, (x, row), specs, specs[:1])

    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=4, tensor=2)):
        (y,) = jax.jit(run)(x, row)
    assert set(seen) == {(slices, slices[:1])}
    np.testing.assert_array_equal(y, 2 * x + row[:, None])


def test_without_a_mesh_or_with_a_foreign_one_a_function_gets_everything():
    seen = []

    def shape_of(x):
        seen.append(x.shape)
        return [x]

    def run(x):
        return placement.per_device(shape_of, (x,), [sharding.P(sharding.DATA)], [sharding.P()])

    jax.jit(run)(np.zeros(4))
    with jax.set_mesh(jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,),
                                    devices=jax.devices()[:2])):  # fmt: skip
        jax.jit(lambda x: run(x))(np.zeros(4))
    assert seen == [(4,), (4,)]


@pytest.mark.parametrize("rule_table", MESHES)
def test_the_factors_of_lora_lie_on_every_device_whatever_their_rank(tiny, rule_table):
    task = low_rank.LowRank(texts.Classification(tiny, 3), lora.LoraOptions(rank=3))
    _, params = tasks_base.abstract_model(task)
    count = math.prod(MESHES[rule_table].values())
    mesh = sharding.make_mesh(jax.devices()[:count], **MESHES[rule_table])
    placed = sharding.shardings(mesh, params, params, rule_table=rule_table)
    assert {where.spec for where in jax.tree.leaves(placed["lora"])} == {sharding.P()}
    # The rest lies as it does without factors.
    plain = {name: value for name, value in params.items() if name != "lora"}
    rest = {name: value for name, value in placed.items() if name != "lora"}
    assert rest == sharding.shardings(mesh, plain, plain, rule_table=rule_table)
