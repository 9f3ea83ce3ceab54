"""Finetuning through the loop: what it leaves behind, what may stay frozen, how it goes on."""

import json

import jax
import numpy as np
import pytest

from bertjax import checkpoint, evaluate, preemption, train
from tests import small_datasets


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    devices = jax.devices()[:1]
    monkeypatch.setattr(train.jax, "devices", lambda: devices)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return small_datasets.write_source(tmp_path_factory.mktemp("source") / "weights")


def make_config(tmp_path, source, kind="glue", **changes):
    """Two epochs, 4 steps, with dropout; evaluated after each epoch."""
    few = {
        "finetuning.num_epochs": 2.0,
        "model.hidden_dropout_prob": 0.1,
        "evaluation.every_steps": 0,
        "log_every_steps": 1,
    }
    return small_datasets.make_config(tmp_path / "data", kind, source, **few | changes)


def lines_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_scores_predictions_and_labels(tmp_path, source):
    config = make_config(tmp_path, source, **{"schedule.warmup_share": 0.5})
    train.train(config, tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    evaluations = [line for line in lines if "eval/dev/accuracy" in line]
    assert [line["step"] for line in evaluations] == [2, 4]
    assert all(np.isfinite(line["eval/dev/loss"]) for line in evaluations)
    rates = [line["train/learning_rate"] for line in lines if "train/loss" in line]
    np.testing.assert_allclose(rates, 2e-3 * np.array([0, 0.5, 1, 0.5]), rtol=1e-5)
    assert list((tmp_path / "run" / train.PREDICTIONS_DIRECTORY).iterdir())
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["finetuning"]["labels"] == ["entailment", "not_entailment"]


@pytest.mark.slow
def test_a_finished_run_keeps_its_predictions_and_takes_a_moved_directory(tmp_path, source):
    config = make_config(tmp_path, source)
    train.train(config, tmp_path / "run")
    (written,) = (tmp_path / "run" / train.PREDICTIONS_DIRECTORY).iterdir()
    before = written.stat().st_mtime_ns
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    config.finetuning.data_dir = str(moved)
    train.train(config, tmp_path / "run")
    assert written.stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_that_was_stopped_ends_as_if_it_never_had(tmp_path, source, monkeypatch, stop):
    config = make_config(tmp_path, source)
    whole = train.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(preemption.Notice, "reached", lambda self, step: step == stop)
        with pytest.raises(preemption.Preempted, match=f"saved at step {stop}"):
            train.train(config, tmp_path / "parts")
    parts = train.train(config, tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


@pytest.mark.slow
def test_low_rank_training_changes_factors_and_head_and_keeps_no_more_moments(tmp_path, source):
    changes = {"finetuning.lora_rank": 2, "finetuning.lora_targets": (r".*\.query\.kernel",)}
    config = make_config(tmp_path, source, "table", **changes)
    run = train.prepare(config, tmp_path / "run")
    last = train.execute(run)
    with jax.set_mesh(run.mesh):
        start = train.warm_start.apply(
            train.warm_start.of_job(run.job, run.abstract_state.params), run.init(run.knobs.seed)
        )
    same = jax.tree.map(lambda a, b: bool((a == b).all()), start.params, last.params)
    assert all(jax.tree.leaves(same["encoder"]))
    assert not any(jax.tree.leaves(same["lora"])) and not any(jax.tree.leaves(same["classifier"]))
    trained = sum(
        leaf.size
        for leaf in jax.tree.leaves([last.params[n] for n in last.params if n != "encoder"])
    )
    moments = sum(leaf.size for leaf in jax.tree.leaves(last.opt_state))
    assert moments == 2 * trained + 1  # and Adam's count


@pytest.mark.slow
def test_the_checkpoint_with_the_highest_score_stays(tmp_path, source, monkeypatch):
    config = make_config(
        tmp_path,
        source,
        **{
            "checkpoint.keep_best": 1,
            "checkpoint.save_every_steps": 1,
            "evaluation.every_steps": 1,
        },
    )
    scores = iter([0.2, 0.9, 0.3, 0.1])
    monkeypatch.setattr(
        train.jobs.FinetuningJob, "scores", lambda self, name, outputs: {"accuracy": next(scores)}
    )
    train.train(config, tmp_path / "run")
    steps = sorted(int(path.name) for path in (tmp_path / "run" / checkpoint.DIRECTORY).iterdir())
    assert steps == [2, 4]


def test_a_finetuned_model_is_not_scored_on_records(tmp_path, source):
    train.train(make_config(tmp_path, source, **{"finetuning.num_epochs": 0.5}), tmp_path / "run")
    with pytest.raises(ValueError, match=r"task 'finetuning'.*bertjax\.predict"):
        evaluate.evaluate_checkpoint(str(tmp_path / "run"), "records", batch_size=8)
