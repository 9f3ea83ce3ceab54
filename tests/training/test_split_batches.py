"""A batch that is split into micro-batches or over devices has the gradients of the whole batch.

How the optimizer and three steps are split is in tests/devices. The loss of embeddings is over all
rows of a batch.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import tasks
from bertjax.data import pictures, value_masking
from bertjax.devices import sharding
from bertjax.finetuning import embeddings, wrapped_tasks
from bertjax.models import lora, parameters
from bertjax.tasks import (
    base,
    masked_autoencoder,
    masked_spans_to_sequence,
    masked_values,
    mixed_rows,
    next_token,
    pretraining,
    replaced_tokens,
    span_boundary,
)
from bertjax.training import optim, schedules, state
from tests import conftest, marks, small_sequences, small_values

BERT = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
SHARED = dataclasses.replace(conftest.TINY, num_hidden_groups=1, embedding_size=16)  # ALBERT's
ELECTRA = dataclasses.replace(BERT, embedding_size=16)
GENERATOR = dataclasses.replace(
    ELECTRA, hidden_size=16, num_attention_heads=2, intermediate_size=24
)
TEXTS, ROWS, LENGTH = 3, 16, 8
FILLERS = [3, 9, 14]  # unevenly among micro-batches and devices
EMBEDDING = embeddings.SentenceEmbedding(BERT, num_texts=TEXTS)
LORA = lora.LoraOptions(2, 16.0, (r".*\.query\.kernel",))
TASKS = {
    "masked_tokens": pretraining.Pretraining(BERT),
    "masked_tokens, shared layers": pretraining.Pretraining(SHARED, pair_loss="sop"),
    "span_boundary": span_boundary.SpanBoundary(BERT, pair_loss="none"),
    # So cold that the likeliest token is drawn: each micro-batch has a key of its own.
    "replaced_tokens": replaced_tokens.ReplacedTokens(ELECTRA, GENERATOR, temperature=1e-6),
    "replaced_tokens, samples": replaced_tokens.ReplacedTokens(ELECTRA, GENERATOR),
    "hybrid": mixed_rows.Hybrid(BERT, share=1 / 4),
    "prefix_rows": mixed_rows.PrefixRows(BERT, share=1 / 4),
    "next_token": next_token.NextToken(dataclasses.replace(BERT, left_to_right=True)),
    "masked_values, patches": masked_values.MaskedValues(small_values.encoder("patches")),
    "masked_values, cells": masked_values.MaskedValues(small_values.encoder("cells")),
    "masked_autoencoder, pixels": masked_autoencoder.MaskedAutoencoder(
        small_values.encoder("pixels"), small_values.encoder("pixels", hidden_size=8), share=0.5
    ),
    "masked_spans_to_sequence, mass": masked_spans_to_sequence.MaskedSpansToSequence(BERT),
    "masked_spans_to_sequence, bart": masked_spans_to_sequence.MaskedSpansToSequence(BERT, "bart"),
    "embeddings": EMBEDDING,
    "embeddings, low rank": wrapped_tasks.LowRank(EMBEDDING, LORA),
}
# Each with micro-batches, devices that split rows, devices that split widths.
QUICK = [("masked_tokens", (4, 1, 1)), ("embeddings", (2, 4, 1))]
SLOW = [
    ("replaced_tokens, samples", (1, 4, 2)),
    ("hybrid", (2, 2, 2)),
    ("masked_values, cells", (2, 2, 2)),
    ("masked_spans_to_sequence, bart", (2, 2, 2)),
    ("embeddings", (4, 4, 1)),
]
WEEKLY = [
    ("masked_tokens", (2, 2, 2)),
    ("masked_tokens, shared layers", (1, 4, 2)),
    ("span_boundary", (4, 1, 1)),
    ("replaced_tokens", (2, 2, 2)),
    ("next_token", (4, 1, 1)),
    ("prefix_rows", (2, 2, 2)),
    ("masked_values, patches", (4, 1, 1)),
    ("masked_autoencoder, pixels", (1, 4, 2)),
    ("masked_spans_to_sequence, mass", (4, 1, 1)),
    ("embeddings", (4, 1, 1)),
    ("embeddings, low rank", (4, 1, 1)),
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


def make_batch(name):
    """Rows with unequal numbers of masked tokens; the first four have none. Texts of embeddings."""
    if name.startswith("embeddings"):
        return embedding_batch()
    if name.startswith(("masked_values", "masked_autoencoder")):
        return value_batch(name.rpartition(" ")[2])
    if name.startswith("masked_spans_to_sequence"):
        kind = name.rpartition(" ")[2]
        return small_sequences.batch(kind, BERT.vocab_size, ROWS, fillers=FILLERS)
    batch = conftest.make_batch()
    return batch | {"masked_lm_weights": batch["masked_lm_weights"].at[:4].set(0.0)}


def embedding_batch(seed=0):
    rng = np.random.default_rng(seed)
    shape = (ROWS, TEXTS, LENGTH)
    lengths, weights = rng.integers(3, LENGTH + 1, shape[:2]), np.ones(ROWS, np.float32)
    weights[FILLERS] = 0
    return {
        "input_ids": rng.integers(5, BERT.vocab_size, shape).astype(np.int32),
        "input_mask": (np.arange(LENGTH) < lengths[..., None]).astype(np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "example_weights": weights,
    }


def value_batch(kind):
    """Rows with unequal numbers of hidden positions; the first four have none."""
    config = small_values.make_config(kind, "")
    made = small_values.drawn(kind, ROWS)
    made["input_mask"] = np.ones((ROWS, small_values.LENGTHS[kind]), np.int32)
    if kind == "pixels":
        scaling = pictures.Scaling(2, (0.5,), (0.25,))
        values, observed = scaling.patches(made.pop("pixels"))
        made |= {"values": values, "observed": observed}
    options = value_masking.Options(config.pretraining.masked_lm_prob)
    batch = made | value_masking.draw(made, np.random.default_rng(0), options)
    batch["hidden"][:4] = 0
    batch["hidden"][4:, -1] = 0
    return {name: jnp.asarray(it) for name, it in batch.items() if name != "labels"} | {
        "example_weights": jnp.ones(ROWS)
    }


def make_learner(task, micro_batches):
    return state.make_learner(
        task,
        optimizer=optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
        accumulation_steps=micro_batches,
    )


@functools.cache
def placed_gradients(name, micro_batches, data, tensor):
    """The mesh, the parameters on it, and the function that is compiled once for them."""
    learner, params = make_learner(TASKS[name], micro_batches), params_of(TASKS[name])
    mesh = sharding.make_mesh(jax.devices()[: data * tensor], data=data, tensor=tensor)
    # A model of sentence vectors has no kernel outside of its layers, for which there is a rule.
    table = "data_parallel" if name.startswith("embeddings") else "fsdp_tensor"
    placed = sharding.shardings(mesh, params, params, rule_table=table)
    step = jax.jit(learner._gradients, compiler_options=conftest.QUICK_COMPILER)
    return mesh, jax.device_put(params, placed), step


def gradients(name, micro_batches, data, tensor, batch=None):
    mesh, params, step = placed_gradients(name, micro_batches, data, tensor)
    with jax.set_mesh(mesh):
        rows = jax.device_put(batch or make_batch(name), sharding.batch_sharding(mesh))
        return jax.device_get(step(params, rows, jax.random.key(0)))


@functools.cache
def whole(name):
    return gradients(name, 1, 1, 1)


@pytest.mark.parametrize(
    ("name", "split"), marks.cases(QUICK + SLOW + WEEKLY, quick=QUICK, slow=SLOW)
)
def test_gradients_and_losses_are_those_of_the_whole_batch(name, split):
    assert_alike(gradients(name, *split), whole(name))
    if name == "embeddings":
        assert whole(name)[1]["loss"].weight == ROWS - len(FILLERS)
    if name == "embeddings, low rank":
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole(name)[0]["lora"])) > 0


def assert_alike(found, expected):
    (grads, means), (expected_grads, expected_means) = found, expected
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), grads, expected_grads
    )
    for loss, mean in expected_means.items():
        assert means[loss].value() == pytest.approx(mean.value(), rel=1e-4, nan_ok=True), loss
        np.testing.assert_allclose(means[loss].weight, mean.weight, rtol=1e-6, err_msg=loss)


def test_rows_that_fill_up_are_neither_anchors_nor_candidates():
    batch, other = embedding_batch(), embedding_batch(seed=1)
    batch["input_ids"][FILLERS] = other["input_ids"][FILLERS]
    assert_alike(gradients("embeddings", 1, 1, 1, batch), whole("embeddings"))
    # And the others are: else nothing of this could fail.
    batch["input_ids"][0, 2] = other["input_ids"][0, 2]
    changed = gradients("embeddings", 1, 1, 1, batch)[1]["loss"].total
    assert abs(changed - whole("embeddings")[1]["loss"].total) > 1e-3


@pytest.mark.slow
def test_what_is_computed_again_has_the_dropout_masks_that_it_had():
    """Against vectors that are kept with all that their gradients need."""
    task = dataclasses.replace(
        EMBEDDING, encoder=dataclasses.replace(BERT, hidden_dropout_prob=0.3)
    )
    learner, batch, key = make_learner(task, 2), embedding_batch(), jax.random.key(1)

    def kept(params):
        model = parameters.merge(learner.graphdef, params)
        parts = []
        for place in range(2):
            rows = {name: jnp.asarray(x[place::2]) for name, x in batch.items()}
            parts.append(task.outputs(model, rows, key=jax.random.fold_in(key, place)))
        vectors = jnp.stack(parts, axis=1).reshape(ROWS, TEXTS, -1)
        means = task.joint_loss(model, vectors, jax.tree.map(jnp.asarray, batch))
        return means["loss"].total / means["loss"].weight, means

    jit = functools.partial(jax.jit, compiler_options=conftest.QUICK_COMPILER)
    params = params_of(task)
    found = jit(learner._gradients)(params, batch, key)
    assert_alike(*jax.device_get((found, jit(jax.grad(kept, has_aux=True))(params))))


@pytest.mark.slow
def test_the_whole_batch_needs_the_memory_of_a_micro_batch():
    def bytes_of(micro_batches):
        step = jax.jit(make_learner(EMBEDDING, micro_batches)._gradients)
        arguments = params_of(EMBEDDING), embedding_batch(), jax.random.key(0)
        return step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(8) < 0.4 * bytes_of(1)


def test_every_objective_is_split_and_every_rule_table_places_its_parameters():
    assert {name.partition(",")[0] for name in TASKS} == {*tasks.OBJECTIVES, "embeddings"}
    assert {name for name, _ in QUICK + SLOW + WEEKLY} == {*TASKS}
    mesh = sharding.make_mesh(jax.devices()[:4], data=2, tensor=2)
    for name, task in TASKS.items():
        params = base.abstract_model(task)[1]
        assert parameters.flat(params)
        for table in ["data_parallel"] if name.startswith("embeddings") else sharding.RULES:
            sharding.shardings(mesh, params, params, rule_table=table)
