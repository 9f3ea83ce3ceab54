"""Attention in plain JAX is its definition (`models.reference_attention`), and what it keeps."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bertjax.devices import sharding
from bertjax.models import (
    attention,
    parameters,
    plain_attention,
    reference_attention,
    visibility,
)
from bertjax.tasks import base, pretraining
from tests import conftest, small_modules
from tests.models import attention_cases, test_modern
from tests.models.attention_cases import RATE

HEADS, SIZE = 2, 4
SLOW = pytest.mark.slow


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_the_definition_is_a_softmax_over_what_is_seen(rate):
    """Query by query, in float64."""
    rows = attention_cases.packed(3, 9, seed=4, window=3, left_to_right=True)
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(3, 9, HEADS, SIZE)).astype(np.float32) for _ in range(3)]
    query, keys, values = (x.astype(np.float64) for x in tensors)
    kept = (rng.random((3, HEADS, 9, 9)) >= rate) / (1 - rate)
    expected = np.zeros((3, 9, HEADS, SIZE))
    for row, head, i in np.ndindex(3, HEADS, 9):
        number, place = rows.numbers[row], rows.places[row]
        is_near = (place[i] - place >= 0) & (place[i] - place <= 3)
        seen = np.flatnonzero(is_near & (number == number[i]) & (number != 0))
        weights = np.exp([query[row, i, head] @ keys[row, j, head] for j in seen])
        for j, weight in zip(seen, weights, strict=True):
            factor = weight / weights.sum() * kept[row, head, i, j]
            expected[row, i, head] += factor * values[row, j, head]
    arguments = (*map(jnp.asarray, tensors), rows.seen, jnp.asarray(kept, jnp.float32))
    np.testing.assert_allclose(reference_attention.attend(*arguments), expected, atol=1e-5)


@hypothesis.settings(derandomize=True, deadline=None, max_examples=30)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    stride=st.integers(0, 3),
    window=st.sampled_from((None, 0, 1, 2, 4, 7)),
    left_to_right=st.booleans(),
    rate=st.sampled_from((0.0, RATE)),
)
def test_any_packing_window_and_order_is_the_definition(seed, stride, **options):
    """Positions are given, every, every second or every third, or (0) counted from the numbers."""
    rate = options.pop("rate")
    rows = attention_cases.packed(3, 12, seed, gives_positions=stride > 0, **options)
    rows = dataclasses.replace(rows, places=rows.places * max(stride, 1))
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=rate, jit=False)
    if not stride:
        counted = np.asarray(rows.visible.positions)
        is_real = rows.numbers != 0
        np.testing.assert_array_equal(counted[is_real], rows.places[is_real])


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("window, left_to_right", [(None, False), (2, False), (None, True)])
def test_any_input_mask_is_the_definition(window, left_to_right, rate):
    options = {"window": window, "left_to_right": left_to_right}
    rows = attention_cases.padded(4, 12, **options)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=rate)
    scattered = (np.random.default_rng(0).random((4, 12)) < 0.7).astype(np.int32)
    rows = dataclasses.replace(rows, numbers=scattered)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=rate)
    assert (visibility.pairs(rows.visible).shape[2] == 1) == rows.is_by_key


@pytest.fixture
def _small_blocks(monkeypatch):
    """Blocks so small that rows of tens of tokens have several, and a ragged last one."""
    monkeypatch.setattr(plain_attention, "WINDOW_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "QUERY_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "MOST_AT_ONCE", 16)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(
    ("length", "window", "left_to_right", "is_packed"),
    [
        pytest.param(37, 2, False, True, id="a narrow window"),
        pytest.param(37, None, False, False, id="no window, blocks of queries"),
        pytest.param(17, 4, False, False, id="a row of two blocks and one"),
        pytest.param(40, 4, False, False, id="a window of a block's half", marks=SLOW),
        pytest.param(61, 11, False, True, id="a window wider than a block", marks=SLOW),
        pytest.param(37, None, False, True, id="blocks of queries, packed", marks=SLOW),
        pytest.param(29, None, True, True, id="to the left, blocks of queries", marks=SLOW),
        pytest.param(37, 3, True, False, id="a window to the left", marks=SLOW),
        pytest.param(24, 4, False, True, id="a row of whole blocks", marks=SLOW),
        pytest.param(33, 4, False, False, id="a row of whole blocks and one", marks=SLOW),
    ],
)
def test_windows_and_blocks_of_queries_are_the_definition(length, window, left_to_right, is_packed):
    make = attention_cases.packed if is_packed else attention_cases.padded
    rows = make(3, length, window=window, left_to_right=left_to_right)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=RATE)


@pytest.mark.parametrize(
    ("length", "window", "scores"),
    # With 64 to each side the scores of 256 keys for a block of 128; without, of 512 queries.
    [(2048, 64, "f32[16,2,128,256]"), (4096, None, "f32[1,2,512,4096]")],
)
def test_long_rows_are_never_squared(length, window, scores):
    rows = attention_cases.padded(1, length, window=window)
    text = str(jax.make_jaxpr(lambda: attention_cases.ours(rows, heads=HEADS, size=SIZE))())
    assert scores in text and f",{length},{length}]" not in text


def test_nothing_of_length_times_length_is_kept_for_the_backward_pass():
    query, rows = jnp.zeros((1, 64, 2, 8)), attention_cases.padded(1, 64)

    def attend(query):
        options = {"dropout_rate": 0.1, "key": jax.random.key(0)}
        return attention.attend(query, query, query, rows.visible, **options)

    _, backward = jax.vjp(attend, query)
    assert max(leaf.size for leaf in jax.tree.leaves(backward)) < 64 * 64 * 2


@pytest.mark.slow
@pytest.mark.usefixtures("_small_blocks")
def test_a_mesh_has_the_loss_and_the_gradients_of_one_device():
    config = dataclasses.replace(
        test_modern.SMALL, num_attention_heads=2, num_hidden_layers=2, global_every=2
    )
    module = small_modules.made(pretraining.PretrainingModel, config, seed=4, pair_loss="none")
    graphdef, params = parameters.split(module)
    numbers = attention_cases.packed(9, 37).numbers[:8]
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 37, numbers.shape), jnp.int32)
    batch = {"input_ids": ids, "sequence_ids": jnp.asarray(numbers)}

    def loss(params, batch):
        return (parameters.merge(graphdef, params).encoder(batch) ** 2)[:, ::3].sum()

    run = jax.jit(jax.value_and_grad(loss), compiler_options=conftest.QUICK_COMPILER)
    alone = run(params, batch)
    mesh = sharding.make_mesh(jax.devices()[:8], data=4, tensor=2)
    places = sharding.shardings(mesh, params, params, rule_table="fsdp_tensor")
    placed = jax.device_put(params, places)
    rows = jax.device_put(batch, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        spread = run(placed, rows)
    for x, y in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(y).max())


@pytest.mark.slow
def test_memory_at_equal_tokens_does_not_grow_with_the_length():
    """By the compiler's count, for a training step; scores of whole rows would take eight times."""
    config = dataclasses.replace(
        test_modern.SMALL, hidden_size=32, num_attention_heads=2, num_hidden_layers=3, window=64
    )
    graphdef, params = base.abstract_model(pretraining.Pretraining(config, pair_loss="none"))

    def loss(params, batch):
        return (parameters.merge(graphdef, params).encoder(batch) ** 2).sum()

    def temporary(rows, length):
        shape = jax.ShapeDtypeStruct((rows, length), jnp.int32)
        batch = {"input_ids": shape, "input_mask": shape}
        compiled = jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(1, 8192) < 1.5 * temporary(8, 1024)
