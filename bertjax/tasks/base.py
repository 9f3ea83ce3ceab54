"""The interface of a task, and the loss functions that tasks share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import parameters, reductions
from bertjax.tasks import metrics

Batch = Mapping[str, Any]
Means = dict[str, metrics.Mean]


@runtime_checkable
class Task(Protocol):
    """A module, its losses and its metrics.

    `objectives` maps the names of the means of `loss` that are minimized to their coefficients; the
    other means are only reported. `frozen` are regular expressions for whole paths of those
    parameters that stay as they are. A task can be hashed: programs are compiled once for each.
    """

    @property
    def objectives(self) -> Mapping[str, float]: ...

    @property
    def frozen(self) -> tuple[str, ...]: ...

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns a freshly initialized module."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, Float[Array, ""]]:
        """Returns the weight of every objective in a batch, as `loss` has it, without a model.

        The step divides by the weights of the whole batch before it has seen the micro-batches.
        """
        ...

    def loss(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None) -> Means:
        """Returns losses and metrics of one (micro-)batch; `key` None means no dropout."""
        ...

    def evaluate(self, model: Any, batch: Batch) -> Means:
        """Returns the metrics of one evaluation batch; rows of weight zero count for nothing."""
        ...

    def predict(self, model: Any, batch: Batch) -> Mapping[str, Array]:
        """Returns the predictions for a batch, a row for each of its rows; it needs no labels.

        A task that has only losses returns {}.
        """
        ...

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Returns the model's matrix-multiplication FLOPs of one training step."""
        ...


@runtime_checkable
class ScoresSentences(Protocol):
    """A task whose `predict` returns "log_likelihood" [batch]: of the rows, in nats.

    `sentence_rows` says which rows a sentence has: a key of `data.sentence_rows.ROWS`. The score of
    a sentence is the sum over its rows.
    """

    @property
    def sentence_rows(self) -> str: ...

    def predict(self, model: Any, batch: Batch) -> Mapping[str, Array]: ...


@runtime_checkable
class HasKindsOfRows(Protocol):
    """A task that reads some rows of a batch in another way than the others.

    Batches are multiples of `row_unit` rows on every device, so that each kind has its share.
    `readings` are how: "whole", "left_to_right", or by an "order" of each row.
    """

    @property
    def row_unit(self) -> int: ...

    @property
    def readings(self) -> tuple[str, ...]: ...


@runtime_checkable
class BeginsWithParts(Protocol):
    """A task whose model has parts that begin as other parts of the weights it starts from.

    `begins` maps prefixes of the model's paths to prefixes of the weights' paths. A path that the
    weights have themselves comes from there.
    """

    @property
    def begins(self) -> Mapping[str, str]: ...


@runtime_checkable
class WholeBatch(Protocol):
    """A task whose loss of a row reads other rows of the batch, if it `joins_rows`.

    Its `loss` is `joint_loss` of its `outputs`. Under accumulation the outputs of micro-batches are
    computed one after the other, kept, and computed again for their gradients, so all rows share a
    loss in the memory of a micro-batch. Source: Gao et al. 2021, "Scaling deep contrastive learning
    batch size under memory limited setup" (GradCache), section 3.2.
    """

    @property
    def joins_rows(self) -> bool: ...

    def outputs(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None) -> Any:
        """Returns what the loss reads of the model: arrays [rows, ...], each row by itself."""
        ...

    def joint_loss(self, model: Any, outputs: Any, batch: Batch) -> Means:
        """Returns losses and metrics of the outputs of all rows of a batch."""
        ...


def abstract_model(task: Task) -> tuple[nnx.GraphDef, parameters.Params]:
    """Returns a task's graph definition and its parameters as shapes."""
    graphdef, params = _abstract_model(task)
    return graphdef, jax.tree.map(lambda leaf: leaf, params)  # the caller's own


@functools.lru_cache(maxsize=16)  # tracing the initialization takes a second, and more if large
def _abstract_model(task: Task) -> tuple[nnx.GraphDef, parameters.Params]:
    return parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))


def cross_entropy(
    logits: Float[Array, "*batch classes"], labels: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Returns -log softmax(logits)[label], computed in float32."""
    with jax.named_scope("loss"):
        logits = logits.astype(jnp.float32)
        return log_sum_exp(logits) - _label_logit(logits, labels)


@jax.custom_vjp
def log_sum_exp(logits: Float[Array, "*batch classes"]) -> Float[Array, "*batch"]:
    """Returns log(sum(exp(logits))) over the last axis, in which some logit must be finite.

    For the gradient, exp(logits - result), it keeps nothing but the logits and its result.
    """
    largest = logits.max(axis=-1)
    return largest + jnp.log(reductions.row_sums(jnp.exp(logits - largest[..., None])))


def _log_sum_exp_forward(logits: Array) -> tuple[Array, tuple[Array, Array]]:
    result = log_sum_exp(logits)
    return result, (logits, result)


def _log_sum_exp_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array]:
    logits, result = saved
    return (grad[..., None] * jnp.exp(logits - result[..., None]),)


log_sum_exp.defvjp(_log_sum_exp_forward, _log_sum_exp_backward)


def weighted(values: Float[Array, "*batch"], weights: Float[Array, "*batch"]) -> metrics.Mean:
    """Returns the mean of `values` under `weights` as its sums."""
    return metrics.Mean((values * weights).sum(), weights.sum())


def accuracy(
    logits: Float[Array, "*batch classes"],
    labels: Int[Array, "*batch"],
    weights: Float[Array, "*batch"],
) -> metrics.Mean:
    """Returns the weighted share of rows in which no logit is larger than the label's."""
    # Not argmax: the label's logit and the maximum are there already, from the cross-entropy.
    with jax.named_scope("loss"):
        logits = jax.lax.stop_gradient(logits.astype(jnp.float32))
        hits = _label_logit(logits, labels) >= logits.max(axis=-1)
        return weighted(hits.astype(jnp.float32), weights)


def _label_logit(
    logits: Float[Array, "*batch classes"], labels: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    # A comparison with an iota rather than a gather: it fuses, and its gradient needs no scatter.
    is_label = labels[..., None] == jax.lax.broadcasted_iota(jnp.int32, logits.shape, labels.ndim)
    return jnp.where(is_label, logits, 0.0).sum(axis=-1)
