"""Tasks around the task of any kind: a teacher's predictions as further targets, and LoRA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.finetuning import base
from bertjax.models import lora
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation


@dataclasses.dataclass(frozen=True)
class _Wrapped(base.FinetuningTask):
    """Does as `task` does."""

    task: base.FinetuningTask

    @property
    def objectives(self) -> Mapping[str, float]:
        return self.task.objectives

    @property
    def frozen(self) -> tuple[str, ...]:
        return self.task.frozen

    @property
    def sequences(self) -> int:
        return self.task.sequences

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return self.task.label_shapes(batch_size, length)

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.task.init(rngs)

    def scored(self, batch: tasks.Batch) -> Array:
        return self.task.scored(batch)

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.weights(batch)

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.task.evaluate(model, batch)

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.predict(model, batch)


@dataclasses.dataclass(frozen=True)
class Distilled(_Wrapped):
    """`task` with the loss `soft_loss`: the distance of its predictions from the `teacher`'s.

    Both read the same rows, the teacher without dropout. The task defines the distance
    (`FinetuningTask.soft_losses`); the weights are the weights of the labels' loss.
    Source: transformers, examples/research_projects/distillation, run_squad_w_distillation.py.
    """

    teacher: base.FinetuningTask
    options: distillation.Options

    @property
    def objectives(self) -> Mapping[str, float]:
        hard = {name: self.options.hard_weight * x for name, x in self.task.objectives.items()}
        both = hard | {"soft_loss": self.options.soft_weight}
        return {name: coefficient for name, coefficient in both.items() if coefficient}

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.weights(batch) | {"soft_loss": self.scored(batch).sum()}

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the means of the task and soft_loss; `batch` has the teacher's parameters."""
        teacher, batch = distillation.apart(self.teacher, batch)
        outputs = model(batch, key=key)

        def computed(*_: Any, **__: Any) -> Any:
            """Stands for the model: its outputs are not computed a second time."""
            return outputs

        losses = self.task.soft_losses(
            self.task.predict(computed, batch),
            self.teacher.predict(teacher, batch),
            self.options.temperature,
        )
        means = self.task.loss(computed, batch, key=None)
        return means | {"soft_loss": tasks.weighted(losses, self.scored(batch))}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The student's step and the teacher's forward pass, a third of a teacher's step."""
        student = self.task.train_flops(batch_size, length, predictions)
        return student + self.teacher.train_flops(batch_size, length, predictions) / 3


@dataclasses.dataclass(frozen=True)
class LowRank(_Wrapped):
    """`task` with LoRA: low-rank changes of its encoder are learnt, and its whole head.

    Its model is the task's with the factors attached (`bertjax.models.lora`); `lora.merge` makes
    the task's own parameters of it.
    """

    options: lora.LoraOptions

    @property
    def frozen(self) -> tuple[str, ...]:
        return (*lora.frozen(tasks.abstract_model(self.task)[1]), *self.task.frozen)

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        module = self.task.init(rngs)
        lora.attach(module, self.options, rngs=rngs)
        return module

    @property
    def joins_rows(self) -> bool:
        return isinstance(self.task, tasks.WholeBatch) and self.task.joins_rows

    def outputs(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> Any:
        assert isinstance(self.task, tasks.WholeBatch)
        return self.task.outputs(self._merged(model), batch, key=key)

    def joint_loss(self, model: Any, outputs: Any, batch: tasks.Batch) -> tasks.Means:
        assert isinstance(self.task, tasks.WholeBatch)
        return self.task.joint_loss(model, outputs, batch)

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        return self.task.loss(self._merged(model), batch, key=key)

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.task.evaluate(self._merged(model), batch)

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.predict(self._merged(model), batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The task's own: the products of the factors are small and not counted."""
        return self.task.train_flops(batch_size, length, predictions)

    def _merged(self, model: Any) -> Any:
        return lora.merged(model, alpha=self.options.alpha)


def with_factors(task: base.FinetuningTask, options: base.Options) -> base.FinetuningTask:
    """Returns the task with LoRA if config.finetuning asks for it, else the task itself."""
    if not options.lora_rank:
        return task
    return LowRank(
        task, lora.LoraOptions(options.lora_rank, options.lora_alpha, tuple(options.lora_targets))
    )
