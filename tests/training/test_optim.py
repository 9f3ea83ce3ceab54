"""Optimizers against a few lines of float64 numpy each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.devices import sharding
from bertjax.models import reductions
from bertjax.training import optim
from tests import conftest


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
# The norms of the five gradients lie on both sides of 6.
@pytest.mark.parametrize(("bias_correction", "clip_norm"), [(True, 0.0), (False, 6.0)])
def test_optimizer_equals_numpy_over_five_steps(name, bias_correction, clip_norm):
    options = optim.OptimizerOptions(
        name=name, bias_correction=bias_correction, clip_norm=clip_norm, weight_decay=0.1
    )
    rng = np.random.default_rng(0)
    params = make_params(rng)
    grads = [make_params(rng) for _ in range(5)]
    expected = numpy_directions(grads, params, options, 0.01)
    assert_leaves_close(moved(options, params, grads, 0.01), expected)


def test_a_part_is_clipped_by_its_own_norm():
    rng = np.random.default_rng(0)
    params = {"encoder": make_params(rng), "generator": make_params(rng)}
    grads = jax.tree.map(lambda it: 100 * it, params) | {"encoder": params["encoder"]}
    limit = 1.0

    def clipped(apart):
        transform = optim.clip_by_global_norm(limit, apart)
        return transform.update(jax.tree.map(jnp.float32, grads), transform.init(params))[0]

    def norm(tree):
        return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))

    apart, together = clipped("generator"), clipped("")
    for part in params:
        assert_leaves_close(
            apart[part], jax.tree.map(lambda it, part=part: it / norm(grads[part]), grads[part])
        )
    assert norm(together["encoder"]) < 0.02 < limit
    options = optim.OptimizerOptions(clip_apart="decoder")
    with pytest.raises(ValueError, match="clip_apart.*'decoder'.*'encoder', 'generator'"):
        optim.make_optimizer(options, params)


def moved(options, params, grads_of_steps, rate, peak=None):
    """The parameters, in float32, after steps at a constant rate."""
    ours = jax.tree.map(jnp.float32, params)
    optimizer = optim.make_optimizer(options, ours)
    opt_state = optimizer.init(ours)

    @functools.partial(jax.jit, compiler_options=conftest.QUICK_COMPILER)
    def step(ours, opt_state, grads):
        updates, opt_state = optimizer.update(grads, opt_state, ours, peak_learning_rate=peak)
        return jax.tree.map(lambda value, update: value - rate * update, ours, updates), opt_state

    for grads in grads_of_steps:
        ours, opt_state = step(ours, opt_state, jax.tree.map(jnp.float32, grads))
    return ours


def assert_leaves_close(ours, expected, rtol=2e-5, atol=1e-6):
    for (path, a), b in zip(
        jax.tree.leaves_with_path(ours), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=str(path))


def numpy_stable_adamw(w, grads, options, is_decayed, rate, peak):
    """One tensor by the released rule: debiased betas, one rate and one decay for all of it."""
    m, v, largest = np.zeros_like(w), np.zeros_like(w), 0.0
    for t, g in enumerate(grads, start=1):
        beta1 = options.beta1 * (1 - options.beta1 ** (t - 1)) / (1 - options.beta1**t)
        beta2 = options.beta2 * (1 - options.beta2 ** (t - 1)) / (1 - options.beta2**t)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        rms = np.sqrt(np.mean(g**2 / np.maximum(v, options.eps**2)))
        largest = max(largest, rms)
        lr = rate / max(1.0, rms)
        if is_decayed:
            w = w * (
                1 - (lr / peak if options.fully_decoupled_decay else lr) * options.weight_decay
            )
        w = w - lr * m / (np.sqrt(v) + options.eps)
    return w, largest


@pytest.mark.parametrize("fully_decoupled", [False, True])
def test_stable_adamw_equals_numpy_where_gradients_surprise(fully_decoupled):
    options = optim.OptimizerOptions(
        name="stable_adamw", clip_norm=0.0, weight_decay=0.1, fully_decoupled_decay=fully_decoupled
    )
    rng = np.random.default_rng(0)
    params = make_params(rng)
    grads = [make_params(rng) for _ in range(4)]
    grads.append(jax.tree.map(lambda g: 30 * g, make_params(rng)))
    ours = moved(options, params, grads, 0.01, peak=0.02)
    largest = []
    for (path, value), w, *of_steps in zip(
        jax.tree.leaves_with_path(ours), *map(jax.tree.leaves, (params, *grads)), strict=True
    ):
        is_decayed = path[-1].key in ("kernel", "embedding")
        expected, rms = numpy_stable_adamw(w, of_steps, options, is_decayed, 0.01, 0.02)
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
        largest.append(rms)
    assert min(largest) > 2  # every tensor's last step was made smaller


def test_a_tensor_of_tiny_gradients_is_not_taken_for_a_surprised_one():
    # Below eps the mean of squares is taken for eps^2: nothing is divided by.
    start = {"a": {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}}
    grads = [jax.tree.map(functools.partial(np.add, size), start) for size in (1e-12, 1e-9)]
    stable, plain = (
        moved(optim.OptimizerOptions(name=name, clip_norm=0.0), start, grads, 1.0)
        for name in ("stable_adamw", "adamw")
    )
    assert_leaves_close(stable, plain, atol=0)


@pytest.mark.parametrize("name", ["adamw", "stable_adamw", "muon"])
@pytest.mark.parametrize(("decay", "peak", "same"), [(1e-5, 8e-4, 0.0125), (3e-4, 3e-3, 0.1)])
def test_fully_decoupled_decay_is_the_other_divided_by_the_peak(name, decay, peak, same):
    """The numbers of ModernBERT and of Ettin's small models, far from the peak as well."""
    rng = np.random.default_rng(0)
    params, grads = make_params(rng), [make_params(rng) for _ in range(2)]
    ours = optim.OptimizerOptions(name=name, weight_decay=decay, fully_decoupled_decay=True)
    theirs = optim.OptimizerOptions(name=name, weight_decay=same)
    assert_leaves_close(
        moved(ours, params, grads, 1e-4, peak), moved(theirs, params, grads, 1e-4), atol=0
    )
    nothing = [jax.tree.map(np.zeros_like, params)]
    kept = (
        moved(ours, params, nothing, peak / 2, peak)["dense"]["kernel"] / params["dense"]["kernel"]
    )
    np.testing.assert_allclose(kept, 1 - decay / 2, rtol=1e-6)


def numpy_muon(w, grads, options, rate):
    """Nesterov's momentum, five quintic Newton-Schulz steps, one size for all matrices."""
    beta, mean = options.muon_momentum, np.zeros_like(w)
    for t, g in enumerate(grads, start=1):
        mean = beta * mean + (1 - beta) * g
        x = beta * mean / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        x = x / np.linalg.norm(x)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        size = options.muon_update_rms * np.sqrt(max(w.shape))
        if not options.muon_update_rms:
            size = np.sqrt(max(1, w.shape[1] / w.shape[0]))
        w = w - rate * (size * x + options.weight_decay * w)
    return w


@pytest.mark.parametrize("update_rms", [0.2, 0.0])
def test_muon_moves_the_kernels_of_layers_and_adamw_all_else(update_rms):
    options = optim.OptimizerOptions(
        name="muon", clip_norm=0.0, weight_decay=0.1, muon_update_rms=update_rms
    )
    rng = np.random.default_rng(0)

    def draw():
        layer = {"query": {"kernel": rng.normal(0, 1, (4, 6)), "bias": rng.normal(0, 1, 6)}}
        encoder = {"embeddings": {"word": {"embedding": rng.normal(0, 1, (5, 4))}}}
        factors = {
            "encoder": {"layers": {"0": {"query": {"a": {"kernel": rng.normal(0, 1, (4, 2))}}}}}
        }
        return {
            "encoder": encoder | {"layers": {"0": layer, "1": layer}},
            "mlm_head": {"dense": {"kernel": rng.normal(0, 1, (4, 4))}},
            "lora": factors,
        }

    params, grads = draw(), [draw() for _ in range(3)]
    ours = moved(options, params, grads, 0.01)
    others = optim.OptimizerOptions(clip_norm=0.0, weight_decay=0.1)
    expected = numpy_directions(grads, params, others, 0.01)
    for layer in ("0", "1"):
        of_steps = [step["encoder"]["layers"][layer]["query"]["kernel"] for step in grads]
        start = params["encoder"]["layers"][layer]["query"]["kernel"]
        orthogonal = numpy_muon(start, of_steps, options, 0.01)
        expected["encoder"]["layers"][layer]["query"]["kernel"] = orthogonal
    assert_leaves_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_the_state_of_every_optimizer_lies_as_its_parameters_do(name):
    params = {
        "encoder": {"layers": {"0": {"query": {"kernel": jnp.ones((8, 8)), "bias": jnp.ones(8)}}}},
        "word": {"embedding": jnp.ones((5, 8))},
    }
    opt_state = optim.make_optimizer(optim.OptimizerOptions(name=name), params).init(params)
    mesh = sharding.make_mesh(jax.devices()[:4], data=4)
    placed = sharding.shardings(mesh, params, opt_state, rule_table="fsdp")
    by_shape = {(8, 8): ("data", None), (5, 8): (None, "data"), (8,): ()}
    found = list(zip(jax.tree.leaves(opt_state), jax.tree.leaves(placed), strict=True))
    assert {leaf.shape for leaf, _ in found} >= set(by_shape)
    for leaf, where in found:
        assert where.spec == sharding.P(*by_shape.get(leaf.shape, ()))


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


def test_rates_fall_from_the_head_to_the_embeddings_and_are_one_by_default():
    options = optim.OptimizerOptions(head_multiplier=10.0, layer_decay=0.5)
    rates = optim.rate_multipliers(options, model_params())
    assert set(jax.tree.leaves(rates["classifier"])) == {10.0}
    assert set(jax.tree.leaves(rates["pooler"])) == {1.0}
    by_layer = [set(jax.tree.leaves(rates["encoder"]["layers"][str(i)])) for i in range(3)]
    assert by_layer == [{0.5**3}, {0.5**2}, {0.5}]
    assert set(jax.tree.leaves(rates["encoder"]["embeddings"])) == {0.5**4}
    assert set(jax.tree.leaves(rates["lora"])) == {0.5**2}  # as the layer that they change
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


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_what_is_frozen_has_no_moments_and_changes_nothing_for_the_rest(name):
    def without_words(tree):
        return {name: value for name, value in tree.items() if name != "word"}

    rng = np.random.default_rng(0)
    params = jax.tree.map(jnp.float32, make_params(rng))
    options = optim.OptimizerOptions(name=name, weight_decay=0.1)
    masked = optim.make_optimizer(options, params, optim.frozen_parameters((r"word\..*",), params))
    plain, rest = optim.make_optimizer(options, without_words(params)), without_words(params)
    masked_state, plain_state = masked.init(params), plain.init(rest)
    assert len(jax.tree.leaves(masked_state)) == len(jax.tree.leaves(plain_state))
    for _ in range(3):
        grads = jax.tree.map(jnp.float32, make_params(rng))
        grads["word"] = jax.tree.map(jnp.zeros_like, grads["word"])
        updates, masked_state = masked.update(grads, masked_state, params)
        expected, plain_state = plain.update(without_words(grads), plain_state, rest)
        jax.tree.map(np.testing.assert_array_equal, without_words(updates), expected)


# Moments in bfloat16: rounded without a bias, where the nearest number would lose every change.
SEEDS = jax.random.bits(jax.random.key(0), (64, 2), jnp.uint32)


def rounded(x, seeds):
    return np.asarray(optim.stochastically_rounded(jnp.asarray(x), tuple(seeds)), np.float64)


def test_a_number_becomes_one_of_its_two_neighbours_and_the_mean_is_itself():
    x = np.random.default_rng(0).normal(0, 1, (40, 50)).astype(np.float32)
    found = np.stack([rounded(x, seeds) for seeds in SEEDS])
    below = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    unit = np.abs(np.float64(2.0) ** (np.floor(np.log2(np.abs(x))) - 7))
    steps = np.abs(found - below) / unit
    assert set(np.unique(steps)) == {0.0, 1.0}
    # Each mean of 64 draws is off by at most half a unit / 8 in the root mean square.
    error = (found.mean(axis=0) - x) / unit
    assert np.sqrt(np.mean(error**2)) < 0.5 / 8
    assert abs(error.mean()) < 4 * 0.5 / 8 / np.sqrt(error.size)


def test_numbers_of_bfloat16_and_what_is_not_finite_stay_as_they_are():
    x = np.array([[0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, -np.nan]], np.float32)
    for seeds in SEEDS:
        np.testing.assert_array_equal(rounded(x, seeds), x)


def second_moment(dtype, steps, beta2=0.999):
    options = optim.OptimizerOptions(
        clip_norm=0.0, beta2=beta2, moment_dtype=dtype, weight_decay=0.0, bias_correction=False
    )
    params = {"kernel": jnp.zeros((64, 64)), "bias": jnp.zeros(64)}
    optimizer = optim.make_optimizer(options, params)
    grads = jax.tree.map(jnp.ones_like, params)

    @jax.jit
    def step(state, number):
        key = jax.random.fold_in(jax.random.key(1), number)
        return optimizer.update(grads, state, params, peak_learning_rate=1.0, key=key)[1]

    state = optimizer.init(params)
    for number in range(steps):
        state = step(state, number)
    (adam,) = [part for part in state if hasattr(part, "nu")]
    return adam.nu


def test_a_second_moment_reaches_its_mean_though_a_step_is_below_half_a_unit():
    found = second_moment("bfloat16", 1500)
    expected = 1 - 0.999**1500
    assert found["kernel"].dtype == jnp.bfloat16 and found["bias"].dtype == jnp.float32
    assert np.asarray(found["kernel"], np.float64).mean() == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(found["bias"], expected, rtol=1e-4)
    # The nearest bfloat16 number instead: it stands still on the way.
    nearest = jnp.zeros((), jnp.bfloat16)
    for _ in range(1500):
        nearest = (0.999 * nearest.astype(jnp.float32) + 0.001).astype(jnp.bfloat16)
    assert nearest.item() < 0.5 * expected


@pytest.mark.parametrize(
    ("name", "bias_correction"), [*((it, True) for it in optim.OPTIMIZERS), ("adamw", False)]
)
def test_every_optimizer_moves_as_it_does_in_float32(name, bias_correction):
    params = {
        "layers": {"0": {"kernel": jnp.ones((32, 32)), "bias": jnp.ones(32)}},
        "word": {"embedding": jnp.ones((48, 32))},
    }
    rng = np.random.default_rng(0)
    of_steps = [
        jax.tree.map(lambda x: jnp.asarray(rng.normal(0.5, 1, x.shape), jnp.float32), params)
        for _ in range(5)
    ]

    def moved(dtype):
        options = optim.OptimizerOptions(name, moment_dtype=dtype, bias_correction=bias_correction)
        optimizer = optim.make_optimizer(options, params)
        state, updates = optimizer.init(params), None
        for step, grads in enumerate(of_steps):
            key = jax.random.fold_in(jax.random.key(2), step)
            told = {"peak_learning_rate": 1e-3, "key": key}
            updates, state = optimizer.update(grads, state, params, **told)
        return updates

    for ours, expected in zip(
        *(jax.tree.leaves(moved(d)) for d in optim.MOMENT_DTYPES), strict=True
    ):
        error = np.linalg.norm(expected - ours) / np.linalg.norm(ours)
        assert error < 0.01
