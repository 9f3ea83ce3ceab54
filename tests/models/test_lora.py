"""LoRA: nothing at the start, a product of two factors afterwards, plain kernels at the end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.devices import sharding
from bertjax.models import lora, parameters
from bertjax.training import optim
from tests import small_modules

ALL_KERNELS = lora.LoraOptions(rank=2, alpha=6.0, targets=(r"encoder\..*\.kernel",))
SECOND_LAYER = lora.LoraOptions(rank=2, targets=(r"encoder\.layers\.1\.intermediate\.kernel",))


@functools.cache
def classifier(config):
    return small_modules.made(models.SequenceClassifier, config, num_labels=3)


def make(config, options):
    plain, adapted = nnx.clone(classifier(config)), nnx.clone(classifier(config))
    lora.attach(adapted, options, rngs=nnx.Rngs(1))
    return plain, adapted


def moved(module):
    """The module with factors as training would leave them: none is zero."""
    graphdef, params = parameters.split(module)
    drawn = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), params["lora"]
    )
    return parameters.merge(graphdef, params | {"lora": drawn})


def paths(tree):
    return [parameters.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_a_new_adapter_is_the_identity(tiny, batch):
    plain, adapted = make(tiny, ALL_KERNELS)
    _, params = parameters.split(plain)
    _, merged = parameters.split(lora.merged(adapted, alpha=6.0))
    jax.tree.map(np.testing.assert_array_equal, params, {k: merged[k] for k in params})
    np.testing.assert_array_equal(lora.merged(adapted, alpha=6.0)(batch), plain(batch))


def test_every_parameter_but_the_factors_keeps_its_name_and_value(tiny):
    plain, adapted = make(tiny, lora.LoraOptions())
    _, before = parameters.split(plain)
    _, after = parameters.split(adapted)
    factors = after.pop("lora")
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert sorted(paths({"lora": factors})) == [
        f"lora.encoder.layers.{layer}.attention.{name}.{factor}.kernel"
        for layer in range(2)
        for name in ("query", "value")
        for factor in "ab"
    ]


def test_adapted_queries_and_keys_project_the_frozen_table_of_distances(tiny):
    config = dataclasses.replace(
        tiny, relative="disentangled", relative_buckets=8, relative_span=32
    )
    targets = (r"encoder\.layers\.\d+\.attention\.(query|key)\.kernel",)
    graphdef, params = parameters.split(moved(make(config, lora.LoraOptions(2, 6.0, targets))[1]))

    def of_terms(params):
        encoder = lora.merged(parameters.merge(graphdef, params), alpha=6.0).encoder
        terms = encoder.relative.terms(encoder.relative(), encoder.layers[1].attention, 5, None)
        return jnp.sum(terms.of_key**3) + jnp.sum(terms.of_query**3)

    gradients = parameters.flat(jax.grad(of_terms)(params))
    assert {name for name, value in gradients.items() if np.abs(value).max() > 0} == {
        f"lora.encoder.layers.1.attention.{name}.{factor}.kernel"
        for name in ("query", "key")
        for factor in "ab"
    }


def test_a_change_is_alpha_over_rank_times_the_product(tiny):
    plain, adapted = make(tiny, SECOND_LAYER)
    _, params = parameters.split(moved(adapted))
    factors = params["lora"]["encoder"]["layers"]["1"]["intermediate"]
    a, b = (np.asarray(factors[name]["kernel"], np.float64) for name in "ab")
    assert (a.shape, b.shape) == ((32, 2), (2, 64))
    merged = lora.merge(params, alpha=6.0)
    kernels = [
        tree["encoder"]["layers"]["1"]["intermediate"]["kernel"] for tree in (merged, params)
    ]
    np.testing.assert_allclose(kernels[0] - kernels[1], 6.0 / 2 * (a @ b), atol=1e-5)


def test_merged_parameters_are_the_plain_model_with_the_same_logits(tiny, batch):
    plain, adapted = make(tiny, ALL_KERNELS)
    adapted = moved(adapted)
    graphdef, before = parameters.split(plain)
    params = jax.tree.map(np.array, parameters.split(adapted)[1])
    merged = lora.merge(params, alpha=6.0)
    assert jax.tree.structure(merged) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, params, parameters.split(adapted)[1])
    logits = parameters.merge(graphdef, jax.tree.map(jnp.asarray, merged))(batch)
    np.testing.assert_allclose(logits, lora.merged(adapted, alpha=6.0)(batch), atol=1e-5)
    assert np.abs(logits - plain(batch)).max() > 1e-3


@pytest.mark.slow
def test_of_the_encoder_only_factors_get_a_gradient(tiny, batch):
    graphdef, params = parameters.split(moved(make(tiny, lora.LoraOptions(rank=2))[1]))

    @jax.grad
    def gradient(params):
        return lora.merged(parameters.merge(graphdef, params), alpha=2.0)(batch)[:, 0].sum()

    for path, leaf in zip(paths(params), jax.tree.leaves(gradient(params)), strict=True):
        assert bool((leaf == 0).all()) == path.startswith("encoder."), path


def test_factors_are_kernels_to_decay_and_sharding(tiny):
    _, params = parameters.split(make(tiny, lora.LoraOptions())[1])
    decayed = parameters.assign(optim.DECAY_RULES, params, table="decay")
    assert all(jax.tree.leaves(decayed["lora"]))
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    for table in sharding.RULES:
        sharding.shardings(mesh, params, params, rule_table=table)


def test_a_start_is_drawn_from_the_key_and_layers_differ(tiny):
    _, first = parameters.split(make(tiny, lora.LoraOptions())[1])
    _, again = parameters.split(make(tiny, lora.LoraOptions())[1])
    jax.tree.map(np.testing.assert_array_equal, first, again)
    layers = first["lora"]["encoder"]["layers"]
    query, other = (layers[n]["attention"]["query"]["a"]["kernel"] for n in "01")
    assert jnp.abs(query - other).max() > 0.01
    wide = dataclasses.replace(tiny, hidden_size=256, num_hidden_layers=1)
    _, params = parameters.split(make(wide, lora.LoraOptions(rank=64))[1])
    a = params["lora"]["encoder"]["layers"]["0"]["attention"]["query"]["a"]["kernel"]
    assert float(a.std()) == pytest.approx(256**-0.5, rel=0.05)


def test_targets_that_match_nothing_bad_options_and_no_factors_are_named(tiny):
    options = lora.LoraOptions(targets=(r"encoder\..*\.query\.kernel", "query", r"classifier\..*"))
    words = r"'query', 'classifier.* match no kernel.*encoder\.layers"
    with pytest.raises(ValueError, match=words):
        make(tiny, options)
    with pytest.raises(ValueError, match="(?s)rank is 0.*alpha is -1.*targets is \\(\\)"):
        lora.LoraOptions(rank=0, alpha=-1.0, targets=())
    with pytest.raises(ValueError, match="no LoRA factors.*encoder"):
        lora.merge(parameters.split(make(tiny, lora.LoraOptions())[0])[1], alpha=1.0)
