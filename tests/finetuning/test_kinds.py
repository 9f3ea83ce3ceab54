"""Claims about every kind of data set: scores, the most frequent answer, rows, predictions."""

import json
import re

import numpy as np
import pytest
from etils import epath

from tests import small_datasets


@pytest.mark.parametrize("name", small_datasets.KINDS)
def test_right_answers_have_the_best_score_and_wrong_ones_a_lower_one(open_kind, name):
    scorer, reader = open_kind(name)
    answers = small_datasets.true_answers(reader, "dev")
    best = 100.0 if name in ("squad_v1", "squad_v2", "conll") else 1.0
    scores = scorer.scores("dev", answers)
    assert scores[scorer.best_score] == pytest.approx(best)
    assert set(scorer.tunes) <= scores.keys() or name == "squad_v1"  # where every question has one
    shifted = {field: np.roll(array, 1, axis=0) for field, array in answers.items()}
    assert scorer.scores("dev", shifted)[scorer.best_score] < best


# The most frequent answer of each kind's files, and what it scores alone.
MAJORITIES = {
    "glue": ("entailment", {"accuracy": 0.5}),
    "regression": None,
    "table": ("class 0", {"accuracy": 6 / 16, "macro_f1": 2 * 6 / (6 + 16) / 3}),
    "squad_v1": None,
    "squad_v2": ("no answer", {"exact": 25.0, "f1": 25.0}),
    "swag": ("choice 0", {"accuracy": 0.25}),
}


def test_what_the_most_frequent_answer_alone_scores_is_known(open_kind):
    for name, majority in MAJORITIES.items():
        found = open_kind(name)[0].majority("dev")
        assert found == (majority and (majority[0], pytest.approx(majority[1]))), name
    scorer, reader = open_kind("conll")  # by words
    tags = [tag for sentence in reader.examples("dev") for tag in sentence.tags]
    assert scorer.majority("dev") == ("O", {"accuracy": tags.count("O") / len(tags)})


@pytest.mark.parametrize("name", ["glue", "table", "conll", "swag"])
def test_one_answer_to_everything_is_noticed_and_several_are_not(open_kind, monkeypatch, name):
    scorer, reader = open_kind(name)
    answers = small_datasets.true_answers(reader, "dev")
    assert scorer.only_answer("dev", answers, {}) is None
    number = reader.labels.index("O") if name == "conll" else 1
    same = {"predictions": np.full_like(answers["predictions"], number)}
    wanted = {"glue": "not_entailment", "table": "class 1", "conll": "O", "swag": "choice 1"}
    assert scorer.only_answer("dev", same, {}) == wanted[name]
    if name == "swag":  # a set of one class may have one answer
        monkeypatch.setitem(reader.features("dev").columns, "labels", np.zeros(16, np.int32))
        assert scorer.only_answer("dev", same, {}) is None


def test_questions_of_which_none_is_answered_are_noticed(open_kind):
    scorer, reader = open_kind("squad_v2")
    answers = small_datasets.true_answers(reader, "dev")
    assert scorer.only_answer("dev", answers, scorer.scores("dev", answers)) is None
    start = np.full_like(answers["start_logits"], 0.0)
    start[:, 0] = 9.0  # at [CLS], which is not an answer
    none = {"start_logits": start, "end_logits": start}
    assert scorer.only_answer("dev", none, scorer.scores("dev", none)) == "no answer"


def test_answers_that_no_window_holds_are_counted_and_the_first_is_named(open_kind, caplog):
    open_kind("squad_v1")[1].features("train")
    assert "in no window" not in caplog.text
    _, reader = open_kind("squad_v1", max_seq_length=8)  # 3 tokens of context
    rows = reader.features("train")
    starts = rows.columns["start_positions"]
    found = {it.question for it, start in zip(rows.windows, starts, strict=True) if start}
    assert 0 < len(found) < 16
    assert f"{16 - len(found)} of 16 questions have an answer that is whole in no" in caplog.text
    assert re.search(r"such as .*train\.json: question 'q\d+'", caplog.text)


def test_the_tuned_threshold_decides_and_the_option_only_before(tmp_path, open_kind):
    for tuned, option, is_silent in (
        *((-100.0, 100.0, True), (100.0, -100.0, False)),
        *((None, -100.0, True), (None, 100.0, False)),
    ):
        scorer, reader = open_kind("squad_v2", null_threshold=option)
        found = {} if tuned is None else {"null_threshold": tuned}
        outputs = small_datasets.true_answers(reader, "dev")
        scorer.write_predictions("test", outputs, epath.Path(tmp_path), found)
        written = json.loads((tmp_path / "test/predictions.json").read_text())
        assert len(written) == 16
        assert all((answer == "") == is_silent for answer in written.values())
