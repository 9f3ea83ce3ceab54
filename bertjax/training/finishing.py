"""The decay of a run, begun at one of its checkpoints: the config of that run, and its start.

What is finished becomes a run of its own, with a config, a workdir and a checkpoint at the step
where it leaves the other; the other is not changed.
"""

from __future__ import annotations

import math

import jax
import ml_collections
from absl import logging
from etils import epath

from bertjax import jobs
from bertjax.jobs import automatic
from bertjax.training import program, schedules, starting
from bertjax.workdirs import checkpoint


def decaying(
    config: ml_collections.ConfigDict, step: int, decay_steps: int = 0
) -> ml_collections.ConfigDict:
    """Returns the config of a run whose learning rate falls from `step` on, to its last step.

    `config` is that of a run with the schedule "wsd". A `decay_steps` of 0 is the recipe's decay;
    where that is a share of all steps, it is that share of the shorter run. Up to `step` both runs
    take the same steps, unless the share of masked tokens falls until the end of the phase.
    """
    schedule = program.schedule_of(config, jobs.phases(config))
    _check(config, schedule, step)
    phases = [phase for phase in jobs.phases(config) if phase.first_step <= step]
    current = [phase for phase in phases if phase.name == phases[-1].name]
    decay_steps = decay_steps or _decay_steps(config, step, current[-1])
    steps = dict.fromkeys(config.phases, 0)
    steps |= {phase.name: config.phases[phase.name].num_steps for phase in phases}
    steps[current[0].name] = step - current[0].first_step + decay_steps
    config = automatic.with_steps(config, steps)
    config.budget.update(hours=0.0, extend_to=0, decisions=())
    config.schedule.update(decay_steps=decay_steps, decay_share=0.0, decay_tokens=0)
    warmup_steps = schedules.last_step_at(schedule, int(schedule.warmup_steps))
    config.schedule.update(warmup_steps=warmup_steps, warmup_share=0.0, warmup_tokens=0)
    return config


def _check(
    config: ml_collections.ConfigDict, schedule: schedules.ScheduleOptions, step: int
) -> None:
    if config.task != "pretraining":
        raise ValueError(f"config.task is {config.task!r}; only pretraining is finished early")
    last = schedules.last_step_before_decay(schedule)
    if last is None:
        raise ValueError(
            f"config.schedule.name is {config.schedule.name!r}; only a run of 'wsd' with a decay "
            "stays at its peak and can begin to decay at any step"
        )
    if step > last:
        raise ValueError(
            f"step {step} is in the decay, which began at step {last}: the command that began the "
            f"run finishes it at step {jobs.phases(config)[-1].end_step}; --step=STEP chooses an "
            f"earlier checkpoint, and that of step {last} is always kept"
        )


def _decay_steps(config: ml_collections.ConfigDict, step: int, phase: jobs.Phase) -> int:
    options = config.schedule
    if options.decay_tokens:
        return math.ceil(options.decay_tokens / phase.tokens_per_step)
    if share := options.decay_share:
        return max(1, round(step * share / (1 - share)))
    return options.decay_steps


def adopt(run: program.Program, source: epath.Path, step: int, workdir: epath.Path) -> None:
    """Begins a prepared run in its workdir with the state that another has saved at a step."""
    with (
        jax.set_mesh(run.mesh),
        starting.owned(workdir),
        checkpoint.Checkpointer(workdir, starting.retention(run)) as checkpointer,
    ):
        restored = checkpoint.load_state(source, step, run.abstract_state)
        starting.write_workdir(run, workdir)
        checkpointer.save(restored.state, {**restored.meta, "config": run.config.to_dict()})
        checkpointer.wait()
    logging.info(
        "%s goes on from step %d of %s: the learning rate falls until step %d",
        workdir, step, source, run.job.last_step,
    )  # fmt: skip
    for phase in run.job.phases[-1:]:
        if phase.mask_rate is not None and phase.mask_rate.end_step:
            logging.info("The share of masked tokens falls to %g until then", phase.mask_rate.end)
