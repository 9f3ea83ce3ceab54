"""Finetuning through the loop: what it leaves behind, what may stay frozen, how it goes on."""

import json
import shutil

import jax
import numpy as np
import pytest

from bertjax import evaluate, train
from bertjax.finetuning import texts
from bertjax.jobs import finetuning
from bertjax.training import evaluation, warm_start
from bertjax.workdirs import checkpoint, reader, scalars
from tests import marks, small_datasets

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

# Kind -> the least score, and the files of predictions. test_roberta_programs.py learns SQuAD 1.1;
# a table is learnt as GLUE is.
LEARNT = {
    "glue": (1.0, {"test.tsv"}),
    "regression": (0.97, {"test.tsv"}),
    "multi_label": (1.0, {"test.tsv"}),
    "squad_v2": (100.0, {"predictions.json", "nbest_predictions.json", "null_odds.json"}),
    "conll": (100.0, {"test.conll"}),
    "swag": (1.0, {"test.csv"}),
}


def make_config(tmp_path, source, kind="glue", **changes):
    """Two epochs, 4 steps of one length, with dropout; evaluated after each epoch."""
    few = {
        "finetuning.num_epochs": 2.0,
        "finetuning.length_buckets": False,
        "model.hidden_dropout_prob": 0.1,
        "evaluation.every_steps": 0,
        "log_every_steps": 1,
    }
    return small_datasets.make_config(tmp_path / "data", kind, source, **few | changes)


def lines_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_scores_predictions_and_what_the_data_told(tmp_path, source, caplog):
    config = make_config(tmp_path, source, "table", **{"schedule.warmup_share": 0.5})
    with caplog.at_level("INFO", logger="absl"):
        train.train(config, tmp_path / "run")
    told = [record.message for record in caplog.records if "Evaluation on dev" in record.message]
    of_majority = "majority_accuracy 0.3750, majority_macro_f1 0.1818; majority: always 'class 0'"
    assert told and all(it.endswith(of_majority) for it in told)
    lines = lines_of(tmp_path / "run")
    evaluations = [line for line in lines if "eval/dev/accuracy" in line]
    assert [line["step"] for line in evaluations] == [2, 4]  # after each epoch
    assert all(np.isfinite(line["eval/dev/loss"]) for line in evaluations)
    assert evaluations[-1]["eval/dev/majority_macro_f1"] == pytest.approx(0.1818, abs=1e-4)
    rates = [line["train/learning_rate"] for line in lines if "train/loss" in line]
    np.testing.assert_allclose(rates, 2e-3 * np.array([0, 0.5, 1, 0.5]), rtol=1e-5)
    predictions = tmp_path / "run" / evaluation.PREDICTIONS_DIRECTORY / "test.tsv"
    written = predictions.read_text().splitlines()
    assert len(written) == 17 and written[1].split("\t")[1].startswith("class ")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["finetuning"]["labels"] == ["class 0", "class 1", "class 2"]
    found = reader.read(tmp_path / "run")
    assert found.step == 4 and found.params["classifier"]["kernel"].shape == (32, 3)
    assert found.config.finetuning.labels == ("class 0", "class 1", "class 2")
    assert found.config.phases.phase1.num_steps == 4 and found.config.model.hidden_size == 32


@pytest.fixture(scope="module")
def finished(tmp_path_factory, source):
    """The config of a run that has ended, and the directory of its data and its workdir."""
    root, devices = tmp_path_factory.mktemp("finished"), jax.devices()[:1]
    config = make_config(root, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        train.train(config, root / "run")
    return config, root


def copied(finished, target):
    """Returns the config of a copy of a finished run and of its data."""
    config, root = finished
    shutil.copytree(root, target, dirs_exist_ok=True)
    config = config.copy_and_resolve_references()
    config.finetuning.data_dir = str(target / "data")
    return config


@pytest.mark.slow
def test_a_finished_run_goes_on_from_a_moved_directory_and_not_over_other_rows(
    finished, tmp_path, caplog
):
    config = copied(finished, tmp_path)
    (written,) = (tmp_path / "run" / evaluation.PREDICTIONS_DIRECTORY).iterdir()
    before = written.stat().st_mtime_ns
    with caplog.at_level("INFO", logger="absl"):
        train.train(config, tmp_path / "run")
    assert written.stat().st_mtime_ns == before
    assert "already; for others remove it" in caplog.text
    path = tmp_path / "data" / "RTE" / "train.tsv"
    path.write_text(path.read_text().replace("not_entailment", "entailment", 1))
    with pytest.raises(ValueError, match="cannot be continued"):
        train.train(config, tmp_path / "run")


@pytest.mark.slow
def test_predictions_are_there_for_all_test_sets_or_for_none(tmp_path, source, monkeypatch):
    config = make_config(tmp_path, source, **{"finetuning.num_epochs": 1.0})
    monkeypatch.setattr(texts.GlueReader, "test_sets", ("test", "dev"))
    with monkeypatch.context() as patch:
        write = texts.GlueScorer.write_predictions

        def killed_at_the_second(self, name, outputs, directory, tuned):
            if name == "dev":
                raise KeyboardInterrupt
            write(self, name, outputs, directory, tuned)

        patch.setattr(texts.GlueScorer, "write_predictions", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            train.train(config, tmp_path / "run")
    directory = tmp_path / "run" / evaluation.PREDICTIONS_DIRECTORY
    assert not directory.exists()
    (tmp_path / "run" / ".predictions.bertjax_draft" / "of_an_older_set.tsv").touch()
    train.train(config, tmp_path / "run")
    assert sorted(path.name for path in directory.iterdir()) == ["dev.tsv", "test.tsv"]


@pytest.mark.slow
def test_a_test_set_that_comes_later_is_answered_with_the_tuned_threshold(tmp_path, source):
    config = make_config(tmp_path, source, "squad_v2", **{"finetuning.num_epochs": 1.0})
    config.finetuning.update(test_file="")
    train.train(config, tmp_path / "run")
    threshold = lines_of(tmp_path / "run")[-1]["eval/dev/null_threshold"]
    config.finetuning.test_file = config.finetuning.eval_file
    train.train(config, tmp_path / "run")
    odds, answers = (
        json.loads((tmp_path / "run/predictions/test" / name).read_text())
        for name in ("null_odds.json", "predictions.json")
    )
    assert {q: answers[q] == "" for q in odds} == {q: odds[q] > threshold for q in odds}
    assert any((odd > threshold) != (odd > 0) for odd in odds.values())  # that of the recipe


def write_renamed(path, target, classes):
    """Writes a table as its rows would be in a language where the model errs at these classes."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.rpartition(",")[2] in classes:
            lines[number] = line.rpartition(",")[0] + ",class 2"
    target.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_several_files_are_scored_by_name_with_their_mean_and_the_first_selects(
    tmp_path, source, monkeypatch, caplog
):
    config = make_config(tmp_path, source, "table", **{"finetuning.num_epochs": 4.0})
    config.checkpoint.keep_best = 1
    train_file = tmp_path / "data" / "train.csv"
    for name, classes in (("nl", ()), ("zh", ("class 0",))):
        write_renamed(train_file, tmp_path / f"{name}.csv", classes)
    files = f"nl={tmp_path / 'nl.csv'},zh={tmp_path / 'zh.csv'}"
    config.finetuning.update(eval_file="", eval_files=files)
    best = {"nl": iter([0.1, 0.9, 0.3, 0.2]), "zh": iter([0.1, 0.2, 0.9, 0.1])}
    score = texts.TextScorer.scores

    def with_a_best(self, name, outputs):
        return {**score(self, name, outputs), "accuracy": next(best[name])}

    with caplog.at_level("INFO", logger="absl"), monkeypatch.context() as patch:
        patch.setattr(texts.TextScorer, "scores", with_a_best)
        patch.setattr(texts.TextScorer, "_majority", lambda self, name: None)
        train.train(config, tmp_path / "run")
    lines = [it for it in lines_of(tmp_path / "run") if "eval/nl/loss" in it]
    assert [it["eval/mean/accuracy"] for it in lines] == pytest.approx([0.1, 0.55, 0.6, 0.15])
    for metric in ("loss", "macro_f1"):
        pair = [lines[-1][f"eval/{name}/{metric}"] for name in ("nl", "zh")]
        assert pair[0] != pair[1]
        assert lines[-1][f"eval/mean/{metric}"] == pytest.approx(sum(pair) / 2)
    steps = sorted(int(path.name) for path in (tmp_path / "run" / checkpoint.DIRECTORY).iterdir())
    assert steps == [4, 8]  # the second epoch, best in nl, and the last one
    (*_, table) = [it.message for it in caplog.records if "by set:" in it.message]
    name, *numbers = table.splitlines()[-1].split()
    assert name == "mean" and f"{lines[-1]['eval/mean/loss']:.4f}" in numbers
    # Afterwards a saved model is scored on the same files, or on others.
    found = evaluate.evaluate_checkpoint(str(tmp_path / "run"), files, batch_size=5)
    assert found["nl/examples"] == found["zh/examples"] == 16 and "mean/examples" not in found
    again = {f"eval/{name}": value for name, value in found.items() if name.endswith("loss")}
    assert again == pytest.approx({it: lines[-1][it] for it in again}) and len(again) == 3
    with pytest.raises(FileNotFoundError, match=r"--data is .*; there is no gone.csv"):
        evaluate.evaluate_checkpoint(str(tmp_path / "run"), f"{files},ru=gone.csv", batch_size=5)


@pytest.mark.slow
def test_the_threshold_of_the_first_file_is_that_of_the_others(tmp_path, source):
    config = make_config(tmp_path, source, "squad_v2", **{"finetuning.num_epochs": 1.0})
    path, other = tmp_path / "data" / "train.json", tmp_path / "zh.json"
    data = json.loads(path.read_text())
    for paragraph in data["data"][0]["paragraphs"]:
        paragraph["qas"][0].update(answers=[], is_impossible=True)
    other.write_text(json.dumps(data))
    thresholds = {}
    for names in (("en", "zh"), ("zh", "en")):
        paths = {"en": path, "zh": other}
        files = ",".join(f"{name}={paths[name]}" for name in names)
        config.finetuning.update(eval_file="", eval_files=files)
        train.train(config, tmp_path / names[0])
        line = lines_of(tmp_path / names[0])[-1]
        thresholds[names[0]] = line["eval/en/null_threshold"]
        assert line["eval/zh/null_threshold"] == thresholds[names[0]]
        assert "eval/mean/f1" in line and "eval/mean/null_threshold" not in line
        found = evaluate.evaluate_checkpoint(str(tmp_path / names[0]), files, batch_size=5)
        assert found["en/null_threshold"] == pytest.approx(thresholds[names[0]], abs=1e-5)
        assert found["zh/null_threshold"] == found["en/null_threshold"]
    assert abs(thresholds["en"] - thresholds["zh"]) > 1e-3


@pytest.mark.slow
def test_low_rank_training_changes_factors_and_head_and_keeps_no_more_moments(tmp_path, source):
    changes = {"finetuning.lora_rank": 2, "finetuning.lora_targets": (r".*\.query\.kernel",)}
    config = make_config(tmp_path, source, "table", **changes)
    run = train.prepare(config, tmp_path / "run")
    last = train.execute(run, tmp_path / "run")
    with jax.set_mesh(run.mesh):
        source = warm_start.of_job(run.job, run.abstract_state.params)
        start = warm_start.apply(source, run.init(run.step_inputs.seed))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), start.params, last.params)
    assert all(jax.tree.leaves(same["encoder"]))
    assert not any(jax.tree.leaves(same["lora"])) and not any(jax.tree.leaves(same["classifier"]))
    heads = [values for name, values in last.params.items() if name != "encoder"]
    trained = sum(leaf.size for leaf in jax.tree.leaves(heads))
    moments = sum(leaf.size for leaf in jax.tree.leaves(last.opt_state))
    assert moments == 2 * trained + 1  # and Adam's count


@pytest.mark.slow
def test_a_finetuned_model_is_scored_on_labelled_files_as_it_was_in_training(finished):
    config, root = finished
    lines = scalars.read(root / "run" / scalars.FILE)
    step, expected = scalars.last_evaluation(lines)
    data = config.finetuning.data_dir
    found = evaluate.evaluate_checkpoint(str(root / "run"), data, batch_size=5)
    assert found.pop("step") == step and found.pop("examples") > 0
    assert {f"eval/dev/{name}": value for name, value in found.items()} == pytest.approx(expected)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        evaluate.evaluate_checkpoint(str(root / "run"), "nowhere", batch_size=5)
    with pytest.raises(ValueError, match="'glue' is scored on the set dev of one path"):
        evaluate.evaluate_checkpoint(str(root / "run"), f"en={data}", batch_size=5)


@pytest.mark.parametrize("kind", marks.cases(LEARNT, slow=("regression", "squad_v2", "conll")))
def test_sixteen_examples_of_a_kind_are_learnt_to_a_perfect_score(tmp_path, source, kind):
    changes = {"finetuning.num_epochs": 150.0, "finetuning.length_buckets": False}
    config = small_datasets.make_config(tmp_path / "data", kind, source, **changes)
    train.train(config, tmp_path / "run")
    name = finetuning.open_job(config).evaluation.best_score
    scores = [line for line in lines_of(tmp_path / "run") if "eval/dev/loss" in line]
    least, files = LEARNT[kind]
    assert scores[-1][f"eval/dev/{name}"] >= least
    written = {path.name for path in (tmp_path / "run/predictions").rglob("*") if path.is_file()}
    assert written == files
