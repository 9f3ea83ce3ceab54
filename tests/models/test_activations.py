"""Claims about activations: gelu is the exact one to the rounding of its type."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.special

from bertjax.models import activations


def half_units(x):
    """Returns the largest error of rounding to bfloat16, which has seven bits behind the first."""
    return 2.0 ** (np.maximum(np.frexp(x)[1] - 1, -126) - 8)


def every_bfloat16():
    """Returns all finite numbers of bfloat16."""
    bits = np.arange(2**16, dtype=np.uint16)
    return bits[bits & 0x7F80 != 0x7F80].view(ml_dtypes.bfloat16)


def numpy_gelu(x):
    return x * scipy.special.ndtr(x)


def numpy_slope(x):
    return scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def test_gelu_of_every_bfloat16_is_the_exact_one_to_its_rounding():
    x = every_bfloat16()
    found = np.asarray(activations.gelu(jnp.asarray(x)), np.float64)
    exact = numpy_gelu(x.astype(np.float64))
    is_tail = x.astype(np.float32) < -4
    error = np.abs(found - exact)
    # The smallest numbers have no normal half of their own, which is flushed to zero.
    allowed = half_units(exact) + 1.13e-3 * np.abs(exact) + 2.0**-126
    assert (error <= allowed)[~is_tail].all()
    assert error[is_tail].max() < 2e-6


def test_the_slope_of_gelu_is_the_exact_one_to_the_rounding_of_bfloat16():
    x = every_bfloat16()
    _, pull = jax.vjp(activations.gelu, jnp.asarray(x))
    found = np.asarray(pull(jnp.ones(x.shape, jnp.bfloat16))[0], np.float64)
    exact = numpy_slope(x.astype(np.float64))
    assert (np.abs(found - exact) <= half_units(exact) + 6e-4).all()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_gelu_ends_in_zero_and_in_x(dtype):
    far = jnp.asarray([-1e30, -50.0, 50.0, 1e30], dtype)
    np.testing.assert_array_equal(activations.gelu(far), jnp.maximum(far, 0))


def test_gelu_of_float32_keeps_erf():
    x = np.linspace(-10, 10, 10_001, dtype=np.float32)
    exact = numpy_gelu(x.astype(np.float64))
    np.testing.assert_allclose(activations.gelu(jnp.asarray(x)), exact, rtol=2e-5, atol=1e-7)
