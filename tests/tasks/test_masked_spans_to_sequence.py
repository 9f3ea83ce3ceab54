"""Claims about pretraining with a decoder: its loss, what runs learn, and what it refuses.

The loss and its gradients are compared with torch's in tests/interop.
"""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import jobs, train
from bertjax.data import sequence_rows
from bertjax.models import parameters
from bertjax.tasks import masked_spans_to_sequence
from tests import small_modules, small_packed, small_records, small_sequences
from tests.conftest import TINY
from tests.models import test_decoder

pytestmark = pytest.mark.usefixtures("quick_runs", "one_device")
ENCODER = dataclasses.replace(TINY, num_hidden_layers=1)
SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 0},
    **{"intermediate_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dtype": "float32"},
}


def split(rows):
    """A task of some rows, its graph and parameters, and a batch."""
    task = masked_spans_to_sequence.MaskedSpansToSequence(ENCODER, rows)
    graphdef, params = parameters.split(small_modules.made(task.init))
    return task, graphdef, params, small_sequences.batch(rows, ENCODER.vocab_size)


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_losses_and_flops_are_those_of_a_numpy_model_over_the_real_targets(rows):
    task, graphdef, params, batch = split(rows)
    exact = jax.tree.map(np.float64, params)
    logits = test_decoder.numpy_logits(batch, exact, ENCODER, "embeddings")
    losses = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(
        logits, np.asarray(batch["target_labels"])[..., None], axis=-1
    ).squeeze(-1)
    weights = np.asarray(batch["target_mask"]) * batch["example_weights"][:, None]
    means = jax.jit(lambda p: task.loss(parameters.merge(graphdef, p), batch, key=None))(params)
    np.testing.assert_allclose(means["lm_loss"].total, (losses * weights).sum(), rtol=1e-6)
    hits = logits.argmax(axis=-1) == np.asarray(batch["target_labels"])
    assert means["lm_accuracy"].total == (hits * weights).sum()
    for mean in means.values():
        assert mean.weight == weights.sum() == task.weights(batch)["lm_loss"]
    assert weights[:-1].any(axis=1).all() and not weights[-1].any()
    traced = jax.make_jaxpr(lambda p: parameters.merge(graphdef, p)(batch))(params)
    segments = 2 * 4 * (12 + batch["target_ids"].shape[1]) * 2 * 32  # a product with one-hot rows
    assert 3 * (products(traced.jaxpr) - segments) == task.train_flops(4, 12, 0)


def test_a_target_without_a_token_has_no_loss_and_finite_gradients():
    task, graphdef, params, batch = split("mass")
    batch["target_mask"] = batch["target_mask"].at[0].set(0)

    def total(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return means["lm_loss"].total

    gradient = jax.jit(jax.grad(total))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def products(jaxpr):
    """The FLOPs of the matrix products of a program."""
    flops = 0
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "jaxpr"):
                flops += products(inner.jaxpr)
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            size = np.prod([shape[axis] for axis in contracted])
            flops += 2 * size * np.prod(equation.outvars[0].aval.shape)
    return flops


def make_config(directory, rows="mass", **changes):
    config = config_lib.default_config()
    config.model.update(**SIZES)
    config.data.train_dir = str(directory)
    config.pretraining.update(
        objective="masked_spans_to_sequence", sequence_rows=rows, masking="dynamic"
    )
    config.pretraining.pair_loss = "none"
    config.global_batch_size = 16
    config.phases.phase1.update(num_steps=30, max_seq_length=16)
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=5)
    config.checkpoint.best_metric = "lm_loss"
    config.evaluation.global_batch_size = 16
    config.log_every_steps = 1
    config.writers = ()
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture(scope="module")
def records_of_rows(tmp_path_factory):
    """Rows of one token each, again and again, to train on and held out."""
    root = tmp_path_factory.mktemp("records")
    options = {"is_masked": False, "is_alike": True, "words": small_records.WORDS[:20]}
    options["stores_sentence_ends"] = True
    small_records.write(root / "train", documents=range(90), **options)
    small_records.write(root / "heldout", documents=range(90, 99), seed=1, counts=(17,), **options)
    return root


@pytest.mark.slow
def test_a_run_lowers_the_loss_below_chance_and_is_scored(records_of_rows, tmp_path):
    config = make_config(records_of_rows / "train", "bart")
    config.data.eval_dir = str(records_of_rows / "heldout")
    train.train(config, tmp_path)
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    losses = [line["train/lm_loss"] for line in lines if "train/lm_loss" in line]
    assert len(losses) == 30
    assert losses[0] > np.log(20) - 0.5 and losses[-1] < 0.6 * losses[0]
    scores = [line for line in lines if "eval/heldout/lm_loss" in line][-1]
    assert scores["eval/heldout/lm_loss"] == pytest.approx(losses[-1], abs=0.5)
    assert scores["eval/heldout/unigram_loss"] > scores["eval/heldout/lm_loss"]


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_batches_are_a_function_of_step_and_row_and_have_the_planned_shapes(records_of_rows, rows):
    job = jobs.JOBS["pretraining"].open(make_config(records_of_rows / "train", rows))
    (phase,) = job.phases

    def batches(start, part=None):
        return job.data.train_batches(phase, start_step=start, rows=part)

    first = batches(0)
    _, _, third = next(first), next(first), next(first)
    again, upper = next(batches(2)), next(batches(2, range(8, 16)))
    for name, values in third.items():
        np.testing.assert_array_equal(again[name], values)
        np.testing.assert_array_equal(upper[name], values[8:])
    shapes = {name: (it.shape, it.dtype) for name, it in job.data.abstract_batch(phase).items()}
    assert shapes == {name: (third[name].shape, third[name].dtype) for name in shapes}
    made = sequence_rows.SEQUENCE_ROWS[rows].features(16)
    assert made.keys() <= shapes.keys() and not {"masked_lm_ids", "ends_sentence"} & {*third}
    # An epoch has 168 rows: the same records, other rows.
    places = {tuple(place): row for row, place in enumerate(third["record_positions"].tolist())}
    seen = 0
    for batch in itertools.islice(batches(11), 11):
        for row, place in enumerate(batch["record_positions"].tolist()):
            if tuple(place) in places:
                one, other = batch["input_ids"][row], third["input_ids"][places[tuple(place)]]
                seen += not np.array_equal(one, other)
    assert seen > 8


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_random_tokens_have_the_features_of_records(rows):
    config = make_config("", rows, **{"data.source": "synthetic", "model.vocab_size": 50})
    job = jobs.JOBS["pretraining"].open(config)
    batch = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    abstract = job.data.abstract_batch(job.phases[0])
    assert {name: batch[name].shape for name in abstract} == {
        name: it.shape for name, it in abstract.items()
    }
    assert 40 < batch["target_labels"].max() < 50 and batch["target_mask"].all()
    assert max(batch["input_ids"].max(), batch["target_ids"].max()) < 50


def test_bart_needs_the_ends_of_sentences(tmp_path):
    small_records.write(tmp_path / "train", is_masked=False)
    jobs.JOBS["pretraining"].open(make_config(tmp_path / "train", "mass"))
    with pytest.raises(ValueError, match="where sentences end.*'bart'.*--sentence_ends"):
        jobs.JOBS["pretraining"].open(make_config(tmp_path / "train", "bart"))


def test_rows_of_several_sequences_are_refused(tmp_path):
    known = small_records.vocabulary()
    sizes = {"length": 16, "most": 4, "vocab_size": known.vocab_size}
    directory = tmp_path / "packed"
    record_set = small_packed.write(directory, [[[7, 5, 4], [16], [3, 3, 3, 3], [5, 11]]], **sizes)
    known.save(directory)
    dataclasses.replace(record_set.manifest, tokenizer=known.describe()).save(directory)
    with pytest.raises(ValueError, match="rows hold several sequences.*one source a row.*packing"):
        jobs.JOBS["pretraining"].open(make_config(directory))
