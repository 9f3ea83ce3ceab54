"""Exact match and F1 of answers to SQuAD's questions, in percent, as its official scripts do.

Gold answers are given by question id, an empty list for a question without an answer.
`bertjax.finetuning.spans` chooses a model's answers.

Source: evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar.github.io/SQuAD-explorer. They differ:
v1.1 scores a question without prediction as 0 and knows no empty answers; v2.0 needs all
predictions.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only


def normalize_answer(text: str) -> str:
    """Returns the text in lower case without ASCII punctuation, articles and surplus spaces.

    Punctuation goes first and leaves no space: "U.S." becomes "us", "well-known" "wellknown".
    """
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answer: str) -> bool:
    """Returns whether both are the same after normalization."""
    return normalize_answer(prediction) == normalize_answer(answer)


def f1(prediction: str, answer: str) -> float:
    """Returns the F1 (0 to 1) of the normalized words, counted as often as they occur.

    If one has no words left, it is 1 if neither has (v2.0; in v1.1 it is 0).
    """
    predicted, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted or not gold:
        return float(predicted == gold)
    shared = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def evaluate_v1(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Returns exact_match, f1, total and missing (questions without prediction) by v1.1's rules.

    A question has the score of its best gold answer, without prediction 0. Predictions for unknown
    questions are ignored.

    Raises:
      ValueError: if there are no questions, or one has no gold answer.
    """
    _check_any(answers)
    if empty := [question for question, golds in answers.items() if not golds]:
        raise ValueError(
            f"{len(empty)} questions have no answer, such as {empty[:10]}: score SQuAD v2.0 with "
            "`evaluate`"
        )
    answered = [question for question in answers if question in predictions]
    exact = sum(
        _best(exact_match, predictions[question], answers[question]) for question in answered
    )
    shared = sum(_best(_f1_v1, predictions[question], answers[question]) for question in answered)
    return {
        "exact_match": 100.0 * exact / len(answers),
        "f1": 100.0 * shared / len(answers),
        "total": len(answers),
        "missing": len(answers) - len(answered),
    }


def evaluate(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    no_answer_probabilities: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns exact, f1 and total by v2.0's rules, and each under HasAns_ and NoAns_.

    A prediction counts as "" if its no-answer probability, or a score difference in its place, is
    above `threshold`. With these there are also best_exact, best_f1 and the thresholds that reach
    them, best_exact_thresh and best_f1_thresh (see `best_threshold`).

    Raises:
      ValueError: if there are no questions, or one has no prediction or no probability.
    """
    _check_any(answers)
    _check_covered(answers, predictions, "prediction")
    raw = {"exact": {}, "f1": {}}
    for question, golds in answers.items():
        # Answers that normalize to nothing do not count; without any, "" is the right prediction.
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]
        raw["exact"][question] = _best(exact_match, predictions[question], golds)
        raw["f1"][question] = _best(f1, predictions[question], golds)
    scores = raw
    if no_answer_probabilities is not None:
        _check_covered(answers, no_answer_probabilities, "no-answer probability")
        silent = [q for q in answers if no_answer_probabilities[q] > threshold]
        right = {question: float(not answers[question]) for question in silent}
        scores = {name: {**by_question, **right} for name, by_question in raw.items()}
    report = _breakdown(answers, scores)
    if no_answer_probabilities is not None:
        for name in ("exact", "f1"):
            report[f"best_{name}"], report[f"best_{name}_thresh"] = best_threshold(
                answers, predictions, raw[name], no_answer_probabilities
            )
    return report


def best_threshold(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    no_answer_probabilities: Mapping[str, float],
) -> tuple[float, float]:
    """Returns the best mean score (percent) over all no-answer thresholds, and that threshold.

    `scores` (0 to 1) are the predictions' scores without a threshold. As in the official script,
    equal probabilities are taken one by one in the mapping's order, so the best score may be one
    that no threshold reaches; if answering nothing is best, the threshold is 0.
    """
    current = best = sum(1 for golds in answers.values() if not golds)
    threshold = 0.0
    # In this order the questions get their answers one after the other.
    for question in sorted(no_answer_probabilities, key=no_answer_probabilities.__getitem__):
        if question not in answers:
            continue
        if answers[question]:
            current += scores[question]
        elif predictions[question]:
            current -= 1
        if current > best:
            best, threshold = current, no_answer_probabilities[question]
    return 100.0 * best / len(scores), threshold


def _f1_v1(prediction: str, answer: str) -> float:
    return f1(prediction, answer) if normalize_answer(prediction) else 0.0


def _best(score: Any, prediction: str, golds: Sequence[str]) -> float:
    return max(float(score(prediction, gold)) for gold in golds)


def _breakdown(
    answers: Mapping[str, Sequence[str]], scores: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Returns the mean scores of all questions, and of questions with and without an answer."""
    groups = {
        "": list(answers),
        "HasAns_": [question for question, golds in answers.items() if golds],
        "NoAns_": [question for question, golds in answers.items() if not golds],
    }
    report: dict[str, float] = {}
    for prefix, questions in groups.items():
        if not questions:
            continue
        for name, by_question in scores.items():
            total = sum(by_question[question] for question in questions)
            report[f"{prefix}{name}"] = 100.0 * total / len(questions)
        report[f"{prefix}total"] = len(questions)
    return report


def _check_any(answers: Mapping[str, Sequence[str]]) -> None:
    if not answers:
        raise ValueError("there are no questions to score")


def _check_covered(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, Any], noun: str
) -> None:
    if missing := [question for question in answers if question not in predictions]:
        raise ValueError(
            f"{len(missing)} of {len(answers)} questions have no {noun}, such as {missing[:10]}; "
            "every question of the data set needs one"
        )
