"""Losses over all rows of a batch: the same on any devices and for any number of micro-batches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.devices import sharding
from bertjax.finetuning import embeddings, wrapped_tasks
from bertjax.models import lora, parameters
from bertjax.training import optim, schedules, state
from tests import conftest

CONFIG = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
ROWS, TEXTS, LENGTH = 16, 3, 8
FILLERS = (3, 9, 14)  # unevenly among micro-batches and devices


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    shape = (ROWS, TEXTS, LENGTH)
    lengths = rng.integers(3, LENGTH + 1, shape[:2])
    weights = np.ones(ROWS, np.float32)
    weights[list(FILLERS)] = 0
    return {
        "input_ids": rng.integers(5, CONFIG.vocab_size, shape).astype(np.int32),
        "input_mask": (np.arange(LENGTH) < lengths[..., None]).astype(np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "example_weights": weights,
    }


def make_learner(accumulation_steps=1, config=CONFIG, rank=0):
    task = embeddings.SentenceEmbedding(config, num_texts=TEXTS)
    if rank:
        task = wrapped_tasks.LowRank(task, lora.LoraOptions(rank, 16.0, (r".*\.query\.kernel",)))
    return state.make_learner(
        task,
        optimizer=optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-3, 0, 100),
        seed=0,
        accumulation_steps=accumulation_steps,
    )


@functools.cache
def start(rank=0):
    """Parameters larger than fresh ones, whose vectors would all be alike."""
    params = make_learner(rank=rank).init().params
    return jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x, params)


def gradients(batch, *, devices=1, accumulation_steps=1, rank=0):
    mesh = sharding.make_mesh(jax.devices()[:devices], data=-1)
    learner = make_learner(accumulation_steps, rank=rank)
    rows = sharding.batch_sharding(mesh)
    whole = jax.sharding.NamedSharding(mesh, sharding.P())
    with jax.set_mesh(mesh):
        step = jax.jit(
            learner._gradients,
            in_shardings=(whole, rows, whole),
            out_shardings=whole,
            compiler_options=conftest.QUICK_COMPILER,
        )
        return jax.device_get(step(start(rank), batch, jax.random.key(0)))


@functools.cache
def expected():
    return gradients(make_batch())


def assert_alike(found, wanted):
    """In float32: gradients of up to 0.6 differ by their rounding."""
    (grads, means), (right_grads, right_means) = found, wanted
    assert means["loss"].total == pytest.approx(right_means["loss"].total, rel=1e-5)
    assert means["loss"].weight == ROWS - len(FILLERS)
    assert means["accuracy"].total == right_means["accuracy"].total
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5), grads, right_grads
    )


@pytest.mark.parametrize(
    ("devices", "accumulation_steps"),
    [
        (1, 4),
        (4, 2),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(4, 4, marks=pytest.mark.slow),
    ],
)
def test_devices_and_micro_batches_do_not_matter(devices, accumulation_steps):
    found = gradients(make_batch(), devices=devices, accumulation_steps=accumulation_steps)
    assert_alike(found, expected())


def test_rows_that_fill_up_are_neither_anchors_nor_candidates():
    batch = make_batch()
    batch["input_ids"][list(FILLERS)] = make_batch(seed=1)["input_ids"][list(FILLERS)]
    assert_alike(gradients(batch), expected())
    # And the others are: else nothing of this could fail.
    batch["input_ids"][0, 2] = make_batch(seed=1)["input_ids"][0, 2]
    assert abs(gradients(batch)[1]["loss"].total - expected()[1]["loss"].total) > 1e-3


@pytest.mark.slow
def test_low_rank_changes_learn_of_the_whole_batch_too():
    one, four = (gradients(make_batch(), accumulation_steps=n, rank=2) for n in (1, 4))
    assert_alike(four, one)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(four[0]["lora"])) > 0


@pytest.mark.slow
def test_what_is_computed_again_has_the_dropout_masks_that_it_had():
    """Against vectors that are kept with all that their gradients need."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.3)
    learner, batch, key = make_learner(2, config), make_batch(), jax.random.key(1)

    def kept(params):
        model = parameters.merge(learner.graphdef, params)
        parts = [
            learner.task.outputs(
                model,
                {name: jnp.asarray(x[place::2]) for name, x in batch.items()},
                key=jax.random.fold_in(key, place),
            )
            for place in range(2)
        ]
        vectors = jnp.stack(parts, axis=1).reshape(ROWS, TEXTS, -1)
        means = learner.task.joint_loss(model, vectors, jax.tree.map(jnp.asarray, batch))
        return means["loss"].total / means["loss"].weight, means

    jit = functools.partial(jax.jit, compiler_options=conftest.QUICK_COMPILER)
    found = jit(learner._gradients)(start(), batch, key)
    wanted = jit(jax.grad(kept, has_aux=True))(start())
    assert_alike(*jax.device_get((found, wanted)))


@pytest.mark.slow
def test_the_whole_batch_needs_the_memory_of_a_micro_batch():
    def bytes_of(accumulation_steps):
        step = jax.jit(make_learner(accumulation_steps)._gradients)
        compiled = step.lower(start(), make_batch(), jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(8) < 0.4 * bytes_of(1)
