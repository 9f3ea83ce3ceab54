"""Distillation, DistilBERT's pretraining: a student learns from labels and a teacher's outputs.

The teacher does not belong to the trained model: it has no gradient, no optimizer state and no
place in a checkpoint. Its parameters are inputs of the step, which passes them to `loss` in the
batch under TEACHER. The student is evaluated, exported and finetuned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import layers, parameters
from bertjax.tasks import base, pretraining

TEACHER = "teacher"  # the teacher's nested parameters, in the batch that `loss` gets

COSINE_EPSILON = 1e-12  # added to squared norms, as in torch's CosineEmbeddingLoss


@dataclasses.dataclass(frozen=True)
class Options:
    """Coefficients of the losses and the temperature of the targets, as in config.distillation."""

    temperature: float = 2.0
    soft_weight: float = 5.0
    hard_weight: float = 2.0
    cosine_weight: float = 1.0
    only_masked: bool = False


def of_config(options: Any) -> Options:
    """Returns the options of config.distillation that a task reads."""
    return Options(**{field.name: options[field.name] for field in dataclasses.fields(Options)})


def apart(task: base.Task, batch: base.Batch) -> tuple[Any, base.Batch]:
    """Returns the model of the teacher's task, with the parameters in the batch, and its rows."""
    graphdef, _ = base.abstract_model(task)
    rows = {name: values for name, values in batch.items() if name != TEACHER}
    return parameters.merge(graphdef, jax.lax.stop_gradient(batch[TEACHER])), rows


def divergence(
    student: Float[Array, "*rows classes"],
    teacher: Float[Array, "*rows classes"],
    temperature: float,
) -> Float[Array, "*rows"]:
    """Returns T^2 KL(softmax(teacher / T) || softmax(student / T)) of each row, in float32.

    T^2 keeps the gradient's size whatever the temperature. Source: Hinton et al. 2015, section 2;
    transformers, examples/research_projects/distillation, distiller.py (KLDivLoss, batchmean).
    """
    with jax.named_scope("loss"):
        ours, theirs = (
            jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
            for logits in (student, teacher)
        )
        shares = jnp.exp(theirs)
        # Where the teacher's share is 0, as for padding in a softmax over positions, the
        # student's logarithm may be infinite.
        differences = jnp.where(shares > 0, theirs - ours, 0.0)
        return temperature**2 * (shares * differences).sum(axis=-1)


def cosine_distance(
    student: Float[Array, "*rows hidden"], teacher: Float[Array, "*rows hidden"]
) -> Float[Array, "*rows"]:
    """Returns 1 - cos of the angle between two vectors, in float32.

    Source: distiller.py (CosineEmbeddingLoss with target 1).
    """
    ours, theirs = (x.astype(jnp.float32) for x in (student, teacher))
    squares = ((ours**2).sum(axis=-1) + COSINE_EPSILON, (theirs**2).sum(axis=-1) + COSINE_EPSILON)
    return 1.0 - (ours * theirs).sum(axis=-1) / jnp.sqrt(squares[0] * squares[1])


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Masked tokens, the teacher's distribution over words, the direction of its last states.

    `soft_loss` is the divergence at every real token or, with `only_masked`, at the masked ones;
    `cosine_loss` is over every real token. Teacher and student read the same masked input; the
    teacher without dropout. A loss of weight 0 is not computed, except for the loss of the masked
    tokens, which is then only reported. A pair loss of the student keeps its weight of 1.
    Source: Sanh et al. 2019, section 3; distiller.py, `step`, and its README for 5, 2 and 1.
    """

    student: pretraining.Pretraining
    teacher: pretraining.Pretraining
    options: Options

    @property
    def objectives(self) -> Mapping[str, float]:
        coefficients = dict(self.student.objectives)
        coefficients["mlm_loss"] *= self.options.hard_weight
        coefficients |= {
            "soft_loss": self.options.soft_weight,
            "cosine_loss": self.options.cosine_weight,
        }
        return {name: coefficient for name, coefficient in coefficients.items() if coefficient}

    @property
    def frozen(self) -> tuple[str, ...]:
        return self.student.frozen

    def init(self, rngs: nnx.Rngs) -> pretraining.PretrainingModel:
        return self.student.init(rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {
            **self.student.weights(batch),
            "soft_loss": self._soft_weights(batch).sum(),
            "cosine_loss": _real(batch).sum(),
        }

    def loss(
        self, model: pretraining.PretrainingModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns the student's own means, soft_loss and cosine_loss; `batch` has TEACHER."""
        teacher, batch = apart(self.teacher, batch)
        hidden = model.encoder(batch, key=key)
        means = self.student.of_hidden(model, hidden, batch)
        with jax.named_scope("teacher"):
            teacher_hidden = teacher.encoder(batch)
        if self.options.soft_weight:
            ours = self._logits(model, hidden, batch)
            with jax.named_scope("teacher"):
                theirs = self._logits(teacher, teacher_hidden, batch)
            divergences = divergence(ours, theirs, self.options.temperature)
            means["soft_loss"] = base.weighted(divergences, self._soft_weights(batch))
        if self.options.cosine_weight:
            means["cosine_loss"] = base.weighted(
                cosine_distance(hidden, teacher_hidden), _real(batch)
            )
        return means

    def evaluate(self, model: pretraining.PretrainingModel, batch: base.Batch) -> base.Means:
        """Returns the metrics of the student alone."""
        return self.student.evaluate(model, batch)

    def predict(self, model: pretraining.PretrainingModel, batch: base.Batch) -> dict[str, Array]:
        return self.student.predict(model, batch)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """The student's step, the logits that the soft targets need, and the teacher's forward."""
        flops = self.student.train_flops(batch_size, length, predictions)
        flops += batch_size * self.teacher.encoder.forward_flops(length)
        if self.options.soft_weight:
            places = predictions if self.options.only_masked else length
            flops += batch_size * self.teacher.encoder.head_flops(places)
            if not self.options.only_masked:  # the logits of masked tokens are the student's own
                flops += 3.0 * batch_size * self.student.encoder.head_flops(places)
        return flops

    def _logits(
        self,
        model: pretraining.PretrainingModel,
        hidden: Float[Array, "batch length hidden"],
        batch: base.Batch,
    ) -> Float[Array, "batch positions vocab"]:
        if self.options.only_masked:
            hidden = layers.taken(hidden, batch["masked_lm_positions"])
        with jax.named_scope("mlm_head"):
            return model.mlm_head(hidden, model.encoder.embeddings.word.embedding[...])

    def _soft_weights(self, batch: base.Batch) -> Float[Array, "batch positions"]:
        return batch["masked_lm_weights"] if self.options.only_masked else _real(batch)


def _real(batch: base.Batch) -> Float[Array, "batch length"]:
    return (batch["input_mask"] != 0).astype(jnp.float32)
