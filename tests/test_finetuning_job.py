"""Claims about whole runs of finetuning through `train.train`: they learn, evaluate and resume."""

import json

import jax
import numpy as np
import pytest

from bertjax import train
from bertjax.training import preemption
from bertjax.workdirs import checkpoint, reader
from tests import small_datasets

pytestmark = pytest.mark.usefixtures("one_device")

BEST = {"squad_v1": 100.0, "squad_v2": 100.0, "conll": 100.0, "regression": 0.97}
WRITTEN = {
    "glue": {"test.tsv"},
    "regression": {"test.tsv"},
    "table": {"test.tsv"},
    "squad_v1": {"predictions.json", "nbest_predictions.json"},
    "squad_v2": {"predictions.json", "nbest_predictions.json", "null_odds.json"},
    "conll": {"test.conll"},
    "swag": {"test.csv"},
}


def scores_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval/dev/loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("kind", small_datasets.KINDS)
def test_sixteen_examples_of_every_kind_are_learnt_to_a_perfect_score(tmp_path, source, kind):
    changes = {"finetuning.num_epochs": 150.0, "finetuning.length_buckets": False}
    config = small_datasets.make_config(tmp_path / "data", kind, source, **changes)
    train.train(config, tmp_path / "run")
    name, _ = finetuning.open_job(config).best_score
    assert scores_of(tmp_path / "run")[-1][f"eval/dev/{name}"] >= BEST.get(kind, 1.0)
    written = {path.name for path in (tmp_path / "run/predictions").rglob("*") if path.is_file()}
    assert written == WRITTEN[kind]


def test_a_run_evaluates_writes_predictions_and_keeps_what_the_data_told(tmp_path, source):
    changes = {"finetuning.num_epochs": 2.0, "evaluation.every_steps": 0}
    config = small_datasets.make_config(tmp_path / "data", "table", source, **changes)
    train.train(config, tmp_path / "run")
    found = scores_of(tmp_path / "run")
    assert [line["step"] for line in found] == [2, 4]  # after each epoch
    assert {"eval/dev/accuracy", "eval/dev/macro_f1"} <= found[-1].keys()
    lines = (tmp_path / "run/predictions/test.tsv").read_text().splitlines()
    assert len(lines) == 17 and lines[1].split("\t")[1].startswith("class ")
    params, meta, step = checkpoint.load_params(tmp_path / "run")
    assert step == 4 and params["classifier"]["kernel"].shape == (32, 3)
    saved = reader.config_of(meta)
    assert saved.finetuning.labels == ("class 0", "class 1", "class 2")
    assert saved.phases.phase1.num_steps == 4 and saved.model.hidden_size == 32


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, source, monkeypatch):
    """Length buckets and an epoch's border between both halves included."""
    changes = {"finetuning.num_epochs": 3.0, "global_batch_size": 5, "finetuning.name": "v2"}
    changes |= {"model.hidden_dropout_prob": 0.1, "finetuning.max_seq_length": 40}
    config = small_datasets.make_config(tmp_path / "data", "squad_v2", source, **changes)
    whole = train.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(preemption.Notice, "reached", lambda self, step: step == 7)
        with pytest.raises(preemption.Preempted):
            train.train(config, tmp_path / "stopped")
    resumed = train.train(config, tmp_path / "stopped")
    assert int(resumed.step) == int(whole.step)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


@pytest.mark.slow
def test_a_run_over_other_rows_is_not_continued(tmp_path, source):
    changes = {"finetuning.num_epochs": 1.0}
    config = small_datasets.make_config(tmp_path / "data", "table", source, **changes)
    train.train(config, tmp_path / "run")
    path = tmp_path / "data/train.csv"
    path.write_text(path.read_text().replace("class 2", "class 1", 1))
    with pytest.raises(ValueError, match="cannot be continued"):
        train.train(config, tmp_path / "run")
