"""Claims about the run over all of GLUE: the paper's table, our rows, and the server's zip."""

import json
import zipfile

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import glue, recipes, train
from bertjax.finetuning import glue_files, glue_submission
from bertjax.training import trials
from tests import small_datasets

RNG = np.random.default_rng(0)


def recipe(data_dir="tfds:glue", **changes):
    config = config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.update(dataset="glue", name="rte", data_dir=str(data_dir))
    config.update_from_flattened_dict(changes)
    return config


def scores_of(task, value):
    sets = [column.evaluation_set for column in glue.COLUMNS if column.task == task] or ["dev"]
    names = glue_files.TASKS[task].scores
    return {f"eval/{s}/{name}": value + index for s in sets for index, name in enumerate(names)}


def write_predictions(directory, task):
    """All files of a task and, for MNLI, the diagnostic set's, as training writes them."""
    directory.mkdir(parents=True)
    for name in (task, *(["ax"] if task == "mnli" else [])):
        described = glue_files.TASKS[name]
        for file in described.submissions.values():
            shape = glue_submission.TEST_ROWS[file]
            values = RNG.integers(0, max(len(described.labels), 1), shape)
            (directory / file).write_text(glue_submission.prediction_file(file, values))


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Test sets that end after 20 rows."""
    monkeypatch.setattr(glue_submission, "TEST_ROWS", dict.fromkeys(glue_submission.TEST_ROWS, 20))


@pytest.fixture
def fake_training(monkeypatch):
    """Training that leaves what a real one leaves; returns the configs that it was given."""
    seen = {}

    def run(config, workdir):
        seen[config.finetuning.name] = config
        workdir.mkdir(parents=True)
        order = list(glue.TASKS).index(config.finetuning.name)
        early = {"step": 1, **scores_of(config.finetuning.name, 0.0)}
        late = {"step": 2, **scores_of(config.finetuning.name, order / 100)}
        lines = [early, late, {"step": 3, "train/loss": 1.0}]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines))
        write_predictions(workdir / "predictions", config.finetuning.name)

    monkeypatch.setattr(train, "train", run)
    return seen


def test_the_papers_rows_have_the_papers_averages():
    shown = glue.table({})
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines()]
    assert rows[0] == ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC",
                           "RTE", "average"]  # fmt: skip
    assert [row[-1] for row in rows if row[0].startswith("BERT")] == ["79.6", "82.1"]
    assert recipes.load("glue").finetuning.dataset == "glue"


def test_all_tasks_give_a_row_and_a_zip_that_the_server_takes(tmp_path, fake_training):
    found = glue.run(recipe(), tmp_path, glue.TASKS)
    told = glue.write(found, tmp_path)
    # The last score of a task decides; it is 1 above the first where there are two.
    wanted = [0, 0, 101, 2, 3, 4, 105, 106, 7]
    row = f"| ours, dev | {' | '.join(f'{v:.1f}' for v in wanted)} | {np.mean(wanted):.1f} |"
    assert row in told.splitlines(), told
    assert (tmp_path / "glue.md").read_text() in told
    saved = json.loads((tmp_path / "glue.json").read_text())
    assert saved["mnli"]["best"] == scores_of("mnli", 0.0)
    glue_submission.check_submission(tmp_path / "submission")
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        theirs = (tmp_path / "rte" / "predictions" / "RTE.tsv").read_text()
        assert archive.read("RTE.tsv").decode() == theirs
    assert {*fake_training} == {*glue.TASKS}
    assert {config.evaluation.every_steps for config in fake_training.values()} == {0}


def test_some_tasks_have_no_average_and_no_zip(tmp_path, fake_training):
    found = glue.run(recipe(), tmp_path, ["rte", "wnli"])
    (tmp_path / "submission.zip").write_bytes(b"of other trainings")
    told = glue.write(found, tmp_path)
    assert "| - | - | - | - | - | - | - | - | 7.0 | - |" in told
    assert "no zip for the server" in told and "CoLA.tsv" in told
    assert not (tmp_path / "submission.zip").exists()


def test_of_several_seeds_stand_the_median_and_the_best_and_the_best_is_handed_in(
    tmp_path, monkeypatch
):
    rows = []
    for setting, values in ((2e-5, (0.2, 0.9, 0.4)), (5e-5, (0.6, 0.5, 0.7))):
        for seed, value in enumerate(values):
            own = trials.Setting(32, setting, 3.0)
            name = f"{own.name}_seed{seed}"
            rows.append({"name": name, **vars(own), "score": value,
                         "scores": {"eval/dev/accuracy": value}})  # fmt: skip
            write_predictions(tmp_path / "rte" / name / "predictions", "rte")
    chosen = {**vars(trials.Setting(32, 5e-5, 3.0)), "median": 0.6}
    best = max(rows, key=lambda row: row["score"])
    results = {"trials": rows, "chosen": chosen, "best": best}
    monkeypatch.setattr(train, "train_trials", lambda config, workdir: results)
    found = glue.run(recipe(seeds=3, search=True), tmp_path, ["rte"])
    told = glue.write(found, tmp_path)
    assert "| ours, dev, median of 3 seeds | - | - | - | - | - | - | - | - | 60.0 | - |" in told
    assert "| ours, dev, best of them | - | - | - | - | - | - | - | - | 90.0 | - |" in told
    handed_in = (tmp_path / "submission" / "RTE.tsv").read_text()
    assert best["name"] == "batch32_rate2e-05_epochs3_seed1"
    assert handed_in == (tmp_path / "rte" / best["name"] / "predictions" / "RTE.tsv").read_text()
    # A score that is not a number has no median.
    seeds = ({"eval/dev/matthews_correlation": None}, {"eval/dev/matthews_correlation": 0.5})
    lines = glue.table({"cola": glue.Finetuned(seeds, seeds[1], None)}).splitlines()
    assert lines[-2] == "| ours, dev, median of 2 seeds | - | - | - | - | - | - | - | - | - | - |"
    assert "| 50.0 |" in lines[-1]


def test_missing_files_and_unknown_tasks_are_told_before_anything_is_trained(tmp_path):
    (tmp_path / "RTE").mkdir()
    with pytest.raises(ValueError, match="cola, mrpc and do not exist.*--tasks=rte$"):
        glue.run(recipe(tmp_path), tmp_path / "run", ["cola", "rte", "mrpc"])
    with pytest.raises(ValueError, match="--tasks is 'ax'; known are mnli, qqp"):
        glue.run(recipe(tmp_path), tmp_path / "run", ["rte", "ax"])
    with pytest.raises(ValueError, match="--tasks is empty"):
        glue.run(recipe(tmp_path), tmp_path / "run", [])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_two_tasks_are_trained_to_the_end_and_the_same_command_trains_no_more(tmp_path):
    source = small_datasets.write_source(tmp_path / "source")
    config = small_datasets.make_config(tmp_path / "data", "glue", source)
    small_datasets.make_config(tmp_path / "data", "regression", source)
    config.finetuning.num_epochs = 4.0
    found = glue.run(config, tmp_path / "run", ["rte", "stsb"])
    assert set(found["stsb"].best) >= {"eval/dev/pearson", "eval/dev/spearman"}
    told = glue.write(found, tmp_path / "run")
    assert "no zip for the server" in told
    evaluations = (tmp_path / "run" / "rte" / "metrics.jsonl").read_text().count("eval/dev/acc")
    assert evaluations == 4  # one an epoch
    again = glue.run(config, tmp_path / "run", ["rte", "stsb"])
    assert {it: again[it].best for it in again} == {it: found[it].best for it in found}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_protocol_trains_the_challenges_files_and_reports_the_best_epoch(tmp_path):
    rows = [
        {"sentence1": f"w{number}", "sentence2": f"w{number + number % 2}", "label": number % 2}
        for number in range(70)
    ]
    for split, part in (("train", rows), ("valid", rows[:16])):
        (tmp_path / f"rte.{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    config = recipes.load("glue")
    config.init_from = str(small_datasets.write_source(tmp_path / "source"))
    config.finetuning.update(protocol="babylm", data_dir=str(tmp_path), max_seq_length=16)
    config.model.dtype = "float32"
    found = glue.run(config, tmp_path / "run", ["babylm_rte"])
    lines = (tmp_path / "run" / "babylm_rte" / "metrics.jsonl").read_text().splitlines()
    of_epochs = [it["eval/dev/accuracy"] for it in map(json.loads, lines) if "eval/dev/loss" in it]
    assert len(of_epochs) == 10
    assert found["babylm_rte"].best["eval/dev/accuracy"] == max(of_epochs)
    saved = json.loads((tmp_path / "run" / "babylm_rte" / "config.json").read_text())
    assert (saved["global_batch_size"], saved["optimizer"]["clip_norm"]) == (32, 0.0)
    again = glue.run(config, tmp_path / "run", ["babylm_rte"])
    assert again["babylm_rte"].best == found["babylm_rte"].best
