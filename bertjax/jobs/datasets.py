"""The data sets of finetuning behind one small class: their rows, and what predictions are worth.

Files and rows belong to `bertjax.finetuning`, formulas to `bertjax.scores`; here the options
of config.finetuning choose among them. Data sets of one or two texts are in this module, tags,
spans and choices in `structured_datasets`.
"""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import features as feature_sets
from bertjax.finetuning import glue, glue_submission, tables, texts
from bertjax.scores import classification

TRAIN, DEV, TEST = "train", "dev", "test"

Outputs = Mapping[str, np.ndarray]


class Dataset(abc.ABC):
    """A training set, and the sets that are evaluated and predicted, by their names.

    `options` are config.finetuning. `labels` are the names of the classes, () where there are none.
    A set is read and tokenized when it is first asked for, once.
    """

    labels: tuple[str, ...] = ()
    is_regression = False

    def __init__(self, options: ml_collections.ConfigDict, tokenizer: tokenizers.Tokenizer):
        self.options, self.tokenizer = options, tokenizer
        self.check()
        self.examples = functools.cache(self._examples)
        self.features = functools.cache(self._features)

    def check(self) -> None:
        """Raises a ValueError that names the options which are missing or unknown."""
        if not self.options.train_file:
            raise ValueError(
                f"config.finetuning.train_file is empty; the data set {self.options.dataset!r} "
                "needs a file to train on: --config.finetuning.train_file=PATH"
            )

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return (DEV,) if self.options.eval_file else ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        return (TEST,) if self.options.test_file else ()

    @property
    @abc.abstractmethod
    def best_score(self) -> str:
        """The score that decides; higher is better."""

    @abc.abstractmethod
    def _examples(self, name: str) -> Sequence[Any]:
        """Returns the examples of a set as its reader does."""

    @abc.abstractmethod
    def _features(self, name: str) -> feature_sets.FeatureSet:
        """Returns the rows of a set."""

    @abc.abstractmethod
    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns the scores of predictions for an evaluation set, as `Job.scores`."""

    @abc.abstractmethod
    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes predictions for any set into a directory that is there."""

    def with_options(self, options: ml_collections.ConfigDict) -> Dataset:
        """Returns the same data set, what is read already too, under options changed since."""
        changed = copy.copy(self)
        changed.options = options
        return changed

    def file(self, name: str) -> str:
        """Returns the path of a set."""
        options = self.options
        return {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.test_file}[name]


class _Texts(Dataset):
    """One or two texts with a class or a number."""

    def _features(self, name: str) -> feature_sets.FeatureSet:
        return texts.features(
            self.examples(name), self.tokenizer, max_seq_length=self.options.max_seq_length
        )

    @property
    @abc.abstractmethod
    def score_names(self) -> tuple[str, ...]:
        """The keys of classification.SCORES that are computed."""

    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        labels = self.features(name).columns["labels"]
        predictions = outputs["predictions"]
        return {
            score: classification.SCORES[score](labels, predictions) for score in self.score_names
        }


class Glue(_Texts):
    """A task of GLUE; MNLI's dev and test sets are two each, and its model answers "ax"."""

    DIAGNOSTIC = "ax"

    def check(self) -> None:
        options = self.options
        trainable = [name for name, task in glue.TASKS.items() if TRAIN in task.files]
        faults = []
        if options.name not in trainable:
            faults.append(
                f"config.finetuning.name is {options.name!r}; tasks of GLUE to train on are "
                f"{', '.join(trainable)}"
            )
        if not options.data_dir:
            faults.append(
                "config.finetuning.data_dir is empty; give the directory of GLUE's official files, "
                f"or {glue.TFDS_PREFIX}glue: --config.finetuning.data_dir=DIR"
            )
        if faults:
            raise ValueError("; ".join(faults))
        # What the classes mean, for predictions and exports; the server's words may be numbers.
        self.labels = self.task.label_names
        self.is_regression = self.task.is_regression

    @property
    def task(self) -> glue.Task:
        return glue.task_named(self.options.name)

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return tuple(split.removeprefix("dev_") for split in self.task.evaluation_splits)

    @functools.cached_property
    def test_sets(self) -> tuple[str, ...]:
        """The test sets whose files are there."""
        location = self.options.data_dir
        # A single dataset of TFDS holds one task.
        has_others = not location.startswith(glue.TFDS_PREFIX) or location == glue.TFDS_GLUE
        of_model = (self.DIAGNOSTIC,) if self.options.name == "mnli" and has_others else ()
        return tuple(name for name in (*self.task.submissions, *of_model) if self._is_there(name))

    def _is_there(self, name: str) -> bool:
        try:
            self.examples(name)
        except FileNotFoundError:
            return False
        return True

    @property
    def score_names(self) -> tuple[str, ...]:
        return self.task.scores

    @property
    def best_score(self) -> str:
        """The score of the paper's table 1: F1 for MRPC and QQP, Spearman for STS-B."""
        return self.task.scores[-1]

    def _examples(self, name: str) -> Sequence[texts.Example]:
        location, task = self.options.data_dir, self.options.name
        if name == self.DIAGNOSTIC:
            return glue.read(location, name, TEST)
        return glue.read(location, task, name if name in self.task.files else f"dev_{name}")

    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes the server's file of a test set, or one like it for the others."""
        task, split = (glue.TASKS[name], TEST) if name == self.DIAGNOSTIC else (self.task, name)
        predictions, file = outputs["predictions"], task.submissions.get(split)
        if file is not None and len(predictions) == glue_submission.TEST_ROWS[file]:
            glue_submission.write_submission(directory, {file: predictions})
            return
        if file is not None:
            logging.warning(
                "Set %s has %d rows, the server's %d: its predictions cannot be submitted",
                name, len(predictions), glue_submission.TEST_ROWS[file],
            )  # fmt: skip
        write_column(directory / f"{name}.tsv", predictions, self.task.labels)


class Table(_Texts):
    """A task of the user's own, in CSV, TSV or JSON lines."""

    def __init__(self, options: ml_collections.ConfigDict, tokenizer: tokenizers.Tokenizer):
        super().__init__(options, tokenizer)
        self.is_regression = options.is_regression
        self._train = tables.read(
            options.train_file, self._columns(TRAIN), labels=tuple(options.labels) or None
        )
        self.labels = self._train.labels

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("pearson", "spearman") if self.is_regression else ("accuracy", "macro_f1")

    @property
    def best_score(self) -> str:
        return "spearman" if self.is_regression else "accuracy"

    def _columns(self, name: str) -> tables.Columns:
        options = self.options
        columns = (options.text_column, options.second_text_column)
        return tables.Columns(
            tuple(column for column in columns if column),
            None if name == TEST else options.label_column,
            options.is_regression,
        )

    def _examples(self, name: str) -> Sequence[texts.Example]:
        if name == TRAIN:
            return self._train.examples
        return tables.read(self.file(name), self._columns(name), labels=self.labels).examples

    def write_predictions(self, name: str, outputs: Outputs, directory: epath.Path) -> None:
        """Writes a TSV file with the columns index and prediction."""
        write_column(directory / f"{name}.tsv", outputs["predictions"], self.labels)


def write_column(path: epath.Path, predictions: np.ndarray, labels: Sequence[str]) -> None:
    """Writes "index<tab>prediction" lines under such a header: names of classes, or numbers."""
    words = [labels[value] if labels else f"{value:.6g}" for value in predictions.tolist()]
    rows = (f"{index}\t{word}\n" for index, word in enumerate(words))
    path.write_text(glue_submission.HEADER + "\n" + "".join(rows))
