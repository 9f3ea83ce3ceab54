"""Learning rates as functions of the global step, so that a skipped update shifts none of them.

What multiplies a rate, and what it is a rate of, belongs to `optim`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Step = Int[Array, ""] | Int[np.ndarray, ""] | int
Schedule = Callable[[Step], Float[Array, ""]]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["peak_learning_rate", "warmup_steps", "total_steps"],
    meta_fields=["name"],
)
@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """`name` is a key of SCHEDULES; steps count over the whole run, all phases together.

    The numbers may be arrays, so that one compiled step serves several rates and lengths.
    """

    name: str
    peak_learning_rate: float | Float[Array, ""] | Float[np.ndarray, ""]
    warmup_steps: Step
    total_steps: Step


def _linear(options: ScheduleOptions) -> Schedule:
    decay_steps = jnp.maximum(options.total_steps - options.warmup_steps, 1)

    def schedule(step: Step) -> Float[Array, ""]:
        decay = (options.total_steps - step) / decay_steps
        return jnp.asarray(options.peak_learning_rate) * jnp.clip(
            jnp.minimum(_warmup(options, step), decay), 0
        )

    return schedule


def _bert(options: ScheduleOptions) -> Schedule:
    def schedule(step: Step) -> Float[Array, ""]:
        decay = jnp.clip(1 - step / options.total_steps, 0)
        is_warm = step >= options.warmup_steps
        return jnp.asarray(options.peak_learning_rate) * jnp.where(
            is_warm, decay, _warmup(options, step)
        )

    return schedule


def _electra(options: ScheduleOptions) -> Schedule:
    def schedule(step: Step) -> Float[Array, ""]:
        decay = jnp.clip(1 - step / options.total_steps, 0)
        warm = jnp.minimum(_warmup(options, step), 1.0)
        return jnp.asarray(options.peak_learning_rate) * warm * decay

    return schedule


def _constant(options: ScheduleOptions) -> Schedule:
    def schedule(step: Step) -> Float[Array, ""]:
        warm = jnp.minimum(_warmup(options, step), 1.0)
        return jnp.asarray(options.peak_learning_rate) * warm

    return schedule


def _warmup(options: ScheduleOptions, step: Step) -> Float[Array, ""]:
    share = jnp.asarray(step / jnp.maximum(options.warmup_steps, 1), jnp.float32)
    return jnp.where(options.warmup_steps > 0, share, 1.0)


# `linear` rises from 0 to the peak over the warm-up and falls to 0 at the last step. `bert` is the
# released code's (google-research/bert optimization.py): the decay counts from step 0 and the
# warm-up replaces it, so at the end of warm-up the rate drops by peak x warmup / total. `constant`
# stays at the peak after the warm-up: it alone goes by no length, so a run can be lengthened.
# `electra` is the product of the warm-up and of a decay counted from step 0
# (google-research/electra model/optimization.py): its highest rate is a little below the peak.
SCHEDULES: dict[str, Callable[[ScheduleOptions], Schedule]] = {
    "linear": _linear,
    "bert": _bert,
    "electra": _electra,
    "constant": _constant,
}


def make_schedule(options: ScheduleOptions) -> Schedule:
    """Returns the learning rate as a function of the global step."""
    return SCHEDULES[options.name](options)
