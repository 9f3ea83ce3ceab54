"""A class or a number for one or two texts: the tasks of GLUE, and tables of the user's own.

GLUE's files belong to `glue_files`, what its server takes to `glue_submission`, tables to
`table_files`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.finetuning import (
    base,
    feature_sets,
    glue_files,
    glue_submission,
    json_fields,
    table_files,
    text_examples,
)
from bertjax.models import classification as classifiers
from bertjax.models import encoder as encoders
from bertjax.scores import classification
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation


@dataclasses.dataclass(frozen=True)
class Classification(base.FinetuningTask):
    """One of `num_labels` classes for a sequence or a pair; `labels` [batch] are their numbers.

    Source: Devlin et al. 2019, section 4.1. `pooling` is one of `classification.POOLINGS`.
    """

    encoder: encoders.EncoderConfig
    num_labels: int
    pooling: str = "cls"
    bilstm_size: int = 0

    def init(self, rngs: nnx.Rngs) -> classifiers.SequenceClassifier:
        return classifiers.SequenceClassifier(
            self.encoder,
            num_labels=self.num_labels,
            pooling=self.pooling,
            bilstm_size=self.bilstm_size,
            rngs=rngs,
        )

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean cross-entropy and the accuracy over rows."""
        return base.of_classes(model(batch, key=key), batch["labels"], self.scored(batch))

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `logits` and `predictions`, the numbers of the classes."""
        return base.best(model(batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        read = {"pooling": self.pooling, "bilstm_size": self.bilstm_size}
        return base.pooled_flops(self.encoder, self.num_labels, batch_size, length, **read)


@dataclasses.dataclass(frozen=True)
class Regression(base.FinetuningTask):
    """A number for a sequence or a pair, by least squares; `labels` [batch] are float.

    Source: the released XLNet's run_classifier.py for STS-B; the released BERT has no regression.
    """

    means: ClassVar[tuple[str, ...]] = ("loss",)

    encoder: encoders.EncoderConfig
    pooling: str = "cls"
    bilstm_size: int = 0

    def init(self, rngs: nnx.Rngs) -> classifiers.SequenceClassifier:
        return classifiers.SequenceClassifier(
            self.encoder,
            num_labels=1,
            pooling=self.pooling,
            bilstm_size=self.bilstm_size,
            rngs=rngs,
        )

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean squared error over rows."""
        errors = model(batch, key=key)[:, 0] - batch["labels"]
        return {"loss": tasks.weighted(errors**2, self.scored(batch))}

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `predictions`, the numbers."""
        return {"predictions": model(batch)[:, 0]}

    def soft_losses(self, ours: base.Answers, theirs: base.Answers, temperature: float) -> Array:
        """Returns the squared distance to the teacher's number, at any temperature."""
        return (ours["predictions"] - theirs["predictions"]) ** 2

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        read = {"pooling": self.pooling, "bilstm_size": self.bilstm_size}
        return base.pooled_flops(self.encoder, 1, batch_size, length, **read)


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
    """Any number of `num_labels` labels for a sequence or a pair; `labels` [batch, classes] 0 or 1.

    Each label is a decision of its own: a sigmoid, and the mean of the binary cross-entropies, as
    transformers has it for problem_type "multi_label_classification".
    """

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean over rows of the labels' mean loss, and how many rows are all right."""
        logits, labels, weights = model(batch, key=key), batch["labels"], self.scored(batch)
        losses = jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        hits = ((logits > 0) == (labels > 0.5)).all(axis=-1)
        return {
            "loss": tasks.weighted(losses.mean(axis=-1), weights),
            "accuracy": tasks.weighted(hits.astype(jnp.float32), weights),
        }

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `logits`, and `predictions`: 1 for each label of a probability above a half."""
        logits = model(batch)
        return {"logits": logits, "predictions": (logits > 0).astype(jnp.int32)}

    def soft_losses(self, ours: base.Answers, theirs: base.Answers, temperature: float) -> Array:
        """Returns the mean over labels; each is a decision between the label and none."""
        student, teacher = (
            jnp.stack([answers["logits"], jnp.zeros_like(answers["logits"])], axis=-1)
            for answers in (ours, theirs)
        )
        return distillation.divergence(student, teacher, temperature).mean(axis=-1)


class _Texts(base.Kind):
    """One or two texts under the names of their columns; a class, or a number, for them."""

    own_options = {"pooling": "cls", "bilstm_size": 0}

    @classmethod
    def task(
        cls, encoder: encoders.EncoderConfig, options: base.Options
    ) -> Classification | MultiLabel | Regression:
        read = {"pooling": options.pooling, "bilstm_size": options.bilstm_size}
        if options.is_multi_label:
            return MultiLabel(encoder, len(options.labels), **read)
        if options.is_regression:
            return Regression(encoder, **read)
        return Classification(encoder, len(options.labels), **read)

    @classmethod
    def head(cls, options: base.Options) -> str:
        return "sequence_classification"

    @classmethod
    def reads_only_first(cls, options: base.Options) -> bool:
        return options.pooling == "cls" and not options.bilstm_size

    @classmethod
    def only_here(cls, options: base.Options, pooler: str = "dense") -> str:
        told = ("cls", "mean") if pooler == "normed" else ("cls",)
        if options.pooling in told or options.bilstm_size:
            return super().only_here(options, pooler)
        return (
            f"it was trained with config.finetuning.pooling={options.pooling}, and the classifiers "
            f"of the other formats read {' or the '.join(told).replace('cls', '[CLS]')} through "
            "the pooler alone"
        )

    @classmethod
    def label_shapes(
        cls, options: base.Options, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        if options.is_multi_label:
            shape = (batch_size, len(options.labels))
            return {"labels": jax.ShapeDtypeStruct(shape, np.float32)}
        dtype = np.float32 if options.is_regression else np.int32
        return {"labels": jax.ShapeDtypeStruct((batch_size,), dtype)}

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the one or two texts, in JSON too."""

    @property
    @abc.abstractmethod
    def score_names(self) -> tuple[str, ...]:
        """The keys of classification.SCORES that are computed."""

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels = self.features(name).columns["labels"]
        predictions = outputs["predictions"]
        if self.options.is_multi_label:
            return {
                score: of_labels(labels, predictions)
                for score, of_labels in classification.MULTI_LABEL_SCORES.items()
            }
        return {
            score: classification.SCORES[score](labels, predictions) for score in self.score_names
        }

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str] | None:
        if self.is_regression or self.options.is_multi_label:
            return None
        numbers = (
            self.features(name).columns["labels"] if outputs is None else outputs["predictions"]
        )
        return [self.labels[number] for number in numbers.tolist()]

    def always(self, name: str, answer: str) -> dict[str, float]:
        number = self.labels.index(answer)
        return self.scores(name, {"predictions": np.full(len(self.features(name)), number)})

    def example(self, fields: base.Fields, source: str) -> text_examples.Example:
        found = tuple(json_fields.text(fields, column) for column in self.columns)
        return text_examples.Example(found, None, source)

    def rows(
        self, examples: Sequence[text_examples.Example]
    ) -> tuple[feature_sets.FeatureSet, base.Decode]:
        features = text_examples.text_rows(
            examples,
            self.tokenizer,
            max_seq_length=self.options.max_seq_length,
            num_labels=len(self.labels) if self.options.is_multi_label else 0,
        )
        return features, self._answers

    def _answers(self, outputs: base.Outputs, tuned: base.Tuned) -> list[base.Answer]:
        places = outputs["predictions"].tolist()
        if self.options.is_regression:
            return [{"prediction": value} for value in places]
        labels = self.options.labels
        if self.options.is_multi_label:
            return [
                {
                    "labels": [name for name, it in zip(labels, row, strict=True) if it],
                    "probabilities": dict(zip(labels, of_row, strict=True)),
                }
                for row, of_row in zip(places, base.shares(outputs["logits"]), strict=True)
            ]
        shares = base.probabilities(outputs["logits"])
        return [
            {"label": labels[place], "probabilities": dict(zip(labels, row, strict=True))}
            for place, row in zip(places, shares, strict=True)
        ]


class Glue(_Texts):
    """A task of GLUE; MNLI's dev and test sets are two each, and its model answers "ax"."""

    DIAGNOSTIC = "ax"

    def missing(self) -> Iterator[str]:
        options = self.options
        trainable = [name for name, task in glue_files.TASKS.items() if base.TRAIN in task.files]
        if options.name not in trainable:
            yield (
                f"config.finetuning.name is {options.name!r}; tasks of GLUE to train on are "
                f"{', '.join(trainable)}"
            )
        if not options.data_dir:
            yield (
                "config.finetuning.data_dir is empty; give the directory of GLUE's official files, "
                f"or {glue_files.TFDS_PREFIX}glue: --config.finetuning.data_dir=DIR"
            )

    @property
    def of_glue(self) -> glue_files.Task:
        """What there is to know of GLUE's task."""
        return glue_files.task_named(self.options.name)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the classes mean, for predictions and exports; the server's may be numbers."""
        return self.of_glue.label_names

    @property
    def is_regression(self) -> bool:
        return self.of_glue.is_regression

    @property
    def columns(self) -> tuple[str, ...]:
        # MRPC's own names are "#1 String" and "#2 String".
        return self.of_glue.tfds_texts or self.of_glue.texts

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return tuple(split.removeprefix("dev_") for split in self.of_glue.evaluation_splits)

    @functools.cached_property
    def test_sets(self) -> tuple[str, ...]:
        """The test sets whose files are there."""
        location = self.options.data_dir
        # A single dataset of TFDS holds one task.
        is_single = location.startswith(glue_files.TFDS_PREFIX) and location != glue_files.TFDS_GLUE
        of_model = () if self.options.name != "mnli" or is_single else (self.DIAGNOSTIC,)
        names = (*self.of_glue.submissions, *of_model)
        return tuple(name for name in names if self._is_there(name))

    def _is_there(self, name: str) -> bool:
        try:
            self.examples(name)
        except FileNotFoundError:
            return False
        return True

    @property
    def score_names(self) -> tuple[str, ...]:
        return self.of_glue.scores

    @property
    def best_score(self) -> str:
        """The score of the paper's table 1: F1 for MRPC and QQP, Spearman for STS-B."""
        return self.of_glue.scores[-1]

    def _examples(self, name: str) -> Sequence[text_examples.Example]:
        location, task = self.options.data_dir, self.options.name
        if name == self.DIAGNOSTIC:
            return glue_files.read_split(location, name, base.TEST)
        split = name if name in self.of_glue.files else f"dev_{name}"
        return glue_files.read_split(location, task, split)

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the server's file of a test set, or one like it for the others."""
        is_diagnostic = name == self.DIAGNOSTIC
        task = glue_files.TASKS[name] if is_diagnostic else self.of_glue
        file = task.submissions.get(base.TEST if is_diagnostic else name)
        predictions = outputs["predictions"]
        if file is not None and len(predictions) == glue_submission.TEST_ROWS[file]:
            glue_submission.write_submission(directory, {file: predictions})
            return
        if file is not None:
            logging.warning(
                "Set %s has %d rows, the server's %d: its predictions cannot be submitted",
                name, len(predictions), glue_submission.TEST_ROWS[file],
            )  # fmt: skip
        _write_column(directory / f"{name}.tsv", predictions, self.of_glue.labels)


class Table(_Texts):
    """A task of the user's own, in CSV, TSV or JSON lines."""

    own_options = {
        **_Texts.own_options,
        "is_regression": False,
        "is_multi_label": False,
        "label_separator": "|",
    }

    @classmethod
    def faults(cls, options: base.Options) -> Iterator[str]:
        if options.is_multi_label and options.is_regression:
            yield (
                "config.finetuning.is_multi_label and config.finetuning.is_regression are both "
                "True; a row has several labels or a number: leave one of them out"
            )
        if options.is_multi_label and not options.label_separator.strip():
            yield (
                f"config.finetuning.label_separator is {options.label_separator!r}; it must hold a "
                "character that is no white space"
            )
        flags = _flag_columns(options)
        if flags and options.labels and set(options.labels) != set(flags):
            yield (
                f"config.finetuning.labels is {tuple(options.labels)}, but the columns of "
                f"config.finetuning.label_column, {', '.join(flags)}, are the labels: leave it out"
            )

    @property
    def is_regression(self) -> bool:
        return self.options.is_regression

    @functools.cached_property
    def _training(self) -> table_files.Table:
        return table_files.read_table(
            self.options.train_file,
            self._columns_of(base.TRAIN),
            labels=tuple(self.options.labels) or None,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of the option, or what the training file holds."""
        if self.is_regression:
            return ()
        return tuple(self.options.labels) or self._training.labels

    @property
    def columns(self) -> tuple[str, ...]:
        names = (self.options.text_column, self.options.second_text_column)
        return tuple(name for name in names if name)

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("pearson", "spearman") if self.is_regression else ("accuracy", "macro_f1")

    @property
    def best_score(self) -> str:
        if self.options.is_multi_label:
            return "micro_f1"
        return "spearman" if self.is_regression else "accuracy"

    def _columns_of(self, name: str) -> table_files.Columns:
        if name == base.TEST:
            return table_files.Columns(self.columns)
        if flags := _flag_columns(self.options):
            return table_files.Columns(self.columns, flags=flags)
        separator = self.options.label_separator if self.options.is_multi_label else ""
        label = self.options.label_column
        return table_files.Columns(self.columns, label, self.is_regression, separator)

    def _examples(self, name: str) -> Sequence[text_examples.Example]:
        if name == base.TRAIN:
            return self._training.examples
        columns = self._columns_of(name)
        return table_files.read_table(self.file(name), columns, labels=self.labels).examples

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes a TSV file with the columns index and prediction."""
        path, predictions = directory / f"{name}.tsv", outputs["predictions"]
        if not self.options.is_multi_label:
            _write_column(path, predictions, self.labels)
            return
        chosen = ([self.labels[it] for it in np.flatnonzero(row)] for row in predictions)
        _write_words(path, [self.options.label_separator.join(names) for names in chosen])


def _flag_columns(options: base.Options) -> tuple[str, ...]:
    """Returns the columns of 0 and 1 that label_column names, one for each label; () if it is one.

    With a comma it is a list of them.
    """
    if not options.is_multi_label or "," not in options.label_column:
        return ()
    return tuple(name.strip() for name in options.label_column.split(",") if name.strip())


def _write_column(path: epath.Path, predictions: np.ndarray, labels: Sequence[str]) -> None:
    """Writes "index<tab>prediction" lines under such a header: names of classes, or numbers."""
    words = [str(labels[it]) if labels else f"{it:.6g}" for it in predictions.tolist()]
    _write_words(path, words)


def _write_words(path: epath.Path, words: Sequence[str]) -> None:
    rows = (f"{index}\t{word}\n" for index, word in enumerate(words))
    path.write_text(glue_submission.HEADER + "\n" + "".join(rows))
