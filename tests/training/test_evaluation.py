"""Answers of batches put in order again, and scores on whatever mesh."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax.devices import sharding
from bertjax.tasks import metrics, prediction
from bertjax.training import evaluation


def test_predictions_are_in_the_order_of_the_examples_and_shorter_rows_are_padded_on_the_right():
    """Batches of several lengths; the prediction for an example is its number."""
    lengths = [5, 8, 3]
    positions = np.append(np.random.default_rng(0).permutation(10), [-1, -1]).reshape(3, 4)
    parts = [
        {
            "record_positions": rows,
            "classes": rows * 10,
            "tags": np.broadcast_to(rows[:, None], (4, length)).astype(np.int32),
            "logits": np.broadcast_to(rows[:, None, None], (4, length, 2)).astype("f4"),
        }
        for rows, length in zip(positions, lengths, strict=True)
    ]
    outputs = prediction.in_order(parts)
    assert set(outputs) == {"classes", "tags", "logits"}
    np.testing.assert_array_equal(outputs["classes"], np.arange(10) * 10)
    assert outputs["tags"].shape == (10, 8) and outputs["logits"].shape == (10, 8, 2)
    for rows, length in zip(positions, lengths, strict=True):
        for example in rows[rows >= 0]:
            assert (outputs["tags"][example, :length] == example).all()
            assert (outputs["tags"][example, length:] == -1).all()
            assert (outputs["logits"][example, :length] == example).all()
            assert (outputs["logits"][example, length:] == np.finfo(np.float32).min).all()
    assert prediction.in_order([]) == prediction.in_order([{}, {}]) == {}


@pytest.mark.parametrize("answers", [[3.0, 1.0, 2.0, 4.0], [3.0, np.nan, 2.0, 4.0]])
def test_a_set_without_losses_is_scored_by_its_answers_in_their_order(answers, caplog):
    batches = [
        {"answers": np.float32([answers[i] for i in own]), "record_positions": np.array(own)}
        for own in ([2, 0], [3, 1])
    ]
    judge = types.SimpleNamespace(scores=lambda outputs: {"first": float(outputs["answers"][0])})
    job = types.SimpleNamespace(
        data=types.SimpleNamespace(evaluation_batches=lambda name, **_: iter(batches)),
        evaluation=types.SimpleNamespace(answered={"pairs": judge}),
    )
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    found = evaluation.score_answers(
        job, "pairs", lambda params, batch: batch, {}, mesh=mesh, batch_size=2
    )
    if np.isnan(answers).any():
        assert np.isnan(found["first"]) and "hold NaN" in caplog.text
    else:
        assert found == {"first": 3.0}


@pytest.mark.parametrize("devices", [1, 4])
def test_scores_and_predictions_are_those_of_all_examples_on_any_mesh(devices):
    mesh = sharding.make_mesh(jax.devices()[:devices], data=devices)
    values = np.arange(10, dtype=np.float32)
    order = np.append(np.random.default_rng(0).permutation(10), [-1, -1]).reshape(3, 4)
    batches = [
        {"x": values[it], "example_weights": np.float32(it >= 0), "record_positions": it}
        for it in order
    ]

    def step(params, batch):
        total = (params["scale"] * batch["x"] * batch["example_weights"]).sum()
        means = {"loss": metrics.Mean(total, batch["example_weights"].sum())}
        return means, {"twice": 2 * batch["x"], "record_positions": batch["record_positions"]}

    params = {"scale": jnp.float32(3)}
    jitted = jax.jit(step, out_shardings=jax.sharding.NamedSharding(mesh, sharding.P()))
    options = {"mesh": mesh, "global_batch_size": 4}
    with jax.set_mesh(mesh):
        scores, outputs = evaluation.evaluate(jitted, params, iter(batches), **options)
        alone = prediction.predict(
            lambda *arguments: jitted(*arguments)[1], params, iter(batches), **options
        )
    assert scores == {"loss": pytest.approx(3 * values.mean())}
    np.testing.assert_array_equal(outputs["twice"], 2 * values)
    np.testing.assert_array_equal(alone["twice"], 2 * values)


def test_bits_per_byte_compare_vocabularies():
    # 100 bytes in 25 tokens of 4 bits and in 50 of 2: the text has one bit per byte in both.
    for name, tokens, bits in (("mlm_loss", 25, 4), ("lm_loss", 50, 2)):
        values = {name: bits * math.log(2), "nsp_loss": 0.6}
        assert evaluation.bits_per_byte(values, tokens / 100) == {"bits_per_byte": 1.0}
        assert evaluation.bits_per_byte(values, None) == {}
    assert evaluation.bits_per_byte({"loss": 0.7}, 0.25) == {}


def scored(monkeypatch, outputs, tunes=(), **scorer):
    """A job with a set "dev" of no batches; its scores, as `evaluate_set` returns them."""
    evaluated = types.SimpleNamespace(
        scorer=types.SimpleNamespace(**scorer),
        chance={},
        tokens_per_byte={},
        max_batches=0,
        tunes=tunes,
    )
    data = types.SimpleNamespace(evaluation_batches=lambda name, batch_size, rows: iter(()))
    config = config_lib.default_config()
    config.finetuning.labels = ("contradiction", "entailment")
    job = types.SimpleNamespace(
        config=config, evaluation=evaluated, data=data, chance=lambda values: {}
    )
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: ({"loss": 0.7}, outputs))
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    return job, evaluation.evaluate_set(job, "dev", None, None, mesh=mesh, batch_size=4)


@pytest.mark.parametrize(("answer", "number"), [("entailment", 1), ("of spans", -1), (None, None)])
def test_one_prediction_for_a_whole_set_is_a_score(monkeypatch, answer, number):
    job, scores = scored(
        monkeypatch,
        {},
        scores=lambda name, outputs: {"accuracy": 0.5},
        only_answer=lambda name, outputs, scores: answer,
        majority=lambda name: ("entailment", {"accuracy": 0.527}),
    )
    assert scores.pop("only_class", None) == number
    assert scores == {"loss": 0.7, "accuracy": 0.5, "majority_accuracy": 0.527}
    assert evaluation.majority_baseline(job, "dev") == "; majority: always 'entailment'"


@pytest.mark.parametrize("tuned", [{"threshold": -2.0}, {}])
def test_predictions_that_are_no_numbers_have_no_scores(monkeypatch, caplog, tuned):
    _, scores = scored(
        monkeypatch,
        {"start_logits": np.array([[0.0, np.nan]])},
        tunes=("threshold",),
        scores=lambda name, outputs: {"f1": 50.0, **tuned},
    )
    assert np.isnan([scores.pop("loss"), scores.pop("f1")]).all() and scores == tuned
    assert "hold NaN or infinite numbers: it has no scores" in caplog.text


def test_sets_that_are_named_have_a_table_and_the_means_of_what_all_of_them_have():
    options = {"averaged": ("en", "zh"), "tunes": ("threshold",)}
    job = types.SimpleNamespace(evaluation=types.SimpleNamespace(**options))
    scores = {
        "en": {"f1": 80.0, "threshold": 1.0, "only": 1.0},
        "zh": {"f1": 30.0, "threshold": 1.0},
    }
    found = evaluation.with_mean(job, scores)
    assert found == {**scores, "mean": {"f1": 55.0}}
    assert evaluation.table(found).splitlines() == [
        "           f1  threshold    only",
        "en    80.0000     1.0000  1.0000",
        "zh    30.0000     1.0000       -",
        "mean  55.0000          -       -",
    ]
    options["averaged"] = ()
    job = types.SimpleNamespace(evaluation=types.SimpleNamespace(**options))
    assert evaluation.with_mean(job, scores) == scores
