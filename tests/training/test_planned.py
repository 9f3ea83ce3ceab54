"""Claims about a run beside its plan: compared where both are of one step, and told where not."""

import json
import re

import pytest

from bertjax import train
from bertjax.plan import estimates, planner, text
from bertjax.training import planned
from configs import smoke
from tests import small_runs


def make_config(**changes):
    config = smoke.get_config()
    config.data.source = "synthetic"
    config.model.update(hidden_size=32, num_hidden_layers=1, intermediate_size=64)
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=6, max_seq_length=16)
    config.log_every_steps = 1
    config.update_from_flattened_dict(changes)
    return config


def save_plan(workdir, devices, step_seconds, *, kind=None, **changes):
    """Leaves in the workdir the plan of a run, with an estimate as no CPU has one."""
    kind = kind or devices[0].device_kind
    target = estimates.Target("here", "cpu", kind, 1)
    config = make_config(**changes)
    made = planner.plan(config, planner.Planner(target, devices, False, None))
    fields = json.loads(json.dumps(text.to_json(made, made.totals)))
    fields["phases"][0]["speed"]["step_seconds"] = {"value": step_seconds, "how": "estimated"}
    planned.save(workdir, fields)


def write_metrics(workdir, seconds):
    entries = [{"step": n + 1, "perf/step_seconds": value} for n, value in enumerate(seconds)]
    entries.insert(1, {"step": 1, "eval/heldout/mlm_loss": 2.0})
    workdir.mkdir(exist_ok=True)
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (workdir / "metrics.jsonl").write_text(lines)


@pytest.mark.slow
def test_the_end_of_a_run_compares_measured_with_planned(tmp_path, one_device, caplog):
    caplog.set_level("INFO", logger="absl")
    save_plan(train.epath.Path(tmp_path), one_device, 1e-9)
    train.train(make_config(), tmp_path)
    assert "seconds per step measured" in caplog.text
    assert "estimated by the plan for here" in caplog.text


def test_the_ratio_is_of_the_median_of_the_phase(tmp_path, one_device):
    run = train.prepare(make_config(), tmp_path)
    save_plan(tmp_path, one_device, 0.25)
    write_metrics(tmp_path, [0.5, 0.5, 9.0, 0.5, 0.4, 0.6])
    (line,) = planned.lines(tmp_path, run)
    assert "0.50000 seconds per step measured" in line and "2.00 times the plan" in line


def test_each_phase_has_the_lines_of_its_own_steps(tmp_path, one_device):
    run = train.prepare(small_runs.set_phases(make_config(), {}, {}), tmp_path)
    write_metrics(tmp_path, [1.0] * 5 + [2.0] + [3.0] + [4.0] * 5)
    assert planned.step_seconds(tmp_path, run) == {"phase1": 1.0, "phase2": 4.0}
    write_metrics(tmp_path, [1.0] * 6 + [4.0])
    assert planned.step_seconds(tmp_path, run) == {"phase1": 1.0, "phase2": 4.0}


def test_a_plan_of_another_step_is_not_compared_and_one_of_other_data_is(tmp_path, one_device):
    run = train.prepare(make_config(), tmp_path)
    write_metrics(tmp_path, [0.5] * 6)
    for changes, words in [
        ({"model.remat": "full"}, "another step or mesh: not compared"),
        ({"global_batch_size": 16}, "another step or mesh: not compared"),
        ({"kind": "TPU v4"}, "is for TPU v4.*not compared"),
        ({"data.train_dir": "x", "mesh.data": 1}, "times the plan"),
    ]:
        save_plan(tmp_path, one_device, 0.25, **changes)
        (line,) = planned.lines(tmp_path, run)
        assert re.search(words, line)


def test_a_plan_that_is_damaged_or_not_there_does_not_spoil_the_end_of_a_run(tmp_path, one_device):
    run = train.prepare(make_config(), tmp_path)
    assert list(planned.lines(tmp_path, run)) == []
    write_metrics(tmp_path, [0.5])
    for content in ("{", "{}", '{"phases": [1]}', "[]"):
        (tmp_path / "plan.json").write_text(content)
        (line,) = planned.lines(tmp_path, run)
        assert "cannot be read" in line
