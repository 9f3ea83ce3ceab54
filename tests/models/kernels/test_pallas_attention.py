"""The TPU kernels, interpreted on CPU, are attention's definition; what a TPU is given."""

import dataclasses
import functools
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
from bertjax.models import attention, encoder, relative
from bertjax.models.kernels import pallas_attention, pallas_blocks, pallas_parts, pallas_terms
from tests import small_modules
from tests.models import attention_cases
from tests.models.attention_cases import RATE

CONFIG = encoder.EncoderConfig(
    vocab_size=96, hidden_size=128, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=128, hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)  # fmt: skip
SLOW = pytest.mark.slow


@pytest.fixture
def interpreted(monkeypatch):
    """Takes the kernels, interpreted, where otherwise only a TPU takes them."""
    for name in ("context", "gradients"):
        kernel = functools.partial(getattr(pallas_attention, name), interpret=True)
        monkeypatch.setattr(pallas_attention, name, kernel)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, tpu, default: tpu(*x))


def rolled(x, shift, axis, *, stride, stride_axis):
    """As the rotation of a core: its own interpretation takes minutes to compile."""
    assert (axis, stride_axis) == (1, 0)
    rows, places = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.take_along_axis(x, (places - shift - stride * rows) % x.shape[1], axis=1)


def assert_is_definition(rows, **options):
    attention_cases.assert_is_definition(rows, implementation="pallas", **options)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("batch", "length", "heads", "size", "rate"),
    [
        (3, 128, 4, 64, RATE),
        (2, 128, 3, 64, 0.0),
        pytest.param(2, 128, 8, 32, RATE, marks=pytest.mark.weekly),
        pytest.param(2, 256, 1, 128, RATE, marks=pytest.mark.weekly),
        pytest.param(2, 512, 2, 64, 0.0, marks=SLOW),
    ],
)
def test_short_rows_are_the_definition(batch, length, heads, size, rate):
    rows = attention_cases.padded(batch, length)
    assert_is_definition(rows, heads=heads, size=size, rate=rate)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("shape", "is_packed", "window", "left_to_right"),
    [
        ((2, 128, 2, 64), True, None, False),
        ((2, 128, 2, 64), True, None, True),
        ((3, 128, 2, 64), False, 20, True),
        pytest.param((2, 256, 4, 32), True, 20, True, marks=SLOW),
    ],
)
def test_short_rows_see_what_the_definition_says(shape, is_packed, window, left_to_right):
    batch, length, heads, size = shape
    options = {"window": window, "left_to_right": left_to_right}
    rows = attention_cases.padded(batch, length, **options)
    if is_packed:
        rows = attention_cases.packed(batch, length, 7, gives_positions=True, **options)
        rows = dataclasses.replace(rows, places=rows.places[:, ::-1] * 2)  # any order will do
    assert_is_definition(rows, heads=heads, size=size, rate=RATE)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("length", "window", "is_packed", "left_to_right", "rate", "rotary_base"),
    [
        (640, None, False, False, 0.0, 1e4),
        (600, 20, True, False, RATE, None),
        *(
            pytest.param(*case, marks=pytest.mark.weekly)
            for case in [
                (1100, None, True, False, RATE, 1e4),
                (1024, 64, False, False, RATE, 1e4),  # several blocks of queries in a grid step
                (1100, 300, True, False, RATE, None),  # too wide for a chunk of its own
                (1100, None, True, True, RATE, None),
                (200, None, True, False, RATE, None),
                (512, None, True, False, RATE, 1e4),  # rotated before the kernel
            ]
        ),
    ],
)
def test_long_rows_and_windows_are_the_definition(
    length, window, is_packed, left_to_right, rate, rotary_base
):
    options = {"window": window, "left_to_right": left_to_right}
    rows = attention_cases.padded(3, length, **options)
    if is_packed:
        rows = attention_cases.packed(2, length, **options)
    assert_is_definition(rows, heads=2, size=64, rate=rate, rotary_base=rotary_base)


def test_a_core_rotates_each_row_one_place_further():
    x = jnp.arange(4 * 128, dtype=jnp.float32).reshape(4, 128)
    options = {"shift": 100, "axis": 1, "stride": 1, "stride_axis": 0}
    rotate = jax.jit(lambda x: pallas_terms.pltpu.roll(x, **options))
    np.testing.assert_array_equal(rotate(x), rolled(x, **options))


def with_terms(implementation, rows, heads, size):
    """The context, and the gradients of query, keys, values and both tables of distances."""
    batch, length = rows.numbers.shape
    rng = np.random.default_rng(3)
    tables = rng.normal(size=(2, 2 * length - 1, heads, size)).astype(np.float32)
    tensors = rng.normal(size=(4, batch, length, heads, size)).astype(np.float32) / 4

    @jax.jit
    def run(tensors, tables):
        def attend(query, keys, values, terms):
            return attention.attend(
                *(query, keys, values, rows.visible), dropout_rate=RATE, key=attention_cases.KEY,
                implementation=implementation, terms=terms,
            )  # fmt: skip

        context, pull = jax.vjp(attend, *tensors[:3], relative.Terms(*tables))
        return context, *jax.tree.leaves(pull(tensors[3]))

    return run(tensors, tables)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("batch", "length", "heads", "size", "is_packed", "window"),
    [
        (2, 128, 1, 128, True, None),
        # Two grid steps of rows add to a table's gradient, and heads do not fill the lanes.
        pytest.param(10, 128, 3, 64, False, None, marks=SLOW),
        pytest.param(2, 384, 1, 128, True, 20, marks=SLOW),  # so narrow that other kernels have it
        pytest.param(2, 256, 4, 32, True, None, marks=pytest.mark.weekly),
    ],
)
def test_terms_by_distance_are_those_of_plain_jax(
    batch, length, heads, size, is_packed, window, monkeypatch
):
    monkeypatch.setattr(pallas_terms.pltpu, "roll", rolled)
    made = attention_cases.packed if is_packed else attention_cases.padded
    rows = made(batch, length, window=window)
    ours, expected = (with_terms(name, rows, heads, size) for name in ("pallas", "xla"))
    attention_cases.assert_close(ours, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("data", "tensor", "batch"), [(4, 2, 4), (4, 2, 3)])
def test_gradients_of_tables_are_summed_over_devices(data, tensor, batch, monkeypatch):
    """Three rows on four devices do not divide: all compute the same, and it counts once."""
    monkeypatch.setattr(pallas_terms.pltpu, "roll", rolled)
    rows = attention_cases.packed(batch, 128)
    expected = with_terms("xla", rows, 2, 128)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=data, tensor=tensor)):
        attention_cases.assert_close(with_terms("pallas", rows, 2, 128), expected)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("length", [128, pytest.param(1100, marks=SLOW)])
def test_rows_with_a_prefix_are_the_definition(length):
    rows = attention_cases.with_prefix(3, length)
    assert_is_definition(rows, heads=2, size=64, rate=RATE, rotary_base=1e4)


def test_chunks_that_no_query_of_a_block_sees_are_passed_over():
    """The bounds are of 512 positions; a row of 2,048 holds sequences that end at 700 and 1,500."""
    numbers = np.repeat([1, 2, 0], [700, 800, 548])[None].astype(np.int32)
    cut = pallas_blocks.tiles(2048, None)
    packed = pallas_parts.MaskRule(False, False, True, None, False)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, packed)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 2], [0, 3], [1, 3], [0, 0]])
    alone = packed._replace(is_by_key=True)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, alone)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 3]] * 4)
    narrow = packed._replace(window=300, left_to_right=True)
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, narrow)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 1], [0, 2], [1, 3], [0, 0]])
    orders = narrow._replace(window=None, rises=False)  # of two rows; a prefix ends anywhere
    bounds = np.asarray(pallas_blocks.bounds(jnp.asarray(numbers), cut, orders)).reshape(-1, 2)
    np.testing.assert_array_equal(bounds, [[0, 2], [0, 3], [1, 3], [0, 0]])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("data", "tensor", "heads", "is_packed"), [(2, 4, 4, False), (8, 1, 2, True), (4, 2, 3, True)]
)
def test_eight_devices_equal_one(data, tensor, heads, is_packed):
    """Every head of every row has its own mask wherever it is computed. Three heads on two devices
    do not divide: both devices compute all."""
    rows = attention_cases.padded(8, 128)
    if is_packed:
        rows = attention_cases.packed(8, 128, window=20, left_to_right=True, gives_positions=True)
    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=data, tensor=tensor)):
        assert_is_definition(rows, heads=heads, size=64, rate=RATE)


@functools.cache
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
@pytest.mark.parametrize(("remat", "shared"), [("full", 0), ("dots", 0), ("dots", 1)])
def test_an_encoder_has_the_same_loss_and_gradients(remat, shared, interpreted):
    config = dataclasses.replace(CONFIG, num_key_value_heads=shared)
    expected = loss_and_gradients(config)
    ours = loss_and_gradients(dataclasses.replace(config, attention="pallas", remat=remat))
    # The gradient of the keys' bias is zero but for rounding.
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[1]))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * scale)
    jax.tree.map(close, ours, expected)


def exported(rows, size, platform):
    options = {"heads": 4, "size": size, "rate": RATE, "implementation": "pallas"}
    run = jax.jit(lambda: attention_cases.ours(rows, **options))
    return jax_export.export(run, platforms=[platform])().mlir_module()


@pytest.mark.parametrize(
    ("size", "is_packed"), [*((size, False) for size in pallas_attention.HEAD_SIZES), (64, True)]
)
def test_a_step_for_tpu_holds_a_forward_and_a_backward_kernel(size, is_packed):
    rows = attention_cases.padded(2, 128)
    if is_packed:
        rows = attention_cases.packed(2, 128, window=20, left_to_right=True, gives_positions=True)
    assert exported(rows, size, "tpu").count("tpu_custom_call") == 2


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_elsewhere_plain_jax_takes_the_place_of_the_kernels(platform):
    """So a model that was trained with them is read on any machine."""
    program = exported(attention_cases.padded(2, 128), 64, platform)
    assert "tpu_custom_call" not in program and "2x4x128x128xf32" in program


COMPILE_ALL = """
import jax, jax.numpy as jnp
from bertjax.devices import sharding
from bertjax.models import relative, visibility
from bertjax.models.kernels import pallas_attention, pallas_rows
from bertjax.plan import topologies

mesh = sharding.make_mesh(topologies.devices(topologies.parse("v5e:2x2"))[:1], data=1, tensor=1)
rows, whole = sharding.batch_sharding(mesh), jax.NamedSharding(mesh, jax.P())

def both(seeds, query, keys, values, grad, visible, terms):
    arguments = (query, keys, values, visible, seeds)
    made = pallas_attention.context(*arguments, rate=0.1, terms=terms)
    return made, pallas_attention.gradients(*arguments, *made, grad, rate=0.1, terms=terms)

# The widest type with every head at the longest short rows, then every length with one head.
longest = pallas_rows.LENGTHS[-1]
cases = [("float32", *head, longest, True) for head in ((8, 32), (4, 64), (3, 64), (2, 128))]
cases += [("bfloat16", 8, 32, longest, True), ("float32", 2, 128, longest, False)]
cases += [("bfloat16", 4, 64, length, False) for length in (*pallas_rows.LENGTHS, 640)]
cases += [("float32", 3, 64, 640, False), ("bfloat16", 2, 128, 128, True)]
cases = [(*case, False) for case in cases] + [
    ("float32", 4, 64, longest, True, True), ("float32", 8, 32, longest, True, True),
    *(("bfloat16", 4, 64, length, True, True) for length in pallas_rows.LENGTHS),
]
for dtype, heads, size, length, is_packed, has_terms in cases:
    def array(*shape, dtype=dtype):
        return jax.ShapeDtypeStruct((16, *shape), jnp.dtype(dtype), sharding=rows)
    tensor, word = array(length, heads, size), array(heads, dtype="uint32")
    is_real, numbers = array(length, dtype="bool"), array(length, dtype="int32")
    table = jax.ShapeDtypeStruct((2 * length - 1, heads, size), tensor.dtype, sharding=whole)
    packed = {"sequence_ids": numbers, "positions": numbers, "left_to_right": True}
    packed["window"] = None if has_terms else 64
    visible = visibility.Visibility(is_real, **(packed if is_packed else {}))
    with jax.set_mesh(mesh):
        terms = relative.Terms(table, table) if has_terms else None
        jax.jit(both).lower((word, word), *[tensor] * 4, visible, terms).compile()
"""


@pytest.mark.slow
def test_a_tpu_has_memory_for_every_type_length_and_head():
    pytest.importorskip("libtpu")
    # A process of its own: libtpu lets go of its lock only when its process ends.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    subprocess.run([sys.executable, "-c", COMPILE_ALL], check=True, env=environment)


@pytest.mark.parametrize("length, warnings", [(24, 1), (1024, 0), (1000, 0), (128, 0)])
def test_lengths_that_the_kernel_does_not_take_are_computed_in_plain_jax_and_said_once(
    caplog, length, warnings
):
    rows = attention_cases.padded(1, length)
    attention._warn.cache_clear()

    def run():
        return attention_cases.ours(rows, heads=2, size=64, implementation="pallas")

    with caplog.at_level("WARNING"):
        jaxprs = [str(jax.make_jaxpr(lambda: run())()) for _ in range(2)]
    assert ["pallas_call" in jaxpr for jaxpr in jaxprs] == [not warnings] * 2
    assert caplog.text.count(f"attention over {length} positions") == warnings


@pytest.mark.usefixtures("interpreted")
def test_nothing_of_length_times_length_leaves_the_kernels():
    rows = attention_cases.padded(1, 256)
    options = {"heads": 2, "size": 64, "rate": RATE, "implementation": "pallas"}
    jaxpr = jax.make_jaxpr(lambda: attention_cases.ours(rows, **options))()
    sizes = [math.prod(variable.aval.shape) for variable in outer_variables(jaxpr.jaxpr)]
    assert max(sizes) < 256 * 256


def outer_variables(jaxpr):
    """Yields every variable but those inside kernels."""
    for equation in jaxpr.eqns:
        yield from equation.outvars
        if equation.primitive.name != "pallas_call":
            for inner in core.jaxprs_in_params(equation.params):
                yield from outer_variables(inner)
