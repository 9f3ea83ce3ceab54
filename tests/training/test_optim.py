"""Optimizers against a few lines of float64 numpy each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import reductions
from bertjax.training import optim


def make_params(rng):
    return {
        "dense": {"kernel": rng.normal(0, 1, (4, 3)), "bias": rng.normal(0, 1, 3)},
        "norm": {"scale": rng.normal(1, 0.1, 3), "bias": rng.normal(0, 1, 3)},
        "word": {"embedding": rng.normal(0, 1, (5, 3))},
    }


def numpy_directions(grads_of_steps, params, options, step_size):
    """Applies the paper's update to every leaf by itself, written out plainly."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    names = [path[-1].key for path, _ in flat]
    weights = [leaf.copy() for _, leaf in flat]
    m, v = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for t, grads in enumerate(grads_of_steps, start=1):
        leaves = jax.tree.leaves(grads)
        norm = np.sqrt(sum((g**2).sum() for g in leaves))
        if options.clip_norm and norm > options.clip_norm:
            leaves = [g * options.clip_norm / norm for g in leaves]
        for i, g in enumerate(leaves):
            m[i] = options.beta1 * m[i] + (1 - options.beta1) * g
            v[i] = options.beta2 * v[i] + (1 - options.beta2) * g**2
            mean, square = m[i], v[i]
            if options.bias_correction:
                mean = mean / (1 - options.beta1**t)
                square = square / (1 - options.beta2**t)
            u = mean / (np.sqrt(square) + options.eps)
            if names[i] in ("kernel", "embedding"):
                u = u + options.weight_decay * weights[i]
                if options.name == "lamb":
                    u = u * np.linalg.norm(weights[i]) / np.linalg.norm(u)
            weights[i] = weights[i] - step_size * u
    return treedef.unflatten(weights)


@pytest.mark.parametrize("on_tpu", [False, True])
def test_the_norm_is_that_of_all_elements_in_float64(monkeypatch, on_tpu):
    if on_tpu:
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda x, *, tpu, default: tpu(x))
    rng = np.random.default_rng(0)
    tree = {"kernel": rng.normal(size=(60, 33)), "bias": rng.normal(size=33), "scalar": 2.0}
    expected = np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in tree.values()))
    found = reductions.global_norm(jax.tree.map(jnp.float32, tree))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_optimizer_equals_numpy_over_five_steps(name, bias_correction, clip_norm):
    options = optim.OptimizerOptions(
        name=name, bias_correction=bias_correction, clip_norm=clip_norm, weight_decay=0.1
    )
    rng = np.random.default_rng(0)
    params = make_params(rng)
    grads = [make_params(rng) for _ in range(5)]
    expected = numpy_directions(grads, params, options, 0.01)

    ours = jax.tree.map(jnp.float32, params)
    optimizer = optim.make_optimizer(options, ours)
    opt_state = optimizer.init(ours)
    for step_grads in grads:
        step_grads = jax.tree.map(jnp.float32, step_grads)
        updates, opt_state = optimizer.update(step_grads, opt_state, ours)
        ours = jax.tree.map(lambda p, u: p - 0.01 * u, ours, updates)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), ours, expected
    )


def test_biases_are_decayed_where_that_is_asked_for():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "norm": {"scale": jnp.ones(2)}}
    nothing = jax.tree.map(jnp.zeros_like, params)
    for decayed, expected in ((False, 0.0), (True, 0.1)):
        options = optim.OptimizerOptions(weight_decay=0.1, decay_biases=decayed, clip_norm=0.0)
        optimizer = optim.make_optimizer(options, params)
        updates, _ = optimizer.update(nothing, optimizer.init(params), params)
        found = [updates["bias"][0].item(), updates["norm"]["scale"][0].item()]
        assert found == pytest.approx([expected] * 2)
        assert updates["kernel"][0, 0].item() == pytest.approx(0.1)


def test_uncorrected_adam_equals_the_released_optimizer_on_its_own_test():
    """The problem of google-research/bert optimization_test.py; values computed in float64."""
    options = optim.OptimizerOptions(bias_correction=False, weight_decay=0.0, clip_norm=0.0)
    x = jnp.array([0.4, 0.2, -0.5])
    params = {"kernel": jnp.array([0.1, -0.2, -0.1])}
    optimizer = optim.make_optimizer(options, {"kernel": params["kernel"], "a.bias": x})
    opt_state = optimizer.init(params | {"a.bias": x})
    for step in range(100):
        grads = {"kernel": 2 * (params["kernel"] - x) / 3, "a.bias": jnp.zeros(3)}
        updates, opt_state = optimizer.update(grads, opt_state, params | {"a.bias": x})
        params = {"kernel": params["kernel"] - 0.2 * updates["kernel"]}
        if step == 0:
            first = [0.7323555478, 0.4323805409, -0.7323805409]
            np.testing.assert_allclose(params["kernel"], first, rtol=1e-5)
    last = [0.4016460351, 0.1978244492, -0.4978244492]
    np.testing.assert_allclose(params["kernel"], last, rtol=1e-3)


def model_params():
    """The names of a model of three layers; every parameter is a kernel or a bias of ones."""
    dense = {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}
    layer = {"attention": {"query": dense}, "output": dense}
    encoder = {"embeddings": {"word": dense}, "layers": {str(i): layer for i in range(3)}}
    factors = {"a": {"kernel": jnp.ones((4, 2))}, "b": {"kernel": jnp.ones((2, 3))}}
    lora = {"encoder": {"layers": {"1": {"attention": {"query": factors}}}}}
    return {"encoder": encoder, "pooler": {"dense": dense}, "classifier": dense, "lora": lora}


def test_rates_fall_from_the_head_to_the_embeddings():
    options = optim.OptimizerOptions(head_multiplier=10.0, layer_decay=0.5)
    rates = optim.rate_multipliers(options, model_params())
    assert set(jax.tree.leaves(rates["classifier"])) == {10.0}
    assert set(jax.tree.leaves(rates["pooler"])) == {1.0}
    by_layer = [set(jax.tree.leaves(rates["encoder"]["layers"][str(i)])) for i in range(3)]
    assert by_layer == [{0.5**3}, {0.5**2}, {0.5}]
    assert set(jax.tree.leaves(rates["encoder"]["embeddings"])) == {0.5**4}
    assert set(jax.tree.leaves(rates["lora"])) == {0.5**2}  # as the layer that they change


def test_rates_are_all_one_where_nothing_is_asked_for():
    rates = optim.rate_multipliers(optim.OptimizerOptions(), model_params())
    assert set(jax.tree.leaves(rates)) == {1.0}


def test_patterns_freeze_whole_paths_and_one_that_matches_nothing_is_an_error():
    patterns = (r"encoder\.embeddings\..*", r".*\.bias")
    frozen = optim.frozen_parameters((*patterns, patterns[0]), model_params())
    assert all(jax.tree.leaves(frozen["encoder"]["embeddings"]))
    assert frozen["classifier"] == {"kernel": False, "bias": True}
    with pytest.raises(ValueError, match=r"optimizer\.frozen.*\n.*'encoder' matches no parameter"):
        optim.frozen_parameters(("encoder",), model_params())
    with pytest.raises(ValueError, match=r"left to train"):
        optim.frozen_parameters((".*",), model_params())


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_what_is_frozen_has_no_moments_and_changes_nothing_for_the_rest(name):
    rng = np.random.default_rng(0)
    params = jax.tree.map(jnp.float32, make_params(rng))
    options = optim.OptimizerOptions(name=name, weight_decay=0.1)
    frozen = optim.frozen_parameters((r"word\..*",), params)
    rest = {name: value for name, value in params.items() if name != "word"}
    masked, plain = (
        optim.make_optimizer(options, params, frozen),
        optim.make_optimizer(options, rest),
    )
    masked_state, plain_state = masked.init(params), plain.init(rest)
    assert len(jax.tree.leaves(masked_state)) == len(jax.tree.leaves(plain_state))
    for _ in range(3):
        grads = jax.tree.map(jnp.float32, make_params(rng))
        grads["word"] = jax.tree.map(jnp.zeros_like, grads["word"])
        updates, masked_state = masked.update(grads, masked_state, params)
        rest_grads = {name: value for name, value in grads.items() if name != "word"}
        expected, plain_state = plain.update(rest_grads, plain_state, rest)
        del updates["word"]
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
