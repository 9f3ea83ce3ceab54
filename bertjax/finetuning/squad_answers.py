"""What a model's logits answer to SQuAD's questions, and the official files of predictions.

How right the answers are belongs to `bertjax.scores.squad`.

Source: google-research/bert, run_squad.py, write_predictions, with two differences. An answer is a
piece of the original context, not words joined by spaces. A question none of whose likeliest starts
and ends fit together gets the best pair that does, where the released code answers "empty".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from bertjax.finetuning import squad_files

PREDICTIONS_FILE = "predictions.json"
NBEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"

# Of a row: [CLS], which stands for "no answer".
_NULL_POSITION = 0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer, "" for none; the probability is among the n best of its question."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self) -> float:
        """The logits' sum, by which candidates are ordered."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Predictions:
    """By question id: the n best candidates, and for v2.0 the score of "" above the best of them.

    `score_differences` is None for v1.1, where every question has an answer.
    """

    nbest: dict[str, list[Candidate]]
    score_differences: dict[str, float] | None

    def best_answers(self) -> dict[str, str]:
        """Returns the best answer to every question that is not "", as if each had one."""
        return {
            question: next((candidate.text for candidate in candidates if candidate.text), "")
            for question, candidates in self.nbest.items()
        }

    def answers(self, *, null_score_diff_threshold: float = 0.0) -> dict[str, str]:
        """Returns the answers, "" where the score difference is above the threshold."""
        differences = self.score_differences or {}
        return {
            question: "" if differences.get(question, -np.inf) > null_score_diff_threshold else best
            for question, best in self.best_answers().items()
        }


def predict(
    questions: Sequence[squad_files.Question],
    windows: Sequence[squad_files.Window],
    start_logits: Sequence[Float[np.ndarray, " _"]],
    end_logits: Sequence[Float[np.ndarray, " _"]],
    *,
    version_2: bool = False,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> Predictions:
    """Returns what the logits of all windows say.

    There is a row of logits for each window, in that order; what a row has behind the window's
    tokens, its padding, is not read. Answers have at most `max_answer_length` tokens.

    Raises:
      ValueError: if an option is below 1, a question has no window, or logits are missing or NaN.
    """
    _check_options(n_best_size, max_answer_length, version_2)
    rows = _rows(questions, windows, start_logits, end_logits)
    nbest: dict[str, list[Candidate]] = {}
    differences: dict[str, float] = {}
    for question, own in zip(questions, rows, strict=True):
        # With all starts and ends there is a pair: every token has its best context somewhere.
        spans = _spans(own, n_best_size, max_answer_length) or _spans(own, None, max_answer_length)
        best = _distinct(spans, question.context, n_best_size)
        if version_2:
            null = min((row.null() for row in own), key=lambda candidate: candidate.score)
            differences[question.id] = null.score - (best[0].score if best else 0.0)
            best = _with_null(best, null, n_best_size)
        nbest[question.id] = _with_probabilities(best or [Candidate("", 0.0, 0.0)])
    return Predictions(nbest, differences if version_2 else None)


def tune_threshold(
    score_differences: Mapping[str, float],
    answer_scores: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """Returns the no-answer threshold with the best mean score, and that score.

    `answer_scores` are those (exact match or F1) of `Predictions.best_answers`, and `answerable`
    tells which questions have an answer; a question without one scores 1 where "" is answered.
    Of equally good thresholds the lowest is taken. Unlike the official script's, the threshold
    always gives its score, among equal differences and where answering nothing is best.

    Raises:
      ValueError: if there are no questions, or not the same ones in all three.
    """
    if not score_differences:
        raise ValueError("there are no questions; a threshold needs those of a development set")
    if not score_differences.keys() == answer_scores.keys() == answerable.keys():
        raise ValueError(
            f"score_differences, answer_scores and answerable have {len(score_differences)}, "
            f"{len(answer_scores)} and {len(answerable)} questions; they must be the same"
        )
    ids = sorted(score_differences, key=score_differences.__getitem__)
    differences = np.array([score_differences[question] for question in ids])
    has_answer = np.array([answerable[question] for question in ids])
    # What is won as one question after the other is answered, after none of them.
    gains = np.where(has_answer, [answer_scores[question] for question in ids], -1.0)
    totals = np.count_nonzero(~has_answer) + np.concatenate([[0.0], np.cumsum(gains)])
    thresholds = np.concatenate([[differences[0] - 1.0], differences])
    # Questions of equal difference are answered together.
    is_reached = np.append(thresholds[1:] > thresholds[:-1], True)
    best = np.argmax(np.where(is_reached, totals, -np.inf))
    return float(thresholds[best]), float(totals[best] / len(ids))


def write(
    predictions: Predictions,
    directory: epath.PathLike,
    *,
    null_score_diff_threshold: float = 0.0,
) -> None:
    """Writes the files of the released code: predictions, n-best and, for v2.0, null odds.

    The official evaluation scripts read predictions.json, and null_odds.json as --na-prob-file.
    """
    directory = epath.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    nbest = {
        question: [
            {
                "text": candidate.text,
                "probability": candidate.probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate in candidates
        ]
        for question, candidates in predictions.nbest.items()
    }
    answers = predictions.answers(null_score_diff_threshold=null_score_diff_threshold)
    files: dict[str, Mapping] = {PREDICTIONS_FILE: answers, NBEST_FILE: nbest}
    if predictions.score_differences is not None:
        files[NULL_ODDS_FILE] = predictions.score_differences
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=4) + "\n")


@dataclasses.dataclass(frozen=True)
class _Row:
    """A window and the logits of its tokens."""

    window: squad_files.Window
    start_logits: Float[np.ndarray, " length"]
    end_logits: Float[np.ndarray, " length"]

    def null(self) -> Candidate:
        start, end = self.start_logits[_NULL_POSITION], self.end_logits[_NULL_POSITION]
        return Candidate("", float(start), float(end))

    def spans(
        self, n_best_size: int | None, max_answer_length: int
    ) -> tuple[Int[np.ndarray, " spans"], Int[np.ndarray, " spans"]]:
        """Returns the pairs of the best starts and ends that can be answers, as row positions."""
        context = self.window.context_position
        starts = _best(self.start_logits, n_best_size) - context
        ends = _best(self.end_logits, n_best_size) - context
        size = self.window.end - self.window.begin
        starts, ends = (places[(places >= 0) & (places < size)] for places in (starts, ends))
        starts = starts[self.window.has_max_context[starts]]
        lengths = ends - starts[:, None] + 1
        pairs = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
        return starts[pairs[0]] + context, ends[pairs[1]] + context

    def candidate(self, first: int, last: int, text: str) -> Candidate:
        """Returns the answer between two row positions in the text of the context."""
        window = self.window
        shift = window.begin - window.context_position
        start, end = window.context.starts[first + shift], window.context.ends[last + shift]
        # A piece that is white space alone has an empty place behind it.
        answer = text[start:end].strip()
        return Candidate(answer, float(self.start_logits[first]), float(self.end_logits[last]))


def _best(
    logits: Float[np.ndarray, " length"], n_best_size: int | None
) -> Int[np.ndarray, " best"]:
    """Returns the positions of the highest logits, the first of equal ones first."""
    return np.argsort(-logits, kind="stable")[:n_best_size]


def _spans(
    rows: Sequence[_Row], n_best_size: int | None, max_answer_length: int
) -> list[tuple[_Row, int, int]]:
    """Returns the possible answers of a question's windows, the highest score first."""
    found: list[tuple[_Row, int, int]] = []
    scores: list[np.ndarray] = []
    for row in rows:
        firsts, lasts = row.spans(n_best_size, max_answer_length)
        pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        found += [(row, first, last) for first, last in pairs]
        scores.append(row.start_logits[firsts] + row.end_logits[lasts])
    return [found[place] for place in np.argsort(-np.concatenate(scores), kind="stable").tolist()]


def _distinct(
    spans: Sequence[tuple[_Row, int, int]], context: str, n_best_size: int
) -> list[Candidate]:
    """Returns the first candidates whose texts are not empty and not those of one before."""
    kept: dict[str, Candidate] = {}
    for row, first, last in spans:
        if len(kept) == n_best_size:
            break
        candidate = row.candidate(first, last, context)
        if candidate.text:
            kept.setdefault(candidate.text, candidate)
    return list(kept.values())


def _with_null(best: Sequence[Candidate], null: Candidate, n_best_size: int) -> list[Candidate]:
    """Returns the `n_best_size` best with "" among them, or behind them if it is not."""
    ranked = sorted([*best, null], key=lambda candidate: -candidate.score)[:n_best_size]
    return ranked if null in ranked else [*ranked, null]


def _with_probabilities(candidates: Sequence[Candidate]) -> list[Candidate]:
    scores = np.array([candidate.score for candidate in candidates])
    weights = np.exp(scores - scores.max())
    return [
        dataclasses.replace(candidate, probability=float(probability))
        for candidate, probability in zip(candidates, weights / weights.sum(), strict=True)
    ]


def _rows(
    questions: Sequence[squad_files.Question],
    windows: Sequence[squad_files.Window],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
) -> list[list[_Row]]:
    """Returns the rows of each question."""
    if not len(windows) == len(start_logits) == len(end_logits):
        raise ValueError(
            f"there are {len(windows)} windows, but {len(start_logits)} rows of start_logits and "
            f"{len(end_logits)} of end_logits; each window needs one of both, in order"
        )
    rows: list[list[_Row]] = [[] for _ in questions]
    for place, window in enumerate(windows):
        own = [
            _checked(name, logits[place], place, len(window.input_ids))
            for name, logits in (("start_logits", start_logits), ("end_logits", end_logits))
        ]
        rows[window.question].append(_Row(window, *own))
    if missing := [q.id for q, own in zip(questions, rows, strict=True) if not own]:
        raise ValueError(
            f"{len(missing)} questions have no window, such as {missing[:10]}; give all windows "
            "that `squad_files.windows` makes of the same questions"
        )
    return rows


def _checked(name: str, row: np.ndarray, place: int, length: int) -> Float[np.ndarray, " length"]:
    """Returns a row of logits without its padding, in float64, so that sums keep their order."""
    logits = np.asarray(row[:length], np.float64)
    if len(logits) < length:
        raise ValueError(
            f"{name}[{place}] has {len(logits)} values; its window has {length} tokens"
        )
    if np.isnan(logits).any():
        raise ValueError(f"{name}[{place}] holds NaN; logits must be numbers")
    return logits


def _check_options(n_best_size: int, max_answer_length: int, version_2: bool) -> None:
    least = 2 if version_2 else 1
    faults = []
    if n_best_size < least:
        reason = ", for an answer and none" if version_2 else ""
        faults.append(f"n_best_size is {n_best_size}; it must be at least {least}{reason}")
    if max_answer_length < 1:
        faults.append(f"max_answer_length is {max_answer_length}; it must be at least 1")
    if faults:
        raise ValueError("\n".join(faults))
