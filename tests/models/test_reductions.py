"""Claims about sums as products: they are the sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import reductions

X = np.random.default_rng(0).normal(size=(3, 5, 300)).astype(np.float32)


@pytest.mark.parametrize("of", [reductions.row_sums, reductions.row_sums_by_product])
def test_row_sums_are_those_of_float64(of):
    np.testing.assert_allclose(jax.jit(of)(X), X.astype(np.float64).sum(axis=-1), atol=1e-4)


def test_row_sums_are_in_float32_of_bfloat16_too():
    rows = jnp.full((2, 1000), 1.0, jnp.bfloat16)  # 256 + 1 is 256 there
    assert reductions.row_sums(rows).tolist() == [1000.0, 1000.0]


def test_column_sums_are_those_of_float64():
    np.testing.assert_allclose(
        reductions.column_sums(jnp.asarray(X)), X.astype(np.float64).sum(axis=(0, 1)), atol=1e-4
    )
