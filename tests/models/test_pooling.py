"""Claims about poolings: each is NumPy's over the real positions alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import pooling

LENGTHS = (5, 3, 1)
REFERENCES = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "weighted": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
    "last": lambda states: states[-1],
}


def test_every_pooling_has_a_reference():
    assert set(REFERENCES) == set(pooling.POOLINGS)


@pytest.mark.parametrize("name", REFERENCES)
def test_real_positions_alone_are_pooled(name):
    hidden = np.random.default_rng(0).normal(size=(len(LENGTHS), 5, 4)) - 2
    mask = np.arange(5) < np.array(LENGTHS)[:, None]
    pooled = pooling.pool(jnp.asarray(hidden, jnp.float32), jnp.asarray(mask, jnp.int32), name)
    for vector, states, length in zip(pooled, hidden, LENGTHS, strict=True):
        np.testing.assert_allclose(vector, REFERENCES[name](states[:length]), atol=1e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_sequence_without_tokens_is_zero(name):
    hidden = jnp.ones((2, 3, 4), jnp.bfloat16)
    assert not pooling.pool(hidden, jnp.zeros((2, 3), jnp.int32), name).any()


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="pooling is 'first'; known are cls, mean"):
        pooling.pool(jnp.ones((1, 2, 3)), jnp.ones((1, 2), jnp.int32), "first")
