"""Attention in windows and in blocks of queries, beside its formula in float64 numpy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.devices import sharding
from bertjax.models import (
    attention,
    layers,
    parameters,
    plain_attention,
    visibility,
    weight_masks,
)
from bertjax.tasks import base, pretraining
from tests import small_modules
from tests.models import test_modern

RATE = 0.3
HEADS, HEAD_SIZE = 2, 4
SLOW = pytest.mark.slow


@pytest.fixture
def _small_blocks(monkeypatch):
    """Blocks so small that rows of tens of tokens have several, and a ragged last one."""
    monkeypatch.setattr(plain_attention, "WINDOW_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "QUERY_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "MOST_AT_ONCE", 16)


def packed(length):
    """Two rows: of three sequences and padding, and of one that fills it."""
    numbers = np.zeros((2, length), np.int32)
    cuts = [0, length // 5, length // 2, length - 3]
    for number, (begin, end) in enumerate(zip(cuts[:-1], cuts[1:], strict=True), start=1):
        numbers[0, begin:end] = number
    numbers[1] = 1
    return numbers


def padded(length):
    """Three rows of one sequence each: whole, cut, and empty."""
    return (np.arange(length) < np.array([[length], [length // 3], [0]])).astype(np.int32)


def numpy_context(query, keys, values, numbers, window, left_to_right, mask):
    """The formula, position by position."""
    scores = np.einsum("BLHK,BSHK->BHLS", query, keys)
    place = np.arange(numbers.shape[1])
    seen = (numbers[:, :, None] == numbers[:, None, :]) & (numbers[:, None, :] != 0)
    if window is not None:
        seen &= np.abs(place[:, None] - place) <= window
    if left_to_right:
        seen &= place[None] <= place[:, None]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * seen[:, None]
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    context = np.einsum("BHLS,BSHK->BLHK", weights * mask, values)
    return context * (numbers != 0)[:, :, None, None]


def case(numbers):
    rng = np.random.default_rng(0)
    shape = (*numbers.shape, HEADS, HEAD_SIZE)
    return [rng.normal(size=shape) for _ in range(4)]


def ours(numbers, *, is_packed, window, left_to_right, key):
    inputs = {"sequence_ids" if is_packed else "input_mask": jnp.asarray(numbers)}
    visible = visibility.of(inputs).narrowed(window=window, left_to_right=left_to_right)
    return functools.partial(
        attention.attend, visible=visible, dropout_rate=RATE if key is not None else 0.0, key=key
    )


def mask_of(key, numbers):
    if key is None:
        return 1.0
    batch, length = numbers.shape
    seeds = layers.mask_seeds(key, (batch, HEADS))
    return np.asarray(weight_masks.kept(seeds, (batch, HEADS, length, length), RATE)) / (1 - RATE)


QUICK = {("a narrow window", True), ("no window, blocks of queries", False)}
CASES = {
    "a narrow window": (37, 2, False),
    "a window of a block's half": (40, 4, False),
    "a window wider than a block": (61, 11, False),
    "no window, blocks of queries": (37, None, False),
    "to the left, blocks of queries": (29, None, True),
    "a window to the left": (37, 3, True),
}


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(
    ("name", "is_packed"),
    [
        pytest.param(*it, marks=[] if it in QUICK else SLOW)
        for it in itertools.product(CASES, (False, True))
    ],
)
def test_blocks_are_the_formula_with_their_gradients(name, is_packed):
    length, window, left_to_right = CASES[name]
    numbers = packed(length) if is_packed else padded(length)
    key = jax.random.key(3)
    *tensors, grad = case(numbers)
    attend = ours(numbers, is_packed=is_packed, window=window, left_to_right=left_to_right, key=key)
    single = [jnp.asarray(x, jnp.float32) for x in tensors]
    # Padding asks for nothing: without a window it would see its sequence, as in the released code.
    real = (numbers != 0)[:, :, None, None]

    @jax.jit
    def run(grad, *tensors):
        context, backward = jax.vjp(lambda *x: attend(*x) * real, *tensors)
        return context, backward(grad)

    context, gradients = run(jnp.asarray(grad, jnp.float32), *single)
    formula = functools.partial(
        numpy_context,
        numbers=numbers,
        window=window,
        left_to_right=left_to_right,
        mask=mask_of(key, numbers),
    )
    np.testing.assert_allclose(context, formula(*tensors), atol=1e-5)
    rng = np.random.default_rng(1)
    for place, found in enumerate(gradients):
        # The slope in a random direction; each gradient has a direction of its own.
        direction = rng.normal(size=tensors[place].shape)
        sides = []
        for sign in (1, -1):
            moved = [x + sign * 1e-6 * direction * (i == place) for i, x in enumerate(tensors)]
            sides.append((formula(*moved) * grad).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose((np.asarray(found) * direction).sum(), slope, rtol=2e-4)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("length", [17, pytest.param(24, marks=SLOW), pytest.param(33, marks=SLOW)])
def test_a_window_is_the_same_at_every_length_around_a_block(length):
    numbers = padded(length)
    *tensors, _ = case(numbers)
    attend = ours(numbers, is_packed=False, window=4, left_to_right=False, key=None)
    context = jax.jit(attend)(*(jnp.asarray(x, jnp.float32) for x in tensors))
    formula = numpy_context(*tensors, numbers, 4, False, 1.0)
    real = (numbers != 0)[:, :, None, None]
    np.testing.assert_allclose(context * real, formula, atol=1e-5)


def test_a_window_computes_with_no_more_keys_than_its_blocks_have():
    """At 2,048 tokens with 64 to each side: scores of 256 keys, never of the row."""
    shape = jax.ShapeDtypeStruct((1, 2048, HEADS, HEAD_SIZE), jnp.float32)
    mask = jnp.ones((1, 2048), jnp.int32)
    attend = ours(mask, is_packed=False, window=64, left_to_right=False, key=None)
    text = str(jax.make_jaxpr(lambda q, k, v: jax.vjp(attend, q, k, v)[1](q))(shape, shape, shape))
    assert "f32[16,2,128,256]" in text
    assert ",2048,2048]" not in text


def test_long_rows_are_never_squared():
    shape = jax.ShapeDtypeStruct((1, 4096, HEADS, HEAD_SIZE), jnp.float32)
    mask = jnp.ones((1, 4096), jnp.int32)
    attend = ours(mask, is_packed=False, window=None, left_to_right=False, key=None)
    text = str(jax.make_jaxpr(lambda q, k, v: jax.vjp(attend, q, k, v)[1](q))(shape, shape, shape))
    assert f"f32[1,2,{plain_attention.QUERY_BLOCK},4096]" in text
    assert ",4096,4096]" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(("data", "tensor"), [(8, 1), (4, 2)])
def test_a_mesh_has_the_loss_and_the_gradients_of_one_device(data, tensor):
    numbers = np.tile(packed(37), (4, 1))
    config = dataclasses.replace(
        test_modern.SMALL, num_attention_heads=2, num_hidden_layers=2, global_every=2
    )
    made = small_modules.made(pretraining.PretrainingModel, config, seed=4, pair_loss="none")
    graphdef, params = parameters.split(made)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 37, numbers.shape), jnp.int32)
    batch = {"input_ids": ids, "sequence_ids": jnp.asarray(numbers)}

    def loss(params, batch):
        return (parameters.merge(graphdef, params).encoder(batch) ** 2)[:, ::3].sum()

    alone = jax.jit(jax.value_and_grad(loss))(params, batch)
    mesh = sharding.make_mesh(jax.devices()[:8], data=data, tensor=tensor)
    table = "fsdp_tensor" if tensor > 1 else "data_parallel"
    placed = jax.device_put(params, sharding.shardings(mesh, params, params, rule_table=table))
    rows = jax.device_put(batch, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        spread = jax.jit(jax.value_and_grad(loss))(placed, rows)
    for got, wanted in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.slow
def test_memory_at_equal_tokens_does_not_grow_with_the_length():
    """Of a training step by the compiler's count; scores of whole rows would take eight times."""
    config = dataclasses.replace(
        test_modern.SMALL, hidden_size=32, num_attention_heads=2, num_hidden_layers=3, window=64
    )
    graphdef, params = base.abstract_model(pretraining.Pretraining(config, pair_loss="none"))

    def loss(params, batch):
        return (parameters.merge(graphdef, params).encoder(batch) ** 2).sum()

    def temporary(rows, length):
        shape = jax.ShapeDtypeStruct((rows, length), jnp.int32)
        batch = {"input_ids": shape, "input_mask": shape}
        made = jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()
        return made.memory_analysis().temp_size_in_bytes

    assert temporary(1, 8192) < 1.5 * temporary(8, 1024)
