"""Losses and gradients of rows of several sequences equal those of the same sequences apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import packed_rows, parameters
from bertjax.tasks import distillation, next_token, pretraining, replaced_tokens, span_boundary
from tests import small_modules, small_packed
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("quick_runs")
LENGTH, MOST, PREDICTIONS = 20, 4, 8
LENGTHS = [[7, 9, 4], [20], [5, 3, 6, 5], [12, 3]]
SIZES = dataclasses.replace(
    TINY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
)


def masks(chosen, ids):
    """The mask features of rows in which `chosen` are masked."""
    positions, labels = np.zeros((2, len(ids), PREDICTIONS), np.int32)
    weights, hidden = np.zeros(positions.shape, np.float32), ids.copy()
    for row in range(len(ids)):
        places = np.flatnonzero(chosen[row])
        positions[row, : len(places)], weights[row, : len(places)] = places, 1
        labels[row, : len(places)] = ids[row, places]
        hidden[row, places] = 4
    return {
        **{"masked_lm_positions": positions, "masked_lm_ids": labels, "masked_lm_weights": weights},
        **{"input_ids": hidden, "example_weights": np.ones(len(ids), np.float32)},
    }


@pytest.fixture(scope="module")
def batches():
    """Packed rows and the same sequences apart, with the same tokens masked in each."""
    rng = np.random.default_rng(1)
    packed, apart = small_packed.rows(LENGTHS, LENGTH, most=MOST)
    packed["input_mask"] = (packed["sequence_ids"] != 0).astype(np.int32)
    chosen = np.zeros(packed["input_ids"].shape, bool)
    chosen_apart = np.zeros(apart["input_ids"].shape, bool)
    number = 0
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            own = np.zeros(length, bool)
            maskable = np.flatnonzero(packed["input_ids"][row, begin : begin + length] >= 5)
            own[rng.permutation(maskable)[: max(1, length // 4)]] = True
            chosen[row, begin : begin + length] = chosen_apart[number, :length] = own
            begin, number = begin + length, number + 1
    packed |= masks(chosen, packed["input_ids"])
    apart |= masks(chosen_apart, apart["input_ids"])
    return tuple({name: jnp.asarray(it[name]) for name in it} for it in (packed, apart))


def both(task, batches, **fixed):
    """Losses and gradients of the two batches by a task, compiled together."""
    graphdef, params = parameters.split(small_modules.made(task.init))

    def loss(params, batch):
        means = task.loss(parameters.merge(graphdef, params), {**batch, **fixed}, key=None)
        weights = task.weights(batch)
        total = sum(
            coefficient * means[name].total / weights[name]
            for name, coefficient in task.objectives.items()
        )
        return total, {name: mean.total / mean.weight for name, mean in means.items()}

    run = jax.value_and_grad(loss, has_aux=True)
    return jax.jit(lambda params, packed, apart: (run(params, packed), run(params, apart)))(
        params, *batches
    )


def assert_equal(task, batches, **fixed):
    packed, apart = both(task, batches, **fixed)
    ((loss, means), gradients), ((expected_loss, expected_means), expected) = packed, apart
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert means.keys() == expected_means.keys()
    for name in means:
        np.testing.assert_allclose(means[name], expected_means[name], rtol=1e-5, err_msg=name)
    gradients = parameters.flat(gradients)
    for path, value in parameters.flat(expected).items():
        np.testing.assert_allclose(gradients[path], value, rtol=1e-4, atol=1e-5, err_msg=path)
        assert np.isfinite(gradients[path]).all()


def test_masked_tokens_pairs_and_span_boundaries_are_those_of_the_sequences_apart(batches):
    assert_equal(span_boundary.SpanBoundary(SIZES, pair_loss="nsp"), batches)


@pytest.mark.slow  # three programs more; what is of each alone is told by the quick tests below
def test_every_other_objective_is_that_of_the_sequences_apart(batches):
    assert_equal(pretraining.Pretraining(SIZES, pair_loss="sop"), batches)
    assert_equal(next_token.NextToken(dataclasses.replace(SIZES, left_to_right=True)), batches)
    generator = dataclasses.replace(SIZES, hidden_size=8)
    # Of cold samples the likeliest word is drawn, whatever the noise of a row.
    electra = replaced_tokens.ReplacedTokens(SIZES, generator, "separate", temperature=1e-6)
    assert_equal(electra, batches)


@pytest.mark.slow
def test_a_student_of_packed_rows_learns_what_it_does_of_the_sequences_apart(batches):
    student = pretraining.Pretraining(SIZES, pair_loss="nsp")
    teacher = pretraining.Pretraining(
        dataclasses.replace(SIZES, num_hidden_layers=2), pair_loss="none"
    )
    task = distillation.Distillation(student, teacher, distillation.Options())
    params = parameters.split(small_modules.made(teacher.init, seed=1))[1]
    assert_equal(task, batches, **{distillation.TEACHER: params})


def test_no_token_predicts_the_first_of_the_sequence_behind_it(batches):
    packed, apart = batches
    labels, weights = next_token._targets(packed)
    begins = np.asarray(packed_rows.is_first(packed["sequence_ids"]))[:, 1:]
    assert begins.sum() == 3 + 2 + 1 and not weights[begins].any()
    wanted, wanted_weights = next_token._targets(apart)
    assert weights.sum() == wanted_weights.sum() == sum(map(sum, LENGTHS)) - 10
    found = np.sort(np.asarray(labels)[np.asarray(weights) > 0])
    np.testing.assert_array_equal(
        found, np.sort(np.asarray(wanted)[np.asarray(wanted_weights) > 0])
    )
