"""Claims about GLUE's tasks and tables: which sets there are, and what is written of answers."""

import numpy as np
import pytest
from etils import epath

from bertjax.finetuning import base, glue_files, glue_submission, texts
from tests import small_datasets


@pytest.fixture
def out(tmp_path):
    directory = epath.Path(tmp_path / "out")
    directory.mkdir()
    return directory


def test_classes_are_written_by_name_and_once_known_need_no_training_file(out, open_kind):
    scorer, reader = open_kind("table")
    scorer.write_predictions("test", {"predictions": np.array([2, 0])}, out, {})
    lines = (out / "test.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\tclass 2", "1\tclass 0"]
    same = reader.features(base.DEV)
    reader.options.update(labels=reader.labels, train_file="gone")
    rows = texts.TableReader(reader.options, reader.tokenizer).features(base.DEV)
    np.testing.assert_array_equal(rows.columns["labels"], same.columns["labels"])


def test_predictions_for_a_whole_test_set_of_glue_are_the_servers_file(out, open_kind, monkeypatch):
    scorer, reader = open_kind("glue")
    predictions = {"predictions": np.arange(16) % 2}
    scorer.write_predictions("test", predictions, out, {})
    assert [path.name for path in out.iterdir()] == ["test.tsv"]
    monkeypatch.setitem(glue_submission.TEST_ROWS, "RTE.tsv", 16)
    scorer.write_predictions("test", predictions, out, {})
    lines = (out / "RTE.tsv").read_text().splitlines()
    assert lines[:3] == ["index\tprediction", "0\tentailment", "1\tnot_entailment"]
    (epath.Path(reader.options.data_dir) / "RTE/test.tsv").unlink()  # then there is no test set
    assert texts.GlueReader(reader.options, reader.tokenizer).test_sets == ()


def test_mnli_has_two_evaluation_sets_and_answers_the_diagnostic_set(tmp_path, out, open_kind):
    rows = [f"w{n}\tw{n + 1}\t{('neutral', 'entailment')[n % 2]}" for n in range(6)]
    labelled = "\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n"
    for split in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        path = tmp_path / "glue/MNLI" / f"{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(labelled)
    (tmp_path / "glue/diagnostic").mkdir()
    (tmp_path / "glue/diagnostic/diagnostic.tsv").write_text(labelled)
    scorer, reader = open_kind("glue", name="mnli", data_dir=str(tmp_path / "glue"))
    assert reader.evaluation_sets == ("matched", "mismatched")
    assert reader.test_sets == ("test_matched", "test_mismatched", "ax")
    assert reader.labels == ("contradiction", "entailment", "neutral")
    scorer.write_predictions("ax", {"predictions": np.zeros(6, int)}, out, {})
    assert "0\tcontradiction" in (out / "ax.tsv").read_text()


def test_one_task_of_tfds_has_no_diagnostic_set(monkeypatch):
    asked = []
    monkeypatch.setattr(
        glue_files, "read_split", lambda location, name, split: asked.append((name, split)) or []
    )
    options = small_datasets.config_lib.default_config().finetuning
    options.update(name="mnli", data_dir="tfds:glue/mnli")
    assert texts.GlueReader(options, None).test_sets == ("test_matched", "test_mismatched")
    assert asked == [("mnli", "test_matched"), ("mnli", "test_mismatched")]
    options.data_dir = "tfds:glue"
    assert texts.GlueReader(options, None).test_sets == ("test_matched", "test_mismatched", "ax")


def test_columns_of_0_and_1_are_the_labels_of_every_set(tmp_path, out, open_kind):
    rows = ["1,w1 w2,0,1", "2,w3,0,0", "3,w4,1,0"]
    (tmp_path / "train.csv").write_text("\n".join(["id,body,threat,toxic", *rows]) + "\n")
    (tmp_path / "test.csv").write_text("id,body\n7,w5\n8,w6\n")
    train, test = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    options = {"train_file": train, "eval_file": train, "test_file": test, "text_column": "body"}
    options |= {"is_multi_label": True, "label_column": "toxic, threat"}
    scorer, reader = open_kind("table", **options)
    assert reader.decided["labels"] == ("toxic", "threat")
    wanted = [[1, 0], [0, 0], [0, 1]]
    assert reader.features("train").columns["labels"].tolist() == wanted
    # As a workdir keeps them: then only the labels of training count.
    scored_later, later = open_kind("table", **options, labels=("toxic", "threat"))
    assert later.features("dev").columns["labels"].tolist() == wanted
    assert scored_later.scores("dev", {"predictions": np.array(wanted)})["micro_f1"] == 1
    assert later.example({"body": "w1"}, "line 1").texts == ("w1",)
    scorer.write_predictions("test", {"predictions": np.array([[1, 1], [0, 0]])}, out, {})
    lines = (out / "test.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\ttoxic|threat", "1\t"]
    config = small_datasets.config_lib.default_config()
    config.finetuning.update(is_multi_label=True, label_column="a,b", labels=("b", "a"))
    assert not list(texts.TABLE.faults(config))
    config.finetuning.labels = ("a", "c")
    (fault,) = texts.TABLE.faults(config)
    assert "config.finetuning.labels is ('a', 'c'), but the columns" in fault and "a, b" in fault
