"""Tables of names: they map in both directions, and errors list every fault at once."""

import jax
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.convert import names, pretrained
from bertjax.convert.families import bert
from bertjax.models import parameters
from bertjax.tasks import next_token, pretraining, replaced_tokens


def shapes_of_bert(config, labels=3):
    shapes = pretrained.shapes(config, labels=labels)
    return {path: shape for path, shape in shapes.items() if names.knows(bert.TENSORS, path)}


def make_params(config, labels=3):
    rng = np.random.default_rng(0)
    shapes = shapes_of_bert(config, labels)
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}


@pytest.fixture
def theirs(tiny):
    return names.to_theirs(make_params(tiny), bert.TENSORS)


def to_ours(theirs, config):
    shapes = shapes_of_bert(config)
    return names.to_ours(theirs, bert.TENSORS, shapes=shapes, required=shapes)


def test_the_shapes_are_those_of_the_modules(tiny):
    kinds = (
        lambda: pretraining.PretrainingModel(tiny, pair_loss="nsp", rngs=nnx.Rngs(0)),
        lambda: models.SequenceClassifier(tiny, num_labels=3, rngs=nnx.Rngs(0)),
        lambda: models.SpanClassifier(tiny, rngs=nnx.Rngs(0)),
        lambda: replaced_tokens.Discriminator(tiny, rngs=nnx.Rngs(0)),
        lambda: next_token.NextTokenModel(tiny, rngs=nnx.Rngs(0)),
    )
    made = {}
    for make in kinds:
        params = jax.eval_shape(lambda make=make: parameters.split(make())[1])
        made |= {path: array.shape for path, array in parameters.flat(params).items()}
    assert pretrained.shapes(tiny, labels=3) == made


def test_all_faults_are_told_at_once(tiny, theirs):
    theirs["bert.embeddings.words"] = np.zeros((2, 3), np.float32)
    theirs["bert.pooler.dense.bias"] = np.zeros(31, np.float32)
    theirs["bert.encoder.layer.0.intermediate.dense.weight"] = np.zeros((32, 64), np.float32)
    theirs["cls.predictions.bias"] = np.zeros(tiny.vocab_size, np.int64)
    theirs["bert.encoder.layer.2.output.dense.bias"] = np.zeros(32, np.float32)
    theirs["bert.encoder.layer.01.output.dense.bias"] = np.zeros(32, np.float32)
    del theirs["bert.encoder.layer.1.attention.self.key.weight"]
    with pytest.raises(ValueError, match="do not fit") as caught:
        to_ours(theirs, tiny)
    faults = str(caught.value).splitlines()[1:]
    wanted = (
        "bert.embeddings.words [2, 3] is not a parameter that is known",
        "bert.pooler.dense.bias has the shape [31]; the config asks for [32]",
        "layer.0.intermediate.dense.weight has the shape [32, 64]; the config asks for [64, 32]",
        "cls.predictions.bias holds int64",
        "bert.encoder.layer.2.output.dense.bias belongs to a layer that the config does not have",
        "bert.encoder.layer.01.output.dense.bias [32] is not a parameter",
        "bert.encoder.layer.1.attention.self.key.weight (encoder.layers.1.attention.key.kernel)",
    )
    assert len(faults) == len(wanted)
    for text in wanted:
        assert sum(text in fault for fault in faults) == 1, text


def test_a_name_that_is_there_twice_or_nowhere_and_unequal_shares_are_errors(tiny, theirs):
    params = make_params(tiny) | {"generator.bias": np.zeros(3), "classifier.scale": np.zeros(3)}
    with pytest.raises(ValueError, match=r"classifier\.scale\n.*generator\.bias"):
        names.to_theirs(params, bert.TENSORS)
    theirs["pooler.dense.bias"] = theirs["bert.pooler.dense.bias"]
    with pytest.raises(ValueError, match=r"are the same parameter, pooler\.dense\.bias"):
        names.to_ours(theirs, bert.TENSORS, spelling=lambda n: n.replace("pooler", "bert.pooler", 1)
                      if n.startswith("pooler") else n)  # fmt: skip
    with pytest.raises(ValueError, match="rows of a.1.qkv is 4; it must be a multiple of 3"):
        names.unfuse({"a.1.qkv": np.zeros((4, 2))}, {"a.{layer}.qkv": ("a.q", "a.k", "a.v")})


def test_ignored_names_are_passed_over_and_no_others():
    theirs = {"output_bias": np.zeros(2, np.float32), "output_bias/adam_m": np.zeros(2)}
    params = names.to_ours(theirs, bert.VARIABLES, ignored=[r".*/adam_[mv]"])
    assert set(params) == {"classifier.bias"}
    with pytest.raises(ValueError, match="output_bias/adam_m"):
        names.to_ours(theirs, bert.VARIABLES, ignored=[r"adam_[mv]"])
