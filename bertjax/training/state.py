"""The state of a training, and the pure functions that change it.

Flax stays behind `split` and `merge`: everything outside `models` and `tasks` sees parameters as a
nested dict of arrays whose paths are their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt

from bertjax.data import records
from bertjax.models import embedding_sharing, parameters, placement, reductions
from bertjax.tasks import base, metrics, prediction
from bertjax.training import optim, schedules

PRNG_IMPLS = ("threefry2x32", "rbg")  # of dropout keys

# Folded into a step's key for its optimizer; layers and micro-batches count from 0.
_OF_OPTIMIZER = 2**31 - 1

# The fields of a schedule that the compiled step takes as arguments, and their types.
_NUMBERS = {
    **dict.fromkeys(("warmup_steps", "total_steps", "decay_steps"), np.int32),
    **dict.fromkeys(("peak_learning_rate", "start_share", "end_share"), np.float32),
    **{"phase_starts": np.int32, "phase_shares": np.float32},
    **{"course_starts": np.int32, "course_places": np.float32, "course_paces": np.float32},
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The only thing donated, sharded and saved. `step` counts the steps done, skipped ones too.

    `ema` is the moving average of the parameters; None, and no part of a checkpoint, where there is
    none.
    """

    step: Int[Array, ""]
    params: parameters.Params
    opt_state: Any
    ema: parameters.Params | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInputs:
    """The arguments of a compiled step besides state and batch: seed and schedule.

    Several seeds and learning rates share one compilation. `fixed` has arrays that the loss reads
    in every batch by these names, such as a teacher's parameters: they are neither constants of the
    program nor part of the state, so nothing updates, differentiates or saves them.
    """

    seed: Int[Array, ""] | UInt[np.ndarray, ""]
    schedule: schedules.ScheduleOptions
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepReport:
    """The results of one step: losses and metrics as sums, and the numbers of the update.

    `words` is the number of words that start in the rows of the batch; None if the records
    count none.
    """

    means: base.Means
    learning_rate: Float[Array, ""]
    grad_norm: Float[Array, ""]
    is_finite: Bool[Array, ""]
    words: Int[Array, ""] | None = None


@dataclasses.dataclass(frozen=True)
class Learner:
    """A task joined with its optimizer: pure functions of (state, batch), ready for `jax.jit`.

    Dropout keys are `fold_in(seed, step)`, so a step's randomness depends on nothing that went
    before. `prng_impl` is "threefry2x32" or "rbg"; parameters are always drawn with threefry and
    so are the same on every backend and mesh. `step_inputs` are the default of a step.

    `is_frozen` and `rate_multipliers` are trees of bools and floats, shaped as the parameters.
    So is `is_held`, what does not move though its gradients count, for the clipping and in its
    moments: it goes on with them where a later phase moves it.
    `gradients_where` is the tree of shardings of the summed gradients; None: as the compiler
    has it.
    """

    task: base.Task
    graphdef: nnx.GraphDef
    optimizer: optax.GradientTransformationExtraArgs
    is_frozen: Any = dataclasses.field(compare=False)
    rate_multipliers: Any = dataclasses.field(compare=False)
    step_inputs: StepInputs = dataclasses.field(compare=False)
    prng_impl: str = "threefry2x32"
    accumulation_steps: int = 1
    ema_decay: float = 0.0
    gradients_where: Any = dataclasses.field(default=None, compare=False)
    is_held: Any = dataclasses.field(default=None, compare=False)

    def init(self, seed: Any = None) -> TrainState:
        """Returns the state before the first step; the default seed is from `step_inputs`."""
        seed = self.step_inputs.seed if seed is None else seed
        key = jax.random.key(seed, impl="threefry2x32")
        _, params = parameters.split(self.task.init(nnx.Rngs(key)))
        ema = jax.tree.map(jnp.copy, params) if self.ema_decay else None
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params), ema)

    def train_step(
        self, state: TrainState, batch: base.Batch, step_inputs: StepInputs | None = None
    ) -> tuple[TrainState, StepReport]:
        """Returns the state after one optimizer update, and the report of the step.

        The batch's rows are first split into `accumulation_steps` micro-batches; losses are divided
        by the weights of the whole batch, so the gradient equals the gradient of one large batch. A
        non-finite loss or gradient leaves parameters, their average and optimizer state as they
        were.
        """
        step_inputs = step_inputs or self.step_inputs
        key = jax.random.key(step_inputs.seed, impl=self.prng_impl)
        key = jax.random.fold_in(key, state.step)
        grads, means = self._gradients(state.params, batch, key, step_inputs.fixed)
        with jax.named_scope("optimizer"):
            if self.gradients_where is not None:
                grads = jax.lax.with_sharding_constraint(grads, self.gradients_where)
            grad_norm = reductions.global_norm(grads)
            learning_rate = schedules.make_schedule(step_inputs.schedule)(state.step)
            updates, opt_state = self.optimizer.update(
                grads,
                state.opt_state,
                state.params,
                peak_learning_rate=step_inputs.schedule.peak_learning_rate,
                key=jax.random.fold_in(key, _OF_OPTIMIZER),
            )
            params = self._moved(state.params, updates, learning_rate)
            ema = self._averaged(state.ema, params)
            losses = [means[name].total for name in self.task.objectives]
            is_finite = jnp.isfinite(jnp.stack([grad_norm, *losses])).all()
            params, opt_state, ema = jax.tree.map(
                lambda new, old: jnp.where(is_finite, new, old),
                (params, opt_state, ema),
                (state.params, state.opt_state, state.ema),
            )
        counts = batch.get(records.WORD_COUNT_FEATURE)
        words = None if counts is None else counts.sum()
        report = StepReport(means, learning_rate, grad_norm, is_finite, words)
        return TrainState(state.step + 1, params, opt_state, ema), report

    def _averaged(self, ema: parameters.Params | None, params: parameters.Params) -> Any:
        if ema is None:
            return None
        # Written so that a parameter that never moves is its own average to the bit.
        share = 1 - self.ema_decay
        return jax.tree.map(lambda mean, value: mean + share * (value - mean), ema, params)

    def _moved(
        self, params: parameters.Params, updates: parameters.Params, learning_rate: Float[Array, ""]
    ) -> parameters.Params:
        def move(value: Array, update: Array, is_frozen: bool, multiplier: float) -> Array:
            if is_frozen:
                return value
            rate = learning_rate if multiplier == 1 else multiplier * learning_rate
            return value - rate * update

        is_still = self.is_frozen
        if self.is_held is not None:
            is_still = jax.tree.map(lambda *either: any(either), self.is_frozen, self.is_held)
        return jax.tree.map(move, params, updates, is_still, self.rate_multipliers)

    def _trained(self, params: parameters.Params) -> parameters.Params:
        """Returns the parameters with no gradient into the frozen ones: it is not computed."""
        return jax.tree.map(
            lambda value, is_frozen: jax.lax.stop_gradient(value) if is_frozen else value,
            params,
            self.is_frozen,
        )

    def _gradients(
        self,
        params: parameters.Params,
        batch: base.Batch,
        key: PRNGKeyArray,
        fixed: Mapping[str, Any] | None = None,
    ) -> tuple[parameters.Params, base.Means]:
        copied, over_devices = jax.vjp(self._copied, params)
        grads, means = self._gradients_of_copied(copied, batch, key, fixed or {})
        return over_devices(grads)[0], means

    def _gradients_of_copied(
        self,
        params: parameters.Params,
        batch: base.Batch,
        key: PRNGKeyArray,
        fixed: Mapping[str, Any],
    ) -> tuple[parameters.Params, base.Means]:
        weights = self.task.weights(batch)

        def loss(means: base.Means):
            return sum(
                coefficient * means[name].total / jnp.where(weights[name] > 0, weights[name], 1)
                for name, coefficient in self.task.objectives.items()
            )

        def objective(params: parameters.Params, micro_batch: base.Batch, key: PRNGKeyArray):
            model = parameters.merge(self.graphdef, self._trained(params))
            means = self.task.loss(model, {**micro_batch, **fixed}, key=key)
            return loss(means), means

        def joint_objective(params: parameters.Params, batch: base.Batch, key: PRNGKeyArray):
            model = parameters.merge(self.graphdef, self._trained(params))
            outputs = self._outputs(model, batch, key, fixed)
            task: Any = self.task  # a base.WholeBatch
            means = task.joint_loss(model, outputs, {**batch, **fixed})
            return loss(means), means

        gradient = jax.grad(objective, has_aux=True)
        if self.accumulation_steps == 1:
            return gradient(params, batch, key)
        if isinstance(self.task, base.WholeBatch) and self.task.joins_rows:
            return jax.grad(joint_objective, has_aux=True)(params, batch, key)

        def accumulate(
            carry: tuple[parameters.Params, base.Means], index_and_batch: tuple[Array, base.Batch]
        ):
            index, micro_batch = index_and_batch
            grads, means = gradient(params, micro_batch, jax.random.fold_in(key, index))
            total_grads, total_means = carry
            total_grads = jax.tree.map(jnp.add, total_grads, grads)
            return (total_grads, metrics.merge(total_means, means)), None

        micro_batches = jax.tree.map(self._micro_batches, batch)
        model = parameters.merge(self.graphdef, params)
        means_shape = jax.eval_shape(
            lambda: self.task.loss(
                model, {**jax.tree.map(lambda x: x[0], micro_batches), **fixed}, key=None
            )
        )
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, means_shape))
        indices = jnp.arange(self.accumulation_steps)
        return jax.lax.scan(accumulate, zeros, (indices, micro_batches))[0]

    def _copied(self, params: parameters.Params) -> parameters.Params:
        """Returns the parameters with a copy for each device of a learnt table that all hold whole.

        Without a mesh, on one data device, or with a tensor axis, they stay as they are.
        """
        if self.gradients_where is None:
            return params
        by_path, is_frozen = parameters.flat(params), parameters.flat(self.is_frozen)
        for path, place in parameters.flat(self.gradients_where).items():
            is_whole = place.is_fully_replicated and not is_frozen[path]
            has_data_alone = 1 < place.mesh.shape[placement.DATA] == place.mesh.size
            if path.endswith(placement.WORDS) and is_whole and has_data_alone:
                by_path[path] = placement.copied(by_path[path], place.mesh)
        return parameters.nested(by_path)

    def _outputs(
        self, model: Any, batch: base.Batch, key: PRNGKeyArray, fixed: Mapping[str, Any]
    ) -> Any:
        """Returns a `base.WholeBatch`'s outputs of all rows, whose gradients recompute them.

        A micro-batch has the key that it has elsewhere.
        """
        task: Any = self.task

        @jax.checkpoint
        def of_micro_batch(index: Array, micro_batch: base.Batch):
            return task.outputs(model, {**micro_batch, **fixed}, key=jax.random.fold_in(key, index))

        micro_batches = jax.tree.map(self._micro_batches, batch)
        indices = jnp.arange(self.accumulation_steps)
        outputs = jax.lax.map(lambda each: of_micro_batch(*each), (indices, micro_batches))
        # In the order of the batch that the micro-batches were made of.
        return jax.tree.map(
            lambda rows: jnp.swapaxes(rows, 0, 1).reshape(-1, *rows.shape[2:]), outputs
        )

    def _micro_batches(self, rows: Array) -> Array:
        # Strided, so that every device keeps its own rows: micro-batch i takes rows i, i + n, ...
        grouped = rows.reshape(-1, self.accumulation_steps, *rows.shape[1:])
        return jnp.swapaxes(grouped, 0, 1)


def evaluate_step(
    task: base.Task,
    graphdef: nnx.GraphDef,
    params: parameters.Params,
    batch: base.Batch,
    *,
    with_answers: bool = False,
) -> tuple[base.Means, dict[str, Any]]:
    """Returns the metrics of one evaluation batch, and `with_answers` its predictions."""
    means = task.evaluate(parameters.merge(graphdef, params), batch)
    if not with_answers:
        return means, {}
    return means, prediction.predict_step(task, graphdef, params, batch)


def make_learner(
    task: base.Task,
    *,
    optimizer: optim.OptimizerOptions,
    schedule: schedules.ScheduleOptions,
    seed: int,
    prng_impl: str = "threefry2x32",
    accumulation_steps: int = 1,
    fixed: Mapping[str, Any] | None = None,
) -> Learner:
    """Returns the learner of a task; nothing is allocated, only shapes are traced."""
    graphdef, params = base.abstract_model(task)
    frozen = (*optimizer.frozen, *task.frozen)
    is_frozen = optim.frozen_parameters(frozen, params)
    return Learner(
        task=task,
        graphdef=graphdef,
        optimizer=optim.make_optimizer(optimizer, params, is_frozen),
        is_frozen=is_frozen,
        rate_multipliers=optim.rate_multipliers(
            optimizer, params, parameters.layer_uses(graphdef, params)
        ),
        step_inputs=make_step_inputs(seed, schedule, fixed),
        prng_impl=prng_impl,
        accumulation_steps=accumulation_steps,
        ema_decay=optimizer.ema_decay,
    )


def for_embeddings(learner: Learner, params: parameters.Params) -> Learner:
    """Returns the learner that moves nothing but the rows of vocabulary entries.

    `params` may be shapes.
    """
    rows = embedding_sharing.vocabulary_parameters(params)
    is_frozen = parameters.flat(learner.is_frozen)
    if all(is_frozen[name] for name in rows):
        raise ValueError(
            "config.phases.*.only_embeddings is True, but config.optimizer.frozen names "
            f"{', '.join(sorted(rows))}: nothing is left to train; leave one of them out"
        )
    is_held = parameters.nested({name: name not in rows for name in is_frozen})
    return dataclasses.replace(learner, is_held=is_held)


def make_step_inputs(
    seed: int, schedule: schedules.ScheduleOptions, fixed: Mapping[str, Any] | None = None
) -> StepInputs:
    """Returns the numbers as NumPy arrays of the types that the compiled step takes."""
    return StepInputs(
        # The low 32 bits, which is what jax.random.key takes of a Python int.
        seed=np.asarray(seed & 0xFFFFFFFF, np.uint32),
        schedule=dataclasses.replace(
            schedule,
            **{name: np.asarray(getattr(schedule, name), kind) for name, kind in _NUMBERS.items()},
        ),
        fixed=dict(fixed or {}),
    )
