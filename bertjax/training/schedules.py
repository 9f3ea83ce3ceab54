"""Learning rates as functions of the global step, so that a skipped update shifts none of them.

Multiples of the learning rate, and the updates that it scales, belong to `optim`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Step = Int[Array, ""] | Int[np.ndarray, ""] | int
Rate = Float[Array, ""]
Schedule = Callable[[Step], Rate]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        *("peak_learning_rate", "warmup_steps", "total_steps"),
        *("decay_steps", "start_share", "end_share"),
        *("phase_starts", "phase_shares"),
        *("course_starts", "course_places", "course_paces"),
    ],
    meta_fields=["name", "decay_shape"],
)
@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """`name` is a key of SCHEDULES; steps count over the whole run, all phases together.

    `decay_steps` is the length of the decay: the last steps of the run for "wsd", the steps after
    the warm-up for the others, 0 being all of them. `start_share` and `end_share` are the learning
    rates before the warm-up and after the decay, as shares of the peak; `decay_shape` is a key of
    SHAPES. SCHEDULES lists the fields that each schedule reads. From each step of `phase_starts`
    on, the first of which is 0, the learning rate is multiplied by the same entry of
    `phase_shares`. With a course (`jobs.lengths.Course`) the other steps count in a plan that
    the run follows at a pace of its own.

    The numbers may be arrays, so that one compiled step serves several rates and lengths.
    """

    name: str
    peak_learning_rate: float | Float[Array, ""] | Float[np.ndarray, ""]
    warmup_steps: Step
    total_steps: Step
    decay_steps: Step = 0
    start_share: float | Float[Array, ""] | Float[np.ndarray, ""] = 0.0
    end_share: float | Float[Array, ""] | Float[np.ndarray, ""] = 0.0
    decay_shape: str = "linear"
    phase_starts: Any = ()
    phase_shares: Any = ()
    course_starts: Any = ()
    course_places: Any = ()
    course_paces: Any = ()


# Shape -> from the share of the decay that is left, 1 at its start, the share of the fall that is.
# Source of 1 - sqrt: Haegele et al. 2024, "Scaling laws and compute-optimal training beyond fixed
# training durations", section 3.
SHAPES: dict[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {
    "linear": lambda left: left,
    "one_minus_sqrt": lambda left: 1 - jnp.sqrt(1 - left),
    "cosine": lambda left: (1 - jnp.cos(jnp.pi * left)) / 2,
}


def _falling(options: ScheduleOptions, step: Step, *, shape: str) -> Rate:
    """From 0 to the peak in the warm-up, then down to the end share by a shape."""
    fall = _fallen(options, shape, _left_after_warmup(options, step))
    return _times_peak(options, jnp.minimum(_warmup(options, step), fall))


def _warmup_stable_decay(options: ScheduleOptions, step: Step) -> Rate:
    left = (options.total_steps - step) / jnp.maximum(options.decay_steps, 1)
    left = jnp.where(options.decay_steps > 0, jnp.clip(left, 0, 1), 1.0)
    fall = _fallen(options, options.decay_shape, left)
    return _times_peak(options, jnp.minimum(_warmup(options, step), fall))


def _one_cycle(options: ScheduleOptions, step: Step) -> Rate:
    to_go = 1 - jnp.clip(_warmup(options, step), 0, 1)
    rise = options.start_share
    rise += (1 - options.start_share) * (1 - SHAPES[options.decay_shape](to_go))
    left, is_warm = _left_after_warmup(options, step), step >= options.warmup_steps
    fall = _fallen(options, options.decay_shape, left)
    return _times_peak(options, jnp.where(is_warm, fall, rise))


def _inverse_sqrt(options: ScheduleOptions, step: Step) -> Rate:
    rise = options.start_share + (1 - options.start_share) * _warmup(options, step)
    fall = jnp.sqrt(jnp.maximum(options.warmup_steps, 1) / jnp.maximum(step, 1))
    return _times_peak(options, jnp.where(step < options.warmup_steps, rise, fall))


def _bert(options: ScheduleOptions, step: Step) -> Rate:
    decay = jnp.clip(1 - step / options.total_steps, 0)
    is_warm = step >= options.warmup_steps
    return _times_peak(options, jnp.where(is_warm, decay, _warmup(options, step)))


def _electra(options: ScheduleOptions, step: Step) -> Rate:
    decay = jnp.clip(1 - step / options.total_steps, 0)
    return jnp.asarray(options.peak_learning_rate) * _warmed(options, step) * decay


def _warmed(options: ScheduleOptions, step: Step) -> Float[Array, ""]:
    return jnp.minimum(_warmup(options, step), 1.0)


def _warmup(options: ScheduleOptions, step: Step) -> Float[Array, ""]:
    share = jnp.asarray(step / jnp.maximum(options.warmup_steps, 1), jnp.float32)
    return jnp.where(options.warmup_steps > 0, share, 1.0)


def _left_after_warmup(options: ScheduleOptions, step: Step) -> Float[Array, ""]:
    """Returns the share that is left of a decay that starts at the end of the warm-up."""
    all_steps = jnp.maximum(options.total_steps - options.warmup_steps, 1)
    has_length = options.decay_steps > 0
    end = jnp.where(has_length, options.warmup_steps + options.decay_steps, options.total_steps)
    left = (end - step) / jnp.where(has_length, options.decay_steps, all_steps)
    return jnp.clip(left, 0, 1)


def _fallen(options: ScheduleOptions, shape: str, left: Float[Array, ""]) -> Float[Array, ""]:
    low = jnp.asarray(options.end_share)
    return low + (1 - low) * SHAPES[shape](left)


def _times_peak(options: ScheduleOptions, share: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.asarray(options.peak_learning_rate) * share


class Kind(NamedTuple):
    """`rate` gives the learning rate of a step; it reads the options `reads` of config.schedule.

    With `keeps_before_decay` the rate is the same however long the run is, until the decay starts:
    the state before it is one to go on from.
    """

    rate: Callable[[ScheduleOptions, Step], Rate]
    reads: tuple[str, ...] = ()
    keeps_before_decay: bool = False


# The options that give the length of the decay; one of them is set.
DECAY_LENGTHS = ("decay_steps", "decay_tokens", "decay_share")

# `linear` rises from 0 to the peak over the warm-up and falls linearly to its end share at the last
# step, `cosine` by half a cosine. `wsd` stays at the peak after the warm-up and decays at the end
# of the run (warm-up, stable, decay; ModernBERT). `one_cycle` rises from one share of the peak and
# falls to another, both by `decay_shape` (Smith and Topin 2019). `inverse_sqrt` falls with the root
# of the step without reaching zero (fairseq's inverse_square_root_schedule.py, XLM's optim.py).
# `constant` stays at the peak after the warm-up. The last two do not depend on the length of the
# run, so it can be lengthened.
# `bert` is the released code's (google-research/bert optimization.py): the decay counts from step 0
# and the warm-up replaces it, so at the end of warm-up the rate drops by peak x warmup / total.
# `electra` is the product of the warm-up and of a decay counted from step 0
# (google-research/electra model/optimization.py): its highest rate is a little below the peak.
SCHEDULES: dict[str, Kind] = {
    "linear": Kind(functools.partial(_falling, shape="linear"), (*DECAY_LENGTHS, "end_share")),
    "cosine": Kind(functools.partial(_falling, shape="cosine"), (*DECAY_LENGTHS, "end_share")),
    "wsd": Kind(_warmup_stable_decay, (*DECAY_LENGTHS, "end_share", "decay_shape"), True),
    "one_cycle": Kind(_one_cycle, (*DECAY_LENGTHS, "start_share", "end_share", "decay_shape")),
    "inverse_sqrt": Kind(_inverse_sqrt, ("start_share",)),
    "constant": Kind(lambda options, step: _times_peak(options, _warmed(options, step))),
    "bert": Kind(_bert),
    "electra": Kind(_electra),
}


def make_schedule(options: ScheduleOptions) -> Schedule:
    """Returns the learning rate as a function of the global step."""
    schedule = functools.partial(SCHEDULES[options.name].rate, options)

    def rate(step: Step) -> Rate:
        value = schedule(_place(options, step) if np.size(options.course_starts) else step)
        if np.size(options.phase_shares):
            value = value * jnp.asarray(options.phase_shares)[_last(options.phase_starts, step)]
        return value

    return rate


def _place(options: ScheduleOptions, step: Step) -> Float[Array, ...]:
    """Returns the step of the plan that a step of the run stands for."""
    number = _last(options.course_starts, step)
    starts, places, paces = (
        jnp.asarray(values)[number]
        for values in (options.course_starts, options.course_places, options.course_paces)
    )
    return places + (step - starts) * paces


def _last(starts: Any, step: Step) -> Int[Array, ...]:
    """Returns the index of the last start that is not after a step."""
    return jnp.searchsorted(jnp.asarray(starts), jnp.asarray(step), side="right") - 1


def last_step_before_decay(options: ScheduleOptions) -> int | None:
    """Returns the step whose state any longer run would also have had, None without one."""
    is_kept = SCHEDULES[options.name].keeps_before_decay and int(options.decay_steps) > 0
    step = last_step_at(options, int(options.total_steps) - int(options.decay_steps))
    return step if is_kept and step > 0 else None


def last_step_at(options: ScheduleOptions, place: int) -> int:
    """Returns the last step of the run that is not beyond a step of its plan."""
    if not np.size(options.course_starts):
        return place
    is_read = np.asarray(options.course_paces) > 0
    starts, places, paces = (
        np.asarray(values, np.float64)[is_read]
        for values in (options.course_starts, options.course_places, options.course_paces)
    )
    number = max(int(np.searchsorted(places, place, side="right")) - 1, 0)
    # The numbers are rounded to float32.
    return int(starts[number] + (place - places[number]) / paces[number] + 1e-3)
