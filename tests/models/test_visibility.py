"""What may see what: packed rows, windows and orders, beside their definition in float64 NumPy."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import export as jax_export

from bertjax.devices import sharding
from bertjax.models import attention, layers, visibility, weight_masks
from bertjax.models.kernels import pallas_attention

BATCH, LENGTH, HEADS, SIZE = 3, 12, 2, 4
RATE = 0.3
KEY = jax.random.key(1)
few_examples = hypothesis.settings(derandomize=True, deadline=None, max_examples=20)


def packed_row(rng, length):
    """Sequences of random lengths, now and then with padding between them and at the end."""
    numbers, places = np.zeros(length, np.int32), np.zeros(length, np.int32)
    start, number = 0, 1
    while start < length:
        end = min(start + int(rng.integers(1, length // 2)), length)
        if rng.random() < 0.75:
            numbers[start:end], number = number, number + 1
        places[start:end] = np.arange(end - start)
        start = end
    return numbers, places


def packing(seed, batch=BATCH, length=LENGTH):
    """Numbers and positions, int32 [batch, length]; the last row is nothing but padding."""
    rng = np.random.default_rng(seed)
    rows = [packed_row(rng, length) for _ in range(batch - 1)]
    numbers, places = (
        np.stack([*each, np.zeros(length, np.int32)]) for each in zip(*rows, strict=True)
    )
    return numbers, places


def seen_by_definition(numbers, places, window, left_to_right):
    seen = np.zeros((*numbers.shape, numbers.shape[1]), bool)
    for row, query, key in np.ndindex(seen.shape):
        i, j = places[row, query], places[row, key]
        seen[row, query, key] = (
            numbers[row, query] == numbers[row, key] != 0
            and (window is None or abs(i - j) <= window)
            and (not left_to_right or j <= i)
        )
    return seen[:, None]


def numpy_context_and_gradients(query, keys, values, grad, seen, kept):
    """In float64; `kept` is the dropout mask over its rate, and what sees nothing gives zeros."""
    scores = np.where(seen, np.einsum("BLHK,BSHK->BHLS", query, keys), -np.inf)
    exponentials = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    weights = exponentials / np.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
    grad_weights = np.einsum("BLHK,BSHK->BHLS", grad, values) * kept
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdims=True))
    return (
        np.einsum("BHLS,BSHK->BLHK", weights * kept, values),
        np.einsum("BHLS,BSHK->BLHK", grad_scores, keys),
        np.einsum("BHLS,BLHK->BSHK", grad_scores, query),
        np.einsum("BHLS,BLHK->BSHK", weights * kept, grad),
    )


def tensors(shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for _ in range(4)]  # query, keys, values, gradient of context


def expected(shape, seen, dropout):
    batch, length, heads, _ = shape
    planes = (batch, heads)
    kept = np.asarray(
        weight_masks.kept(layers.mask_seeds(KEY, planes), (*planes, length, length), RATE)
    )
    return numpy_context_and_gradients(
        *tensors(shape), seen, kept / (1 - RATE) if dropout else np.ones(())
    )


def visible_of(numbers, places, window, left_to_right):
    given = {"sequence_ids": jnp.asarray(numbers)}
    if places is not None:
        given["positions"] = jnp.asarray(places)
    return visibility.of(given).narrowed(window=window, left_to_right=left_to_right)


def ours(shape, visible, dropout):
    *inputs, grad = (jnp.asarray(x, jnp.float32) for x in tensors(shape))

    def attend(*inputs):
        return attention.attend(*inputs, visible, dropout_rate=RATE, key=KEY if dropout else None)

    context, backward = jax.vjp(attend, *inputs)
    return context, *backward(grad)


def assert_close(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)


widths = (0, 1, 2, 4, 7)
windows = st.sampled_from((None, *widths))


@few_examples
@hypothesis.given(st.integers(0, 10**6), windows, st.booleans(), st.integers(0, 3), st.booleans())
def test_any_packing_window_and_order_is_the_definition(
    seed, window, left_to_right, stride, dropout
):
    """Positions are given, every, every second or every third, or (0) left to be found."""
    numbers, places = packing(seed)
    given = places * stride if stride else None
    seen = seen_by_definition(numbers, places * max(stride, 1), window, left_to_right)
    visible = visible_of(numbers, given, window, left_to_right)
    shape = (BATCH, LENGTH, HEADS, SIZE)
    assert_close(ours(shape, visible, dropout), expected(shape, seen, dropout))


@few_examples
@hypothesis.given(st.integers(0, 10**6), st.sampled_from(widths), st.booleans())
def test_a_window_and_an_order_go_with_an_input_mask_as_well(seed, window, left_to_right):
    mask = (np.random.default_rng(seed).random((BATCH, LENGTH)) < 0.7).astype(np.int32)
    places = np.broadcast_to(np.arange(LENGTH), mask.shape)
    seen = seen_by_definition(mask, places, window, left_to_right)
    visible = visibility.of({"input_mask": jnp.asarray(mask)})
    visible = visible.narrowed(window=window, left_to_right=left_to_right)
    shape = (BATCH, LENGTH, HEADS, SIZE)
    assert_close(ours(shape, visible, True), expected(shape, seen, True))


def test_a_mask_is_one_sequence_a_row_but_for_what_padding_sees():
    mask = np.arange(LENGTH) < np.array([[12], [5], [7]])
    shape = (BATCH, LENGTH, HEADS, SIZE)
    of_mask = visibility.of({"input_mask": jnp.asarray(mask, jnp.int32)})
    of_numbers = visibility.of({"sequence_ids": jnp.asarray(mask, jnp.int32)})
    assert visibility.pairs(of_mask).shape == (BATCH, 1, 1, LENGTH)
    contexts = [np.asarray(ours(shape, visible, True)[0]) for visible in (of_mask, of_numbers)]
    np.testing.assert_allclose(contexts[0][mask], contexts[1][mask], atol=1e-6)
    assert np.all(contexts[1][~mask] == 0) and np.abs(contexts[0][~mask]).min() > 0


@few_examples
@hypothesis.given(st.integers(0, 10**6))
def test_positions_restart_where_a_number_begins(seed):
    numbers, places = packing(seed)
    found = np.asarray(visibility.positions({"sequence_ids": jnp.asarray(numbers)}))
    np.testing.assert_array_equal(found[numbers != 0], places[numbers != 0])


KERNEL_CASES = {
    "packed": (True, None, False),
    "a window": (True, 9, False),
    "an order": (True, None, True),
    "all": (True, 20, True),
    "a mask with both": (False, 20, True),
}


@pytest.mark.parametrize(
    "is_packed, window, left_to_right", KERNEL_CASES.values(), ids=KERNEL_CASES
)
@pytest.mark.parametrize(
    "shape", [(3, 128, 2, 64), pytest.param((2, 256, 4, 32), marks=pytest.mark.slow)]
)
def test_the_kernels_see_the_same(shape, is_packed, window, left_to_right):
    batch, length, heads, _ = shape
    numbers, places = packing(7, batch, length)
    places = places[:, ::-1] * 2  # any order of positions will do
    if is_packed:
        visible = visible_of(numbers, places, window, left_to_right)
    else:
        numbers, places = (
            (numbers > 1).astype(np.int32),
            np.broadcast_to(np.arange(length), numbers.shape),
        )
        visible = visibility.of({"input_mask": jnp.asarray(numbers)})
        visible = visible.narrowed(window=window, left_to_right=left_to_right)
    *inputs, grad = (jnp.asarray(x, jnp.float32) for x in tensors(shape))
    seeds = layers.mask_seeds(KEY, (batch, heads))
    options = {"rate": RATE, "interpret": True}
    forward = functools.partial(pallas_attention.context, **options)
    backward = functools.partial(pallas_attention.gradients, **options)
    context, statistics = jax.jit(forward)(*inputs, visible, seeds)
    gradients = jax.jit(backward)(*inputs, visible, seeds, context, statistics, grad)
    seen = seen_by_definition(numbers, places, window, left_to_right)
    for x, y in zip((context, *gradients), expected(shape, seen, True), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * float(np.abs(y).max()))
    # Exactly nothing: what is padding neither gives nor takes.
    for x in (context, *gradients):
        assert np.all(np.asarray(x)[numbers == 0] == 0)


def packed_for_kernels(shape):
    """Rows as the kernels take them, with positions, a window and an order."""
    numbers, places = packing(3, *shape[:2])
    *inputs, grad = (jnp.asarray(x, jnp.float32) for x in tensors(shape))
    return inputs, grad, visible_of(numbers, places, 20, True)


@pytest.mark.slow
def test_eight_devices_see_as_one_does():
    shape = (8, 128, 2, 64)
    inputs, grad, visible = packed_for_kernels(shape)
    seeds = layers.mask_seeds(KEY, (8, 2))

    def gradients():
        run = functools.partial(pallas_attention.gradients, rate=RATE, interpret=True)
        return jax.jit(run)(*inputs, visible, seeds, inputs[0], None, grad)

    expected = gradients()
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=4, tensor=2)):
        found = gradients()
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_step_of_packed_rows_for_tpu_holds_a_forward_and_a_backward_kernel():
    inputs, grad, visible = packed_for_kernels((2, 128, 2, 64))

    def run(inputs, grad, visible):
        def attend(*inputs):
            options = {"dropout_rate": RATE, "key": KEY, "implementation": "pallas"}
            return attention.attend(*inputs, visible, **options)

        context, backward = jax.vjp(attend, *inputs)
        return context, backward(grad)

    program = jax_export.export(jax.jit(run), platforms=["tpu"])(inputs, grad, visible)
    assert program.mlir_module().count("tpu_custom_call") == 2
