"""Which of four endings goes on a text: SWAG and CODAH, whose files `swag_files` reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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

    Source: Devlin et al. 2019, section 4.4. `choices` is told for counting FLOPs alone.
    """

    encoder: encoders.EncoderConfig
    choices: int = 4
    bilstm_size: int = 0

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


class Choices(base.Kind):
    """A "context" and the four "endings" of which one goes on; the answer is its place, from 0."""

    own_options = {"bilstm_size": 0}
    choices = swag_files.CHOICES

    @classmethod
    def task(cls, encoder: encoders.EncoderConfig, options: base.Options) -> MultipleChoice:
        return MultipleChoice(encoder, cls.choices, options.bilstm_size)

    @classmethod
    def reads_only_first(cls, options: base.Options) -> bool:
        return not options.bilstm_size

    @classmethod
    def head(cls, options: base.Options) -> str:
        return "multiple_choice"

    @classmethod
    def label_shapes(
        cls, options: base.Options, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size,), np.int32)}

    @property
    def best_score(self) -> str:
        return "accuracy"

    def _examples(self, name: str) -> Sequence[swag_files.Example]:
        return swag_files.read_examples(self.file(name))

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels = self.features(name).columns["labels"]
        return {"accuracy": scores.accuracy(labels, outputs["predictions"])}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str]:
        numbers = (
            self.features(name).columns["labels"] if outputs is None else outputs["predictions"]
        )
        return [f"choice {number}" for number in numbers.tolist()]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the CSV file of SWAG's baselines."""
        swag_files.write_predictions(directory / f"{name}.csv", outputs["predictions"])

    def example(self, fields: base.Fields, source: str) -> swag_files.Example:
        endings = json_fields.texts(fields, "endings")
        if len(endings) != self.choices:
            raise ValueError(f"'endings' has {len(endings)} texts; it must have {self.choices}")
        return swag_files.Example(json_fields.text(fields, "context"), endings, None, source)

    def rows(
        self, examples: Sequence[swag_files.Example]
    ) -> tuple[feature_sets.FeatureSet, base.Decode]:
        length = self.options.max_seq_length
        return swag_files.choice_rows(examples, self.tokenizer, max_seq_length=length), _answers


def _answers(outputs: base.Outputs, tuned: base.Tuned) -> list[base.Answer]:
    places, shares = outputs["predictions"].tolist(), base.probabilities(outputs["logits"])
    return [
        {"choice": place, "probabilities": row} for place, row in zip(places, shares, strict=True)
    ]
