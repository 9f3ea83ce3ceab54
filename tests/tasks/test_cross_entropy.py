"""Claims about the cross-entropy: value and gradient are those of float64, huge logits included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.tasks import base

LABELS = jnp.asarray([[0, 6], [2, 3]])


def logits_of(scale):
    return (scale * np.random.default_rng(0).normal(size=(2, 2, 7))).astype(np.float32)


def reference(logits):
    """Returns losses and the gradient of their sum, in float64."""
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    labels = np.eye(logits.shape[-1])[LABELS]
    return -(logs * labels).sum(axis=-1), np.exp(logs) - labels


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e30])
def test_value_and_gradient_are_those_of_float64(scale):
    logits = logits_of(scale)
    losses, gradient = reference(logits)
    found, pull_back = jax.vjp(lambda x: base.cross_entropy(x, LABELS), jnp.asarray(logits))
    np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*pull_back(jnp.ones((2, 2))), gradient, atol=1e-6)


def test_classes_that_are_barred_count_for_nothing():
    logits = jnp.asarray([[1.0, 2.0, -jnp.inf]])
    found, gradient = jax.value_and_grad(lambda x: base.log_sum_exp(x).sum())(logits)
    assert found == pytest.approx(np.log(np.exp(1) + np.exp(2)))
    np.testing.assert_allclose(gradient, [[0.26894, 0.73106, 0.0]], atol=1e-5)
