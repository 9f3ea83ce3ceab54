"""Products of bfloat16 factors on CPU have a float32 result, rounded once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives
from jax.interpreters import mlir

from bertjax.devices import cpu_products


@pytest.fixture
def rounded(monkeypatch):
    """Lets only the test compile so."""
    table = mlir._platform_specific_lowerings["cpu"]
    monkeypatch.setitem(table, primitives.dot_general_p, table[primitives.dot_general_p])
    cpu_products.round_behind.cache_clear()
    cpu_products.round_behind()


def product(x, y):
    return jnp.einsum("BLD,DF->BLF", x, y)


def gradients(x, y):
    return jax.grad(lambda *xy: product(*xy).astype(jnp.float32).sum(), (0, 1))(x, y)


def factors(dtype):
    draws = np.random.default_rng(0)
    return [jnp.asarray(draws.normal(size=shape), dtype) for shape in ((2, 5, 64), (64, 7))]


def results(function, dtype):
    """The types of the results of all products of a function's program for CPU."""
    lines = jax.jit(function).lower(*factors(dtype)).as_text().splitlines()
    lines = [line for line in lines if "dot_general" in line]
    return [line.rsplit("x", 1)[1].rstrip(">") for line in lines]


def test_products_and_their_gradients_have_a_float32_result(rounded):
    assert results(product, jnp.bfloat16) == ["f32"]
    assert results(gradients, jnp.bfloat16) == ["f32"] * 2
    assert results(product, jnp.float16) == ["f16"]


def test_the_value_is_the_exact_one_rounded_once(rounded):
    x, y = factors(jnp.bfloat16)
    exact = np.einsum("bld,df->blf", *(np.asarray(it, np.float64) for it in (x, y)))
    found = jax.jit(product)(x, y)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=1e-5)
