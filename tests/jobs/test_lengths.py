"""Claims about phases: tokens and epochs become steps, batches grow, mask rates fall."""

import itertools

import pytest

from bertjax import config as config_lib
from bertjax import jobs
from bertjax.jobs import lengths
from bertjax.models import encoder
from tests import small_runs

LENGTH = 16


def make_config(*phases):
    config = config_lib.default_config()
    config.global_batch_size = 24
    config.phases.phase1.update(num_steps=40, max_seq_length=LENGTH)
    return small_runs.set_phases(config, *phases)


def batches_of(phases):
    return [phase.global_batch_size for phase in phases for _ in range(phase.num_steps)]


@pytest.mark.parametrize("ramp_tokens", [1, 700, 3333, 10**4, 10**6])
def test_a_batch_grows_linearly_with_the_tokens_in_steps_of_its_first_size(ramp_tokens):
    config = make_config({"ramp_from": 4, "ramp_tokens": ramp_tokens}, {})
    found, rows = [], 0
    for _ in range(40):
        size = min(24, 4 * (1 + 5 * rows * LENGTH // ramp_tokens))
        found.append(size)
        rows += size
    phases = jobs.phases(config)
    assert batches_of(phases) == found + [24] * 40
    assert [phase.end_step for phase in phases[:-1]] == [it.first_step for it in phases[1:]]
    for phase in phases[:-1]:
        assert phase.steps_before == phase.first_step
        assert phase.rows_until(phase.end_step) == sum(found[: phase.end_step])
        assert phase.is_last == (phase.end_step == 40)
    second = phases[-1]
    assert (second.name, second.first_step, second.ordinal) == ("phase2", 40, 1)
    assert second == jobs.Phase("phase2", 40, 40, 24, LENGTH)


@pytest.mark.parametrize("ramp", [{}, {"ramp_from": 8, "ramp_tokens": 2000}])
@pytest.mark.parametrize("num_tokens", [1, 128, 129, 2000, 2001, 12345])
def test_tokens_of_a_phase_are_taken_by_the_fewest_steps_that_can(ramp, num_tokens):
    config = make_config({"num_tokens": num_tokens, "num_steps": 0} | ramp)
    lengths.set_steps(config, {"phase1": 99})
    taken = list(itertools.accumulate(size * LENGTH for size in batches_of(jobs.phases(config))))
    assert taken[-1] >= num_tokens and (len(taken) == 1 or taken[-2] < num_tokens)
    assert config.phases.phase1.num_steps == len(taken)


def test_epochs_of_a_growing_batch_are_counted_in_its_rows():
    config = make_config({"num_epochs": 1.5, "ramp_from": 8, "ramp_tokens": 24 * LENGTH})
    lengths.set_steps(config, {"phase1": 64})  # 96 rows: 8, 8, 16 and then 24s
    assert batches_of(jobs.phases(config)) == [8, 8, 16, 24, 24, 24]


def test_a_mask_rate_goes_in_a_line_through_its_phase_whatever_the_batches_do():
    falling = {"masked_lm_prob": 0.3, "final_masked_lm_prob": 0.1}
    ramp = {"ramp_from": 8, "ramp_tokens": 3000}
    phases = jobs.phases(make_config({}, falling | ramp, {"masked_lm_prob": 0.05}))
    first, *growing, last = phases
    assert first.mask_rate is None and last.mask_rate == lengths.MaskRate(0.05, 0.05)
    assert len(growing) == 3
    found = [
        phase.mask_rate.at(step)
        for phase in growing
        for step in range(phase.first_step, phase.end_step)
    ]
    assert found == pytest.approx([0.3 - 0.2 * step / 40 for step in range(40)])
    assert {phase.mask_rate.largest for phase in growing} == {0.3}


def test_the_seed_of_a_growing_phase_is_one():
    plain, ramped = (
        jobs.phases(make_config(changes, {}))
        for changes in ({}, {"ramp_from": 8, "ramp_tokens": 3000})
    )
    assert {lengths.seed(3, phase) for phase in ramped[:-1]} == {lengths.seed(3, plain[0])}
    assert lengths.seed(3, ramped[-1]) == lengths.seed(3, plain[-1]) != lengths.seed(3, plain[0])


@pytest.mark.parametrize("ramp_from", [24, 48, 7])
@pytest.mark.parametrize("change", [{}, {"num_tokens": 1000, "num_steps": 0}])
def test_a_batch_that_cannot_grow_is_told_with_what_to_set(ramp_from, change):
    """Also where a plan asks, which knows no data and so does not check the whole config."""
    config = make_config({"ramp_from": ramp_from, "ramp_tokens": 2000} | change)
    with pytest.raises(ValueError, match=f"phase1.ramp_from is {ramp_from}; .* ramp_tokens to 0"):
        lengths.set_steps(config, {})
        lengths.phases(config)


def rotary(*phases, **model):
    config = make_config(*phases)
    config.model.update({"position_embedding": "rotary", "window": 4, "global_every": 2} | model)
    return config


@pytest.mark.parametrize(
    ("model", "phase", "bases"),
    [
        ({}, {}, (1e4, 1e4)),
        ({}, {"rotary_base": 5e5}, (5e5, 1e4)),  # layers with a window keep theirs
        ({"local_rotary_base": 7.0}, {"rotary_base": 5e5}, (5e5, 7.0)),
        ({"local_rotary_base": 7.0}, {"local_rotary_base": 3.0}, (1e4, 3.0)),
        ({}, {"rotary_base": 9.0, "local_rotary_base": 9.0}, (9.0, 9.0)),
        ({"local_rotary_base": 9.0}, {"rotary_base": 9.0}, (9.0, 9.0)),
        ({"window": 0, "global_every": 1}, {"rotary_base": 9.0}, (9.0, 9.0)),
        ({"position_embedding": "learnt"}, {}, None),
    ],
)
def test_a_phase_turns_positions_by_its_own_bases(model, phase, bases):
    config = rotary({}, phase, **model)
    first, second = jobs.phases(config)
    assert first.rotary_bases == jobs.phases(rotary({}, **model))[0].rotary_bases
    assert second.rotary_bases == bases
    before = config.to_dict()
    made = config_lib.in_phase(config, "phase2")
    assert config.to_dict() == before
    assert {it.rotary_bases for it in jobs.phases(made)} == {bases}
    if bases:
        sizes = encoder.EncoderConfig(**{**made.model, "vocab_size": 9, "dtype": "float32"})
        assert {sizes.rotary_base_of(0), sizes.rotary_base_of(1)} == set(bases)
    unlike = set(config_lib.flatten(config.model)) ^ set(config_lib.flatten(made.model))
    assert {name for name, _ in unlike} <= {"rotary_base", "local_rotary_base"}


def test_bases_are_told_in_words_where_positions_turn():
    phases = jobs.phases(rotary({}, {"rotary_base": 160_000.0}))
    assert [phase.details for phase in phases] == [
        "rotary base 10,000", "rotary base 160,000, 10,000 in windows"
    ]  # fmt: skip
    assert jobs.phases(make_config({}))[0].details == ""


def test_the_model_of_a_border_is_that_of_the_phase_that_ends_there():
    config = make_config({"num_steps": 3}, {"num_steps": 0}, {"num_steps": 2})
    found = [config_lib.phase_at(config, step) for step in range(8)]
    assert found == ["phase1"] * 4 + ["phase3"] * 4


@pytest.mark.parametrize("steps", [(2**31, 1), (2**31 - 1, 1)])
def test_a_run_has_no_more_steps_than_an_int32(steps):
    phases = [{"num_steps": it} for it in steps]
    with pytest.raises(ValueError, match=r"num_steps is .*; it must be at most"):
        lengths.phases(make_config(*phases))
