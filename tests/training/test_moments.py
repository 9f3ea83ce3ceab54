"""Moments in bfloat16: rounded without a bias, where the nearest number would lose every change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import moments, optim

SEEDS = jax.random.bits(jax.random.key(0), (64, 2), jnp.uint32)


def rounded(x, seeds):
    return np.asarray(moments.stochastically_rounded(jnp.asarray(x), tuple(seeds)), np.float64)


def test_a_number_becomes_one_of_its_two_neighbours_and_the_mean_is_itself():
    x = np.random.default_rng(0).normal(0, 1, (40, 50)).astype(np.float32)
    found = np.stack([rounded(x, seeds) for seeds in SEEDS])
    below = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    unit = np.abs(np.float64(2.0) ** (np.floor(np.log2(np.abs(x))) - 7))
    steps = np.abs(found - below) / unit
    assert set(np.unique(steps)) == {0.0, 1.0}
    # Each mean of 64 draws is off by at most half a unit / 8 in the root mean square.
    error = (found.mean(axis=0) - x) / unit
    assert np.sqrt(np.mean(error**2)) < 0.5 / 8
    assert abs(error.mean()) < 4 * 0.5 / 8 / np.sqrt(error.size)


def test_numbers_of_bfloat16_and_what_is_not_finite_stay_as_they_are():
    x = np.array([[0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, -np.nan]], np.float32)
    for seeds in SEEDS:
        np.testing.assert_array_equal(rounded(x, seeds), x)


def second_moment(dtype, steps, beta2=0.999):
    options = optim.OptimizerOptions(
        clip_norm=0.0, beta2=beta2, moment_dtype=dtype, weight_decay=0.0, bias_correction=False
    )
    params = {"kernel": jnp.zeros((64, 64)), "bias": jnp.zeros(64)}
    optimizer = optim.make_optimizer(options, params)
    grads = jax.tree.map(jnp.ones_like, params)

    @jax.jit
    def step(state, number):
        key = jax.random.fold_in(jax.random.key(1), number)
        return optimizer.update(grads, state, params, peak_learning_rate=1.0, key=key)[1]

    state = optimizer.init(params)
    for number in range(steps):
        state = step(state, number)
    (adam,) = [part for part in state if hasattr(part, "nu")]
    return adam.nu


def test_a_second_moment_reaches_its_mean_though_a_step_is_below_half_a_unit():
    found = second_moment("bfloat16", 1500)
    expected = 1 - 0.999**1500
    assert found["kernel"].dtype == jnp.bfloat16 and found["bias"].dtype == jnp.float32
    assert np.asarray(found["kernel"], np.float64).mean() == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(found["bias"], expected, rtol=1e-4)
    # The nearest bfloat16 number instead: it stands still on the way.
    nearest = jnp.zeros((), jnp.bfloat16)
    for _ in range(1500):
        nearest = (0.999 * nearest.astype(jnp.float32) + 0.001).astype(jnp.bfloat16)
    assert nearest.item() < 0.5 * expected


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
@pytest.mark.parametrize("bias_correction", [True, False])
def test_every_optimizer_moves_as_it_does_in_float32(name, bias_correction):
    params = {
        "layers": {"0": {"kernel": jnp.ones((32, 32)), "bias": jnp.ones(32)}},
        "word": {"embedding": jnp.ones((48, 32))},
    }
    rng = np.random.default_rng(0)
    of_steps = [
        jax.tree.map(lambda x: jnp.asarray(rng.normal(0.5, 1, x.shape), jnp.float32), params)
        for _ in range(5)
    ]

    def moved(dtype):
        options = optim.OptimizerOptions(name, moment_dtype=dtype, bias_correction=bias_correction)
        optimizer = optim.make_optimizer(options, params)
        state, updates = optimizer.init(params), None
        for step, grads in enumerate(of_steps):
            key = jax.random.fold_in(jax.random.key(2), step)
            told = {"peak_learning_rate": 1e-3, "key": key}
            updates, state = optimizer.update(grads, state, params, **told)
        return updates

    for ours, expected in zip(
        *(jax.tree.leaves(moved(d)) for d in optim.MOMENT_DTYPES), strict=True
    ):
        error = np.linalg.norm(expected - ours) / np.linalg.norm(ours)
        assert error < 0.01
