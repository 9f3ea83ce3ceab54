"""Claims about config.budget.hours: the run ends in time with its decay done, and stays a function
of its stored decisions. The clock of these tests is moved by the steps of the run."""

import json
import shutil
import types

import jax
import numpy as np
import pytest
from etils import epath

from bertjax import jobs, recipes, train
from bertjax.jobs import lengths
from bertjax.training import monitor, program, schedules, time_budget
from bertjax.workdirs import checkpoint
from tests import small_records

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

PLAN = (0, 60, 40)  # of two phases


def test_a_decision_changes_nothing_of_the_past_and_phases_end_where_it_says():
    decisions = [PLAN, (0, 30, 20), (10, 50, 21), (55, 50, 30)]
    for number in range(2, 5):
        before, after = (lengths.course(decisions[:it]) for it in (number - 1, number))
        step, *steps = decisions[number - 1]
        past = [before.at(it) for it in range(step + 1)]
        assert past == [after.at(it) for it in range(step + 1)]
        assert np.isclose(after.at(steps[0]), 60) and np.isclose(after.at(sum(steps)), 100)
        places = [after.at(it) for it in range(sum(steps) + 1)]
        assert (np.diff(places) > 0).all()
    assert lengths.course([PLAN]).at(37) == 37 and lengths.Course().at(37) == 37


@pytest.mark.parametrize("name", ["linear", "wsd", "one_cycle", "electra"])
def test_the_learning_rate_of_a_plan_is_followed_at_the_pace_of_each_decision(name):
    config = recipes.load("smoke").copy_and_resolve_references()
    config.schedule.update(name=name, warmup_share=0.1, warmup_steps=0, decay_share=0.2)
    config.phases.phase1.update(num_steps=100, max_seq_length=128)

    def rates(*decisions):
        config.phases.phase1.num_steps = decisions[-1][1]
        with config.ignore_type():
            config.budget.decisions = decisions
        options = program.schedule_of(config, jobs.phases(config))
        steps = np.arange(decisions[-1][1])
        return np.asarray(schedules.make_schedule(options)(steps)), options

    whole, _ = rates((0, 100))
    short, options = rates((0, 100), (0, 50))
    np.testing.assert_allclose(short, whole[::2], rtol=1e-6)
    assert schedules.last_step_at(options, 80) == 40
    changed, options = rates((0, 100), (0, 50), (20, 32))  # 60 steps of the plan in 12
    assert changed[:20].tobytes() == short[:20].tobytes()
    np.testing.assert_allclose(changed[20:], whole[40::5], rtol=1e-6)
    if name == "wsd":
        assert schedules.last_step_before_decay(options) == 28


def budget_config(directory, hours, **changes):
    config = recipes.load("smoke").copy_and_resolve_references()
    config.data.update(source="records", train_dir=str(directory), eval_dir="")
    config.model.update(hidden_size=8, num_attention_heads=1, intermediate_size=16, vocab_size=0)
    config.model.max_position_embeddings = 16
    phase = {"max_seq_length": 16, "num_steps": 300, "final_masked_lm_prob": 0.3}
    config.phases.phase1.update(phase)
    config.pretraining.update(pair_loss="none", masking="dynamic")
    config.schedule.update(warmup_steps=0, warmup_share=0.1)
    config.checkpoint.update(save_every_steps=20, keep_last=100)
    config.update({"global_batch_size": 8, "log_every_steps": 1, "writers": ()})
    config.budget.hours = hours
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture
def records(tmp_path):
    return small_records.write(tmp_path / "records", is_masked=False, documents=range(90))


class Clock:
    """A clock that a batch moves on by what `cost` says of its step."""

    def __init__(self, monkeypatch, cost):
        self.now, self.cost = 0.0, cost
        clock = types.SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        for module in (time_budget, monitor, train):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(time_budget, "seconds_per_step", lambda *of_run: (1.0, of_run[-1]))
        of_run = train.remaining_batches

        def moved(run, step):
            for number, batch in enumerate(of_run(run, step), start=step):
                self.now += self.cost(number)
                yield batch

        monkeypatch.setattr(train, "remaining_batches", moved)


def learning_rates(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {it["step"]: it["train/learning_rate"] for it in lines if "train/learning_rate" in it}


COSTS = {
    "slower from step 60 on": lambda step: 2.0 if step > 60 else 1.0,
    "faster at step 60": lambda step: 0.5 if step > 60 else 1.0,
    "slow at the start": lambda step: 2.0 if step < 30 else 1.0,
    "slow for 30 steps": lambda step: 2.0 if 40 < step < 70 else 1.0,
}


@pytest.mark.parametrize(
    "name", [pytest.param(it, marks=() if "60 on" in it else pytest.mark.weekly) for it in COSTS]
)
def test_a_machine_that_changes_by_a_factor_of_two_ends_in_time_with_its_decay_done(
    name, records, tmp_path, monkeypatch
):
    clock = Clock(monkeypatch, COSTS[name])
    state = train.train(budget_config(records, 120 / 3600), tmp_path / "run")
    assert 0.9 * 120 <= clock.now <= 1.1 * 120
    rates = learning_rates(tmp_path / "run")
    assert max(rates) == int(state.step) and max(rates.values()) > 0.9e-4
    assert rates[int(state.step)] < 0.05 * max(rates.values())


@pytest.mark.slow
def test_a_killed_run_and_its_replay_are_those_of_the_stored_decisions(
    records, tmp_path, monkeypatch
):
    config = budget_config(records, 120 / 3600)
    Clock(monkeypatch, COSTS["slower from step 60 on"])
    whole = train.train(config, tmp_path / "run")
    decisions = time_budget.read(tmp_path / "run").decisions
    assert any(step > 20 for step, _ in decisions)
    # Another machine, from a checkpoint that is older than most decisions.
    Clock(monkeypatch, lambda step: 0.1)
    copied = tmp_path / "copied"
    shutil.copytree(tmp_path / "run/checkpoints/20", copied / "checkpoints/20")
    shutil.copy(tmp_path / "run" / time_budget.FILE, copied)
    again = train.train(config, copied)
    states = (jax.tree.leaves(jax.device_get(it)) for it in (whole, again))
    for one, two in zip(*states, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
    before = learning_rates(tmp_path / "run")
    assert learning_rates(copied) == {it: rate for it, rate in before.items() if it > 20}
    # Steps that a kill lost count; the time between two processes does not.
    used = time_budget.read(copied).seconds
    assert used > time_budget.read(tmp_path / "run").seconds
    (copied / time_budget.FILE).write_text("{}")
    with pytest.raises(checkpoint.CheckpointError, match=r"budget.json.*another --workdir"):
        train.prepare(config, copied)


@pytest.mark.slow
def test_seconds_that_a_kill_loses_count_and_a_resume_evaluates_as_decided(
    records, tmp_path, monkeypatch
):
    heldout = small_records.write(
        tmp_path / "heldout", is_masked=False, documents=range(90, 100), seed=1
    )
    more = {"data.eval_dir": str(heldout), "evaluation.every_steps": 5}
    config = budget_config(records, 1000 / 3600, **more)

    class KilledError(Exception):
        pass

    def until_55(step):
        if step == 55:
            raise KilledError
        return 10.0

    Clock(monkeypatch, until_55)
    monkeypatch.setattr(time_budget, "seconds_per_step", lambda *of_run: (10.0, of_run[-1]))
    with pytest.raises(KilledError):
        train.train(config, tmp_path / "run")
    saved, step = checkpoint.read_meta(tmp_path / "run")
    assert step <= 50  # 500 seconds, of 540 that passed since the first step
    assert time_budget.read(tmp_path / "run").seconds >= 510
    resumed = train.prepare(config, tmp_path / "run")
    for name in ("every_steps", "max_batches"):
        assert resumed.config.evaluation[name] == saved["config"]["evaluation"][name]
    assert resumed.config.evaluation.every_steps >= 5


def test_decisions_are_written_by_the_run_alone(records, tmp_path):
    config = budget_config(records, 1.0)
    with config.ignore_type():
        config.budget.decisions = ((0, 300),)
    with pytest.raises(ValueError, match="config.budget.decisions"):
        train.prepare(config, tmp_path / "run")


@pytest.mark.slow
def test_other_hours_of_a_run_that_has_begun_count_from_then_on(records, tmp_path, monkeypatch):
    Clock(monkeypatch, lambda step: 1.0)
    train.train(budget_config(records, 100 / 3600), tmp_path / "run")
    (last,) = [it for it in time_budget.read(tmp_path / "run").decisions[-1:]]
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "run/checkpoints/80", resumed / "checkpoints/80")
    shutil.copy(tmp_path / "run" / time_budget.FILE, resumed)
    clock = Clock(monkeypatch, lambda step: 1.0)
    state = train.train(budget_config(records, 200 / 3600), resumed)
    assert int(state.step) > last[1] + 50
    assert 170 < 100 + clock.now < 220  # what the first run used, and these


@pytest.mark.slow
def test_evaluations_take_a_tenth_of_the_hours(records, tmp_path, monkeypatch, caplog):
    heldout = small_records.write(
        tmp_path / "heldout", is_masked=False, documents=range(90, 100), seed=1
    )
    clock = Clock(monkeypatch, lambda step: 1.0)
    evaluated = []

    def of_ten_seconds(run, *_):
        clock.now += 10
        evaluated.append(clock.now)
        return {}

    monkeypatch.setattr(train.evaluation, "score", of_ten_seconds)
    more = {"data.eval_dir": str(heldout), "evaluation.every_steps": 5}
    train.train(budget_config(records, 200 / 3600, **more), tmp_path / "run")
    assert 1 <= len(evaluated) <= 5 and clock.now < 1.1 * 200


def test_hours_that_teach_nothing_are_warned_of_before_training(
    records, tmp_path, monkeypatch, caplog
):
    Clock(monkeypatch, lambda step: 1.0)
    config = budget_config(records, 120 / 3600, **{"phases.phase1.num_steps": 9_000})
    run = train.prepare(config, epath.Path(tmp_path / "run"))
    (message,) = [it.getMessage() for it in caplog.records if "ask for" in it.getMessage()]
    assert "120 of the 9,000 steps" in message and "config.budget.hours=0.31" in message
    assert run.job.last_step == 120
