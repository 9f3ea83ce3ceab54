"""The attention kernel, interpreted on CPU, beside the same formulas in plain JAX."""

import dataclasses
import functools
import itertools
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export
from jax._src import core

from bertjax.devices import sharding
from bertjax.models import (
    attention,
    encoder,
    layers,
    plain_attention,
    rotary,
    visibility,
)
from bertjax.models.kernels import pallas_attention, pallas_blocks, pallas_parts
from tests import small_modules

RATE = 0.3
CONFIG = encoder.EncoderConfig(
    vocab_size=96,
    hidden_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=128,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)


def inputs(shape):
    """Query, keys, values and gradient of the context; rows of different lengths, one empty."""
    rng = np.random.default_rng(0)
    *tensors, grad = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(4))
    batch, length, _, _ = shape
    lengths = np.linspace(length, 0, batch, dtype=int)[:, None]
    is_real = jnp.asarray(np.arange(length) < lengths)
    return [*tensors, visibility.Visibility(is_real)], grad


KERNELS = tuple(
    functools.partial(kernel, interpret=True)
    for kernel in (pallas_attention.context, pallas_attention.gradients)
)


def turned(query, keys, visible, rotary_base):
    if rotary_base is None:
        return query, keys
    return tuple(rotary.turned(x, visible.positions, rotary_base) for x in (query, keys))


def plain_context(query, keys, values, visible, seeds, *, rate, rotary_base=None):
    query, keys = turned(query, keys, visible, rotary_base)
    return plain_attention.context(query, keys, values, visible, seeds, rate=rate), None


def plain_gradients(
    query, keys, values, visible, seeds, context, statistics, grad, *, rate, rotary_base=None
):
    (query, keys), back = jax.vjp(lambda q, k: turned(q, k, visible, rotary_base), query, keys)
    *of_turned, of_values = plain_attention.gradients(
        query, keys, values, visible, seeds, context, grad, rate=rate
    )
    return *back(tuple(of_turned)), of_values


PLAIN = (plain_context, plain_gradients)


def context_and_gradients(functions, shape, rate):
    arguments, grad = inputs(shape)
    batch, _, heads, _ = shape
    seeds = layers.mask_seeds(jax.random.key(1), (batch, heads)) if rate else None

    @jax.jit
    def run(arguments, grad):
        context, gradients = (functools.partial(each, rate=rate) for each in functions)
        found, statistics = context(*arguments, seeds)
        return found, *gradients(*arguments, seeds, found, statistics, grad)

    return run(arguments, grad)


def assert_close(ours, expected):
    for x, y in zip(ours, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * float(jnp.abs(y).max()))


SHAPES = [(3, 128, 4, 64), (2, 128, 3, 64), (2, 128, 8, 32), (2, 256, 1, 128), (1, 512, 2, 64)]
QUICK = [(SHAPES[0], RATE), (SHAPES[1], 0.0)]  # interpreted kernels are slow


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(SHAPES, [0.0, RATE])
    ],
)
def test_context_and_gradients_are_those_of_plain_jax(shape, rate):
    expected = context_and_gradients(PLAIN, shape, rate)
    assert_close(context_and_gradients(KERNELS, shape, rate), expected)


def long_rows(length, window, is_packed, left_to_right=False):
    """Tensors [2, length, heads, head], what they see, and a gradient; some of a row is padding."""
    rng = np.random.default_rng(1)
    *tensors, grad = (jnp.asarray(rng.normal(size=(2, length, 2, 64)), jnp.float32) for _ in "qkvg")
    numbers = np.ones((2, length), np.int32)
    numbers[1, length - 37 :] = 0
    if not is_packed:
        visible = visibility.of({"input_mask": jnp.asarray(numbers)})
    else:
        numbers[0, length // 3 :], numbers[0, length // 3 + 200 :] = 2, 3
        visible = visibility.of({"sequence_ids": jnp.asarray(numbers)})
    return tensors, visible.narrowed(window=window, left_to_right=left_to_right), grad


@pytest.mark.parametrize(
    ("length", "window", "is_packed", "left_to_right", "rate", "rotary_base"),
    [
        (640, None, False, False, 0.0, 1e4),
        (600, 20, True, False, RATE, None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (1100, None, True, False, RATE, 1e4),
                (1024, 64, False, False, RATE, 1e4),  # several blocks of queries in a grid step
                (1100, 64, True, False, 0.0, 1e5),
                (1100, 300, True, False, RATE, None),  # too wide for a chunk of its own
                (1100, None, True, True, RATE, None),
                (200, None, True, False, RATE, None),
                (512, None, True, False, RATE, 1e4),  # turned before the kernel
            ]
        ),
    ],
)
def test_long_rows_and_windows_are_those_of_plain_jax(
    length, window, is_packed, left_to_right, rate, rotary_base
):
    tensors, visible, grad = long_rows(length, window, is_packed, left_to_right)
    seeds = layers.mask_seeds(jax.random.key(1), (2, 2)) if rate else None

    def run(context, gradients):
        options = {"rate": rate, "rotary_base": rotary_base}
        found, statistics = context(*tensors, visible, seeds, **options)
        return found, *gradients(*tensors, visible, seeds, found, statistics, grad, **options)

    assert_close(jax.jit(run, static_argnums=(0, 1))(*KERNELS), run(*PLAIN))


def test_chunks_that_no_query_of_a_block_sees_are_passed_over():
    """The bounds are of 512 positions; a row of 2,048 holds sequences that end at 700 and 1,500."""
    numbers = np.repeat([1, 2, 0], [700, 800, 548])[None].astype(np.int32)
    cut = pallas_blocks.tiles(2048, None)
    packed = pallas_parts.MaskRule(False, False, None, False)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, packed)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 2], [0, 3], [1, 3], [0, 0]])
    alone = packed._replace(is_by_key=True)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, alone)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 3]] * 4)
    narrow = packed._replace(window=300, left_to_right=True)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, narrow)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 1], [0, 2], [1, 3], [0, 0]])


def test_padding_keys_have_no_weight_and_no_gradient():
    shape = (3, 128, 2, 64)
    (_, _, _, visible), _ = inputs(shape)
    _, _, *gradients = context_and_gradients(KERNELS, shape, RATE)
    part_real = np.asarray(visible.is_real)[1]
    for gradient in gradients:
        assert np.all(np.asarray(gradient)[1, ~part_real] == 0)
        assert np.all(np.abs(np.asarray(gradient)[1, part_real]).max(axis=(-1, -2)) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("data, tensor, heads", [(2, 4, 4), (8, 1, 2), (4, 2, 3)])
def test_eight_devices_equal_one(data, tensor, heads):
    """Every head of every row has its own mask wherever it is computed. Three heads on two devices
    do not divide: both devices compute all."""
    shape = (8, 128, heads, 64)
    expected = context_and_gradients(PLAIN, shape, RATE)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=data, tensor=tensor)):
        assert_close(context_and_gradients(KERNELS, shape, RATE), expected)


@pytest.fixture
def interpreted(monkeypatch):
    """Takes the kernels, interpreted, where otherwise only a TPU takes them."""
    monkeypatch.setattr(pallas_attention, "context", KERNELS[0])
    monkeypatch.setattr(pallas_attention, "gradients", KERNELS[1])
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, tpu, default: tpu(*x))


def loss_and_gradients(config):
    graphdef, params = nnx.split(small_modules.made(encoder.make_encoder, config), nnx.Param)
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.integers(0, 96, (2, 128)), jnp.int32)
    mask = jnp.asarray(np.arange(128) < np.array([[128], [77]]), jnp.int32)

    @jax.jit
    def run(params):
        def loss(params):
            inputs = {"input_ids": ids, "input_mask": mask}
            hidden = nnx.merge(graphdef, params)(inputs, key=jax.random.key(2))
            return (hidden[:, :5] ** 3).sum()

        return jax.value_and_grad(loss)(params)

    assert ("pallas_call" in str(jax.make_jaxpr(run)(params))) == (config.attention == "pallas")
    return run(params)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "none", "dots"])
def test_an_encoder_has_the_same_loss_and_gradients(remat, interpreted):
    expected = loss_and_gradients(CONFIG)
    ours = loss_and_gradients(dataclasses.replace(CONFIG, attention="pallas", remat=remat))
    # The gradient of the keys' bias is zero but for rounding.
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[1]))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * scale)
    jax.tree.map(close, ours, expected)


def exported(shape, platform):
    (*tensors, visible), grad = inputs(shape)

    def run(tensors, grad, visible, key):
        def attend(*x):
            return attention.attend(
                *x, visible, dropout_rate=RATE, key=key, implementation="pallas"
            )

        context, backward = jax.vjp(attend, *tensors)
        return context, backward(grad)

    export = jax_export.export(jax.jit(run), platforms=[platform])
    return export(tensors, grad, visible, jax.random.key(0)).mlir_module()


@pytest.mark.parametrize("size", pallas_attention.HEAD_SIZES)
def test_a_step_for_tpu_holds_a_forward_and_a_backward_kernel(size):
    assert exported((2, 128, 4, size), "tpu").count("tpu_custom_call") == 2


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_elsewhere_plain_jax_takes_the_place_of_the_kernels(platform):
    """So a model that was trained with them is read on any machine."""
    program = exported((2, 128, 4, 64), platform)
    assert "tpu_custom_call" not in program and "2x4x128x128xf32" in program


COMPILE_ALL = """
import jax, jax.numpy as jnp
from bertjax.devices import sharding
from bertjax.models import visibility
from bertjax.models.kernels import pallas_attention, pallas_rows
from bertjax.planning import topologies

mesh = sharding.make_mesh(topologies.devices(topologies.parse("v5e:2x2"))[:1], data=1, tensor=1)
rows = sharding.batch_sharding(mesh)

def both(seeds, query, keys, values, grad, visible):
    arguments = (query, keys, values, visible, seeds)
    made = pallas_attention.context(*arguments, rate=0.1)
    return made, pallas_attention.gradients(*arguments, *made, grad, rate=0.1)

for dtype in ("bfloat16", "float32"):
    for heads, size in ((8, 32), (4, 64), (3, 64), (2, 128)):
        for length in (*pallas_rows.LENGTHS, 640):
            def array(*shape, dtype=dtype):
                return jax.ShapeDtypeStruct((16, *shape), jnp.dtype(dtype), sharding=rows)
            tensor, word = array(length, heads, size), array(heads, dtype="uint32")
            is_real, numbers = array(length, dtype="bool"), array(length, dtype="int32")
            masked = visibility.Visibility(is_real)
            packed = visibility.Visibility(is_real, numbers, numbers, 64, True)
            # Packed rows at the shortest and the longest alone: each takes a while to compile.
            for visible in (masked, packed) if length in (128, 512) else (masked,):
                with jax.set_mesh(mesh):
                    jax.jit(both).lower((word, word), *[tensor] * 4, visible).compile()
"""


@pytest.mark.slow
def test_a_tpu_has_memory_for_every_type_length_and_head():
    pytest.importorskip("libtpu")
    # A process of its own: libtpu lets go of its lock only when its process ends.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    subprocess.run([sys.executable, "-c", COMPILE_ALL], check=True, env=environment)


def test_nothing_of_length_times_length_leaves_the_kernels(interpreted):
    (*tensors, visible), grad = inputs((1, 256, 2, 64))
    key = jax.random.key(0)

    def attend(*x):
        return attention.attend(*x, visible, dropout_rate=RATE, key=key, implementation="pallas")

    jaxpr = jax.make_jaxpr(lambda *x: jax.vjp(attend, *x)[1](grad))(*tensors)
    sizes = [math.prod(variable.aval.shape) for variable in outer_variables(jaxpr.jaxpr)]
    assert max(sizes) < 256 * 256


def outer_variables(jaxpr):
    """Yields every variable but those inside kernels."""
    for equation in jaxpr.eqns:
        yield from equation.outvars
        if equation.primitive.name != "pallas_call":
            for inner in core.jaxprs_in_params(equation.params):
                yield from outer_variables(inner)


def test_a_head_size_that_the_kernel_does_not_take_is_an_error():
    with pytest.raises(
        ValueError, match=r"heads of 32, 64, 128; .* is 96: set config\.model\.atte"
    ):
        dataclasses.replace(CONFIG, hidden_size=192, attention="pallas")
    dataclasses.replace(CONFIG, hidden_size=192)
