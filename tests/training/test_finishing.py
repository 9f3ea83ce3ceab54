"""The config of a decay that begins early: its lengths, by every option that gives them."""

import re

import pytest

from bertjax import jobs, recipes
from bertjax.training import finishing, program, schedules


def config(**options):
    made = recipes.load("bert_base")  # phase1 and phase2
    changes = {"phases.phase1.num_steps": 600, "phases.phase2.num_steps": 400}
    changes |= {"phases.phase2.max_seq_length": 128, "global_batch_size": 8, "schedule.name": "wsd"}
    made.update_from_flattened_dict(changes | options)
    return made


def lengths(made):
    steps = [made.phases[name].num_steps for name in ("phase1", "phase2")]
    return steps, program.schedule_of(made, jobs.phases(made))


@pytest.mark.parametrize(
    ("options", "decay_steps", "expected"),
    [
        ({"schedule.decay_steps": 90}, 0, 90),
        ({"schedule.decay_share": 0.2}, 0, 125),  # a fifth of 500 + 125
        ({"schedule.decay_tokens": 8 * 128 * 70 - 1}, 0, 70),
        ({"schedule.decay_share": 0.2}, 7, 7),
    ],
)
def test_the_decay_is_that_of_the_recipe_or_of_the_command(options, decay_steps, expected):
    made = finishing.decaying(config(**options), 500, decay_steps)
    steps, schedule = lengths(made)
    assert steps == [500 + expected, 0]
    assert schedules.last_step_before_decay(schedule) == 500
    assert (made.budget.hours, schedule.total_steps) == (0.0, 500 + expected)


def test_phases_before_stay_and_the_warm_up_is_as_long_as_it_was():
    made = finishing.decaying(
        config(**{"schedule.decay_share": 0.1, "schedule.warmup_share": 0.2}), 630, 30
    )
    steps, schedule = lengths(made)
    assert steps == [600, 60]
    assert (schedule.warmup_steps, schedule.decay_steps) == (200, 30)
    # The end of a phase is the start of the next.
    assert lengths(finishing.decaying(config(**{"schedule.decay_steps": 30}), 600))[0] == [600, 30]


def test_the_masks_fall_until_the_new_end():
    falling = {"phases.phase1.masked_lm_prob": 0.3, "phases.phase1.final_masked_lm_prob": 0.15}
    made = finishing.decaying(config(**falling, **{"schedule.decay_steps": 100}), 300)
    (phase,) = jobs.phases(made)
    assert (phase.mask_rate.at(200), phase.mask_rate.at(400)) == (pytest.approx(0.225), 0.15)


@pytest.mark.parametrize(
    ("options", "step", "message"),
    [
        ({"schedule.name": "linear"}, 500, "config.schedule.name is 'linear'; only a run of 'wsd'"),
        ({}, 500, "config.schedule.name is 'wsd'; only a run of 'wsd' with a decay"),
        ({"schedule.decay_steps": 100}, 901, "step 901 is in the decay, which began at step 900"),
        ({"task": "finetuning"}, 500, "config.task is 'finetuning'; only pretraining"),
    ],
)
def test_a_run_that_cannot_decay_from_a_step_says_why(options, step, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        finishing.decaying(config(**options), step)
