"""Scores of SQuAD equal those that the official scripts printed for the same files."""

import random

import pytest

from bertjax.scores import squad

# Articles, punctuation, repeated words, and gold answers that normalize to nothing.
ANSWERS = {
    "q1": ["the Rhine", "Rhine water", "a Rhine"],
    "q2": ["U.S."],
    "q3": ["well-known composer"],
    "q4": [],
    "q5": [],
    "q6": ["to be or not to be"],
    "q7": ["The", "42%"],
    "q8": ["an apple, a pear"],
    "q9": [],
    "q10": ["The"],
}
PREDICTIONS = {
    "q1": "Rhine",
    "q2": "us",
    "q3": "a well known composer",
    "q4": "",
    "q5": "nothing",
    "q6": "to be to",
    "q7": "42 %",
    "q8": "",
    "q9": "the",
    "q10": "a",
}
# q2 and q10 are equal; in another order than the questions.
NO_ANSWER = {
    **{"q3": 0.9, "q1": 0.1, "q2": 0.4, "q4": 0.95, "q5": 0.8},
    **{"q6": 0.3, "q7": 0.5, "q8": 0.7, "q9": 0.2, "q10": 0.4},
}
# Printed by evaluate-v2.0.py for these answers; with --na-prob-file; and --na-prob-thresh 0.45.
PLAIN = {
    **{"exact": 60.0, "f1": 70.66666666666666, "total": 10},
    **{"HasAns_exact": 57.142857142857146, "HasAns_f1": 72.38095238095238, "HasAns_total": 7},
    **{"NoAns_exact": 66.66666666666667, "NoAns_f1": 66.66666666666667, "NoAns_total": 3},
}
BEST = {
    **{"best_exact": 60.0, "best_exact_thresh": 0.5},
    **{"best_f1": 66.66666666666666, "best_f1_thresh": 0.5},
}
BELOW_THRESHOLD = {
    **{"exact": 60.0, "f1": 66.66666666666667, "total": 10},
    **{"HasAns_exact": 42.857142857142854, "HasAns_f1": 52.38095238095237, "HasAns_total": 7},
    **{"NoAns_exact": 100.0, "NoAns_f1": 100.0, "NoAns_total": 3},
}
# Printed by evaluate-v1.1.py for those with gold answers, q3 without a prediction.
V1 = {"exact_match": 57.142857142857146, "f1": 52.38095238095237}


def test_normalization_follows_the_official_order():
    for text, normalized in (
        ("The  U.S. Army", "us army"),  # punctuation goes first, without a space
        ("well-known", "wellknown"),
        ("a.n. an", ""),  # "an an": two articles once the points are gone
        ("theatre of Athens", "theatre of athens"),  # an article is a whole word
        ("\tAn apple,\n a  pear ", "apple pear"),
        ("“Ça”, l’été—a", "“ça” l’été—"),  # only ASCII's punctuation goes
        ("the_a", "thea"),
    ):
        assert squad.normalize_answer(text) == normalized


def test_exact_match_and_f1():
    for prediction, answer, exact, f1 in (
        ("the Rhine", "Rhine!", True, 1.0),
        ("Rhine water", "the Rhine", False, 2 / 3),
        ("to be to", "to be or not to be", False, 2 / 3),  # words count as often as they occur
        ("be be be", "to be", False, 2 / 5),
        ("Paris", "London", False, 0.0),
        ("the", "", True, 1.0),
        ("London", "a", False, 0.0),
    ):
        assert squad.exact_match(prediction, answer) is exact
        assert squad.f1(prediction, answer) == squad.f1(answer, prediction) == pytest.approx(f1)


def test_v2_is_the_official_script():
    assert squad.evaluate(ANSWERS, PREDICTIONS) == PLAIN
    assert squad.evaluate(ANSWERS, PREDICTIONS, NO_ANSWER) == PLAIN | BEST
    thresholded = squad.evaluate(ANSWERS, PREDICTIONS, NO_ANSWER, 0.45)
    assert thresholded == BELOW_THRESHOLD | BEST
    # A probability equal to the threshold keeps its answer.
    for threshold, exact in ((0.5, 100.0), (0.4999, 0.0)):
        scores = squad.evaluate({"q": ["Rhine"]}, {"q": "Rhine"}, {"q": 0.5}, threshold)
        assert scores["exact"] == exact
    # Saying nothing is not right where another gold answer has words.
    assert squad.evaluate({"q": ["The", "42%"]}, {"q": ""})["exact"] == 0.0
    assert scores["HasAns_total"] == 1  # no breakdown of unanswerable questions without any
    assert not any(name.startswith("NoAns") for name in scores)


def test_v1_is_the_official_script():
    answers = {name: golds for name, golds in ANSWERS.items() if golds}
    predictions = {name: text for name, text in PREDICTIONS.items() if name != "q3"}
    scores = squad.evaluate_v1(answers, predictions)
    assert scores == V1 | {"total": 7, "missing": 1}
    # It finds "a" and "The" equal, and their F1 0.
    scores = squad.evaluate_v1({"q": ["The"]}, {"q": "a"})
    assert (scores["exact_match"], scores["f1"]) == (100.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_best_thresholds_are_the_best_of_all(seed):
    """Every threshold is tried; with distinct positive probabilities one reaches the best score."""
    rng = random.Random(seed)
    words = ["Rhine", "the Rhine", "Main", "Rhine and Main"]
    names = [f"q{number}" for number in range(rng.randrange(1, 12))]
    answers = {name: rng.choices(words, k=rng.choice([0, 1, 3])) for name in names}
    predictions = {name: rng.choice([*words, ""]) for name in names}
    for name in names:  # an answerable question left without answer is a loss no threshold mends
        predictions[name] = predictions[name] or ("Main" if answers[name] else "")
    probabilities = [number / 100 for number in rng.sample(range(1, 100), len(names))]
    no_answer = dict(zip(names, probabilities, strict=True))
    scores = squad.evaluate(answers, predictions, no_answer)
    for metric in ("exact", "f1"):
        reached = [
            squad.evaluate(answers, predictions, no_answer, number / 100)[metric]
            for number in range(101)
        ]
        assert scores[f"best_{metric}"] == pytest.approx(max(reached))
        at_best = squad.evaluate(answers, predictions, no_answer, scores[f"best_{metric}_thresh"])
        assert at_best[metric] == pytest.approx(max(reached))


def test_predictions_for_unknown_questions_count_nothing():
    more = {**PREDICTIONS, "unknown": "Rhine"}
    assert squad.evaluate(ANSWERS, more, {**NO_ANSWER, "unknown": 0.0}) == PLAIN | BEST
    assert squad.evaluate_v1({"q": ["x"]}, {"q": "x", "z": "x"})["f1"] == 100.0


def test_questions_that_are_not_covered_are_named():
    fewer = {name: value for name, value in PREDICTIONS.items() if name not in ("q2", "q9")}
    with pytest.raises(ValueError, match=r"2 of 10 questions have no prediction.*'q2', 'q9'"):
        squad.evaluate(ANSWERS, fewer)
    with pytest.raises(ValueError, match=r"10 of 10 questions have no no-answer probability"):
        squad.evaluate(ANSWERS, PREDICTIONS, {})
    with pytest.raises(ValueError, match=r"3 questions have no answer.*'q4', 'q5', 'q9'"):
        squad.evaluate_v1(ANSWERS, PREDICTIONS)
    for evaluate in (squad.evaluate, squad.evaluate_v1):
        with pytest.raises(ValueError, match="no questions"):
            evaluate({}, {})
