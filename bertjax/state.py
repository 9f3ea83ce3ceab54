"""What training changes, and the pure functions that change it.

Flax stays behind `split` and `merge`: everything outside `models` and `tasks` sees parameters as a
nested dict of arrays whose paths are their names.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bertjax import metrics, optim
from bertjax.tasks import base

Params = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The only thing donated, sharded and saved. `step` counts the steps done, skipped ones too."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepReport:
    """What one step tells: losses and metrics as sums, and the numbers of the update."""

    means: base.Means
    learning_rate: Float[Array, ""]
    grad_norm: Float[Array, ""]
    is_finite: Bool[Array, ""]


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Params]:
    """Returns the static part of a module and its parameters as a nested dict with string keys."""
    graphdef, variables = nnx.split(module, graph=False)
    return graphdef, _string_keys(nnx.to_pure_dict(variables))


def merge(graphdef: nnx.GraphDef, params: Params) -> Any:
    """Returns the module again; the inverse of `split`."""
    return nnx.merge(graphdef, nnx.restore_int_paths(params))


def _string_keys(tree: Any) -> Any:
    # Layer numbers are ints in nnx; checkpoints and JAX's sorting of dict keys want one key type.
    if not isinstance(tree, dict):
        return tree
    return {str(key): _string_keys(value) for key, value in tree.items()}


@dataclasses.dataclass(frozen=True)
class Learner:
    """A task joined with its optimizer: pure functions of (state, batch), ready for `jax.jit`.

    Dropout keys are `fold_in(seed, step)`, so a step's randomness depends on nothing that went
    before. `prng_impl` is "threefry2x32" or "rbg"; parameters are always drawn with threefry and
    so are the same on every backend and mesh.
    """

    task: base.Task
    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformation
    schedule: optim.Schedule
    seed: int
    prng_impl: str = "threefry2x32"
    accumulation_steps: int = 1

    def init(self) -> TrainState:
        """Returns the state before the first step."""
        key = jax.random.key(self.seed, impl="threefry2x32")
        _, params = split(self.task.init(nnx.Rngs(key)))
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params))

    def train_step(self, state: TrainState, batch: base.Batch) -> tuple[TrainState, StepReport]:
        """Returns the state after one optimizer update and what there is to report.

        The batch's rows are first split into `accumulation_steps` micro-batches; losses are divided
        by the weights of the whole batch, so the gradient equals that of one large batch. A
        non-finite loss or gradient leaves parameters and optimizer state as they were.
        """
        key = jax.random.key(self.seed, impl=self.prng_impl)
        grads, means = self._gradients(state.params, batch, jax.random.fold_in(key, state.step))
        with jax.named_scope("optimizer"):
            grad_norm = optax.tree.norm(grads)
            learning_rate = self.schedule(state.step)
            updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, state.params, updates)
            losses = [means[name].total for name in self.task.objectives]
            is_finite = jnp.isfinite(jnp.stack([grad_norm, *losses])).all()
            params, opt_state = jax.tree.map(
                lambda new, old: jnp.where(is_finite, new, old),
                (params, opt_state),
                (state.params, state.opt_state),
            )
        report = StepReport(means, learning_rate, grad_norm, is_finite)
        return TrainState(state.step + 1, params, opt_state), report

    def eval_step(self, params: Params, batch: base.Batch) -> base.Means:
        """Returns the task's metrics of one evaluation batch."""
        return self.task.evaluate(merge(self.graphdef, params), batch)

    def _gradients(
        self, params: Params, batch: base.Batch, key: PRNGKeyArray
    ) -> tuple[Params, base.Means]:
        # Only the weights of this full-batch pass are used; they depend on the batch alone, so the
        # compiler drops the rest of it.
        model = merge(self.graphdef, params)
        weights = {
            name: mean.weight for name, mean in self.task.loss(model, batch, key=None).items()
        }

        def objective(params: Params, micro_batch: base.Batch, key: PRNGKeyArray):
            means = self.task.loss(merge(self.graphdef, params), micro_batch, key=key)
            loss = sum(
                coefficient * means[name].total / jnp.where(weights[name] > 0, weights[name], 1)
                for name, coefficient in self.task.objectives.items()
            )
            return loss, means

        gradient = jax.grad(objective, has_aux=True)
        if self.accumulation_steps == 1:
            return gradient(params, batch, key)

        def accumulate(carry: tuple[Params, base.Means], index_and_batch: tuple[Array, base.Batch]):
            index, micro_batch = index_and_batch
            grads, means = gradient(params, micro_batch, jax.random.fold_in(key, index))
            total_grads, total_means = carry
            total_grads = jax.tree.map(jnp.add, total_grads, grads)
            return (total_grads, metrics.merge(total_means, means)), None

        micro_batches = jax.tree.map(self._micro_batches, batch)
        means_shape = jax.eval_shape(
            lambda: self.task.loss(model, jax.tree.map(lambda x: x[0], micro_batches), key=None)
        )
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, means_shape))
        indices = jnp.arange(self.accumulation_steps)
        return jax.lax.scan(accumulate, zeros, (indices, micro_batches))[0]

    def _micro_batches(self, rows: Array) -> Array:
        # Strided, so that every device keeps its own rows: micro-batch i takes rows i, i + n, ...
        grouped = rows.reshape(-1, self.accumulation_steps, *rows.shape[1:])
        return jnp.swapaxes(grouped, 0, 1)


def make_learner(
    task: base.Task,
    *,
    optimizer: optim.OptimizerOptions,
    schedule: optim.ScheduleOptions,
    seed: int,
    prng_impl: str = "threefry2x32",
    accumulation_steps: int = 1,
) -> Learner:
    """Returns the learner of a task; nothing is allocated, only shapes are traced."""
    graphdef, params = abstract_model(task)
    return Learner(
        task=task,
        graphdef=graphdef,
        optimizer=optim.make_optimizer(optimizer, params),
        schedule=optim.make_schedule(schedule),
        seed=seed,
        prng_impl=prng_impl,
        accumulation_steps=accumulation_steps,
    )


def abstract_model(task: base.Task) -> tuple[nnx.GraphDef, Params]:
    """Returns a task's graph definition and its parameters as shapes."""
    module = nnx.eval_shape(lambda: task.init(nnx.Rngs(0)))
    return split(module)
