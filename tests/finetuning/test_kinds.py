"""Claims about every kind of data set: its best score is that of right answers."""

import numpy as np
import pytest

from tests import small_datasets


@pytest.mark.parametrize("name", small_datasets.KINDS)
def test_right_answers_have_the_best_score_and_wrong_ones_a_lower_one(open_kind, name):
    scorer, reader = open_kind(name)
    answers = small_datasets.true_answers(reader, "dev")
    best = 100.0 if name in ("squad_v1", "squad_v2", "conll") else 1.0
    assert scorer.scores("dev", answers)[scorer.best_score] == pytest.approx(best)
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


@pytest.mark.parametrize("name", MAJORITIES)
def test_what_the_most_frequent_answer_alone_scores_is_known(open_kind, name):
    found = open_kind(name)[0].majority("dev")
    if MAJORITIES[name] is None:
        assert found is None
    else:
        answer, scores = MAJORITIES[name]
        assert found == (answer, pytest.approx(scores))


def test_the_most_frequent_tag_is_counted_by_words(open_kind):
    scorer, reader = open_kind("conll")
    tags = [tag for sentence in reader.examples("dev") for tag in sentence.tags]
    assert scorer.majority("dev") == ("O", {"accuracy": tags.count("O") / len(tags)})


@pytest.mark.parametrize("name", ["glue", "table", "conll", "swag"])
def test_one_answer_to_everything_is_noticed_and_several_are_not(open_kind, name):
    scorer, reader = open_kind(name)
    answers = small_datasets.true_answers(reader, "dev")
    assert scorer.only_answer("dev", answers, {}) is None
    number = reader.labels.index("O") if name == "conll" else 1
    same = {"predictions": np.full_like(answers["predictions"], number)}
    expected = {
        "glue": reader.labels[1:2],
        "table": ("class 1",),
        "conll": "O",
        "swag": ("choice 1",),
    }
    assert scorer.only_answer("dev", same, {}) == expected[name][0]


def test_questions_of_which_none_is_answered_are_noticed(open_kind):
    scorer, reader = open_kind("squad_v2")
    answers = small_datasets.true_answers(reader, "dev")
    assert scorer.only_answer("dev", answers, scorer.scores("dev", answers)) is None
    start = np.full_like(answers["start_logits"], 0.0)
    start[:, 0] = 9.0  # at [CLS], which is not an answer
    none = {"start_logits": start, "end_logits": start}
    assert scorer.only_answer("dev", none, scorer.scores("dev", none)) == "no answer"


def test_a_set_of_one_class_may_have_one_answer(open_kind, monkeypatch):
    scorer, reader = open_kind("swag")
    answers = small_datasets.true_answers(reader, "dev")
    monkeypatch.setitem(reader.features("dev").columns, "labels", np.zeros(16, np.int32))
    same = {"predictions": np.zeros_like(answers["predictions"])}
    assert scorer.only_answer("dev", same, {}) is None
