"""Which of four endings goes on a text: SWAG and CODAH, whose files `swag_files` reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.finetuning import base, feature_sets, json_fields, swag_files
from bertjax.models import classification
from bertjax.models import encoder as encoders
from bertjax.scores import classification as scores
from bertjax.tasks import base as tasks


@dataclasses.dataclass(frozen=True)
class MultipleChoice(base.FinetuningTask):
    """Which of `choices` sequences is right; inputs [batch, choices, length], `labels` [batch].

    Source: Devlin et al. 2019, section 4.4.
    """

    head: ClassVar[str] = "multiple_choice"

    encoder: encoders.EncoderConfig
    choices: int = swag_files.CHOICES
    bilstm_size: int = 0

    @property
    def sequences(self) -> int:
        return self.choices

    @property
    def reads_only_first(self) -> bool:
        return not self.bilstm_size

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size,), np.int32)}

    def init(self, rngs: nnx.Rngs) -> classification.MultipleChoice:
        return classification.MultipleChoice(self.encoder, bilstm_size=self.bilstm_size, rngs=rngs)

    def loss(
        self, model: base.Model, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> tasks.Means:
        """Returns the mean cross-entropy over the choices and the accuracy, over examples."""
        return base.of_classes(model(batch, key=key), batch["labels"], self.scored(batch))

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `logits` and `predictions`, the numbers of the choices."""
        return base.best(model(batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        rows = batch_size * self.choices
        return base.pooled_flops(self.encoder, 1, rows, length, bilstm_size=self.bilstm_size)


class ChoiceReader(base.Reader):
    """Reads a "context" and the four "endings" of which one goes on."""

    def _examples(self, name: str) -> Sequence[swag_files.Example]:
        return swag_files.read_examples(self.file(name))

    def example(self, fields: base.Fields, source: str) -> swag_files.Example:
        endings = json_fields.texts(fields, "endings")
        if len(endings) != swag_files.CHOICES:
            raise ValueError(
                f"'endings' has {len(endings)} texts; it must have {swag_files.CHOICES}"
            )
        return swag_files.Example(json_fields.text(fields, "context"), endings, None, source)

    def rows(self, examples: Sequence[swag_files.Example]) -> feature_sets.FeatureSet:
        length = self.options.max_seq_length
        return swag_files.choice_rows(examples, self.tokenizer, max_seq_length=length)


class ChoiceScorer(base.Scorer):
    """Scores the number of the chosen ending, from 0."""

    @property
    def best_score(self) -> str:
        return "accuracy"

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels = self.reader.features(name).columns["labels"]
        return {"accuracy": scores.accuracy(labels, outputs["predictions"])}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str]:
        labels = self.reader.features(name).columns["labels"]
        numbers = labels if outputs is None else outputs["predictions"]
        return [f"choice {number}" for number in numbers.tolist()]

    def predictions(
        self,
        examples: Sequence[swag_files.Example],
        rows: feature_sets.FeatureSet,
        outputs: base.Outputs,
        tuned: base.Tuned,
    ) -> list[base.Prediction]:
        numbers, shares = outputs["predictions"].tolist(), base.probabilities(outputs["logits"])
        return [
            {"choice": number, "probabilities": row}
            for number, row in zip(numbers, shares, strict=True)
        ]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        swag_files.write_predictions(directory / f"{name}.csv", outputs["predictions"])


SWAG = base.FinetuningKind(
    ChoiceReader,
    lambda encoder, options: MultipleChoice(encoder, bilstm_size=options.bilstm_size),
    ChoiceScorer,
    {"bilstm_size": 0},
)
