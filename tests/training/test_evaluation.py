"""Answers of batches put in order again, and scores on whatever mesh."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.devices import sharding
from bertjax.tasks import metrics, prediction
from bertjax.training import evaluation


def parts_of(lengths, batch_size=4, *, seed=0):
    """Answers of batches of several lengths; what an example answers is told by its number."""
    rng = np.random.default_rng(seed)
    count = len(lengths) * batch_size - 2
    positions = np.append(rng.permutation(count), [-1, -1]).reshape(len(lengths), batch_size)
    return [
        {
            "record_positions": own,
            "classes": own * 10,
            "tags": np.broadcast_to(own[:, None], (batch_size, length)).astype(np.int32),
            "logits": np.broadcast_to(own[:, None, None], (batch_size, length, 2)).astype("f4"),
        }
        for own, length in zip(positions, lengths, strict=True)
    ], positions


def test_answers_are_in_the_order_of_the_examples_and_fillers_are_dropped():
    parts, positions = parts_of([8, 8, 8])
    outputs = prediction.in_order(parts)
    count = positions.size - 2
    assert set(outputs) == {"classes", "tags", "logits"}
    np.testing.assert_array_equal(outputs["classes"], np.arange(count) * 10)
    np.testing.assert_array_equal(outputs["tags"][:, 0], np.arange(count))
    np.testing.assert_array_equal(outputs["logits"][:, -1, 1], np.arange(count))


def test_shorter_rows_are_padded_on_the_right_with_what_no_answer_is():
    lengths = [5, 8, 3]
    parts, positions = parts_of(lengths)
    outputs = prediction.in_order(parts)
    assert outputs["tags"].shape == (10, 8) and outputs["logits"].shape == (10, 8, 2)
    for own, length in zip(positions, lengths, strict=True):
        for example in own[own >= 0]:
            assert (outputs["tags"][example, :length] == example).all()
            assert (outputs["tags"][example, length:] == -1).all()
            assert (outputs["logits"][example, length:] == np.finfo(np.float32).min).all()


def test_a_task_without_answers_has_none():
    assert prediction.in_order([]) == {}
    assert prediction.in_order([{}, {}]) == {}


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
def test_scores_and_answers_are_those_of_all_examples_on_any_mesh(devices):
    mesh = sharding.make_mesh(jax.devices()[:devices], data=devices)
    values = np.arange(10, dtype=np.float32)
    order = np.append(np.random.default_rng(0).permutation(10), [-1, -1]).reshape(3, 4)
    batches = [
        {
            "x": values[own],
            "example_weights": (own >= 0).astype(np.float32),
            "record_positions": own,
        }
        for own in order
    ]

    def step(params, batch):
        total = (params["scale"] * batch["x"] * batch["example_weights"]).sum()
        means = {"loss": metrics.Mean(total, batch["example_weights"].sum())}
        positions = batch["record_positions"]
        return means, {"twice": 2 * batch["x"], "record_positions": positions}

    params = {"scale": jnp.float32(3)}
    replicated = jax.sharding.NamedSharding(mesh, sharding.P())
    jitted = jax.jit(step, out_shardings=replicated)
    with jax.set_mesh(mesh):
        scores, outputs = evaluation.evaluate(
            jitted, params, iter(batches), mesh=mesh, global_batch_size=4
        )
        alone = prediction.predict(
            lambda *args: jitted(*args)[1],
            params,
            iter(batches),
            mesh=mesh,
            global_batch_size=4,
        )
    assert scores == {"loss": pytest.approx(3 * values.mean())}
    np.testing.assert_array_equal(outputs["twice"], 2 * values)
    np.testing.assert_array_equal(alone["twice"], 2 * values)


@pytest.mark.parametrize(("answer", "warnings"), [("entailment", 1), (None, 0)])
def test_one_answer_to_a_whole_set_is_warned_of(monkeypatch, caplog, answer, warnings):
    scorer = types.SimpleNamespace(
        scores=lambda name, outputs: {"accuracy": 0.5},
        only_answer=lambda name, outputs, scores: answer,
        majority=lambda name: ("entailment", {"accuracy": 0.527}),
    )
    job = types.SimpleNamespace(
        evaluation=types.SimpleNamespace(scorer=scorer, chance={}, max_batches=0),
        data=types.SimpleNamespace(evaluation_batches=lambda name, batch_size, rows: iter(())),
    )
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: ({"loss": 0.7}, {}))
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    found = evaluation.evaluate_set(job, "dev", None, None, mesh=mesh, batch_size=4)
    assert found == {"loss": 0.7, "accuracy": 0.5}
    said = [
        each for each in caplog.records if "Every answer to dev is 'entailment'" in each.message
    ]
    assert len(said) == warnings
    assert evaluation.majority_baseline(job, "dev") == "; always 'entailment': accuracy 0.5270"


@pytest.mark.parametrize(("tuned", "kept"), [({"threshold": -2.0}, {"threshold": -2.0}), ({}, {})])
def test_answers_that_are_no_numbers_have_no_scores(monkeypatch, caplog, tuned, kept):
    scorer = types.SimpleNamespace(scores=lambda name, outputs: {"f1": 50.0, **tuned})
    job = types.SimpleNamespace(
        evaluation=types.SimpleNamespace(
            scorer=scorer, chance={}, max_batches=0, tunes=("threshold",)
        ),
        data=types.SimpleNamespace(evaluation_batches=lambda name, batch_size, rows: iter(())),
    )
    outputs = {"start_logits": np.array([[0.0, np.nan]])}
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: ({"loss": 0.7}, outputs))
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    found = evaluation.evaluate_set(job, "dev", None, None, mesh=mesh, batch_size=4)
    assert np.isnan([found.pop("loss"), found.pop("f1")]).all() and found == kept
    assert "hold NaN or infinite numbers: it has no scores" in caplog.text
