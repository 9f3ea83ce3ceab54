"""Claims about what is sent to the server of GLUE."""

import zipfile

import numpy as np
import pytest

from bertjax.finetuning import glue_files, glue_submission

TASKS = {file: task for task in glue_files.TASKS.values() for file in task.submissions.values()}


def made_up(name, rows):
    rng = np.random.default_rng(0)
    task = TASKS[name]
    return rng.random(rows) * 5 if task.is_regression else rng.integers(len(task.labels), size=rows)


@pytest.fixture
def predictions(monkeypatch):
    """A prediction for every row of all eleven test sets, which end after 20 rows here."""
    monkeypatch.setattr(glue_submission, "TEST_ROWS", dict.fromkeys(glue_submission.TEST_ROWS, 20))
    return {name: made_up(name, rows) for name, rows in glue_submission.TEST_ROWS.items()}


def test_every_test_split_has_a_file_and_every_file_its_rows():
    files = [file for task in glue_files.TASKS.values() for file in task.submissions.values()]
    assert sorted(files) == sorted(glue_submission.TEST_ROWS)
    assert sum(glue_submission.TEST_ROWS.values()) == 426_309
    names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"
    assert sorted(files) == sorted(f"{name}.tsv" for name in names.split())


def test_a_file_has_a_header_and_a_label_for_each_row():
    content = glue_submission.prediction_file("RTE.tsv", np.arange(3000) % 2)
    lines = content.split("\n")
    assert lines[:4] == ["index\tprediction", "0\tentailment", "1\tnot_entailment", "2\tentailment"]
    assert lines[-2:] == ["2999\tnot_entailment", ""]
    assert len(lines) == 3002
    # Scores of STS-B are brought between 0 and 5.
    scores = np.full(1379, 2.34567, np.float32)
    scores[:2] = -0.3, 5.2
    content = glue_submission.prediction_file("STS-B.tsv", scores)
    assert content.split("\n")[1:4] == ["0\t0.000", "1\t5.000", "2\t2.346"]


def test_the_zip_holds_all_predictions_and_the_same_ones_give_the_same_bytes(tmp_path, predictions):
    first, second = tmp_path / "made" / "submission.zip", tmp_path / "second.zip"
    for name, values in predictions.items():
        (tmp_path / name).write_text(glue_submission.prediction_file(name, values))
    (tmp_path / "notes.txt").write_text("not for the server")
    for path in (first, second):
        glue_submission.pack_submission(tmp_path, path)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as file:
        assert sorted(file.namelist()) == sorted(predictions)
        for name, values in predictions.items():
            task = TASKS[name]
            rows = [row.split("\t") for row in file.read(name).decode().splitlines()[1:]]
            assert [int(index) for index, _ in rows] == list(range(len(values)))
            if task.is_regression:
                np.testing.assert_allclose([float(p) for _, p in rows], values, atol=5.1e-4)
            else:
                assert [task.labels.index(p) for _, p in rows] == values.tolist()


def test_predictions_that_do_not_fit_are_errors():
    for name, values, message in (
        ("RTE.tsv", np.zeros(2999, int), r"RTE.tsv have shape \(2999,\); .* 3000 rows"),
        ("RTE.tsv", np.zeros(3000), "RTE.tsv have dtype float64; they must be classes"),
        ("RTE.tsv", np.arange(3000) - 1, "for row 0 of RTE.tsv is -1; classes are 0 to 1"),
        ("RTE.tsv", np.arange(3000), r"for row 2 of RTE.tsv is 2; classes are 0 to 1 \(entailm"),
        ("STS-B.tsv", [1.0, float("nan")] + [0.0] * 1377, "for row 1 of STS-B.tsv is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            glue_submission.prediction_file(name, values)


# File, what becomes of its text, and what is wrong then.
FAULTS = [
    ("RTE.tsv", lambda text: text.replace("index", "id"), "RTE.tsv:1: the header is 'id.tpre"),
    ("RTE.tsv", lambda text: text + "20\tentailment\n", "RTE.tsv:22: there are 21 rows"),
    ("RTE.tsv", lambda text: "", "RTE.tsv:1: the header is ''"),
    ("WNLI.tsv", lambda text: text.replace("\n9\t", "\n9 "), "WNLI.tsv:11: the index is '9 "),
    ("WNLI.tsv", lambda text: text.replace("\t0", "\t2"), "the prediction is '2'; .* 0, 1"),
    ("STS-B.tsv", lambda text: text.replace("\t4.", "\t5."), "a number from 0 to 5"),
    ("STS-B.tsv", lambda text: text.replace("\t4.", "\tx"), "a number from 0 to 5"),
    ("SNLI.tsv", lambda text: text, "SNLI.tsv: it is none of the server's files"),
    ("RTE.tsv", lambda text: text, r"^\S*: CoLA.tsv, .*AX.tsv are missing: the server"),
]


def test_files_that_the_server_would_not_take_are_refused(tmp_path, predictions):
    for number, (name, change, message) in enumerate(FAULTS):
        known = name in predictions
        content = glue_submission.prediction_file(name, predictions[name]) if known else ""
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(change(content))
        with pytest.raises(ValueError, match=message):
            glue_submission.pack_submission(tmp_path / str(number), tmp_path / "packed.zip")
    assert not (tmp_path / "packed.zip").exists()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        glue_submission.check_submission(tmp_path / "absent")
