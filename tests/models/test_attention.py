"""Attention in plain JAX is its definition (`models.reference_attention`); masks and weights."""

import dataclasses
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from bertjax import models
from bertjax.devices import sharding
from bertjax.models import (
    attention,
    layers,
    parameters,
    plain_attention,
    reference_attention,
    visibility,
    weight_masks,
)
from bertjax.tasks import base, pretraining
from tests import conftest, small_modules
from tests.conftest import TINY
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


@hypothesis.settings(derandomize=True, deadline=None, max_examples=20)
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


@pytest.mark.parametrize("options", [{}, {"left_to_right": True}], ids=str)
def test_any_input_mask_is_the_definition(options):
    """Windows: `test_windows_and_blocks_of_queries_are_the_definition`."""
    rows = attention_cases.padded(4, 12, **options)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=RATE)
    scattered = (np.random.default_rng(0).random((4, 12)) < 0.7).astype(np.int32)
    rows = dataclasses.replace(rows, numbers=scattered)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=RATE)
    assert (visibility.pairs(rows.visible).shape[2] == 1) == rows.is_by_key


def test_rows_with_a_prefix_are_the_definition():
    rows = attention_cases.with_prefix(4, 16)
    seen = np.asarray(rows.seen)
    assert (seen & ~seen.swapaxes(1, 2)).any()
    assert (seen & seen.swapaxes(1, 2) & ~np.eye(16, dtype=bool)).any()
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=RATE)


def test_an_order_of_rows_and_a_window_are_refused_together():
    with pytest.raises(ValueError, match="an `order`, and the layer a window of 3"):
        dataclasses.replace(attention_cases.with_prefix(2, 8), window=3).visible  # noqa: B018


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
        pytest.param(
            40, 4, False, False, id="a window of a block's half", marks=pytest.mark.weekly
        ),
        pytest.param(61, 11, False, True, id="a window wider than a block", marks=SLOW),
        pytest.param(
            37, None, False, True, id="blocks of queries, packed", marks=pytest.mark.weekly
        ),
        pytest.param(
            29, None, True, True, id="to the left, blocks of queries", marks=pytest.mark.weekly
        ),
        pytest.param(37, 3, True, False, id="a window to the left", marks=SLOW),
        pytest.param(24, 4, False, True, id="a row of whole blocks", marks=pytest.mark.weekly),
        pytest.param(
            33, 4, False, False, id="a row of whole blocks and one", marks=pytest.mark.weekly
        ),
    ],
)
def test_windows_and_blocks_of_queries_are_the_definition(length, window, left_to_right, is_packed):
    make = attention_cases.packed if is_packed else attention_cases.padded
    rows = make(3, length, window=window, left_to_right=left_to_right)
    attention_cases.assert_is_definition(rows, heads=HEADS, size=SIZE, rate=RATE)


@pytest.mark.usefixtures("_small_blocks")
def test_prefixes_that_end_in_any_block_of_queries_are_the_definition():
    rows = attention_cases.with_prefix(3, 37)
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


KEY = jax.random.key(0)
SHAPE = (2, 3, 256, 384)


@pytest.fixture(scope="module", params=[0.1, 0.5])
def rate(request):
    return request.param


@pytest.fixture(scope="module")
def mask(rate):
    return np.asarray(weight_masks.kept(layers.mask_seeds(KEY, SHAPE[:2]), SHAPE, rate))


def test_as_many_are_kept_as_the_rate_says(mask, rate):
    keep = 1 - rate
    deviation = np.sqrt(keep * rate / mask.size)
    assert abs(mask.mean() - keep) < 4 * deviation
    for axis in range(4):  # in every plane, row and column
        others = tuple(it for it in range(4) if it != axis)
        of_each = np.sqrt(keep * rate / (mask.size / SHAPE[axis]))
        assert np.abs(mask.mean(axis=others) - keep).max() < 5 * of_each


def test_the_keys_that_share_a_hash_and_all_neighbours_are_kept_independently(mask, rate):
    kept = mask.astype(np.float64) - (1 - rate)
    variance = rate * (1 - rate)
    for distance in (1, 2, 4, weight_masks.PAIRED, 16, 128):
        for axis in (2, 3):
            first = np.take(kept, range(SHAPE[axis] - distance), axis)
            second = np.take(kept, range(distance, SHAPE[axis]), axis)
            assert abs((first * second).mean() / variance) < 4 / np.sqrt(first.size)
    pairs = kept.reshape(*SHAPE[:3], -1, 2, weight_masks.PAIRED)
    product = (pairs[..., 0, :] * pairs[..., 1, :]).mean() / variance
    assert abs(product) < 4 / np.sqrt(kept.size / 2)
    heads = (kept[:, 0] * kept[:, 1]).mean() / variance
    assert abs(heads) < 4 / np.sqrt(kept[:, 0].size)


@pytest.mark.parametrize("first", [(0, 0), (64, 128), (208, 3)])
def test_a_block_is_a_part_of_the_mask_transposed(mask, rate, first):
    seeds = layers.mask_seeds(KEY, SHAPE[:2])
    block = weight_masks.kept_block(
        (seeds[0][1, 2], seeds[1][1, 2]), first, (64, 128), SHAPE[3], rate
    )
    (key, query) = first
    np.testing.assert_array_equal(block, mask[1, 2, query : query + 128, key : key + 64].T)


def test_any_number_of_keys_has_a_mask_and_a_rate_below_the_resolution_drops_nothing():
    for num_keys in (7, 9, 100):
        shape = (4, 8, num_keys, num_keys)
        seeds = layers.mask_seeds(KEY, shape[:2])
        mask = np.asarray(weight_masks.kept(seeds, shape, 0.1))
        assert abs(mask.mean() - 0.9) < 5 * np.sqrt(0.09 / mask.size)
        assert np.all(weight_masks.kept(seeds, shape, 1e-7))


LENGTH = 12
ROTARY = {"position_embedding": "rotary", "layer": "pre_norm", "window": 2, "global_every": 2}
KINDS = {
    "bert": {},
    "modern": {**ROTARY, "feed_forward": "gated"},
    "left_to_right": {"left_to_right": True},
    "shared": {"num_hidden_groups": 1, "inner_group_num": 2},
}
SEQUENCES = {
    "padded": {"input_mask": np.arange(LENGTH) < np.array([[12], [7]])},
    "packed": {"sequence_ids": np.array([[1] * 5 + [2] * 7, [1] * 4 + [2] * 3 + [0] * 5])},
}


def made(kind):
    config = dataclasses.replace(TINY, initializer_range=0.5, **KINDS[kind])
    return small_modules.made(models.make_encoder, config)


def inputs_of(rows):
    ids = np.random.default_rng(0).integers(5, TINY.vocab_size, (2, LENGTH))
    rest = {name: jnp.asarray(value, jnp.int32) for name, value in SEQUENCES[rows].items()}
    return {"input_ids": jnp.asarray(ids), **rest}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("modern", "padded"), *((kind, "packed") for kind in KINDS)],
)
def test_a_layer_averages_its_values_by_the_weights(kind, rows):
    encoder, inputs = made(kind), inputs_of(rows)
    visible, hidden = visibility.of(inputs), encoder.embed(inputs)
    used = [number for numbers in encoder.uses for number in numbers]
    found = encoder.attention_weights(inputs)
    assert len(found) == len(used)
    for number, weights in zip(used, found, strict=True):
        layer = encoder.layers[number]
        read = layer._attention_input(hidden)
        values = layer.attention.value(read).reshape(2, LENGTH, TINY.num_attention_heads, -1)
        context = jnp.einsum("BHLS,BSHK->BLHK", weights, values).reshape(2, LENGTH, -1)
        attended = layer.attention(read, visible)
        np.testing.assert_allclose(layer.attention.output(context), attended, atol=2e-5)
        hidden = layer(hidden, visible)
    ended = hidden if encoder.final_norm is None else encoder.final_norm(hidden)
    np.testing.assert_allclose(encoder.hidden_states(inputs)[-1], ended, atol=1e-5)


def widened(path, leaf):
    """The kernel or bias of keys or values of 2 heads, written out for the 4 heads of queries."""
    if path[-2].key not in ("key", "value"):
        return leaf
    by_head = leaf.reshape(*leaf.shape[:-1], 2, 1, -1)
    return jnp.broadcast_to(by_head, (*by_head.shape[:-2], 2, by_head.shape[-1])).reshape(
        *leaf.shape[:-1], -1
    )


@pytest.mark.parametrize("rows", SEQUENCES)
def test_shared_heads_of_keys_are_heads_with_the_same_kernels(rows):
    options = {**KINDS["modern"], "initializer_range": 0.5, "attention_probs_dropout_prob": RATE}
    wide = dataclasses.replace(TINY, **options)
    narrow = dataclasses.replace(wide, num_key_value_heads=2)
    inputs = inputs_of(rows)
    graphs = {
        config: parameters.split(small_modules.made(models.make_encoder, config))
        for config in (narrow, wide)
    }
    params = graphs[narrow][1]

    def loss(params, config):
        encoder = parameters.merge(graphs[config][0], params)
        return (encoder(inputs, key=jax.random.key(0)) ** 2)[:, ::3].sum()

    def of_wide(params):
        return loss(jax.tree_util.tree_map_with_path(widened, params), wide)

    ours = jax.jit(jax.value_and_grad(lambda params: loss(params, narrow)))(params)
    expected = jax.jit(jax.value_and_grad(of_wide))(params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    jax.tree.map(close, ours, expected)
    encoder = parameters.merge(graphs[narrow][0], params)
    assert encoder.attention_weights(inputs)[0].shape[1] == TINY.num_attention_heads
    # Two kernels of each layer are half as wide.
    saved = wide.forward_flops(LENGTH) - narrow.forward_flops(LENGTH)
    width = TINY.hidden_size
    assert saved == 2 * LENGTH * TINY.num_hidden_layers * width * width
