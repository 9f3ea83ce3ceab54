"""Dropout: the keep rate, the scale, a mask of its own for every element."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models import layers


def test_dropout_keeps_the_rate_and_the_mean():
    ones = jnp.ones((64, 128, 65))
    dropped = np.asarray(layers.dropout(ones, 0.1, jax.random.key(0)))
    kept = dropped != 0
    assert abs(kept.mean() - 0.9) < 0.002
    assert abs(dropped.mean() - 1.0) < 0.002
    np.testing.assert_allclose(np.unique(dropped[kept]), 1 / 0.9, rtol=1e-4)


def test_dropout_masks_differ_between_rows_columns_and_keys():
    ones = jnp.ones((32, 64, 64))
    first, second = (
        np.asarray(layers.dropout(ones, 0.5, jax.random.key(seed))) != 0 for seed in (0, 1)
    )
    for one, other in [(first, second), (first[0], first[1]), (first[:, 0], first[:, 1])]:
        assert abs((one == other).mean() - 0.5) < 0.05
    neighbours = first[..., ::2] == first[..., 1::2]  # the two halves of one random word
    assert abs(neighbours.mean() - 0.5) < 0.02


def test_no_key_means_no_dropout():
    x = jnp.arange(6.0).reshape(2, 3)
    assert layers.dropout(x, 0.5, None) is x
    assert layers.dropout(x, 0.0, jax.random.key(0)) is x
