"""Attention beside its formula in float64 numpy, dropout mask included, and what it keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import attention, layers, visibility, weight_masks

SHAPE = (3, 9, 2, 8)  # batch, length, heads, head size
IS_REAL = np.arange(9) < np.array([[9], [5], [7]])
RATE = 0.3
VISIBLE = visibility.Visibility(jnp.asarray(IS_REAL))


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=SHAPE) for _ in range(4)]  # query, keys, values, gradient of context


def key_of(dropout):
    return jax.random.key(1) if dropout else None


def numpy_mask(dropout):
    """The mask over batch, heads, length, length, divided by the share that is kept."""
    if not dropout:
        return 1.0
    seeds = layers.mask_seeds(key_of(dropout), (3, 2))
    return np.asarray(weight_masks.kept(seeds, (3, 2, 9, 9), RATE)) / (1 - RATE)


def numpy_attend(query, keys, values, mask):
    scores = np.einsum("BLHK,BSHK->BHLS", query, keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * IS_REAL[:, None, None, :]
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("BHLS,BSHK->BLHK", weights * mask, values)


def ours(dropout):
    def attend(query, keys, values):
        return attention.attend(
            query, keys, values, VISIBLE, dropout_rate=RATE, key=key_of(dropout)
        )

    return attend


@pytest.mark.parametrize("dropout", [False, True])
def test_the_context_is_the_formula(dropout):
    *tensors, _ = inputs()
    context = ours(dropout)(*(jnp.asarray(x, jnp.float32) for x in tensors))
    np.testing.assert_allclose(context, numpy_attend(*tensors, numpy_mask(dropout)), atol=1e-5)


@pytest.mark.parametrize("dropout", [False, True])
def test_the_gradients_are_those_of_the_formula(dropout):
    *tensors, grad = inputs()
    _, backward = jax.vjp(ours(dropout), *(jnp.asarray(x, jnp.float32) for x in tensors))
    mask = numpy_mask(dropout)
    rng = np.random.default_rng(1)
    for place, gradient in enumerate(backward(jnp.asarray(grad, jnp.float32))):
        direction = rng.normal(size=SHAPE)
        plus, minus = (
            numpy_attend(*(x + sign * 1e-6 * direction if i == place else x
                           for i, x in enumerate(tensors)), mask)
            for sign in (1, -1)
        )  # fmt: skip
        slope = ((plus - minus) * grad).sum() / 2e-6
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-4)


def test_padding_keys_have_no_weight_and_no_gradient():
    query, keys, values, grad = (jnp.asarray(x, jnp.float32) for x in inputs())
    _, backward = jax.vjp(ours(True), query, keys, values)
    _, grad_keys, grad_values = backward(grad)
    assert np.all(np.asarray(grad_keys)[~IS_REAL] == 0)
    assert np.all(np.asarray(grad_values)[~IS_REAL] == 0)
    assert np.all(np.abs(np.asarray(grad_values)[IS_REAL]).max(axis=(-1, -2)) > 0)


def test_nothing_of_length_times_length_is_kept_for_the_backward_pass():
    query = jnp.zeros((1, 64, 2, 8))
    visible = visibility.Visibility(jnp.ones((1, 64), bool))
    key = jax.random.key(0)
    _, backward = jax.vjp(
        lambda q: attention.attend(q, q, q, visible, dropout_rate=0.1, key=key),
        query,
    )
    assert max(leaf.size for leaf in jax.tree.leaves(backward)) < 64 * 64 * 2


@pytest.mark.parametrize("length, warnings", [(24, 1), (1024, 0), (1000, 0), (128, 0)])
def test_lengths_that_the_kernel_does_not_take_are_computed_in_plain_jax_and_said_once(
    caplog, length, warnings
):
    query = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
    is_real = jax.ShapeDtypeStruct((1, length), jnp.bool_)

    def attend(query, is_real):
        return attention.attend(
            query,
            query,
            query,
            visibility.Visibility(is_real),
            dropout_rate=RATE,
            key=None,
            implementation="pallas",
        )

    attention._warn.cache_clear()
    with caplog.at_level("WARNING"):
        jaxprs = [str(jax.make_jaxpr(lambda *x: attend(*x))(query, is_real)) for _ in range(2)]
    assert ["pallas_call" in jaxpr for jaxpr in jaxprs] == [not warnings] * 2
    assert caplog.text.count(f"attention over {length} positions") == warnings
