"""Learning-rate schedules and the optimizers of the BERT papers, as optax transformations.

The transformations here return the update direction without the learning rate: the step multiplies
it by the schedule at the global step, so that a skipped update does not shift the schedule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bertjax import rules

Step = Int[Array, ""] | int
Schedule = Callable[[Step], Float[Array, ""]]

# Weight decay is left off LayerNorm and biases (Devlin et al. 2019, appendix A.2; the released code
# matches the names LayerNorm, layer_norm and bias). LAMB's trust ratio is left off the same ones.
DECAY_RULES = [(r".*(bias|scale)", False), (r".*(kernel|embedding)", True)]


@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """`name` is a key of SCHEDULES; steps count over the whole run, all phases together."""

    name: str
    peak_learning_rate: float
    warmup_steps: int
    total_steps: int


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """`name` is a key of OPTIMIZERS; `clip_norm` 0 clips nothing."""

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    bias_correction: bool = True


def _linear(options: ScheduleOptions) -> Schedule:
    decay_steps = max(options.total_steps - options.warmup_steps, 1)

    def schedule(step: Step) -> Float[Array, ""]:
        decay = (options.total_steps - step) / decay_steps
        return options.peak_learning_rate * jnp.clip(jnp.minimum(_warmup(options, step), decay), 0)

    return schedule


def _bert(options: ScheduleOptions) -> Schedule:
    def schedule(step: Step) -> Float[Array, ""]:
        decay = jnp.clip(1 - step / options.total_steps, 0)
        is_warm = step >= options.warmup_steps
        return options.peak_learning_rate * jnp.where(is_warm, decay, _warmup(options, step))

    return schedule


def _warmup(options: ScheduleOptions, step: Step) -> Float[Array, ""]:
    if not options.warmup_steps:
        return jnp.ones(())
    return jnp.asarray(step / options.warmup_steps, jnp.float32)


# `linear` rises from 0 to the peak over the warm-up and falls to 0 at the last step. `bert` is the
# released code's (google-research/bert optimization.py): the decay counts from step 0 and the
# warm-up replaces it, so at the end of warm-up the rate drops by peak x warmup / total.
SCHEDULES: dict[str, Callable[[ScheduleOptions], Schedule]] = {"linear": _linear, "bert": _bert}


def make_schedule(options: ScheduleOptions) -> Schedule:
    """Returns the learning rate as a function of the global step."""
    return SCHEDULES[options.name](options)


class UncorrectedAdamState(NamedTuple):
    """First and second moments, shaped as the parameters."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(
    beta1: float, beta2: float, eps: float
) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps) without bias correction.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer. optax's own Adam always
    corrects.
    """

    def init(params: Any) -> UncorrectedAdamState:
        return UncorrectedAdamState(
            jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        )

    def update(grads: Any, state: UncorrectedAdamState, params: Any = None) -> tuple[Any, Any]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g**2, state.nu, grads)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return direction, UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def _adamw(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    adam = optax.scale_by_adam if options.bias_correction else scale_by_uncorrected_adam
    return [
        adam(options.beta1, options.beta2, options.eps),
        optax.add_decayed_weights(options.weight_decay, mask=is_decayed),
    ]


def _lamb(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    # Source: You et al. 2020, algorithm 2, and the released lamb_optimizer.py: LayerNorm and biases
    # take the plain Adam direction (optax.lamb would adapt them too).
    trust_ratio = optax.masked(optax.scale_by_trust_ratio(), is_decayed)
    return [*_adamw(options, is_decayed), trust_ratio]


OPTIMIZERS: dict[str, Callable[..., list[optax.GradientTransformation]]] = {
    "adamw": _adamw,
    "lamb": _lamb,
}


def make_optimizer(options: OptimizerOptions, params: Any) -> optax.GradientTransformation:
    """Returns clipping, moments and decay for parameters shaped like `params`."""
    is_decayed = rules.assign(DECAY_RULES, params, table="weight decay rules")
    clip = [optax.clip_by_global_norm(options.clip_norm)] if options.clip_norm else []
    return optax.chain(*clip, *OPTIMIZERS[options.name](options, is_decayed))
