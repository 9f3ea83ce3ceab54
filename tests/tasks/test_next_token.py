"""Claims about left-to-right language modelling: what is seen, and what is lost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.models import visibility
from bertjax.tasks import base, next_token
from tests import small_modules
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("quick_runs")
LENGTHS = (12, 7, 2)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    input_ids = rng.integers(5, TINY.vocab_size, (3, 12)).astype(np.int32)
    input_mask = (np.arange(12) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return {
        "input_ids": jnp.asarray(input_ids * input_mask),
        "input_mask": jnp.asarray(input_mask),
        "segment_ids": jnp.zeros((3, 12), jnp.int32),
        "example_weights": jnp.array([1.0, 1.0, 0.0]),
    }


@pytest.fixture(scope="module")
def task():
    sizes = dataclasses.replace(TINY, num_hidden_layers=1, left_to_right=True)
    return next_token.NextToken(sizes)


@pytest.fixture(scope="module")
def model(task):
    return small_modules.made(task.init)


@pytest.fixture(scope="module")
def logits_of(model):
    return small_modules.compiled(lambda it, batch: it.next_logits(it.encoder(batch)), model)


@pytest.fixture(scope="module")
def logits(logits_of, batch):
    return np.asarray(logits_of(batch), np.float64)


def test_a_token_is_predicted_from_its_left_alone(logits_of, batch, logits):
    for place in (1, 5, 11):
        changed = batch["input_ids"].at[0, place:].set(5 + place)
        found = np.asarray(logits_of({**batch, "input_ids": changed}))
        np.testing.assert_array_equal(found[0, :place], logits[0, :place].astype(np.float32))
        assert place == 11 or np.abs(found[0, place:] - logits[0, place:]).min() > 0


def test_losses_are_those_of_the_definition(task, model, batch, logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    of_rows = [
        [log_chances[row, place, batch["input_ids"][row, place + 1]] for place in range(length - 1)]
        for row, length in enumerate(LENGTHS)
    ]

    def outputs(model, batch):
        return task.loss(model, batch, key=None), task.predict(model, batch)["log_likelihood"]

    means, likelihoods = small_modules.run(outputs, model, batch)
    counted = [*of_rows[0], *of_rows[1]]  # the third row weighs nothing
    assert means["lm_loss"].value() == pytest.approx(-np.mean(counted), rel=1e-5)
    assert float(means["lm_loss"].weight) == len(counted) == float(task.weights(batch)["lm_loss"])
    best = [logits[row].argmax(axis=-1) for row in range(2)]
    hits = sum(
        int(best[row][place] == batch["input_ids"][row, place + 1])
        for row in range(2)
        for place in range(LENGTHS[row] - 1)
    )
    assert float(means["lm_accuracy"].total) == hits
    np.testing.assert_allclose(likelihoods, [sum(of_rows[0]), sum(of_rows[1]), 0], rtol=1e-5)


def test_padding_gets_no_gradient(task, model, batch):
    graphdef, params = nnx.split(model)

    def loss(params, embedded):
        merged = nnx.merge(graphdef, params)
        states = merged.encoder.contextualize(embedded, visibility.of(batch))
        logits = merged.next_logits(states[-1])
        labels, weights = next_token._targets(batch)
        return (base.cross_entropy(logits, labels) * weights).sum()

    embedded = model.encoder.embed(batch)
    gradient = jax.jit(jax.grad(loss, argnums=1))(params, embedded)
    assert float(jnp.abs(gradient[1, 7:]).max()) == 0.0
    assert float(jnp.abs(gradient[1, 6]).max()) == 0.0  # what follows it is not asked
    assert float(jnp.abs(gradient[1, :6]).min()) > 0.0
