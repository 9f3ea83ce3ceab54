"""Answers that are pieces of a text: SQuAD v1.1 and v2.0; a row of the model is a window.

Files and windows belong to `squad_files`, the formulas of scores to `bertjax.scores.squad`.

Source of the predictions: google-research/bert, run_squad.py, write_predictions, with two
differences. An answer is a piece of the original context, not words joined by spaces. A question
none of whose likeliest starts and ends fit together gets the best pair that does, where the
released code answers "empty".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.finetuning import base, example_files, squad_files
from bertjax.models import classification
from bertjax.models import encoder as encoders
from bertjax.options import faults
from bertjax.options import finetuning as options_lib
from bertjax.scores import squad as squad_scores
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation

VERSIONS = ("v1", "v2")
NO_ANSWER = "no answer"

PREDICTIONS_FILE = "predictions.json"
NBEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"

_NULL_POSITION = 0  # [CLS], which stands for "no answer"


@dataclasses.dataclass(frozen=True)
class SpanExtraction(base.FinetuningTask):
    """Where an answer starts and ends; `start_positions` and `end_positions` [batch].

    The softmax is over the real positions of the window (the released code leaves padding in).
    Source: Devlin et al. 2019, section 4.2; google-research/bert, run_squad.py.
    """

    head: ClassVar[str] = "question_answering"

    encoder: encoders.EncoderConfig
    bilstm_size: int = 0

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        position = jax.ShapeDtypeStruct((batch_size,), np.int32)
        return {"start_positions": position, "end_positions": position}

    def init(self, rngs: nnx.Rngs) -> classification.SpanClassifier:
        return classification.SpanClassifier(self.encoder, bilstm_size=self.bilstm_size, rngs=rngs)

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean over rows of the two cross-entropies' mean; accuracy is of both ends."""
        start, end = _logits(model, batch, key)
        starts, ends = batch["start_positions"], batch["end_positions"]
        losses = (tasks.cross_entropy(start, starts) + tasks.cross_entropy(end, ends)) / 2
        hits = (start.argmax(axis=-1) == starts) & (end.argmax(axis=-1) == ends)
        weights = self.scored(batch)
        return {
            "loss": tasks.weighted(losses, weights),
            "accuracy": tasks.weighted(hits.astype(jnp.float32), weights),
        }

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `start_logits` and `end_logits`, the lowest float32 at padding."""
        start, end = _logits(model, batch, None)
        return {"start_logits": start, "end_logits": end}

    def soft_losses(
        self, ours: base.DeviceOutputs, theirs: base.DeviceOutputs, temperature: float
    ) -> Array:
        """Returns the mean over start and end, each a distribution over positions."""
        start, end = (
            distillation.divergence(ours[name], theirs[name], temperature)
            for name in ("start_logits", "end_logits")
        )
        return (start + end) / 2

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        states, width = base.states_flops(self.encoder, length, self.bilstm_size)
        return 3.0 * batch_size * (states + 2.0 * length * width * 2)


class SpanReader(base.Reader):
    """Reads a "question" on a "context", and windows of both."""

    def missing(self) -> Iterator[str]:
        yield from super().missing()
        if self.options.name not in VERSIONS:
            of_squad = "the version of SQuAD"
            yield str(
                faults.unknown("config.finetuning.name", self.options.name, VERSIONS, of_squad)
            )

    @property
    def is_version_2(self) -> bool:
        """Whether questions may have no answer."""
        return self.options.name == "v2"

    def _examples(self, name: str) -> Sequence[squad_files.Question]:
        return squad_files.read_questions(
            self.file(name),
            version_2=self.is_version_2,
            labelled=name != base.TEST,
            repairs_answers=self.options.repair_answers,
        )

    def _features(self, name: str) -> squad_files.WindowRows:
        rows = self._windows(self.examples(name), labelled=name != base.TEST)
        if name == base.TRAIN:
            _warn_of_answers_in_no_window(rows)
        return rows

    def example(self, fields: base.Fields, source: str) -> squad_files.Question:
        # The source is unique, an id of the user's need not be.
        question, context = (example_files.json_text(fields, it) for it in ("question", "context"))
        return squad_files.Question(source, question, context)

    def texts(self, example: squad_files.Question) -> tuple[str, ...]:
        return example.text, example.context

    def rows(self, examples: Sequence[squad_files.Question]) -> squad_files.WindowRows:
        """Returns the rows of all windows, without labels."""
        return self._windows(examples, labelled=False)

    def _windows(
        self, questions: Sequence[squad_files.Question], *, labelled: bool
    ) -> squad_files.WindowRows:
        options = self.options
        windows = squad_files.windows(
            questions,
            self.tokenizer,
            max_seq_length=options.max_seq_length,
            doc_stride=options.doc_stride,
            max_query_length=options.max_query_length,
        )
        return squad_files.window_rows(questions, windows, self.tokenizer, labelled=labelled)


class SpanScorer(base.Scorer):
    """Scores as SQuAD's official scripts do; predictions are pieces of the context, or ""."""

    # A question gets "" if the score of "" exceeds the score of the best other answer by more.
    tunes = ("null_threshold",)

    @property
    def best_score(self) -> str:
        return "f1"

    def _best(self, rows: squad_files.WindowRows, outputs: base.Outputs) -> SpanPredictions:
        return best_spans(
            rows,
            outputs,
            version_2=self.reader.is_version_2,
            n_best_size=self.options.n_best_size,
            max_answer_length=self.options.max_answer_length,
        )

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        """Returns what the official script prints, in percent.

        For v2.0 with the best no-answer threshold of this set, which is the score null_threshold.
        XQuAD's scores are these in all its languages. Where a language writes no spaces, as
        Chinese, an answer is one word, so that F1 counts no part of it.
        """
        return self.scores_with(name, outputs, {})

    def scores_with(self, name: str, outputs: base.Outputs, tuned: base.Tuned) -> dict[str, float]:
        rows = self.reader.features(name)
        predictions = self._best(rows, outputs)
        gold = {it.id: [answer.text for answer in it.answers] for it in rows.questions}
        if not self.reader.is_version_2:
            all_scores = squad_scores.evaluate_v1(gold, predictions.answers())
            return {score: all_scores[score] for score in ("exact_match", "f1")}
        best, differences = predictions.best_answers(), predictions.score_differences
        threshold = tuned.get("null_threshold")
        if threshold is None:
            threshold = _best_threshold(gold, best, differences or {})
        all_scores = squad_scores.evaluate(gold, best, differences, threshold)
        # All questions, those with an answer, those without.
        groups = ("", "HasAns_", "NoAns_")
        names = (f"{group}{score}" for group in groups for score in ("exact", "f1"))
        scores = {score: all_scores[score] for score in names if score in all_scores}
        return scores | {"null_threshold": threshold}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str] | None:
        """Returns for v2.0 whether each question has an answer; None for outputs."""
        if not self.reader.is_version_2 or outputs is not None:
            return None
        return ["an answer" if it.answers else NO_ANSWER for it in self.reader.examples(name)]

    def _majority(self, name: str) -> tuple[str, dict[str, float]] | None:
        """Returns "no answer", which alone can be right for several questions, and its scores."""
        right = self.classes(name)
        if not right:
            return None
        share = 100.0 * sum(each == NO_ANSWER for each in right) / len(right)
        return NO_ANSWER, {"exact": share, "f1": share}

    def only_answer(
        self, name: str, outputs: base.Outputs, scores: Mapping[str, float]
    ) -> str | None:
        """Returns "no answer" where by these scores every question is left unanswered."""
        del name, outputs
        is_none = scores.get("HasAns_f1") == 0.0 and scores.get("NoAns_exact") == 100.0
        return NO_ANSWER if is_none else None

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        best = self._best(predicted.rows, predicted.outputs)
        answers = best.answers(self._threshold(predicted.tuned))
        return [_prediction(best, it.id, answers[it.id]) for it in predicted.examples]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the files of the released code into a directory with the set's name."""
        best = self._best(self.reader.features(name), outputs)
        write_files(best, directory / name, self._threshold(tuned))

    def _threshold(self, tuned: base.Tuned) -> float:
        return tuned.get("null_threshold", self.options.null_threshold)


def _best_threshold(
    gold: Mapping[str, Sequence[str]], best: Mapping[str, str], differences: Mapping[str, float]
) -> float:
    """Returns the no-answer threshold with the best F1."""
    f1s = {
        question: max((squad_scores.f1(best[question], it) for it in answers), default=0.0)
        for question, answers in gold.items()
    }
    answerable = {question: bool(answers) for question, answers in gold.items()}
    return tune_threshold(differences, f1s, answerable)[0]


def _logits(
    model: base.Model, batch: tasks.Batch, key: PRNGKeyArray | None
) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"]]:
    is_real = batch["input_mask"] != 0
    start, end = model(batch, key=key)
    lowest = jnp.finfo(jnp.float32).min
    return jnp.where(is_real, start, lowest), jnp.where(is_real, end, lowest)


def _warn_of_answers_in_no_window(rows: squad_files.WindowRows) -> None:
    starts = rows.columns["start_positions"]
    learnt = {window.question for window, start in zip(rows.windows, starts, strict=True) if start}
    answered = {number for number, question in enumerate(rows.questions) if question.answers}
    if lost := sorted(answered - learnt):
        logging.warning(
            "%d of %d questions have an answer that is whole in no window and are learnt as having "
            "none, such as %s; a longer config.finetuning.max_seq_length or a smaller doc_stride "
            "helps", len(lost), len(rows.questions), rows.questions[lost[0]].source,
        )  # fmt: skip


def _prediction(predictions: SpanPredictions, question: str, answer: str) -> base.Prediction:
    """Returns an answer, its probability among the n best and, for v2.0, the lead of ""."""
    candidates = predictions.nbest[question]
    probability = next(it.probability for it in candidates if it.text == answer)
    differences = predictions.score_differences
    no_answer = {} if differences is None else {"score_difference": differences[question]}
    return {"answer": answer, "probability": probability} | no_answer


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
class SpanPredictions:
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

    def answers(self, null_threshold: float = 0.0) -> dict[str, str]:
        """Returns the answers, "" where the score difference is above the threshold."""
        differences = self.score_differences or {}
        return {
            question: "" if differences.get(question, -np.inf) > null_threshold else best
            for question, best in self.best_answers().items()
        }


def best_spans(
    rows: squad_files.WindowRows,
    outputs: Mapping[str, Sequence[Float[np.ndarray, " _"]] | np.ndarray],
    *,
    version_2: bool = False,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> SpanPredictions:
    """Returns the best answers by `start_logits` and `end_logits` of all windows, in their order.

    Logits after a window's tokens, its padding, are not read. Answers have at most
    `max_answer_length` tokens.
    """
    by_question: list[list[_Row]] = [[] for _ in rows.questions]
    logits = zip(outputs["start_logits"], outputs["end_logits"], strict=True)
    for window, (start, end) in zip(rows.windows, logits, strict=True):
        length = len(window.input_ids)
        # In float64 sums keep their order.
        row = _Row(window, *(np.asarray(it[:length], np.float64) for it in (start, end)))
        if np.isnan(row.start_logits).any() or np.isnan(row.end_logits).any():
            raise ValueError("the logits of a window hold NaN; they must be numbers")
        by_question[window.question].append(row)
    nbest: dict[str, list[Candidate]] = {}
    differences: dict[str, float] = {}
    for question, windows in zip(rows.questions, by_question, strict=True):
        # With all starts and ends there is a pair: every token has its best context somewhere.
        spans = _spans(windows, n_best_size, max_answer_length)
        spans = spans or _spans(windows, None, max_answer_length)
        best = _distinct(spans, question.context, n_best_size)
        if version_2:
            null = min((row.null() for row in windows), key=lambda candidate: candidate.score)
            differences[question.id] = null.score - (best[0].score if best else 0.0)
            ranked = sorted([*best, null], key=lambda it: -it.score)[:n_best_size]
            best = ranked if null in ranked else [*ranked, null]
        nbest[question.id] = _with_probabilities(best or [Candidate("", 0.0, 0.0)])
    return SpanPredictions(nbest, differences if version_2 else None)


def tune_threshold(
    score_differences: Mapping[str, float],
    answer_scores: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """Returns the no-answer threshold with the best mean score, and that score.

    `answer_scores` are those (exact match or F1) of `SpanPredictions.best_answers`, `answerable`
    says which questions have an answer; a question without one scores 1 for "". The lowest of
    equally good thresholds is taken. Unlike the official script's, the threshold always gives its
    score, among equal differences and where answering nothing is best.
    """
    ids = sorted(score_differences, key=score_differences.__getitem__)
    differences = np.array([score_differences[question] for question in ids])
    has_answer = np.array([answerable[question] for question in ids])
    # The gain of answering no question, the first question, the first two, and so on.
    gains = np.where(has_answer, [answer_scores[question] for question in ids], -1.0)
    totals = np.count_nonzero(~has_answer) + np.concatenate([[0.0], np.cumsum(gains)])
    thresholds = np.concatenate([[differences[0] - 1.0], differences])
    # Questions of equal difference are answered together.
    is_reached = np.append(thresholds[1:] > thresholds[:-1], True)
    best = np.argmax(np.where(is_reached, totals, -np.inf))
    return float(thresholds[best]), float(totals[best] / len(ids))


def write_files(
    predictions: SpanPredictions, directory: epath.PathLike, null_threshold: float = 0.0
) -> None:
    """Writes the files of the released code: predictions, n-best and, for v2.0, null odds.

    The official evaluation scripts read predictions.json, and null_odds.json as --na-prob-file.
    """
    directory = epath.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = ("text", "probability", "start_logit", "end_logit")
    nbest = {
        question: [{name: getattr(it, name) for name in names} for it in candidates]
        for question, candidates in predictions.nbest.items()
    }
    answers = predictions.answers(null_threshold)
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
        size = self.window.end - self.window.begin
        starts, ends = (
            np.argsort(-logits, kind="stable")[:n_best_size] - context
            for logits in (self.start_logits, self.end_logits)
        )
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


def _spans(
    rows: Sequence[_Row], n_best_size: int | None, max_answer_length: int
) -> list[tuple[_Row, int, int]]:
    """Returns the possible answers of a question's windows, the highest score first."""
    spans: list[tuple[_Row, int, int]] = []
    scores: list[np.ndarray] = []
    for row in rows:
        firsts, lasts = row.spans(n_best_size, max_answer_length)
        pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        spans += [(row, first, last) for first, last in pairs]
        scores.append(row.start_logits[firsts] + row.end_logits[lasts])
    return [spans[place] for place in np.argsort(-np.concatenate(scores), kind="stable").tolist()]


def _distinct(
    spans: Sequence[tuple[_Row, int, int]], context: str, n_best_size: int
) -> list[Candidate]:
    """Returns the first candidates whose texts are neither empty nor repeated."""
    candidates: dict[str, Candidate] = {}
    for row, first, last in spans:
        if len(candidates) == n_best_size:
            break
        candidate = row.candidate(first, last, context)
        if candidate.text:
            candidates.setdefault(candidate.text, candidate)
    return list(candidates.values())


def _with_probabilities(candidates: Sequence[Candidate]) -> list[Candidate]:
    scores = np.array([candidate.score for candidate in candidates])
    weights = np.exp(scores - scores.max())
    return [
        dataclasses.replace(candidate, probability=float(probability))
        for candidate, probability in zip(candidates, weights / weights.sum(), strict=True)
    ]


def _faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    if config.finetuning.name == "v2" and config.finetuning.n_best_size == 1:
        yield "config.finetuning.n_best_size is 1; it must be at least 2, for an answer and none"


SQUAD = base.FinetuningKind(
    SpanReader,
    lambda encoder, options: SpanExtraction(encoder, options.bilstm_size),
    SpanScorer,
    options_lib.owned("bilstm_size"),
    _faults,
)
