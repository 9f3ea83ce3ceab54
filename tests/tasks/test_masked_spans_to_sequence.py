"""Claims about pretraining with a decoder: its loss, what runs learn, and what it refuses.

The loss and its gradients are compared with torch's in tests/interop.
"""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import jobs, train
from bertjax.data import sequence_rows
from bertjax.models import parameters
from bertjax.tasks import masked_spans_to_sequence
from bertjax.training import config_faults
from tests import small_modules, small_packed, small_records, small_sequences
from tests.conftest import TINY
from tests.models import test_decoder

pytestmark = pytest.mark.usefixtures("quick_runs", "one_device")
SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 0},
    **{"intermediate_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dtype": "float32"},
}


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_losses_are_those_of_a_numpy_model_over_the_real_targets(rows):
    task = masked_spans_to_sequence.MaskedSpansToSequence(TINY, rows)
    model, batch = small_modules.made(task.init), small_sequences.batch(rows, TINY.vocab_size)
    params = jax.tree.map(np.float64, parameters.split(model)[1])
    logits = test_decoder.numpy_logits(batch, params, TINY, "embeddings")
    losses = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(
        logits, np.asarray(batch["target_labels"])[..., None], axis=-1
    ).squeeze(-1)
    weights = np.asarray(batch["target_mask"]) * batch["example_weights"][:, None]
    means = task.loss(model, batch, key=None)
    np.testing.assert_allclose(means["lm_loss"].total, (losses * weights).sum(), rtol=1e-6)
    hits = logits.argmax(axis=-1) == np.asarray(batch["target_labels"])
    assert means["lm_accuracy"].total == (hits * weights).sum()
    for mean in means.values():
        assert mean.weight == weights.sum() == task.weights(batch)["lm_loss"]
    assert weights[:-1].any(axis=1).all() and not weights[-1].any()


def test_a_target_without_a_token_has_no_loss_and_finite_gradients():
    task = masked_spans_to_sequence.MaskedSpansToSequence(TINY)
    batch = small_sequences.batch("mass", TINY.vocab_size)
    batch["target_mask"] = batch["target_mask"].at[0].set(0)
    graphdef, params = parameters.split(small_modules.made(task.init))

    def total(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return means["lm_loss"].total

    gradient = jax.jit(jax.grad(total))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_flops_are_three_times_the_products_of_the_forward_pass(rows):
    task = masked_spans_to_sequence.MaskedSpansToSequence(TINY, rows)
    model, batch = small_modules.made(task.init), small_sequences.batch(rows, TINY.vocab_size)
    graphdef, params = parameters.split(model)
    traced = jax.make_jaxpr(lambda p: parameters.merge(graphdef, p)(batch))(params)
    segments = 2 * 4 * (12 + batch["target_ids"].shape[1]) * 2 * 32  # a product with one-hot rows
    assert 3 * (products(traced.jaxpr) - segments) == task.train_flops(4, 12, 0)


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
        objective="masked_spans_to_sequence",
        sequence_rows=rows,
        masking="dynamic",
        pair_loss="none",
    )
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


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_a_run_lowers_the_loss_below_chance_and_is_scored(records_of_rows, tmp_path, rows):
    config = make_config(records_of_rows / "train", rows)
    config.data.eval_dir = str(records_of_rows / "heldout")
    train.train(config, tmp_path)
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    losses = [line["train/lm_loss"] for line in lines if "train/lm_loss" in line]
    assert len(losses) == 30
    assert losses[0] > np.log(20) - 0.5 and losses[-1] < 0.6 * losses[0]
    (scores,) = ([line for line in lines if "eval/heldout/lm_loss" in line],)
    assert scores[-1]["eval/heldout/lm_loss"] == pytest.approx(losses[-1], abs=0.5)
    assert scores[-1]["eval/heldout/unigram_loss"] > scores[-1]["eval/heldout/lm_loss"]


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
    assert batch["target_labels"].max() > 40 and batch["target_mask"].all()
    task = masked_spans_to_sequence.MaskedSpansToSequence(
        dataclasses.replace(TINY, vocab_size=50), rows
    )
    model = small_modules.made(task.init)
    assert np.isfinite(model(jax.tree.map(jnp.asarray, batch))).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pretraining.masking": "static"}, "masking is 'static'.*must be 'dynamic'"),
        ({"pretraining.pair_loss": "nsp"}, "pair_loss is 'nsp'.*must be 'none'"),
        ({"model.left_to_right": True}, "left_to_right is True.*must be False"),
        ({"model.language_embeddings": 3}, "language_embeddings is 3.*must be 0"),
        ({"model.num_hidden_groups": 1, "model.num_hidden_layers": 2}, "num_hidden_groups is 1.*0"),
        ({"model.inner_group_num": 2}, "inner_group_num is 2.*must be 1"),
        ({"model.embeddings": "patches"}, "embeddings is 'patches'.*'learnt' or 'token_dropout'"),
        ({"checkpoint.best_metric": "mlm_loss"}, "best_metric is 'mlm_loss'.*'lm_loss'"),
        ({"pretraining.sequence_rows": "t5"}, "sequence_rows is 't5'; known are mass, bart"),
        ({"pretraining.masked_lm_prob": 0.3}, "masked_lm_prob is 0.3, but .*reads no masks"),
        ({"phases.phase1.masked_lm_prob": 0.3}, "masked_lm_prob is 0.3, but .*reads no masks"),
        ({"pretraining.objective": "masked_tokens", "pretraining.sequence_rows": "bart"},
         "sequence_rows is 'bart', but .*'masked_tokens'"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_reported(change, words):
    config = make_config("train", **{"data.eval_dir": "heldout"})
    config_faults.validate(config)
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=words):
        config_faults.validate(config)


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
