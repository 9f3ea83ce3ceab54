"""Schedules against a few lines of float64 numpy each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.training import schedules


def schedule(name, warmup=10, total=100, peak=2.0):
    return schedules.make_schedule(schedules.ScheduleOptions(name, peak, warmup, total))


def test_linear_schedule_rises_to_the_peak_and_falls_to_zero():
    rate = schedule("linear")
    steps = np.arange(101)
    expected = 2.0 * np.where(steps < 10, steps / 10, (100 - steps) / 90)
    np.testing.assert_allclose([rate(step) for step in steps], expected, rtol=1e-6)


def test_bert_schedule_decays_from_step_zero_and_drops_after_warmup():
    """Values of the released code: google-research/bert optimization.py."""
    rate = schedule("bert", warmup=10_000, total=1_000_000, peak=1e-4)
    expected = {0: 0.0, 5_000: 5e-5, 9_999: 9.999e-5, 10_000: 9.9e-5, 500_000: 5e-5, 1_000_000: 0.0}
    for step, value in expected.items():
        np.testing.assert_allclose(rate(step), value, rtol=1e-5, atol=1e-12)


def test_electra_schedule_is_warm_up_times_a_decay_from_step_zero():
    """Values of the released code: google-research/electra model/optimization.py."""
    rate = schedule("electra", warmup=10_000, total=1_000_000, peak=5e-4)
    expected = {0: 0.0, 5_000: 2.4875e-4, 10_000: 4.95e-4, 500_000: 2.5e-4, 1_000_000: 0.0}
    for step, value in expected.items():
        np.testing.assert_allclose(rate(step), value, rtol=1e-5, atol=1e-12)


def test_schedules_without_warmup_start_at_the_peak():
    assert float(schedule("linear", warmup=0)(0)) == 2.0
    assert float(schedule("bert", warmup=0)(0)) == 2.0


@pytest.mark.parametrize("name", schedules.SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 10])
def test_a_schedule_of_arrays_is_that_of_numbers(name, warmup):
    numbers = schedules.ScheduleOptions(name, 2.0, warmup, 100)
    arrays = jax.tree.map(jnp.asarray, numbers)
    traced = jax.jit(lambda options, step: schedules.make_schedule(options)(step))
    for step in (0, 5, 10, 50, 100, 120):
        np.testing.assert_allclose(
            traced(arrays, step), schedules.make_schedule(numbers)(step), rtol=1e-6, atol=1e-9
        )
