"""Data sets of finetuning whose answers are tags of words, spans of a text, or one of some choices.

What they have in common, and data sets of one or two texts, are in `datasets`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import conll, multiple_choice, squad, squad_answers, tag_schemes
from bertjax.finetuning import features as feature_sets
from bertjax.jobs import datasets
from bertjax.jobs.datasets import TEST, TRAIN, Outputs
from bertjax.scores import classification, entities
from bertjax.scores import squad as squad_scores

SQUAD_VERSIONS = ("v1", "v2")

# The official script's prefixes: of all questions, of those with an answer, of those without.
_GROUPS = ("", "HasAns_", "NoAns_")


class Tags(datasets.Dataset):
    """Words with a tag each. The option `name` is their scheme, "" where it is to be found out."""

    def __init__(self, options: ml_collections.ConfigDict, tokenizer: tokenizers.Tokenizer):
        super().__init__(options, tokenizer)
        self.rows = functools.cache(self._rows)
        scheme = tag_schemes.PLAIN if self.is_plain else "iob2"  # as `conll.read` returns tags
        self.labels = tuple(options.labels) or conll.labels(self.examples(TRAIN), scheme=scheme)

    def check(self) -> None:
        super().check()
        known = ("", *tag_schemes.SCHEMES, tag_schemes.PLAIN)
        if self.options.name not in known:
            raise ValueError(
                f"config.finetuning.name is {self.options.name!r}; for dataset 'conll' it is the "
                f"scheme of the tags, one of {', '.join(known[1:])}, or '' to find it out"
            )

    @property
    def is_plain(self) -> bool:
        """Whether tags name no entities."""
        return self.options.name == tag_schemes.PLAIN

    @property
    def best_score(self) -> str:
        return "accuracy" if self.is_plain else "f1"

    def _examples(self, name: str) -> Sequence[conll.Sentence]:
        return conll.read(self.file(name), scheme=self.options.name or None)

    def _rows(self, name: str) -> conll.TaggedRows:
        return conll.features(
            self.examples(name),
            self.tokenizer,
            labels=self.labels,
            max_seq_length=self.options.max_seq_length,
            context=self.options.context,
        )

    def _features(self, name: str) -> feature_sets.FeatureSet:
        return self.rows(name).features

    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns conlleval's scores of entities, in percent; for plain tags the accuracy.

        Accuracies are fractions: that of the words is the task's own, in training too.
        """
        gold = [sentence.tags for sentence in self.examples(name)]
        predicted = self.rows(name).tags(list(outputs["predictions"]), self.labels)
        if self.is_plain:
            words = (
                np.concatenate([np.array(tags) for tags in each]) for each in (gold, predicted)
            )
            return {"accuracy": classification.accuracy(*words)}
        overall = entities.score(gold, predicted).overall
        return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}

    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes the columns that conlleval reads."""
        tags = self.rows(name).tags(list(outputs["predictions"]), self.labels)
        conll.write_predictions(directory / f"{name}.conll", self.examples(name), tags)


class Spans(datasets.Dataset):
    """Questions whose answers are pieces of a text: SQuAD v1.1 and v2.0; a row is a window."""

    def __init__(self, options: ml_collections.ConfigDict, tokenizer: tokenizers.Tokenizer):
        super().__init__(options, tokenizer)
        self.windows = functools.cache(self._windows)

    def check(self) -> None:
        super().check()
        if self.options.name not in SQUAD_VERSIONS:
            raise ValueError(
                f"config.finetuning.name is {self.options.name!r}; for dataset 'squad' it is the "
                f"version, {' or '.join(SQUAD_VERSIONS)}"
            )

    @property
    def is_version_2(self) -> bool:
        """Whether questions may have no answer."""
        return self.options.name == "v2"

    @property
    def best_score(self) -> str:
        return "f1"

    def _examples(self, name: str) -> Sequence[squad.Question]:
        return squad.read(self.file(name), version_2=self.is_version_2, labelled=name != TEST)

    def _windows(self, name: str) -> Sequence[squad.Window]:
        options = self.options
        return squad.windows(
            self.examples(name),
            self.tokenizer,
            max_seq_length=options.max_seq_length,
            doc_stride=options.doc_stride,
            max_query_length=options.max_query_length,
        )

    def _features(self, name: str) -> feature_sets.FeatureSet:
        questions, windows = self.examples(name), self.windows(name)
        features = squad.features(questions, windows, self.tokenizer, labelled=name != TEST)
        if name == TRAIN:
            _warn_of_answers_in_no_window(questions, windows, features.columns["start_positions"])
        return features

    def predictions(self, name: str, outputs: Outputs) -> squad_answers.Predictions:
        """Returns the answers that the logits of all windows give."""
        return squad_answers.predict(
            self.examples(name),
            self.windows(name),
            list(outputs["start_logits"]),
            list(outputs["end_logits"]),
            version_2=self.is_version_2,
            n_best_size=self.options.n_best_size,
            max_answer_length=self.options.max_answer_length,
        )

    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns what the official script prints, in percent.

        For v2.0 with the best no-answer threshold of this set, which is the score null_threshold.
        """
        predictions = self.predictions(name, outputs)
        gold = {q.id: [answer.text for answer in q.answers] for q in self.examples(name)}
        if not self.is_version_2:
            found = squad_scores.evaluate_v1(gold, predictions.answers())
            return {score: found[score] for score in ("exact_match", "f1")}
        threshold = tuned_threshold(predictions, gold)
        differences = predictions.score_differences
        found = squad_scores.evaluate(gold, predictions.best_answers(), differences, threshold)
        wanted = (f"{group}{score}" for group in _GROUPS for score in ("exact", "f1"))
        scores = {score: found[score] for score in wanted if score in found}
        return scores | {"null_threshold": threshold}

    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes the files of the released code into a directory with the set's name."""
        squad_answers.write(
            self.predictions(name, outputs),
            directory / name,
            null_score_diff_threshold=self.options.null_threshold,
        )


class Choices(datasets.Dataset):
    """Which of four endings goes on a text: SWAG and CODAH."""

    @property
    def best_score(self) -> str:
        return "accuracy"

    def _examples(self, name: str) -> Sequence[multiple_choice.Example]:
        return multiple_choice.read(self.file(name))

    def _features(self, name: str) -> feature_sets.FeatureSet:
        return multiple_choice.features(
            self.examples(name), self.tokenizer, max_seq_length=self.options.max_seq_length
        )

    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        labels = self.features(name).columns["labels"]
        return {"accuracy": classification.accuracy(labels, outputs["predictions"])}

    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes the CSV file of SWAG's baselines."""
        multiple_choice.write_predictions(directory / f"{name}.csv", outputs["predictions"])


def _warn_of_answers_in_no_window(
    questions: Sequence[squad.Question], windows: Sequence[squad.Window], starts: np.ndarray
) -> None:
    found = {window.question for window, start in zip(windows, starts, strict=True) if start}
    lost = [
        question.source
        for place, question in enumerate(questions)
        if question.answers and place not in found
    ]
    if lost:
        logging.warning(
            "%d of %d questions have an answer that is whole in no window and are learnt as having "
            "none, such as %s; a longer config.finetuning.max_seq_length or a smaller doc_stride "
            "helps", len(lost), len(questions), lost[0],
        )  # fmt: skip


def tuned_threshold(predictions: squad_answers.Predictions, gold: dict[str, list[str]]) -> float:
    """Returns the no-answer threshold with the best F1."""
    best = predictions.best_answers()
    f1s = {
        question: max((squad_scores.f1(best[question], answer) for answer in answers), default=0.0)
        for question, answers in gold.items()
    }
    answerable = {question: bool(answers) for question, answers in gold.items()}
    return squad_answers.tune_threshold(predictions.score_differences or {}, f1s, answerable)[0]
