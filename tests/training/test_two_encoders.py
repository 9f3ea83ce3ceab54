"""A model of two encoders, as ELECTRA's: rates, freezing, LoRA and warm start go by its parts."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.models import containers, lora, parameters
from bertjax.training import optim, state, warm_start
from tests import small_modules
from tests.training import test_warm_start

ENCODERS = ("discriminator.encoder", "generator.encoder")
SIZES = test_warm_start.SIZES
FACTORIZED = dataclasses.replace(SIZES, embedding_size=8)


class TwoEncoders(nnx.Module):
    """A generator with a masked-token head, a discriminator with a pooler and a head of its own."""

    def __init__(self, config, *, rngs):
        shallow = dataclasses.replace(config, num_hidden_layers=1)
        self.generator = containers.Dict(
            encoder=models.make_encoder(shallow, rngs=rngs),
            mlm_head=models.MlmHead(shallow, rngs=rngs),
        )
        self.discriminator = containers.Dict(
            encoder=models.make_encoder(config, rngs=rngs),
            pooler=models.Pooler(config, rngs=rngs),
            detector=nnx.Linear(config.hidden_size, 2, rngs=rngs),
        )


def make(sizes=SIZES, seed=0):
    return small_modules.made(TwoEncoders, sizes, seed=seed)


def abstract(sizes=SIZES):
    return parameters.split(nnx.eval_shape(lambda: TwoEncoders(sizes, rngs=nnx.Rngs(0))))[1]


def cold(sizes=SIZES, seed=0):
    params = parameters.split(make(sizes, seed))[1]
    return state.TrainState(jnp.zeros((), jnp.int32), params, opt_state=())


def names_under(*paths):
    return {name for name in parameters.flat(abstract()) if name.startswith(tuple(paths))}


def test_encoders_are_found_in_a_module_an_abstract_one_and_its_parameters(tiny):
    shapes = nnx.eval_shape(lambda: TwoEncoders(SIZES, rngs=nnx.Rngs(0)))
    for it in (make(), shapes, abstract()):
        assert parameters.encoder_paths(it) == ENCODERS
    plain = small_modules.made(models.SequenceClassifier, tiny, num_labels=2)
    assert models.encoder_paths(plain) == ("encoder",)
    assert models.encoder_paths(small_modules.made(models.make_bare, tiny)) == ("encoder",)


def test_rates_fall_with_the_depth_of_each_encoder():
    options = optim.OptimizerOptions(layer_decay=0.5, head_multiplier=3.0)
    rates = optim.rate_multipliers(options, abstract())
    generator, discriminator = rates["generator"], rates["discriminator"]

    def rate(tree):
        (found,) = set(jax.tree.leaves(tree))
        return found

    assert rate(generator["encoder"]["layers"]["0"]) == 0.5
    assert rate(generator["encoder"]["embeddings"]) == 0.25
    assert [rate(discriminator["encoder"]["layers"][n]) for n in "01"] == [0.25, 0.5]
    assert rate(discriminator["encoder"]["embeddings"]) == 0.125
    assert rate(discriminator["pooler"]) == 1.0
    assert rate(discriminator["detector"]) == rate(generator["mlm_head"]) == 3.0


def adapted():
    module = make()
    lora.attach(module, lora.LoraOptions(rank=2), rngs=nnx.Rngs(1))
    return module


def test_lora_changes_query_and_value_of_both_encoders():
    _, params = parameters.split(adapted())
    kernels = {name.rsplit(".", 2)[0] for name in parameters.flat(params["lora"])}
    assert kernels == {
        f"{encoder}.layers.{layer}.attention.{name}"
        for encoder, count in zip(ENCODERS, (2, 1), strict=True)
        for layer in range(count)
        for name in ("query", "value")
    }
    rates = optim.rate_multipliers(optim.OptimizerOptions(layer_decay=0.5), params)
    assert set(jax.tree.leaves(rates["lora"]["generator"])) == {0.5}


def test_factors_of_embeddings_are_no_encoder():
    module = containers.Dict(encoder=small_modules.made(models.make_encoder, FACTORIZED))
    lora.attach(module, lora.LoraOptions(targets=(r"encoder\..*kernel",)), rngs=nnx.Rngs(1))
    _, params = parameters.split(module)
    assert set(params["lora"]["encoder"]) == {"embeddings", "layers"}
    assert parameters.encoder_paths(params) == ("encoder",)


def test_a_target_may_name_the_kernels_of_one_encoder():
    module = make()
    target = r"generator\.encoder\.layers\.0\.output\.kernel"
    lora.attach(module, lora.LoraOptions(targets=(target,)), rngs=nnx.Rngs(1))
    factors = parameters.flat(parameters.split(module)[1]["lora"])
    assert {re.sub(r"\.[ab]\.kernel", ".kernel", name) for name in factors} == {
        "generator.encoder.layers.0.output.kernel"
    }
    with pytest.raises(ValueError, match="match no kernel"):
        lora.attach(make(), lora.LoraOptions(targets=(r".*detector\.kernel",)), rngs=nnx.Rngs(1))


@pytest.mark.slow
def test_of_encoders_with_lora_only_the_factors_are_trained(batch):
    graphdef, params = parameters.split(adapted())
    frozen = parameters.flat(optim.frozen_parameters(lora.frozen(params), params))
    assert {name for name in frozen if frozen[name]} == names_under(*(f"{x}." for x in ENCODERS))

    @jax.grad
    def gradients(params):
        module = lora.merged(parameters.merge(graphdef, params), alpha=2.0)
        one, other = module.discriminator.encoder(batch), module.generator.encoder(batch)
        pooled = module.discriminator.pooler(one[:, 0])
        return (one**3).sum() + (other**3).sum() + pooled.sum()

    found = parameters.flat(gradients(params))
    for name in names_under(*(f"{encoder}." for encoder in ENCODERS)):
        assert not np.any(found[name]), name
    factors = [name for name in found if name.startswith("lora.") and ".b." in name]
    assert len(factors) == 6 and all(np.any(found[name]) for name in factors)
    assert np.any(found["discriminator.pooler.dense.kernel"])


def source(sizes=SIZES):
    values = {
        name: np.asarray(leaf) for name, leaf in parameters.flat(cold(sizes, 1).params).items()
    }
    return dataclasses.replace(test_warm_start.make_source(), config=sizes, params=values)


def test_a_warm_start_takes_encoders_and_pooler_and_leaves_heads():
    target = test_warm_start.make_target(params=abstract(), has_own_heads=True)
    made = warm_start.match(source(), target)
    assert set(made.values) == names_under(*ENCODERS, "discriminator.pooler")
    assert set(made.fresh) == names_under("generator.mlm_head", "discriminator.detector")


@pytest.mark.slow
def test_each_table_of_words_grows_with_the_vocabulary():
    sizes = dataclasses.replace(SIZES, vocab_size=SIZES.vocab_size + 3)
    target = test_warm_start.resized_target(params=abstract(sizes), resize_vocabulary=True)
    weights = source()
    made = warm_start.apply(warm_start.match(weights, target), cold(sizes))
    found, fresh = (parameters.flat(each.params) for each in (made, cold(sizes)))
    per_row = {f"{path}.embeddings.word.embedding" for path in ENCODERS}
    for name in found:
        rows = len(weights.params[name])
        np.testing.assert_array_equal(found[name][:rows], weights.params[name], err_msg=name)
        np.testing.assert_array_equal(found[name][rows:], fresh[name][rows:], err_msg=name)
        assert (len(found[name]) > rows) == (name in per_row | {"generator.mlm_head.bias"})


def test_what_either_encoder_lacks_is_named():
    weights = source()
    for encoder in ENCODERS:
        params = {n: v for n, v in weights.params.items() if n != f"{encoder}.layers.0.output.bias"}
        lines = test_warm_start.fault_lines(
            dataclasses.replace(weights, params=params),
            test_warm_start.make_target(params=abstract()),
        )
        assert lines == [f"  the source lacks the parameter {encoder}.layers.0.output.bias"]
