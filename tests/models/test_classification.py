"""The heads of finetuning: what they depend on, poolings, and where dropout is."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.models import parameters, pooling
from bertjax.tasks import pretraining
from tests import small_modules


@pytest.fixture
def tiny(tiny):
    """One layer is enough here."""
    return dataclasses.replace(tiny, num_hidden_layers=1)


def make(kind, config, **options):
    labels = {} if kind in (models.SpanClassifier, models.MultipleChoice) else {"num_labels": 3}
    return small_modules.made(kind, config, **labels, **options)


INPUTS = ("input_ids", "input_mask", "segment_ids")
KINDS = (models.SequenceClassifier, models.TokenClassifier, models.SpanClassifier)


def test_heads_read_the_first_position_or_all(tiny, batch):
    model = make(models.SequenceClassifier, tiny)
    pooled = model.pooler(model.encoder(batch)[:, 0])
    np.testing.assert_allclose(model(batch), model.classifier(pooled), atol=1e-6)
    assert model(batch).shape == (16, 3)
    model = make(models.SpanClassifier, tiny)
    both = model.span_head(model.encoder(batch))
    np.testing.assert_allclose(np.stack(model(batch), -1), both, atol=1e-6)


def test_choices_are_scored_one_by_one(tiny, batch):
    model = make(models.MultipleChoice, tiny)
    choices = {name: batch[name].reshape(8, 2, -1) for name in INPUTS}
    logits = model(choices | {"labels": jnp.zeros(8, jnp.int32)})
    assert logits.shape == (8, 2)
    second = model({name: x[:, 1:] for name, x in choices.items()})
    np.testing.assert_allclose(logits[:, 1:], second, atol=1e-6)


@pytest.mark.parametrize("kind", [models.SequenceClassifier, models.TokenClassifier])
def test_there_is_dropout_before_the_head(kind, tiny, batch):
    model = make(kind, dataclasses.replace(tiny, hidden_dropout_prob=0.5))
    np.testing.assert_array_equal(model(batch), make(kind, tiny)(batch))  # none without a key
    model.encoder = small_modules.made(models.make_encoder, tiny)  # which has none
    outputs = [model(batch, key=jax.random.key(n)) for n in (0, 0, 1)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 0


@pytest.mark.parametrize("kind", [*KINDS, models.MultipleChoice])
def test_logits_are_float32_whatever_the_encoder_computes_in(kind, tiny, batch):
    model = make(kind, dataclasses.replace(tiny, dtype="bfloat16"))
    if kind is models.MultipleChoice:
        batch = {name: batch[name][:, None] for name in INPUTS}
    logits = jax.eval_shape(lambda batch: model(batch), batch)
    assert {x.dtype for x in jax.tree.leaves(logits)} == {jnp.dtype("float32")}


def test_encoder_and_pooler_have_the_names_of_pretraining(tiny):
    pretrained = small_modules.made(pretraining.PretrainingModel, tiny, pair_loss="nsp")
    _, params = parameters.split(pretrained)
    _, finetuned = parameters.split(make(models.SequenceClassifier, tiny))
    for part in ("encoder", "pooler"):
        assert jax.tree.structure(params[part]) == jax.tree.structure(finetuned[part])
    assert set(finetuned) == {"encoder", "pooler", "classifier"}


def test_a_pooling_of_all_positions_needs_no_pooler_and_an_unknown_one_is_refused(tiny, batch):
    for name in ("mean", "max", "weighted", "last"):
        model = small_modules.made(models.SequenceClassifier, tiny, num_labels=3, pooling=name)
        pooled = pooling.pool(model.encoder(batch), batch["input_mask"], name)
        np.testing.assert_allclose(model(batch), model.classifier(pooled), atol=1e-6)
        assert set(parameters.split(model)[1]) == {"encoder", "classifier"}
    with pytest.raises(ValueError, match="pooling is 'first'; known are cls, mean, max, weighted"):
        models.SequenceClassifier(tiny, num_labels=3, pooling="first", rngs=nnx.Rngs(0))


BILSTM = 5
made_with_lstm = functools.partial(make, bilstm_size=BILSTM)


def lstm_states(model, batch):
    return model.lstm(model.encoder(batch), batch["input_mask"] != 0)


@pytest.mark.parametrize("pooling", [pytest.param("cls", marks=pytest.mark.slow), "last"])
def test_with_a_bilstm_a_sequence_is_classified_by_the_end_of_each_direction(pooling, tiny, batch):
    model = made_with_lstm(models.SequenceClassifier, tiny, pooling=pooling)
    states = np.asarray(lstm_states(model, batch))
    last = np.asarray(batch["input_mask"]).sum(axis=1) - 1
    ends = [states[np.arange(16), last, :BILSTM], states[:, 0, BILSTM:]]
    wanted = model.classifier(jnp.concatenate(ends, axis=-1))
    np.testing.assert_allclose(model(batch), wanted, atol=1e-6)
    assert set(parameters.split(model)[1]) == {"encoder", "lstm", "classifier"}


@pytest.mark.slow
def test_with_a_bilstm_all_other_heads_read_its_states(tiny, batch):
    tagger, spans = (
        made_with_lstm(kind, tiny) for kind in (models.TokenClassifier, models.SpanClassifier)
    )
    read = tagger.classifier(lstm_states(tagger, batch))
    np.testing.assert_allclose(tagger(batch), read, atol=1e-6)
    both = spans.span_head(lstm_states(spans, batch))
    np.testing.assert_allclose(np.stack(spans(batch), -1), both, atol=1e-6)
    chooser = made_with_lstm(models.MultipleChoice, tiny)
    classifier = made_with_lstm(models.SequenceClassifier, tiny)
    of_pairs = {name: batch[name].reshape(8, 2, -1) for name in INPUTS}
    for name in ("encoder", "lstm"):
        setattr(classifier, name, getattr(chooser, name))
    classifier.classifier = chooser.classifier
    np.testing.assert_allclose(chooser(of_pairs).reshape(-1, 1), classifier(batch), atol=1e-6)


def test_through_a_bilstm_the_first_token_tells_of_what_lies_right_of_it(tiny, batch):
    """Also where attention looks to the left alone: the way the paper gave such a model."""
    model = made_with_lstm(models.TokenClassifier, dataclasses.replace(tiny, left_to_right=True))
    changed = batch | {"input_ids": batch["input_ids"].at[:, 8].add(1)}
    is_same = jnp.isclose(model.encoder(batch)[:, 0], model.encoder(changed)[:, 0])
    assert bool(is_same.all())
    assert jnp.abs(model(batch)[:, 0] - model(changed)[:, 0]).max() > 1e-6


LENGTHS = (5, 3, 1)
REFERENCES = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "weighted": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
    "last": lambda states: states[-1],
}


def test_real_positions_alone_are_pooled_and_a_sequence_without_tokens_is_zero():
    assert set(REFERENCES) == set(pooling.POOLINGS)
    hidden = np.random.default_rng(0).normal(size=(len(LENGTHS), 5, 4)) - 2
    mask = np.arange(5) < np.array(LENGTHS)[:, None]
    for name, reference in REFERENCES.items():
        pooled = pooling.pool(jnp.asarray(hidden, jnp.float32), jnp.asarray(mask, jnp.int32), name)
        for vector, states, length in zip(pooled, hidden, LENGTHS, strict=True):
            np.testing.assert_allclose(vector, reference(states[:length]), atol=1e-6)
        ones = jnp.ones((2, 3, 4), jnp.bfloat16)
        assert not pooling.pool(ones, jnp.zeros((2, 3), jnp.int32), name).any()
    with pytest.raises(ValueError, match="pooling is 'first'; known are cls, mean"):
        pooling.pool(ones, jnp.zeros((2, 3), jnp.int32), "first")
