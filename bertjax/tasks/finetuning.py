"""What is learnt in finetuning: classes, numbers, tags, spans, choices; LoRA around any of them.

Every task reports `loss`, which is minimized, and where there is a right answer `accuracy`. The
scores that papers print belong to `bertjax.scores`; `predict` returns what they need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import classification, feature_based, lora
from bertjax.models.encoder import EncoderConfig
from bertjax.tasks import base

Predictions = dict[str, Array]
NOT_SCORED = -1  # The label of tokens that have none: padding, specials, later pieces of a word.
OBJECTIVES: Mapping[str, float] = {"loss": 1.0}


@runtime_checkable
class FinetuningTask(base.Task, Protocol):
    """A task whose answers are wanted, and of which some parameters may stay as they are.

    `frozen` are regular expressions for whole parameter paths. Those parameters get a gradient of
    zero; the optimizer must leave them too, for weight decay would change them.
    """

    @property
    def frozen(self) -> tuple[str, ...]: ...

    def predict(self, model: Any, batch: base.Batch) -> Predictions:
        """Returns the answers to a batch, one row for each of its rows; it needs no labels."""
        ...


class _Finetuning:
    """What all of them share: everything is trained, `loss` without dropout is the evaluation."""

    @property
    def objectives(self) -> Mapping[str, float]:
        return OBJECTIVES

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def loss(self, model: Any, batch: base.Batch, *, key: PRNGKeyArray | None) -> base.Means:
        raise NotImplementedError

    def evaluate(self, model: Any, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)


@dataclasses.dataclass(frozen=True)
class Classification(_Finetuning):
    """One of `num_labels` classes for a sequence or a pair; `labels` [batch] are their numbers.

    Source: Devlin et al. 2019, section 4.1. `pooling` is one of `classification.POOLINGS`.
    """

    encoder: EncoderConfig
    num_labels: int
    pooling: str = "cls"

    def init(self, rngs: nnx.Rngs) -> classification.SequenceClassifier:
        return classification.SequenceClassifier(
            self.encoder, num_labels=self.num_labels, pooling=self.pooling, rngs=rngs
        )

    def loss(
        self,
        model: classification.SequenceClassifier,
        batch: base.Batch,
        *,
        key: PRNGKeyArray | None,
    ) -> base.Means:
        """Returns the mean cross-entropy and the accuracy over rows."""
        return _of_classes(_forward(model, batch, key), batch["labels"], batch["example_weights"])

    def predict(self, model: classification.SequenceClassifier, batch: base.Batch) -> Predictions:
        """Returns `logits` and `predictions`, the numbers of the classes."""
        return _best(_forward(model, batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        return _pooled_flops(self.encoder, self.num_labels, self.pooling, batch_size, length)


@dataclasses.dataclass(frozen=True)
class Regression(_Finetuning):
    """A number for a sequence or a pair, by least squares; `labels` [batch] are float.

    Source: the released XLNet's run_classifier.py for STS-B; the released BERT has no regression.
    """

    encoder: EncoderConfig
    pooling: str = "cls"

    def init(self, rngs: nnx.Rngs) -> classification.SequenceClassifier:
        return classification.SequenceClassifier(
            self.encoder, num_labels=1, pooling=self.pooling, rngs=rngs
        )

    def loss(
        self,
        model: classification.SequenceClassifier,
        batch: base.Batch,
        *,
        key: PRNGKeyArray | None,
    ) -> base.Means:
        """Returns the mean squared error over rows."""
        errors = _forward(model, batch, key)[:, 0] - batch["labels"]
        return {"loss": base.weighted(errors**2, batch["example_weights"])}

    def predict(self, model: classification.SequenceClassifier, batch: base.Batch) -> Predictions:
        """Returns `predictions`, the numbers."""
        return {"predictions": _forward(model, batch)[:, 0]}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        return _pooled_flops(self.encoder, 1, self.pooling, batch_size, length)


@dataclasses.dataclass(frozen=True)
class TokenClassification(_Finetuning):
    """One of `num_labels` tags for every token; `labels` [batch, length], NOT_SCORED where none.

    With `is_feature_based` the encoder stays as it is and a BiLSTM, `lstm_size` wide each way,
    reads its last four layers. Source: Devlin et al. 2019, section 5.3.
    """

    encoder: EncoderConfig
    num_labels: int
    is_feature_based: bool = False
    lstm_size: int = feature_based.LSTM_SIZE

    @property
    def frozen(self) -> tuple[str, ...]:
        return (r"encoder\..*",) if self.is_feature_based else ()

    def init(
        self, rngs: nnx.Rngs
    ) -> classification.TokenClassifier | feature_based.FeatureBasedTagger:
        if self.is_feature_based:
            return feature_based.FeatureBasedTagger(
                self.encoder, num_labels=self.num_labels, lstm_size=self.lstm_size, rngs=rngs
            )
        return classification.TokenClassifier(self.encoder, num_labels=self.num_labels, rngs=rngs)

    def loss(self, model: Any, batch: base.Batch, *, key: PRNGKeyArray | None) -> base.Means:
        """Returns the mean cross-entropy and the accuracy over the batch's scored tokens."""
        labels = batch["labels"]
        weights = (labels != NOT_SCORED) * batch["example_weights"][:, None]
        return _of_classes(_forward(model, batch, key), labels, weights)

    def predict(self, model: Any, batch: base.Batch) -> Predictions:
        """Returns `logits` and `predictions` of every token, at padding too."""
        return _best(_forward(model, batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass; a frozen encoder has no backward pass."""
        encoder, size = self.encoder.forward_flops(length), self.encoder.hidden_size
        if not self.is_feature_based:
            return 3.0 * batch_size * (encoder + 2.0 * length * size * self.num_labels)
        layers = min(feature_based.NUM_FEATURE_LAYERS, self.encoder.num_hidden_layers)
        width = self.lstm_size
        in_sizes = layers * size + (feature_based.NUM_LSTM_LAYERS - 1) * 2 * width
        products = 8 * width * (in_sizes + feature_based.NUM_LSTM_LAYERS * width)
        head = 2.0 * length * (products + 2 * width * self.num_labels)
        return batch_size * (encoder + 3.0 * head)


@dataclasses.dataclass(frozen=True)
class SpanExtraction(_Finetuning):
    """Where an answer starts and ends; `start_positions` and `end_positions` [batch].

    The softmax is over the real positions of the window (the released code leaves padding in).
    Source: Devlin et al. 2019, section 4.2; google-research/bert, run_squad.py.
    """

    encoder: EncoderConfig

    def init(self, rngs: nnx.Rngs) -> classification.SpanClassifier:
        return classification.SpanClassifier(self.encoder, rngs=rngs)

    def loss(
        self, model: classification.SpanClassifier, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns the mean over rows of the two cross-entropies' mean; accuracy is of both ends."""
        start, end = _span_logits(model, batch, key)
        starts, ends = batch["start_positions"], batch["end_positions"]
        losses = (base.cross_entropy(start, starts) + base.cross_entropy(end, ends)) / 2
        hits = (start.argmax(axis=-1) == starts) & (end.argmax(axis=-1) == ends)
        weights = batch["example_weights"]
        return {
            "loss": base.weighted(losses, weights),
            "accuracy": base.weighted(hits.astype(jnp.float32), weights),
        }

    def predict(self, model: classification.SpanClassifier, batch: base.Batch) -> Predictions:
        """Returns `start_logits` and `end_logits`, the lowest float32 at padding."""
        start, end = _span_logits(model, batch, None)
        return {"start_logits": start, "end_logits": end}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        head = 2.0 * length * self.encoder.hidden_size * 2
        return 3.0 * batch_size * (self.encoder.forward_flops(length) + head)


@dataclasses.dataclass(frozen=True)
class MultipleChoice(_Finetuning):
    """Which of `choices` sequences is right; inputs [batch, choices, length], `labels` [batch].

    Source: Devlin et al. 2019, section 4.4. `choices` is told for counting FLOPs alone.
    """

    encoder: EncoderConfig
    choices: int = 4

    def init(self, rngs: nnx.Rngs) -> classification.MultipleChoice:
        return classification.MultipleChoice(self.encoder, rngs=rngs)

    def loss(
        self, model: classification.MultipleChoice, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns the mean cross-entropy over the choices and the accuracy, over examples."""
        return _of_classes(_forward(model, batch, key), batch["labels"], batch["example_weights"])

    def predict(self, model: classification.MultipleChoice, batch: base.Batch) -> Predictions:
        """Returns `logits` and `predictions`, the numbers of the choices."""
        return _best(_forward(model, batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        return _pooled_flops(self.encoder, 1, "cls", batch_size * self.choices, length)


@dataclasses.dataclass(frozen=True)
class LowRank:
    """`task` with LoRA: of its encoder only low-rank changes are learnt, its head as ever.

    Its model is the task's with the factors attached (`bertjax.models.lora`); `lora.merge` makes
    the task's own parameters of it.
    """

    task: FinetuningTask
    options: lora.LoraOptions

    @property
    def objectives(self) -> Mapping[str, float]:
        return self.task.objectives

    @property
    def frozen(self) -> tuple[str, ...]:
        return (rf"{lora.FROZEN}\..*", *self.task.frozen)

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        module = self.task.init(rngs)
        lora.attach(module, self.options, rngs=rngs)
        return module

    def loss(self, model: Any, batch: base.Batch, *, key: PRNGKeyArray | None) -> base.Means:
        return self.task.loss(lora.merged(model, alpha=self.options.alpha), batch, key=key)

    def evaluate(self, model: Any, batch: base.Batch) -> base.Means:
        return self.task.evaluate(lora.merged(model, alpha=self.options.alpha), batch)

    def predict(self, model: Any, batch: base.Batch) -> Predictions:
        return self.task.predict(lora.merged(model, alpha=self.options.alpha), batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The task's own: the factors' products are small beside them and not counted."""
        return self.task.train_flops(batch_size, length, predictions)


def _forward(model: Any, batch: base.Batch, key: PRNGKeyArray | None = None) -> Any:
    return model(batch, key=key)


def _span_logits(
    model: classification.SpanClassifier, batch: base.Batch, key: PRNGKeyArray | None
) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"]]:
    is_real = batch["input_mask"] != 0
    start, end = _forward(model, batch, key)
    lowest = jnp.finfo(jnp.float32).min
    return jnp.where(is_real, start, lowest), jnp.where(is_real, end, lowest)


def _of_classes(
    logits: Float[Array, "*batch classes"], labels: Array, weights: Array
) -> base.Means:
    return {
        "loss": base.weighted(base.cross_entropy(logits, labels), weights),
        "accuracy": base.accuracy(logits, labels, weights),
    }


def _best(logits: Float[Array, "*batch classes"]) -> Predictions:
    return {"logits": logits, "predictions": logits.argmax(axis=-1)}


def _pooled_flops(
    encoder: EncoderConfig, num_labels: int, pooling: str, rows: int, length: int
) -> float:
    """Three times the forward pass of a sequence classifier."""
    size = encoder.hidden_size
    head = 2.0 * size * (num_labels + (size if pooling == "cls" else 0))
    return 3.0 * rows * (encoder.forward_flops(length) + head)
