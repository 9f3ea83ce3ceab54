"""Answers that are pieces of a text: SQuAD v1.1 and v2.0; a row of the model is a window.

Its files and windows belong to `squad_files`, what logits answer to `squad_answers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.finetuning import base, json_fields, squad_answers, squad_files
from bertjax.models import classification
from bertjax.models import encoder as encoders
from bertjax.scores import squad as squad_scores
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation

VERSIONS = ("v1", "v2")
NO_ANSWER = "no answer"

# The official script's prefixes: of all questions, of those with an answer, of those without.
_GROUPS = ("", "HasAns_", "NoAns_")


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
            yield (
                f"config.finetuning.name is {self.options.name!r}; for dataset 'squad' it is the "
                f"version, {' or '.join(VERSIONS)}"
            )

    @property
    def is_version_2(self) -> bool:
        """Whether questions may have no answer."""
        return self.options.name == "v2"

    def _examples(self, name: str) -> Sequence[squad_files.Question]:
        return squad_files.read_questions(
            self.file(name), version_2=self.is_version_2, labelled=name != base.TEST
        )

    def _features(self, name: str) -> squad_files.WindowRows:
        rows = self._windows(self.examples(name), labelled=name != base.TEST)
        if name == base.TRAIN:
            _warn_of_answers_in_no_window(rows)
        return rows

    def example(self, fields: base.Fields, source: str) -> squad_files.Question:
        # The source is unique, an id of the user's need not be.
        return squad_files.Question(
            source, json_fields.text(fields, "question"), json_fields.text(fields, "context")
        )

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

    # A question gets "" where the score of "" is above that of the best other answer by more.
    tunes = ("null_threshold",)

    @property
    def best_score(self) -> str:
        return "f1"

    def _best(
        self, rows: squad_files.WindowRows, outputs: base.Outputs
    ) -> squad_answers.Predictions:
        """Returns the best answers by the logits of all windows."""
        return squad_answers.predict(
            rows.questions,
            rows.windows,
            list(outputs["start_logits"]),
            list(outputs["end_logits"]),
            version_2=self.reader.is_version_2,
            n_best_size=self.options.n_best_size,
            max_answer_length=self.options.max_answer_length,
        )

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        """Returns what the official script prints, in percent.

        For v2.0 with the best no-answer threshold of this set, which is the score null_threshold.
        """
        rows = self.reader.features(name)
        predictions = self._best(rows, outputs)
        gold = {it.id: [answer.text for answer in it.answers] for it in rows.questions}
        if not self.reader.is_version_2:
            all_scores = squad_scores.evaluate_v1(gold, predictions.answers())
            return {score: all_scores[score] for score in ("exact_match", "f1")}
        threshold = _tuned_threshold(predictions, gold)
        all_scores = squad_scores.evaluate(
            gold, predictions.best_answers(), predictions.score_differences, threshold
        )
        names = (f"{group}{score}" for group in _GROUPS for score in ("exact", "f1"))
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

    def predictions(
        self,
        examples: Sequence[squad_files.Question],
        rows: squad_files.WindowRows,
        outputs: base.Outputs,
        tuned: base.Tuned,
    ) -> list[base.Prediction]:
        best = self._best(rows, outputs)
        threshold = self.number("null_threshold", tuned)
        answers = best.answers(null_score_diff_threshold=threshold)
        return [_prediction(best, question.id, answers[question.id]) for question in examples]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the files of the released code into a directory with the set's name."""
        squad_answers.write(
            self._best(self.reader.features(name), outputs),
            directory / name,
            null_score_diff_threshold=self.number("null_threshold", tuned),
        )


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
    lost = [
        question.source
        for number, question in enumerate(rows.questions)
        if question.answers and number not in learnt
    ]
    if lost:
        logging.warning(
            "%d of %d questions have an answer that is whole in no window and are learnt as having "
            "none, such as %s; a longer config.finetuning.max_seq_length or a smaller doc_stride "
            "helps", len(lost), len(rows.questions), lost[0],
        )  # fmt: skip


def _tuned_threshold(
    predictions: squad_answers.Predictions, gold: Mapping[str, list[str]]
) -> float:
    """Returns the no-answer threshold with the best F1."""
    best = predictions.best_answers()
    f1s = {
        question: max((squad_scores.f1(best[question], answer) for answer in answers), default=0.0)
        for question, answers in gold.items()
    }
    answerable = {question: bool(answers) for question, answers in gold.items()}
    return squad_answers.tune_threshold(predictions.score_differences or {}, f1s, answerable)[0]


def _prediction(
    predictions: squad_answers.Predictions, question: str, answer: str
) -> base.Prediction:
    """Returns an answer, its probability among the n best and, for v2.0, the lead of ""."""
    candidates = predictions.nbest[question]
    probability = next(it.probability for it in candidates if it.text == answer)
    differences = predictions.score_differences
    no_answer = {} if differences is None else {"score_difference": differences[question]}
    return {"answer": answer, "probability": probability} | no_answer


def _faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    if config.finetuning.name == "v2" and config.finetuning.n_best_size == 1:
        yield "config.finetuning.n_best_size is 1; it must be at least 2, for an answer and none"


SQUAD = base.FinetuningKind(
    SpanReader,
    lambda encoder, options: SpanExtraction(encoder, options.bilstm_size),
    SpanScorer,
    {"bilstm_size": 0},
    _faults,
)
