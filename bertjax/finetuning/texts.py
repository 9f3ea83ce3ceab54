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
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.files import delimiters, tables, text_encodings
from bertjax.finetuning import (
    base,
    example_files,
    feature_sets,
    glue_files,
    glue_submission,
    table_files,
)
from bertjax.models import classification as classifiers
from bertjax.models import encoder as encoders
from bertjax.options import faults
from bertjax.options import finetuning as options_lib
from bertjax.scores import classification
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation

# Pooler -> the poolings of transformers' classes with it.
_EXPORTED = {
    "dense": ("cls",),
    "normed": ("cls", "mean"),
    "every_pooling": ("cls", "mean", classifiers.LATE),
}


@dataclasses.dataclass(frozen=True)
class _TextTask(base.FinetuningTask):
    """A head over a sequence or a pair; `pooling` is one of `classifiers.POOLINGS`."""

    head: ClassVar[str] = "sequence_classification"

    encoder: encoders.EncoderConfig
    num_labels: int = 1
    pooling: str = "cls"
    bilstm_size: int = 0

    @property
    def reads_only_first(self) -> bool:
        return self.pooling == "cls" and not self.bilstm_size

    @property
    def export_fault(self) -> str:
        exported = _EXPORTED[self.encoder.pooler]
        if self.pooling in exported or self.bilstm_size:
            return super().export_fault
        return (
            f"it was trained with config.finetuning.pooling={self.pooling}; the classifiers of "
            f"other formats with this pooler pool by {' or '.join(exported)} alone"
        )

    def init(self, rngs: nnx.Rngs) -> classifiers.SequenceClassifier:
        return classifiers.SequenceClassifier(
            self.encoder,
            num_labels=self.num_labels,
            pooling=self.pooling,
            bilstm_size=self.bilstm_size,
            rngs=rngs,
        )

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        read = {"pooling": self.pooling, "bilstm_size": self.bilstm_size}
        return base.pooled_flops(self.encoder, self.num_labels, batch_size, length, **read)


@dataclasses.dataclass(frozen=True)
class Classification(_TextTask):
    """One of `num_labels` classes for a sequence or a pair; `labels` [batch] are their numbers.

    Source: Devlin et al. 2019, section 4.1.
    """


@dataclasses.dataclass(frozen=True)
class Regression(_TextTask):
    """A number for a sequence or a pair, by least squares; `labels` [batch] are float.

    Source: the released XLNet's run_classifier.py for STS-B; the released BERT has no regression.
    """

    means: ClassVar[tuple[str, ...]] = ("loss",)

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size,), np.float32)}

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean squared error over rows."""
        errors = model(batch, key=key)[:, 0] - batch["labels"]
        return {"loss": tasks.weighted(errors**2, self.scored(batch))}

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `predictions`, the numbers."""
        return {"predictions": model(batch)[:, 0]}

    def soft_losses(
        self, ours: base.DeviceOutputs, theirs: base.DeviceOutputs, temperature: float
    ) -> Array:
        """Returns the squared distance to the teacher's number, at any temperature."""
        return (ours["predictions"] - theirs["predictions"]) ** 2


@dataclasses.dataclass(frozen=True)
class MultiLabel(_TextTask):
    """Any number of `num_labels` labels for a sequence or a pair; `labels` [batch, classes] 0 or 1.

    Each label has its own sigmoid; the loss is the mean of the binary cross-entropies, as
    transformers has it for problem_type "multi_label_classification".
    """

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size, self.num_labels), np.float32)}

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean loss over rows and labels, and the share of rows without a fault."""
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

    def soft_losses(
        self, ours: base.DeviceOutputs, theirs: base.DeviceOutputs, temperature: float
    ) -> Array:
        """Returns the mean over labels; each is a decision between the label and none."""
        student, teacher = (
            jnp.stack([each["logits"], jnp.zeros_like(each["logits"])], axis=-1)
            for each in (ours, theirs)
        )
        return distillation.divergence(student, teacher, temperature).mean(axis=-1)


def text_task(
    encoder: encoders.EncoderConfig, options: base.Options
) -> Classification | MultiLabel | Regression:
    """Returns the task of GLUE or of a table."""
    read = {"pooling": options.pooling, "bilstm_size": options.bilstm_size}
    if options.is_multi_label:
        return MultiLabel(encoder, len(options.labels), **read)
    if options.is_regression:
        return Regression(encoder, **read)
    return Classification(encoder, len(options.labels), **read)


class TextReader(base.Reader):
    """Reads one or two texts under the names of their columns."""

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the one or two texts, in files and in JSON."""

    @property
    def text_keys(self) -> Sequence[str]:
        return delimiters.column_names(self.columns)

    def rows(self, examples: Sequence[feature_sets.TextExample]) -> feature_sets.FeatureSet:
        return feature_sets.text_rows(
            examples,
            self.tokenizer,
            max_seq_length=self.options.max_seq_length,
            num_labels=len(self.labels) if self.options.is_multi_label else 0,
        )


class GlueReader(TextReader):
    """Reads a task of GLUE; MNLI has two dev and two test sets, and its model predicts "ax"."""

    reads_directories: ClassVar[bool] = True

    DIAGNOSTIC = "ax"

    def missing(self) -> Iterator[str]:
        options = self.options
        trainable = [name for name, task in glue_files.TASKS.items() if base.TRAIN in task.files]
        if options.name not in trainable:
            yield str(faults.unknown("config.finetuning.name", options.name, trainable))
        if not options.data_dir:
            yield (
                "config.finetuning.data_dir is empty; give the directory of GLUE's official files, "
                f"or {glue_files.TFDS_PREFIX}glue: --config.finetuning.data_dir=DIR"
            )
        if options.eval_files:
            yield (
                f"config.finetuning.eval_files is {options.eval_files!r}; GLUE's files are those "
                "of config.finetuning.data_dir: leave it empty, or read the same task as a table, "
                "--config=configs/classification.py"
            )

    @property
    def task(self) -> glue_files.Task:
        """The row of GLUE's table for `config.finetuning.name`."""
        return glue_files.task_named(self.options.name)

    @property
    def labels(self) -> tuple[str, ...]:
        """The meanings of the classes, for predictions and exports; the server's may be numbers."""
        return self.task.label_names

    @property
    def is_regression(self) -> bool:
        return self.task.is_regression

    @property
    def columns(self) -> tuple[str, ...]:
        # MRPC's own names are "#1 String" and "#2 String".
        return self.task.tfds_texts or self.task.texts

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return tuple(split.removeprefix("dev_") for split in self.task.evaluation_splits)

    @functools.cached_property
    def test_sets(self) -> tuple[str, ...]:
        """The test sets whose files exist."""
        location = self.options.data_dir
        # A single dataset of TFDS holds one task.
        is_single = location.startswith(glue_files.TFDS_PREFIX) and location != glue_files.TFDS_GLUE
        diagnostic = () if self.options.name != "mnli" or is_single else (self.DIAGNOSTIC,)
        return tuple(name for name in (*self.task.submissions, *diagnostic) if self._exists(name))

    def _exists(self, name: str) -> bool:
        try:
            self.examples(name)
        except FileNotFoundError:
            return False
        return True

    def _examples(self, name: str) -> Sequence[feature_sets.TextExample]:
        location, task = self.options.data_dir, self.options.name
        if name == self.DIAGNOSTIC:
            return glue_files.read_split(location, name, base.TEST)
        split = name if name in self.task.files else f"dev_{name}"
        return glue_files.read_split(location, task, split)


class TableReader(TextReader):
    """Reads a task of the user's own from CSV, TSV, JSON lines or Parquet."""

    @property
    def is_regression(self) -> bool:
        return self.options.is_regression

    @functools.cached_property
    def _training(self) -> table_files.Table:
        return table_files.read_table(
            self.options.train_file,
            self._columns_of(base.TRAIN),
            labels=self._named_labels or None,
            rules=self._rules,
        )

    @property
    def _rules(self) -> tables.Rules:
        return tables.Rules(
            delimiter=self.options.delimiter,
            encoding=self.options.encoding,
            encoding_option="--config.finetuning.encoding",
        )

    @property
    def _named_labels(self) -> tuple[str, ...]:
        return tuple(map(example_files.normalized, self.options.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of the option, or of the training file."""
        if self.is_regression:
            return ()
        return self._named_labels or self._training.labels

    @property
    def columns(self) -> tuple[str, ...]:
        names = (self.options.text_column, self.options.second_text_column)
        return tuple(name for name in names if name)

    def _columns_of(self, name: str) -> table_files.Columns:
        if name == base.TEST:
            return table_files.Columns(self.columns)
        if flags := _flag_columns(self.options):
            return table_files.Columns(self.columns, flags=flags)
        separator = self.options.label_separator if self.options.is_multi_label else ""
        label = self.options.label_column
        return table_files.Columns(self.columns, label, self.is_regression, separator)

    def _examples(self, name: str) -> Sequence[feature_sets.TextExample]:
        if name == base.TRAIN:
            return self._training.examples
        columns = self._columns_of(name)
        return table_files.read_table(
            self.file(name), columns, labels=self.labels, rules=self._rules
        ).examples


class TextScorer(base.ClassScorer):
    """Scores a class, labels or a number for each example, and writes them as TSV."""

    @property
    def best_score(self) -> str:
        if self.options.is_multi_label:
            return "micro_f1"
        return "spearman" if self.reader.is_regression else "accuracy"

    @property
    def score_names(self) -> tuple[str, ...]:
        """The keys of classification.SCORES that are computed."""
        return ("pearson", "spearman") if self.reader.is_regression else ("accuracy", "macro_f1")

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels, predictions = self.reader.features(name).columns["labels"], outputs["predictions"]
        scores = {name: classification.SCORES[name] for name in self.score_names}
        scores = classification.MULTI_LABEL_SCORES if self.options.is_multi_label else scores
        return {score: formula(labels, predictions) for score, formula in scores.items()}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str] | None:
        if self.reader.is_regression or self.options.is_multi_label:
            return None
        return super().classes(name, outputs)

    def _scores_of(self, name: str, label: str) -> dict[str, float]:
        numbers = np.full(len(self.reader.features(name)), self.reader.labels.index(label))
        return self.scores(name, {"predictions": numbers})

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        outputs, labels = predicted.outputs, self.reader.labels
        if self.reader.is_regression:
            return [{"prediction": value} for value in outputs["predictions"].tolist()]
        if self.options.is_multi_label:
            flagged = ([labels[it] for it in np.flatnonzero(row)] for row in outputs["predictions"])
            return [
                {"labels": names, "probabilities": dict(zip(labels, row, strict=True))}
                for names, row in zip(flagged, base.shares(outputs["logits"]), strict=True)
            ]
        return super().predictions(predicted)

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes a TSV file with the columns index and prediction."""
        labels, predictions = self.reader.labels, outputs["predictions"]
        if self.options.is_multi_label:
            rows = ([labels[it] for it in np.flatnonzero(row)] for row in predictions)
            words = [self.options.label_separator.join(names) for names in rows]
        else:
            words = [str(labels[it]) if labels else f"{it:.6g}" for it in predictions.tolist()]
        (directory / f"{name}.tsv").write_text(glue_submission.column(words))


class GlueScorer(TextScorer):
    """Scores as GLUE's leaderboard does, and writes the files that its server takes."""

    @property
    def best_score(self) -> str:
        """The score of the paper's table 1: F1 for MRPC and QQP, Spearman for STS-B."""
        return self.reader.task.scores[-1]

    @property
    def score_names(self) -> tuple[str, ...]:
        return self.reader.task.scores

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the server's file of a test set, or a TSV file like it for the others."""
        is_diagnostic = name == GlueReader.DIAGNOSTIC
        task = glue_files.TASKS[name] if is_diagnostic else self.reader.task
        file = task.submissions.get(base.TEST if is_diagnostic else name)
        predictions = outputs["predictions"]
        if file is not None and len(predictions) == glue_submission.TEST_ROWS[file]:
            (directory / file).write_text(glue_submission.prediction_file(file, predictions))
            return
        if file is not None:
            logging.warning(
                "Set %s has %d rows, the server's %d: its predictions cannot be submitted",
                name, len(predictions), glue_submission.TEST_ROWS[file],
            )  # fmt: skip
        super().write_predictions(name, outputs, directory, tuned)


def _table_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    options = config.finetuning
    if fault := delimiters.fault(options.delimiter):
        yield f"config.finetuning.delimiter {fault}"
    if fault := text_encodings.fault(options.encoding):
        yield f"config.finetuning.encoding {fault}"
    if options.is_multi_label and options.is_regression:
        yield (
            "config.finetuning.is_multi_label and config.finetuning.is_regression are both True; a "
            "row has several labels or a number: leave one of them out"
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


def _flag_columns(options: base.Options) -> tuple[str, ...]:
    """Returns the columns of 0 and 1 that label_column names, one for each label.

    They are a list with commas; () if label_column names one column.
    """
    if not options.is_multi_label or "," not in options.label_column:
        return ()
    return tuple(name.strip() for name in options.label_column.split(",") if name.strip())


_HEAD = ("pooling", "bilstm_size")
_FILES = ("delimiter", "encoding")
GLUE = base.FinetuningKind(GlueReader, text_task, GlueScorer, options_lib.owned(*_HEAD))
TABLE = base.FinetuningKind(
    TableReader,
    text_task,
    TextScorer,
    options_lib.owned(*_HEAD, *_FILES, "is_regression", "is_multi_label", "label_separator"),
    _table_faults,
)
