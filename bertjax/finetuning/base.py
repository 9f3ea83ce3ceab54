"""What a kind of finetuning is, and what its task is; every kind has a module beside this one.

A kind reads its files and the JSON of `predict`, makes rows of examples, says what is learnt of
them (its task), scores and writes answers, and names the head that an export has. The formulas of
scores belong to `bertjax.scores`, order and padding of rows to `batches`.
"""

from __future__ import annotations

import abc
import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import ml_collections
import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import feature_sets
from bertjax.models import encoder as encoders
from bertjax.models import lstm
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation

TRAIN, DEV, TEST = "train", "dev", "test"

# config.finetuning, or anything that has its options as attributes.
Options = Any
Outputs = Mapping[str, np.ndarray]
# What is asked for the logits of a batch: a module, or what knows them already (`distilled`).
Model = Callable[..., Any]
Answers = Mapping[str, Array]  # the same, on devices
# Numbers for answers that evaluation has found, by the names in `Kind.tunes`.
Tuned = Mapping[str, float]
Fields = Mapping[str, Any]
Answer = dict[str, Any]
# The answers to examples, from what the model says of their rows, in the order of the rows.
Decode = Callable[[Outputs, Tuned], list[Answer]]


class Kind(abc.ABC):
    """A training set, the sets that are evaluated and predicted, and answers to single examples.

    `options` are config.finetuning. What they alone decide is asked of the class, and needs no
    data. An object reads and tokenizes a set when it is first asked for, once.
    """

    # Options of config.finetuning, with their defaults, that mean something for this kind but not
    # for all: where no kind chosen has them, they must stay at their defaults.
    own_options: ClassVar[Mapping[str, Any]] = {}
    # Scores that are numbers for answers, tuned on the first evaluation set. Each is an option of
    # config.finetuning too: the one that is used before anything is tuned.
    tunes: ClassVar[tuple[str, ...]] = ()
    # Sequences of an example; of several, each is a row of the model.
    choices: ClassVar[int] = 1
    # Whether a teacher that tells nothing of its head has that of the student's options; if not, it
    # has the released code's.
    teacher_has_own_head: ClassVar[bool] = False

    def __init__(self, options: Options, tokenizer: tokenizers.Tokenizer | None):
        self.options = options
        self._tokenizer = tokenizer
        self.examples = functools.cache(self._examples)
        self.features = functools.cache(self._features)
        self.majority = functools.cache(self._majority)

    @classmethod
    @abc.abstractmethod
    def task(cls, encoder: encoders.EncoderConfig, options: Options) -> FinetuningTask:
        """Returns what is learnt; the labels are in the options."""

    @classmethod
    @abc.abstractmethod
    def head(cls, options: Options) -> str:
        """Returns the head of the models, a key of `convert.pretrained.PARTS`."""

    @classmethod
    def reads_only_first(cls, options: Options) -> bool:
        """Returns whether the answer comes from the first position, [CLS], alone."""
        del options
        return False

    @classmethod
    def only_here(cls, options: Options, pooler: str = "dense") -> str:
        """Returns why no other format can hold such a model, "" if one can.

        `pooler` is the model's.
        """
        del pooler
        if not options.bilstm_size:
            return ""
        return (
            "its head reads a BiLSTM on the encoder (config.finetuning.bilstm_size), and the other "
            "formats have no model of that kind"
        )

    @classmethod
    def faults(cls, options: Options) -> Iterator[str]:
        """Yields a sentence for each fault of the options that is seen without data."""
        del options
        return iter(())

    @classmethod
    def config_faults(cls, config: ml_collections.ConfigDict) -> Iterator[str]:
        """Yields a sentence for each fault of the options beside those of other parts."""
        del config
        return iter(())

    @classmethod
    def paths(cls, value: str) -> list[str]:
        """Returns the paths that train_file, eval_file or test_file names."""
        return [value] if value else []

    @classmethod
    def choices_of(cls, options: Options) -> int:
        """Returns how many sequences an example has, where options or data decide that."""
        del options
        return cls.choices

    @classmethod
    def taught(
        cls, encoder: encoders.EncoderConfig, options: Options, teacher: FinetuningTask
    ) -> FinetuningTask | None:
        """Returns the task that learns from a teacher, None if it is `distilled.Distilled`."""
        del encoder, options, teacher
        return None

    @classmethod
    @abc.abstractmethod
    def label_shapes(
        cls, options: Options, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of the right answers in a batch."""

    @classmethod
    def batch_shapes(
        cls, options: Options, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of a whole training batch, as the devices get it."""
        choices = cls.choices_of(options)
        examples = (batch_size,) if choices == 1 else (batch_size, choices)
        tokens = jax.ShapeDtypeStruct((*examples, length), np.int32)
        return {
            **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tokens),
            **cls.label_shapes(options, batch_size, length),
            "example_weights": jax.ShapeDtypeStruct((batch_size,), np.float32),
        }

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """What turns the texts into tokens."""
        if self._tokenizer is None:
            raise ValueError(f"{type(self).__name__} was made without a tokenizer; rows need one")
        return self._tokenizer

    def missing(self) -> Iterator[str]:
        """Yields a sentence for each option that is missing or unknown where one trains."""
        if not self.options.train_file:
            yield (
                f"config.finetuning.train_file is empty; the data set {self.options.dataset!r} "
                "needs a file to train on: --config.finetuning.train_file=PATH"
            )

    def check(self) -> None:
        """Raises a ValueError with all that is `missing`."""
        if faults := list(self.missing()):
            raise ValueError("; ".join(faults))

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, () where there are none."""
        return ()

    @property
    def is_regression(self) -> bool:
        """Whether the answer is a number."""
        return False

    @property
    def found(self) -> Mapping[str, Any]:
        """Options that the data decide, by name: they are kept with every checkpoint."""
        return {"labels": tuple(self.labels), "is_regression": self.is_regression}

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return (DEV,) if self.options.eval_file else ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        return (TEST,) if self.options.test_file else ()

    def file(self, name: str) -> str:
        """Returns the path of a set."""
        options = self.options
        return {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.test_file}[name]

    @property
    @abc.abstractmethod
    def best_score(self) -> str:
        """The score that decides; higher is better."""

    @abc.abstractmethod
    def _examples(self, name: str) -> Sequence[Any]:
        """Returns the examples of a set as its reader does."""

    def _features(self, name: str) -> feature_sets.FeatureSet:
        """Returns the rows of a set."""
        return self.rows(self.examples(name))[0]

    @abc.abstractmethod
    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns the scores of predictions for an evaluation set.

        `outputs` are the task's predictions, a row for each example in the order of the set; rows
        of tokens are padded to the longest.
        """

    def classes(self, name: str, outputs: Outputs | None = None) -> Sequence[str] | None:
        """Returns the right class of all that is scored in a set, None where there are no classes.

        With `outputs` it is the class that they answer.
        """
        del name, outputs
        return None

    def always(self, name: str, answer: str) -> dict[str, float]:
        """Returns the scores of a set whose every answer is that class."""
        right = self.classes(name) or ()
        return {"accuracy": sum(each == answer for each in right) / max(len(right), 1)}

    def _majority(self, name: str) -> tuple[str, dict[str, float]] | None:
        """Returns the most frequent class of a set, and the scores of answering nothing else.

        None where there are no classes. As `majority` it is found once for each set.
        """
        right = self.classes(name)
        if not right:
            return None
        ((answer, _),) = collections.Counter(right).most_common(1)
        return answer, self.always(name, answer)

    def only_answer(self, name: str, outputs: Outputs, scores: Mapping[str, float]) -> str | None:
        """Returns the class that is the answer to everything in a set of several, None if none is.

        `scores` are those of the outputs.
        """
        del scores
        answered = set(self.classes(name, outputs) or ())
        if len(answered) != 1 or len(set(self.classes(name) or ())) < 2:
            return None
        return answered.pop()

    @abc.abstractmethod
    def write_predictions(
        self, name: str, outputs: Outputs, directory: epath.Path, tuned: Tuned
    ) -> None:
        """Writes predictions for any set into a directory that is there."""

    @abc.abstractmethod
    def example(self, fields: Fields, source: str) -> Any:
        """Returns the example that a JSON object is; ValueError if there is none in it."""

    @abc.abstractmethod
    def rows(self, examples: Sequence[Any]) -> tuple[feature_sets.FeatureSet, Decode]:
        """Returns the rows of examples, and what makes answers of the model's outputs."""

    def number(self, name: str, tuned: Tuned) -> float:
        """Returns the tuned number, or the option of that name where none is tuned."""
        return tuned[name] if name in tuned else getattr(self.options, name)


class FinetuningTask(abc.ABC):
    """What is learnt; a `tasks.Task`. All is trained, and its loss without dropout evaluates.

    Every task reports `loss`, which is minimized, and where there is a right answer `accuracy`.
    """

    # The names of what `loss` returns; all these means have the weights of `scored`.
    means: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

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

    @abc.abstractmethod
    def init(self, rngs: nnx.Rngs) -> nnx.Module: ...

    def scored(self, batch: tasks.Batch) -> Array:
        """Returns the weight of everything that is scored: of each example."""
        return batch["example_weights"]

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        """Returns the weight of every mean of `loss`, from the batch alone."""
        return dict.fromkeys(self.means, self.scored(batch).sum())

    @abc.abstractmethod
    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means: ...

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.loss(model, batch, key=None)

    @abc.abstractmethod
    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        """Returns the answers to a batch, one row for each of its rows; it needs no labels."""

    def soft_losses(self, ours: Answers, theirs: Answers, temperature: float) -> Array:
        """Returns how far our answers are from a teacher's, for everything that is `scored`.

        Both are what `predict` returns. By default the distributions over classes are compared.
        """
        return distillation.divergence(ours["logits"], theirs["logits"], temperature)

    @abc.abstractmethod
    def train_flops(self, batch_size: int, length: int, predictions: int) -> float: ...


def of_classes(
    logits: Float[Array, "*batch classes"], labels: Array, weights: Array
) -> tasks.Means:
    """Returns the mean cross-entropy and the accuracy."""
    return {
        "loss": tasks.weighted(tasks.cross_entropy(logits, labels), weights),
        "accuracy": tasks.accuracy(logits, labels, weights),
    }


def best(logits: Float[Array, "*batch classes"]) -> dict[str, Array]:
    """Returns `logits` and `predictions`, the numbers of the classes."""
    return {"logits": logits, "predictions": logits.argmax(axis=-1)}


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
    has_pooler = (pooling == "cls" or encoder.pooler == "normed") and not bilstm_size
    pooler = encoder.hidden_size if has_pooler else 0
    return 3.0 * rows * (states + 2.0 * width * (num_labels + pooler))


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
