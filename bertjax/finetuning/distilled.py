"""Distillation around the task of any kind: a finetuned teacher's answers beside the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.finetuning import base
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation


@dataclasses.dataclass(frozen=True)
class Distilled(base.FinetuningTask):
    """`task` with the loss `soft_loss`: how far its answers are from those of the `teacher`.

    Both read the same rows, the teacher without dropout. What is far is told by the task
    (`FinetuningTask.soft_losses`); the weights are those of the labels' loss.
    Source: transformers, examples/research_projects/distillation, run_squad_w_distillation.py.
    """

    task: base.FinetuningTask
    teacher: base.FinetuningTask
    options: distillation.Options

    @property
    def objectives(self) -> Mapping[str, float]:
        own = {name: self.options.hard_weight * x for name, x in self.task.objectives.items()}
        found = own | {"soft_loss": self.options.soft_weight}
        return {name: coefficient for name, coefficient in found.items() if coefficient}

    @property
    def frozen(self) -> tuple[str, ...]:
        return self.task.frozen

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.task.init(rngs)

    def scored(self, batch: tasks.Batch) -> Array:
        return self.task.scored(batch)

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.weights(batch) | {"soft_loss": self.scored(batch).sum()}

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the means of the task and soft_loss; `batch` has the teacher's parameters."""
        teacher, batch = distillation.apart(self.teacher, batch)
        outputs = model(batch, key=key)

        def answered(*_: Any, **__: Any) -> Any:
            """What the task takes for the model: these outputs are not computed a second time."""
            return outputs

        found = self.task.soft_losses(
            self.task.predict(answered, batch),
            self.teacher.predict(teacher, batch),
            self.options.temperature,
        )
        means = self.task.loss(answered, batch, key=None)
        return means | {"soft_loss": tasks.weighted(found, self.scored(batch))}

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.task.evaluate(model, batch)

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.predict(model, batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The student's step, and the teacher's forward pass: a third of a step of its own."""
        own = self.task.train_flops(batch_size, length, predictions)
        return own + self.teacher.train_flops(batch_size, length, predictions) / 3
