"""Schedules against a few lines of float64 numpy each."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import schedules


def schedule(name, warmup=10, total=100, peak=2.0):
    return schedules.make_schedule(schedules.ScheduleOptions(name, peak, warmup, total))


def test_without_a_warm_up_a_schedule_begins_at_its_peak():
    assert float(schedule("linear", warmup=0)(0)) == float(schedule("bert", warmup=0)(0)) == 2.0


@pytest.mark.parametrize(
    ("name", "peak", "expected"),
    [  # google-research/bert optimization.py, google-research/electra model/optimization.py
        ("bert", 1e-4, [0.0, 5e-5, 9.999e-5, 9.9e-5, 5e-5, 0.0]),
        ("electra", 5e-4, [0.0, 2.4875e-4, 4.94950950e-4, 4.95e-4, 2.5e-4, 0.0]),
    ],
)
def test_schedules_of_released_code_decay_from_step_zero(name, peak, expected):
    rate = schedule(name, warmup=10_000, total=1_000_000, peak=peak)
    steps = [0, 5_000, 9_999, 10_000, 500_000, 1_000_000]
    np.testing.assert_allclose([rate(step) for step in steps], expected, rtol=1e-5, atol=1e-12)


def rates(name, warmup=10, total=100, **options):
    options = schedules.ScheduleOptions(name, 2.0, warmup, total, **options)
    return np.asarray(schedules.make_schedule(options)(np.arange(121)), np.float64)


# Of the share of the decay that is over.
FALLS = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
    "one_minus_sqrt": lambda t: 1 - np.sqrt(t),
}


def fallen(shape, start, end, low):
    """A decay from 1 at step `start` to `low` at step `end`, and what is before and after it."""
    t = np.clip((np.arange(121) - start) / (end - start), 0, 1)
    return low + (1 - low) * FALLS[shape](t)


WARM = np.minimum(np.arange(121) / 10, 1)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_decay_ends_at_its_share_of_the_peak_at_its_end_or_at_that_of_the_run(name):
    """MosaicBERT's linear decay to 0.02; NeoBERT's cosine to 0.1, over before the run is."""
    for low in (0.0, 0.02):
        expected = 2 * np.minimum(WARM, fallen(name, 10, 100, low))
        np.testing.assert_allclose(rates(name, end_share=low), expected, rtol=1e-5, atol=1e-6)
    expected = 2 * np.minimum(WARM, fallen(name, 10, 90, 0.1))
    found = rates(name, end_share=0.1, decay_steps=80)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", FALLS)
def test_wsd_is_constant_until_its_last_steps(shape):
    """ModernBERT's scheduler.py, OneMinusSqrtScheduler: lr = a + (1 - a)(1 - sqrt(t))."""
    found = rates("wsd", decay_steps=30, decay_shape=shape, end_share=0.04)
    expected = 2 * np.minimum(WARM, fallen(shape, 70, 100, 0.04))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert set(found[10:71]) == {2.0} and found[71] < 2


def test_up_to_the_decay_a_longer_run_has_the_same_rates_and_that_step_is_known():
    shorter, longer = (
        schedules.ScheduleOptions("wsd", 2.0, 10, total, decay_steps=30) for total in (100, 500)
    )
    step = schedules.last_step_before_decay(shorter)
    assert step == 70
    steps = np.arange(step + 2)
    found = [np.asarray(schedules.make_schedule(it)(steps)) for it in (shorter, longer)]
    np.testing.assert_array_equal(found[0][: step + 1], found[1][: step + 1])
    assert found[0][step + 1] != found[1][step + 1]
    linear = schedules.ScheduleOptions("linear", 2.0, 10, 100, decay_steps=30)
    assert schedules.last_step_before_decay(linear) is None


@pytest.mark.parametrize("shape", FALLS)
def test_one_cycle_rises_from_a_share_and_falls_to_another(shape):
    found = rates("one_cycle", start_share=0.04, end_share=0.01, decay_shape=shape)
    rise = 0.04 + 0.96 * (1 - FALLS[shape](WARM))
    expected = 2 * np.where(np.arange(121) < 10, rise, fallen(shape, 10, 100, 0.01))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_inverse_root_falls_from_the_end_of_the_warm_up_on_whatever_the_length():
    """fairseq's inverse_square_root_schedule.py, with its warmup_init_lr."""
    steps = np.arange(121)
    expected = np.where(
        steps < 10, 0.2 + steps * (2 - 0.2) / 10, 2 * 10**0.5 * np.maximum(steps, 1) ** -0.5
    )
    for total in (100, 1000):
        found = rates("inverse_sqrt", start_share=0.1, total=total)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(rates("inverse_sqrt", warmup=0)[[0, 1, 4]], [2, 2, 1], rtol=1e-6)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_schedule_of_arrays_is_that_of_numbers(name):
    traced = jax.jit(lambda options, step: schedules.make_schedule(options)(step))
    for warmup in (0, 10):
        numbers = schedules.ScheduleOptions(name, 2.0, warmup, 100, 30, 0.1, 0.2, "cosine")
        arrays = jax.tree.map(jnp.asarray, numbers)
        for step in (0, 5, 10, 50, 100, 120):
            expected = schedules.make_schedule(numbers)(step)
            np.testing.assert_allclose(traced(arrays, step), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["wsd", "linear", "bert"])
def test_a_phase_multiplies_the_rate_from_its_first_step_on(name):
    shares = {"phase_starts": (0, 40, 70), "phase_shares": (1.0, 0.5, 0.25)}
    options = schedules.ScheduleOptions(name, 2.0, 10, 100, 30)
    whole, shared = (
        jax.vmap(schedules.make_schedule(each))(jnp.arange(101))
        for each in (options, dataclasses.replace(options, **shares))
    )
    share = np.repeat([1.0, 0.5, 0.25], [40, 30, 31])
    np.testing.assert_allclose(shared, np.asarray(whole) * share, rtol=1e-6)
