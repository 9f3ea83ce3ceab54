"""Dense layer, norms and activations against float64; dropout: rate, masks, what it saves."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.special
from flax import nnx
from jax.extend.core import primitives
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.models import activations, layers, norms, reductions


def mask(seed, shape, rate):
    return np.asarray(layers.dropout(jnp.ones(shape), rate, jax.random.key(seed))) != 0


def assert_independent(one, other, rate):
    """Two masks agree as often as two independent ones, within six standard errors."""
    expected = rate**2 + (1 - rate) ** 2
    error = np.sqrt(expected * (1 - expected) / one.size)
    assert abs((one == other).mean() - expected) < 6 * error


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_rate_and_the_mean(rate):
    dropped = np.asarray(layers.dropout(jnp.ones((64, 128, 65)), rate, jax.random.key(0)))
    kept = dropped != 0
    error = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 6 * error
    assert abs(dropped.mean() - 1.0) < 6 * error / (1 - rate)
    np.testing.assert_allclose(np.unique(dropped[kept]), 1 / (1 - rate), rtol=1e-6)
    rows = mask(0, (256, 300), rate)  # without planes
    assert abs(rows.mean() - (1 - rate)) < 0.01
    assert_independent(rows[1:], rows[:-1], rate)


def test_dropout_scales_as_exactly_in_bfloat16():
    x = jax.random.uniform(jax.random.key(1), (16, 64, 64), jnp.bfloat16, 1.0, 2.0)
    dropped = layers.dropout(x, 0.1, jax.random.key(0))
    assert dropped.dtype == jnp.bfloat16
    ratios = np.asarray(dropped, np.float64) / np.asarray(x, np.float64)
    np.testing.assert_allclose(ratios[ratios != 0].mean(), 1 / 0.9, rtol=2e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_elements_near_and_far_are_independent(rate):
    kept = mask(0, (16, 4, 128, 128), rate)
    for lag in (1, 2, 3, 4, 8, 16, 32, 64, 127):
        assert_independent(kept[..., lag:], kept[..., :-lag], rate)
        assert_independent(kept[..., lag:, :], kept[..., :-lag, :], rate)
    assert_independent(kept[..., 1:, 1:], kept[..., :-1, :-1], rate)
    assert_independent(kept[1:], kept[:-1], rate)
    assert_independent(kept[:, 1:], kept[:, :-1], rate)


def test_corners_of_rectangles_show_no_dependence():
    for rate in (0.5, 0.1):
        dropped = (mask(3, (64, 256, 256), rate) == 0).astype(np.float32)
        standard = (dropped - rate) / np.sqrt(rate * (1 - rate))
        a, b, c, d = (standard[:, i : i + 128, j : j + 128] for i in (0, 128) for j in (0, 128))
        product = (a * b * c * d).mean()
        assert abs(product) < 6 / np.sqrt(a.size)


def test_masks_differ_between_keys_and_every_place_is_dropped_at_the_rate():
    masks = np.stack([mask(seed, (8, 32, 32), 0.3) for seed in range(64)])
    assert_independent(masks[1:], masks[:-1], 0.3)
    by_place = masks.mean(axis=(0, 1))
    error = np.sqrt(0.3 * 0.7 / (64 * 8))
    assert abs(by_place - 0.7).max() < 6 * error
    assert abs(by_place.std() - error) < 0.1 * error  # neither more nor less even than chance


def test_the_backward_pass_has_the_mask_of_the_forward_pass_and_saves_none():
    x = jnp.ones((4, 8, 16))
    dropped, backward = jax.vjp(lambda x: layers.dropout(x, 0.4, jax.random.key(0)), x)
    weights = jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape)
    np.testing.assert_array_equal(backward(weights)[0], weights * dropped)
    assert max(leaf.size for leaf in jax.tree.leaves(backward)) <= 4 * 2
    assert layers.dropout(x, 0.5, None) is layers.dropout(x, 0.0, jax.random.key(0)) is x


def test_a_mask_is_the_same_on_any_mesh():
    ones, key = jnp.ones((16, 4, 8, 8)), jax.random.key(0)
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(4, 2), ("data", "tensor"))
    where = NamedSharding(mesh, P("data", "tensor"))
    spread = jax.jit(lambda x: layers.dropout(x, 0.5, key), in_shardings=where, out_shardings=where)
    np.testing.assert_array_equal(spread(ones), layers.dropout(ones, 0.5, key))


def dense(kind, in_size, out_size, dtype="bfloat16", stddev=0.02, gradient_dtype="float32"):
    return kind(
        *(in_size, out_size),
        kernel_init=layers.truncated_normal(stddev),
        dtype=jnp.dtype(dtype),
        rngs=nnx.Rngs(0),
        gradient_dtype=jnp.dtype(gradient_dtype),
    )


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
def test_a_dense_layer_and_its_gradients_are_those_of_float64(kind):
    rng = np.random.default_rng(0)
    x, kernel, bias, grad = (rng.normal(size=s) for s in ((5, 7, 16), (16, 8), 8, (5, 7, 8)))
    layer = dense(kind, 16, 8, "float32")
    layer.kernel = nnx.Param(jnp.asarray(kernel, jnp.float32))
    layer.bias = nnx.Param(jnp.asarray(bias, jnp.float32))
    graph, params = nnx.split(layer)
    y, backward = jax.vjp(lambda p, x: nnx.merge(graph, p)(x), params, jnp.asarray(x, jnp.float32))
    grad_params, grad_x = backward(jnp.asarray(grad, jnp.float32))
    np.testing.assert_allclose(y, x @ kernel + bias, atol=1e-5)
    np.testing.assert_allclose(grad_x, grad @ kernel.T, atol=1e-5)
    expected = np.einsum("abi,abj->ij", x, grad)
    np.testing.assert_allclose(grad_params["kernel"][...], expected, atol=1e-5)
    np.testing.assert_allclose(grad_params["bias"][...], grad.sum((0, 1)), atol=1e-5)


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
def test_the_gradient_of_a_bias_loses_nothing_to_bfloat16(kind):
    graph, params = nnx.split(dense(kind, 4, 4))
    x = jnp.ones((16, 1000, 4), jnp.bfloat16)
    y, backward = jax.vjp(lambda p: nnx.merge(graph, p)(x), params)
    grad = jnp.asarray(np.random.default_rng(0).normal(1, 1, y.shape), jnp.bfloat16)
    of_bias = backward(grad)[0]["bias"][...]
    assert of_bias.dtype == jnp.float32
    np.testing.assert_allclose(of_bias, np.asarray(grad, np.float64).sum((0, 1)), rtol=1e-5)


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
@pytest.mark.parametrize(("gradient_dtype", "summed"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_a_kernels_gradient_is_summed_over_devices_in_the_type_asked_for(
    gradient_dtype, summed, kind, tmp_path, monkeypatch
):
    # The products of TPU. A program that ran before may have changed those of CPU (cpu_products).
    products = mlir._platform_specific_lowerings
    of_tpu = products["tpu"][primitives.dot_general_p]
    monkeypatch.setitem(products["cpu"], primitives.dot_general_p, of_tpu)
    graph, params = nnx.split(dense(kind, 16, 24, gradient_dtype=gradient_dtype))
    mesh = Mesh(np.asarray(jax.devices()[:8]), ("data",))
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def gradients(x, grad):
        _, backward = jax.vjp(lambda p: nnx.merge(graph, p)(x), params)
        return nnx.to_pure_dict(backward(grad)[0])

    rng = np.random.default_rng(0)
    x, grad = (jnp.asarray(rng.normal(size=(64, 32, size)), jnp.bfloat16) for size in (16, 24))
    jitted = jax.jit(gradients, in_shardings=(rows, rows), out_shardings=everywhere)
    # As the partitioner leaves it: later on XLA makes every sum on CPU one in float32.
    options = {"xla_dump_hlo_pass_re": "spmd-partitioning", "xla_dump_to": str(tmp_path)}
    compiled = jitted.lower(x, grad).compile(options)
    partitioned = next(tmp_path.glob("*after_spmd-partitioning*")).read_text()
    kernel_sums = set(re.findall(r"= (\w+)\[(?:16,24|24,16)\]\S* all-reduce\(", partitioned))
    assert kernel_sums == {summed}

    expected = np.einsum("abi,abj->ij", np.asarray(x, np.float64), np.asarray(grad, np.float64))
    error = np.asarray(compiled(x, grad)["kernel"], np.float64) - expected
    relative = np.linalg.norm(error) / np.linalg.norm(expected)
    assert relative < 1e-6 if summed == "f32" else relative > 1e-3


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
def test_a_product_in_bfloat16_is_the_same_whatever_its_gradients_are_summed_in(kind):
    x = jax.random.normal(jax.random.key(0), (4, 6, 16), jnp.bfloat16)
    results = []
    for gradient_dtype in ("float32", "bfloat16"):
        layer = dense(kind, 16, 8, stddev=1.0, gradient_dtype=gradient_dtype)
        layer.bias = nnx.Param(jax.random.normal(jax.random.key(1), (8,)))
        y, backward = jax.vjp(layer, x)
        results.append((y, backward(y)[0]))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_layer_norm_of_a_constant_row_stays_finite():
    # Nothing but the rounding of its mean is left of it, which 1 / sqrt(1e-12) makes visible.
    x = jnp.full((2, 8), 3.7)
    ours = norms.normalize(x, jnp.ones(8), jnp.full(8, 0.5), 1e-12, jnp.dtype("float32"))
    assert np.all(np.abs(np.asarray(ours) - 0.5) <= 1)


@pytest.mark.parametrize("formula", ["aD,DF->aF", "abD,DF->abF"])
def test_the_gradient_of_a_kernel_is_that_of_numpy_whichever_factor_is_narrower(formula):
    rng = np.random.default_rng(0)
    rows = (5,) if formula.startswith("aD") else (2, 5)

    def product(x, kernel):
        types = dict.fromkeys(("dtype", "gradient_dtype"), jnp.dtype("float32"))
        return layers.einsum(formula, x, kernel, **types)

    for in_size, out_size in [(3, 8), (8, 3), (4, 4)]:
        shapes = (*rows, in_size), (in_size, out_size), (*rows, out_size)
        x, kernel, grad = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
        y, pullback = jax.vjp(product, jnp.asarray(x), jnp.asarray(kernel))
        of_x, of_kernel = pullback(jnp.asarray(grad))
        wide = x.reshape(-1, in_size).astype(np.float64).T @ grad.reshape(-1, out_size)
        for ours, expected in [
            (y, x.astype(np.float64) @ kernel),
            (of_x, grad.astype(np.float64) @ kernel.T),
            (of_kernel, wide),
        ]:
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def half_units(x):
    """Returns the largest error of rounding to bfloat16, which has seven bits behind the first."""
    return 2.0 ** (np.maximum(np.frexp(x)[1] - 1, -126) - 8)


def every_bfloat16():
    """Returns all finite numbers of bfloat16."""
    bits = np.arange(2**16, dtype=np.uint16)
    return bits[bits & 0x7F80 != 0x7F80].view(ml_dtypes.bfloat16)


def numpy_gelu(x):
    return x * scipy.special.ndtr(x)


def numpy_slope(x):
    return scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def test_gelu_of_every_bfloat16_is_the_exact_one_to_its_rounding():
    x = every_bfloat16()
    found = np.asarray(activations.gelu(jnp.asarray(x)), np.float64)
    exact = numpy_gelu(x.astype(np.float64))
    is_tail = x.astype(np.float32) < -4
    error = np.abs(found - exact)
    # The smallest numbers have no normal half of their own, which is flushed to zero.
    # tanh in float32, near -1, may be off by two of its steps of 2^-24; x and a half multiply them.
    tanh_steps = np.abs(x.astype(np.float64)) * 2.0**-24
    allowed = half_units(exact) + 1.13e-3 * np.abs(exact) + tanh_steps + 2.0**-126
    assert (error <= allowed)[~is_tail].all()
    assert error[is_tail].max() < 2e-6


def test_the_slope_of_gelu_is_the_exact_one_to_the_rounding_of_bfloat16():
    x = every_bfloat16()
    _, pull = jax.vjp(activations.gelu, jnp.asarray(x))
    found = np.asarray(pull(jnp.ones(x.shape, jnp.bfloat16))[0], np.float64)
    exact = numpy_slope(x.astype(np.float64))
    assert (np.abs(found - exact) <= half_units(exact) + 6e-4).all()


def test_gelu_of_float32_keeps_erf_and_ends_in_zero_and_in_x():
    x = np.linspace(-10, 10, 10_001, dtype=np.float32)
    exact = numpy_gelu(x.astype(np.float64))
    np.testing.assert_allclose(activations.gelu(jnp.asarray(x)), exact, rtol=2e-5, atol=1e-7)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        far = jnp.asarray([-1e30, -50.0, 50.0, 1e30], dtype)
        np.testing.assert_array_equal(activations.gelu(far), jnp.maximum(far, 0))


X = np.random.default_rng(0).normal(size=(3, 5, 300)).astype(np.float32)


def test_sums_of_rows_and_of_columns_are_those_of_float64():
    wide = X.astype(np.float64)
    for sums in (reductions.row_sums, reductions.row_sums_by_product):
        np.testing.assert_allclose(jax.jit(sums)(X), wide.sum(axis=-1), atol=1e-4)
    columns = reductions.column_sums(jnp.asarray(X))
    np.testing.assert_allclose(columns, wide.sum(axis=(0, 1)), atol=1e-4)


def test_row_sums_are_in_float32_of_bfloat16_too():
    rows = jnp.full((2, 1000), 1.0, jnp.bfloat16)  # 256 + 1 is 256 there
    assert reductions.row_sums(rows).tolist() == [1000.0, 1000.0]
