"""The parts of a kind of finetuning: a reader, a task and a scorer; KINDS has a row for each.

The reader reads files and the JSON of `predict` and makes rows of examples. The task has the head
and its loss. The scorer makes scores, JSON and files of predictions. The formulas of scores belong
to `bertjax.scores`, order and padding of rows to `batches`.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import ml_collections
import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.finetuning import evaluation_files, example_files, feature_sets
from bertjax.models import classification, lstm
from bertjax.models import encoder as encoders
from bertjax.options.option import Option
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation
from bertjax.tokenization import tokenizer as tokenizers

TRAIN, DEV, TEST = "train", "dev", "test"

Options = Any  # config.finetuning, or anything that has its options as attributes
Outputs = Mapping[str, np.ndarray]  # a task's predictions, a row for each row of a feature set
Model = Callable[..., Any]  # logits of a batch: a module, or a function that knows them already
DeviceOutputs = Mapping[str, Array]  # the same of a batch, on devices
Tuned = Mapping[str, float]  # numbers that evaluation has tuned, by the names in `Scorer.tunes`
Fields = Mapping[str, Any]  # a JSON object
Prediction = dict[str, Any]  # for one example, as JSON


class Reader(abc.ABC):
    """Files, and the JSON of `predict`, to examples and the rows that a model reads.

    `options` are config.finetuning. A set is read and tokenized once, when it is first needed.
    """

    def __init__(self, options: Options, tokenizer: tokenizers.Tokenizer | None):
        self.options = options
        self._tokenizer = tokenizer
        self.examples = functools.cache(self._examples)
        self.features = functools.cache(self._features)

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        if self._tokenizer is None:
            raise ValueError(f"{type(self).__name__} was made without a tokenizer; rows need one")
        return self._tokenizer

    # Whether a data set may be a directory, in a layout that the field knows; whether it is one of
    # records, with labels.
    reads_directories: ClassVar[bool] = False
    reads_records: ClassVar[bool] = False

    @classmethod
    def paths(cls, value: str) -> list[str]:
        """Returns the paths that train_file, eval_file or test_file names."""
        return [value] if value else []

    def missing(self) -> Iterator[str]:
        """Yields a sentence for each option that is missing or unknown where one trains."""
        if not self.options.train_file:
            yield (
                f"config.finetuning.train_file is empty; the data set {self.options.dataset!r} "
                "needs a file to train on: --config.finetuning.train_file=PATH"
            )
        several = self.options.eval_files
        if several and self.options.eval_file:
            yield (
                f"config.finetuning.eval_file is {self.options.eval_file!r} and "
                f"config.finetuning.eval_files is {several!r}; give all files by name in eval_files"
            )
        try:
            evaluation_files.named(several)
        except ValueError as error:
            yield str(error)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, () where there are none."""
        return ()

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return False

    @property
    def decided(self) -> Mapping[str, Any]:
        """Options that the data decide, by name: they are kept with every checkpoint."""
        return {"labels": tuple(self.labels), "is_regression": self.is_regression}

    @property
    def evaluation_paths(self) -> Mapping[str, str]:
        """The paths of the evaluation sets by name: of eval_files, or the one of eval_file."""
        if self.options.eval_files:
            return evaluation_files.named(self.options.eval_files)
        return evaluation_files.unnamed(self.paths(self.options.eval_file), DEV)

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets; the first decides which checkpoint is best."""
        return tuple(self.evaluation_paths)

    @property
    def test_sets(self) -> tuple[str, ...]:
        return (TEST,) if self.options.test_file else ()

    def file(self, name: str) -> str:
        """Returns the path of a set."""
        trained_or_predicted = {TRAIN: self.options.train_file, TEST: self.options.test_file}
        return {**self.evaluation_paths, **trained_or_predicted}[name]

    @abc.abstractmethod
    def _examples(self, name: str) -> Sequence[Any]:
        """Returns the examples of a set in the order of its file."""

    def _features(self, name: str) -> feature_sets.FeatureSet:
        """Returns the rows of a set."""
        return self.rows(self.examples(name))

    @property
    def text_keys(self) -> Sequence[str]:
        """The keys of an example's texts in the JSON of `predict`."""
        return ()

    def example(self, fields: Fields, source: str) -> Any:
        """Returns the example that a JSON object holds; ValueError if it holds none.

        By default it is a `TextExample` of the texts under `text_keys`.
        """
        named = example_files.with_names(fields)
        texts = tuple(example_files.json_text(named, key) for key in self.text_keys)
        return feature_sets.TextExample(texts, None, source)

    def texts(self, example: Any) -> Sequence[str]:
        """Returns the texts of an example, whose tokens the model reads."""
        return example.texts

    @abc.abstractmethod
    def rows(self, examples: Sequence[Any]) -> feature_sets.FeatureSet:
        """Returns the rows of examples; a subclass of FeatureSet if the scorer needs to know more.

        Raises:
          ValueError: if some examples make no rows.
        """


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Examples with their rows, the outputs of the task for these rows, and the tuned numbers."""

    examples: Sequence[Any]
    rows: Any  # a FeatureSet
    outputs: Outputs
    tuned: Tuned = dataclasses.field(default_factory=dict)


class Scorer(abc.ABC):
    """Scores, JSON and files of predictions for the sets of a reader."""

    # Scores that are numbers for predicting, tuned on the first evaluation set. Each is an option
    # of config.finetuning too: the one that is used before anything is tuned.
    tunes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, reader: Any):
        self.reader = reader
        self.options: Options = reader.options
        self.majority = functools.cache(self._majority)

    @property
    @abc.abstractmethod
    def best_score(self) -> str:
        """The score that decides."""

    @property
    def is_higher_better(self) -> bool:
        """Whether the best checkpoint has the highest of it, not the lowest."""
        return True

    @property
    def notes(self) -> Mapping[str, str]:
        """Texts to report with the scores, by name, such as a signature."""
        return {}

    @abc.abstractmethod
    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns the scores of predictions for an evaluation set.

        `outputs` are the task's predictions in the order of the set; rows of tokens are padded to
        the longest.
        """

    def scores_with(self, name: str, outputs: Outputs, tuned: Tuned) -> dict[str, float]:
        """Returns the scores of an evaluation set by the numbers that another set has tuned."""
        del tuned
        return self.scores(name, outputs)

    @abc.abstractmethod
    def predictions(self, predicted: Predicted) -> list[Prediction]:
        """Returns the prediction for each example as JSON."""

    def write_predictions(
        self, name: str, outputs: Outputs, directory: epath.Path, tuned: Tuned
    ) -> None:
        """Writes predictions for any set into an existing directory, by default as JSON lines."""
        examples, rows = self.reader.examples(name), self.reader.features(name)
        predictions = self.predictions(Predicted(examples, rows, outputs, tuned))
        lines = (json.dumps(it, ensure_ascii=False) + "\n" for it in predictions)
        (directory / f"{name}.jsonl").write_text("".join(lines))

    def classes(self, name: str, outputs: Outputs | None = None) -> Sequence[str] | None:
        """Returns the right class of everything scored in a set, None where there are no classes.

        With `outputs` it is the predicted class.
        """
        del name, outputs
        return None

    def _majority(self, name: str) -> tuple[str, dict[str, float]] | None:
        """Returns the most frequent class of a set, and the scores of predicting nothing else.

        None where there are no classes. `majority` computes it once for each set.
        """
        right = self.classes(name)
        if not right:
            return None
        ((label, _),) = collections.Counter(right).most_common(1)
        return label, self._scores_of(name, label)

    def _scores_of(self, name: str, label: str) -> dict[str, float]:
        """Returns the scores of predicting one class for all."""
        right = self.classes(name) or ()
        return {"accuracy": sum(each == label for each in right) / max(len(right), 1)}

    def only_answer(self, name: str, outputs: Outputs, scores: Mapping[str, float]) -> str | None:
        """Returns the one class predicted for all of a set with several classes, else None.

        `scores` are the scores of the outputs.
        """
        del scores
        right, predicted = set(self.classes(name) or ()), set(self.classes(name, outputs) or ())
        return predicted.pop() if len(predicted) == 1 and len(right) > 1 else None


class ClassScorer(Scorer):
    """Scores one class for each example: the number in the column `labels`."""

    def class_name(self, number: int) -> str:
        """Returns the name of a class by its number."""
        return self.reader.labels[number]

    def classes(self, name: str, outputs: Outputs | None = None) -> Sequence[str] | None:
        right = self.reader.features(name).columns["labels"]
        numbers = right if outputs is None else outputs["predictions"]
        return list(map(self.class_name, numbers.tolist()))

    def predictions(self, predicted: Predicted) -> list[Prediction]:
        """Returns the class and the probabilities of all by name, in the order of their numbers."""
        numbers = predicted.outputs["predictions"].tolist()
        rows = probabilities(predicted.outputs["logits"])
        return [
            {
                "label": self.class_name(number),
                "probabilities": {self.class_name(it): share for it, share in enumerate(row)},
            }
            for number, row in zip(numbers, rows, strict=True)
        ]


class FinetuningTask(abc.ABC):
    """A `tasks.Task` that trains all parameters, and evaluates by its loss without dropout.

    Every task reports `loss`, which is minimized, and where one prediction is right `accuracy`. A
    task is a classifier of examples unless it has its own labels, loss and predictions.
    """

    # The names of what `loss` returns; all these means have the weights of `scored`.
    means: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    # The head of the model, a key of `convert.heads.HEADS`; "none": nothing is learnt between
    # the encoder and the prediction.
    head: ClassVar[str]

    @property
    def objectives(self) -> Mapping[str, float]:
        return {"loss": 1.0}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Regular expressions for whole paths of parameters that stay as they are.

        Those get a gradient of zero; the optimizer must leave them too, for weight decay would
        change them.
        """
        return ()

    @property
    def sequences(self) -> int:
        """Sequences of an example; where there are several, each is a row of the model."""
        return 1

    @property
    def reads_only_first(self) -> bool:
        """Whether the prediction comes from the first position, [CLS], alone."""
        return False

    @property
    def export_fault(self) -> str:
        """Why no other format can hold such a model, "" if one can."""
        if not getattr(self, "bilstm_size", 0):
            return ""
        return (
            "its head reads a BiLSTM on the encoder (config.finetuning.bilstm_size), and the other "
            "formats have no model of that kind"
        )

    @property
    def export_fields(self) -> Mapping[str, Any]:
        """Fields of `convert.pretrained` that an export needs besides the head."""
        return {}

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of the labels of a batch: the number of a class each."""
        return {"labels": jax.ShapeDtypeStruct((batch_size,), np.int32)}

    def batch_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of a whole training batch, as the devices get it."""
        examples = (batch_size,) if self.sequences == 1 else (batch_size, self.sequences)
        tokens = jax.ShapeDtypeStruct((*examples, length), np.int32)
        return {
            **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tokens),
            **self.label_shapes(batch_size, length),
            "example_weights": jax.ShapeDtypeStruct((batch_size,), np.float32),
        }

    @abc.abstractmethod
    def init(self, rngs: nnx.Rngs) -> nnx.Module: ...

    def scored(self, batch: tasks.Batch) -> Array:
        """Returns the weight of everything that is scored: of each example."""
        return batch["example_weights"]

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        """Returns the weight of every mean of `loss`, from the batch alone."""
        return dict.fromkeys(self.means, self.scored(batch).sum())

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the mean cross-entropy and the accuracy over all that is scored."""
        logits, labels, weights = model(batch, key=key), batch["labels"], self.scored(batch)
        return {
            "loss": tasks.weighted(tasks.cross_entropy(logits, labels), weights),
            "accuracy": tasks.accuracy(logits, labels, weights),
        }

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        """Returns the predictions for a batch, one row for each of its rows; it needs no labels.

        They are `logits` and `predictions`, the numbers of the classes.
        """
        logits = model(batch)
        return {"logits": logits, "predictions": logits.argmax(axis=-1)}

    def soft_losses(self, ours: DeviceOutputs, theirs: DeviceOutputs, temperature: float) -> Array:
        """Returns the distance of our predictions from a teacher's, for everything `scored`.

        Both are what `predict` returns. By default the distributions over classes are compared.
        """
        return distillation.divergence(ours["logits"], theirs["logits"], temperature)

    def taught_by(self, teacher: FinetuningTask) -> FinetuningTask | None:
        """Returns the task that learns from a teacher, None if it is `wrapped_tasks.Distilled`."""
        del teacher
        return None

    @abc.abstractmethod
    def train_flops(self, batch_size: int, length: int, predictions: int) -> float: ...


@dataclasses.dataclass(frozen=True)
class FinetuningKind:
    """A row of `finetuning.KINDS`.

    `task` makes the task of an encoder and config.finetuning, whose labels are known. `options` are
    the options of config.finetuning that not all kinds read: the other kinds want them at their
    defaults. `faults` yields a sentence for each fault of a config that is seen
    without data, apart from the reader's `missing`. `length` returns the number of positions of all
    rows, where the data decide it; then there are no tokens, and the weights need no vocabulary.
    """

    reader: type[Reader]
    task: Callable[[encoders.EncoderConfig, Options], FinetuningTask]
    scorer: type[Scorer]
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    faults: Callable[[ml_collections.ConfigDict], Iterator[str]] = lambda config: iter(())
    length: Callable[[Options], int] | None = None

    def open(self, options: Options, tokenizer: tokenizers.Tokenizer | None) -> Scorer:
        """Returns the scorer of a new reader, which is its `reader`."""
        return self.scorer(self.reader(options, tokenizer))


def pooled_flops(
    encoder: encoders.EncoderConfig,
    num_labels: int,
    rows: int,
    length: int,
    *,
    pooling: str = "cls",
    bilstm_size: int = 0,
) -> float:
    """Returns three times the forward pass of a classifier of sequences."""
    states, width = states_flops(encoder, length, bilstm_size)
    has_pooler = classification.reads_pooler(encoder, pooling) and not bilstm_size
    pooler = encoder.hidden_size if has_pooler else 0
    pooled = length if pooling == classification.LATE else 1
    return 3.0 * rows * (states + 2.0 * width * (num_labels + pooled * pooler))


def states_flops(
    encoder: encoders.EncoderConfig, length: int, bilstm_size: int
) -> tuple[float, int]:
    """Returns the FLOPs of the states that a head reads of a sequence, and their width."""
    flops, size = encoder.forward_flops(length), encoder.hidden_size
    if not bilstm_size:
        return flops, size
    return flops + length * lstm.forward_flops(size, bilstm_size), 2 * bilstm_size


def shares(logits: Float[np.ndarray, "examples classes"]) -> list[list[float]]:
    """Returns the sigmoid of each number."""
    return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32).tolist()


def probabilities(logits: Float[np.ndarray, "examples classes"]) -> list[list[float]]:
    """Returns the softmax of each row."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    shares = weights / weights.sum(axis=-1, keepdims=True)
    return shares.astype(np.float32).tolist()
