"""LoRA around the task of any kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.finetuning import base
from bertjax.models import lora
from bertjax.tasks import base as tasks


@dataclasses.dataclass(frozen=True)
class LowRank(base.FinetuningTask):
    """`task` with LoRA: of its encoder only low-rank changes are learnt, its head as ever.

    Its model is the task's with the factors attached (`bertjax.models.lora`); `lora.merge` makes
    the task's own parameters of it.
    """

    task: base.FinetuningTask
    options: lora.LoraOptions

    @property
    def objectives(self) -> Mapping[str, float]:
        return self.task.objectives

    @property
    def frozen(self) -> tuple[str, ...]:
        return (*lora.frozen(tasks.abstract_model(self.task)[1]), *self.task.frozen)

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        module = self.task.init(rngs)
        lora.attach(module, self.options, rngs=rngs)
        return module

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.weights(batch)

    @property
    def joins_rows(self) -> bool:
        return isinstance(self.task, tasks.WholeBatch) and self.task.joins_rows

    def outputs(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> Any:
        assert isinstance(self.task, tasks.WholeBatch)
        return self.task.outputs(lora.merged(model, alpha=self.options.alpha), batch, key=key)

    def joint_loss(self, model: Any, outputs: Any, batch: tasks.Batch) -> tasks.Means:
        assert isinstance(self.task, tasks.WholeBatch)
        return self.task.joint_loss(model, outputs, batch)

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        return self.task.loss(lora.merged(model, alpha=self.options.alpha), batch, key=key)

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        return self.task.evaluate(lora.merged(model, alpha=self.options.alpha), batch)

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        return self.task.predict(lora.merged(model, alpha=self.options.alpha), batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The task's own: the factors' products are small beside them and not counted."""
        return self.task.train_flops(batch_size, length, predictions)


def with_factors(task: base.FinetuningTask, options: base.Options) -> base.FinetuningTask:
    """Returns the task with LoRA as config.finetuning wants it, or the task itself."""
    if not options.lora_rank:
        return task
    return LowRank(
        task,
        lora.LoraOptions(options.lora_rank, options.lora_alpha, tuple(options.lora_targets)),
    )
