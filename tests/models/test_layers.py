"""Dense layer and LayerNorm beside float64 numpy; dropout: its rate, its masks, what it saves."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.models import layers, norms


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


def test_rows_without_planes_have_masks_too():
    kept = mask(0, (256, 300), 0.1)
    assert abs(kept.mean() - 0.9) < 0.01
    assert_independent(kept[1:], kept[:-1], 0.1)


def test_no_key_means_no_dropout():
    x = jnp.arange(6.0).reshape(2, 3)
    assert layers.dropout(x, 0.5, None) is x
    assert layers.dropout(x, 0.0, jax.random.key(0)) is x


def test_the_backward_pass_has_the_mask_of_the_forward_pass_and_saves_none():
    x = jnp.ones((4, 8, 16))
    dropped, backward = jax.vjp(lambda x: layers.dropout(x, 0.4, jax.random.key(0)), x)
    weights = jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape)
    np.testing.assert_array_equal(backward(weights)[0], weights * dropped)
    assert max(leaf.size for leaf in jax.tree.leaves(backward)) <= 4 * 2


def test_a_mask_is_the_same_on_any_mesh():
    ones, key = jnp.ones((16, 4, 8, 8)), jax.random.key(0)
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(4, 2), ("data", "tensor"))
    where = NamedSharding(mesh, P("data", "tensor"))
    spread = jax.jit(lambda x: layers.dropout(x, 0.5, key), in_shardings=where, out_shardings=where)
    np.testing.assert_array_equal(spread(ones), layers.dropout(ones, 0.5, key))


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
def test_a_dense_layer_and_its_gradients_are_those_of_float64(kind):
    rng = np.random.default_rng(0)
    x, kernel, bias, grad = (rng.normal(size=s) for s in ((5, 7, 16), (16, 8), 8, (5, 7, 8)))
    layer = kind(
        16,
        8,
        kernel_init=layers.truncated_normal(0.02),
        dtype=jnp.dtype("float32"),
        rngs=nnx.Rngs(0),
    )
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
    layer = kind(
        *(4, 4),
        kernel_init=layers.truncated_normal(0.02),
        dtype=jnp.dtype("bfloat16"),
        rngs=nnx.Rngs(0),
        gradient_dtype=jnp.dtype("float32"),
    )
    graph, params = nnx.split(layer)
    x = jnp.ones((16, 1000, 4), jnp.bfloat16)
    y, backward = jax.vjp(lambda p: nnx.merge(graph, p)(x), params)
    grad = jnp.asarray(np.random.default_rng(0).normal(1, 1, y.shape), jnp.bfloat16)
    found = backward(grad)[0]["bias"][...]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.asarray(grad, np.float64).sum((0, 1)), rtol=1e-5)


def gradients_over_devices(layer, x, grad):
    """Returns the function of (x, grad) for the gradients of kernel and bias, rows on devices."""
    graph, params = nnx.split(layer)
    mesh = Mesh(np.asarray(jax.devices()[:8]), ("data",))
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def gradients(x, grad):
        _, backward = jax.vjp(lambda p: nnx.merge(graph, p)(x), params)
        return nnx.to_pure_dict(backward(grad)[0])

    jitted = jax.jit(gradients, in_shardings=(rows, rows), out_shardings=everywhere)
    return jitted.lower(x, grad)


@pytest.mark.parametrize("kind", [layers.Dense, layers.SummedBiasDense])
@pytest.mark.parametrize(("gradient_dtype", "summed"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_a_kernels_gradient_is_summed_over_devices_in_the_type_asked_for(
    gradient_dtype, summed, kind, tmp_path
):
    dtype = jnp.dtype("bfloat16")
    layer = kind(
        *(16, 24),
        kernel_init=layers.truncated_normal(0.02),
        dtype=dtype,
        rngs=nnx.Rngs(0),
        gradient_dtype=jnp.dtype(gradient_dtype),
    )
    rng = np.random.default_rng(0)
    x, grad = (jnp.asarray(rng.normal(size=(64, 32, size)), dtype) for size in (16, 24))
    # As the partitioner leaves it: later on XLA makes every sum on CPU one in float32.
    options: dict[str, str | bool] = {"xla_dump_hlo_pass_re": "spmd-partitioning"}
    lowered = gradients_over_devices(layer, x, grad)
    compiled = lowered.compile(options | {"xla_dump_to": str(tmp_path)})
    partitioned = next(tmp_path.glob("*after_spmd-partitioning*")).read_text()
    kernel_sums = set(re.findall(r"= (\w+)\[(?:16,24|24,16)\]\S* all-reduce\(", partitioned))
    assert kernel_sums == {summed}

    expected = np.einsum("abi,abj->ij", np.asarray(x, np.float64), np.asarray(grad, np.float64))
    error = np.asarray(compiled(x, grad)["kernel"], np.float64) - expected
    relative = np.linalg.norm(error) / np.linalg.norm(expected)
    assert relative < 1e-6 if summed == "f32" else relative > 1e-3


def test_a_product_in_bfloat16_is_the_same_whatever_its_gradients_are_summed_in():
    x = jax.random.normal(jax.random.key(0), (4, 6, 16), jnp.bfloat16)
    results = []
    for gradient_dtype in ("float32", "bfloat16"):
        for kind in (layers.Dense, layers.SummedBiasDense):
            layer = kind(
                *(16, 8),
                kernel_init=layers.truncated_normal(1.0),
                dtype=jnp.dtype("bfloat16"),
                rngs=nnx.Rngs(0),
                gradient_dtype=jnp.dtype(gradient_dtype),
            )
            assert layer.bias is not None
            layer.bias = nnx.Param(jax.random.normal(jax.random.key(1), (8,)))
            y, backward = jax.vjp(layer, x)
            results.append((kind, y, backward(y)[0]))
    for kind, y, grad_x in results[2:]:
        same = next(result for result in results if result[0] is kind)
        np.testing.assert_array_equal(y, same[1])
        np.testing.assert_array_equal(grad_x, same[2])


def numpy_normalize(x, scale, bias, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def norm_case(mean=0.0):
    rng = np.random.default_rng(0)
    x, grad = rng.normal(mean, 1, (5, 7, 32)), rng.normal(size=(5, 7, 32))
    return x, rng.normal(1, 0.3, 32), rng.normal(size=32), grad


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_layer_norm_is_that_of_float64(mean):
    x, scale, bias, _ = norm_case(mean)
    ours = norms.normalize(*(jnp.asarray(v, jnp.float32) for v in (x, scale, bias)), 1e-12,
                            jnp.dtype("float32"))  # fmt: skip
    tolerance = 1e-6 * (1 + mean**2)
    np.testing.assert_allclose(ours, numpy_normalize(x, scale, bias, 1e-12), atol=3 * tolerance)


def test_gradients_of_layer_norm_are_those_of_float64():
    x, scale, bias, grad = norm_case()
    inputs = [jnp.asarray(v, jnp.float32) for v in (x, scale, bias)]
    _, backward = jax.vjp(lambda *v: norms.normalize(*v, 1e-12, jnp.dtype("float32")), *inputs)
    for place, ours in enumerate(backward(jnp.asarray(grad, jnp.float32))):
        for index in [0, ours.size // 2, ours.size - 1]:
            step = np.zeros(ours.size)
            step[index] = 1e-6
            plus, minus = (
                numpy_normalize(*(v + s * step.reshape(v.shape) if i == place else v
                                  for i, v in enumerate((x, scale, bias))), 1e-12)
                for s in (1, -1)
            )  # fmt: skip
            slope = ((plus - minus) * grad).sum() / 2e-6
            np.testing.assert_allclose(np.ravel(ours)[index], slope, rtol=1e-4, atol=1e-5)


def test_a_constant_row_stays_finite():
    # Nothing but the rounding of its mean is left of it, which 1 / sqrt(1e-12) makes visible.
    x = jnp.full((2, 8), 3.7)
    ours = norms.normalize(x, jnp.ones(8), jnp.full(8, 0.5), 1e-12, jnp.dtype("float32"))
    assert np.all(np.abs(np.asarray(ours) - 0.5) <= 1)


@pytest.mark.parametrize(("in_size", "out_size"), [(3, 8), (8, 3), (4, 4)])
@pytest.mark.parametrize("formula", ["aD,DF->aF", "abD,DF->abF"])
def test_the_gradient_of_a_kernel_is_that_of_numpy_whichever_factor_is_narrower(
    formula, in_size, out_size
):
    rng = np.random.default_rng(0)
    rows = (5,) if formula.startswith("aD") else (2, 5)
    x, kernel, grad = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((*rows, in_size), (in_size, out_size), (*rows, out_size))
    )

    def product(x, kernel):
        types = dict.fromkeys(("dtype", "gradient_dtype"), jnp.dtype("float32"))
        return layers.einsum(formula, x, kernel, **types)

    y, pullback = jax.vjp(product, jnp.asarray(x), jnp.asarray(kernel))
    of_x, of_kernel = pullback(jnp.asarray(grad))
    np.testing.assert_allclose(y, x.astype(np.float64) @ kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, grad.astype(np.float64) @ kernel.T, rtol=1e-5, atol=1e-6)
    wide = x.reshape(-1, in_size).astype(np.float64)
    wanted = wide.T @ grad.reshape(-1, out_size)
    np.testing.assert_allclose(of_kernel, wanted, rtol=1e-5, atol=1e-6)
