"""Several trainings in one process: each is what it would be alone, and statistics add up."""

import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import train
from bertjax.training import preemption, trials
from tests import small_datasets, stopping

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

SCORE = "eval/dev/accuracy"


@pytest.fixture(scope="module")
def config(source, tmp_path_factory):
    """Two seeds of two epochs, 4 steps in all, with dropout."""
    options = {
        "seeds": 2, "seed": 3, "finetuning.num_epochs": 2.0, "finetuning.test_file": "",
        "model.hidden_dropout_prob": 0.1, "evaluation.every_steps": 0, "log_every_steps": 2,
    }  # fmt: skip
    data = tmp_path_factory.mktemp("data") / "table"
    return small_datasets.make_config(data, "table", source, **options)


@pytest.fixture(scope="module")
def done(config, tmp_path_factory):
    """The workdir of both, their results, the jitted steps they used and their last states."""
    workdir, programs, states = tmp_path_factory.mktemp("trials"), [], {}
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(train.jax, "devices", lambda: devices)
        original = train.execute

        def recorded(run, workdir, **options):
            programs.append(run)
            states[workdir.name] = original(run, workdir, **options)
            return states[workdir.name]

        patch.setattr(train, "execute", recorded)
        results = train.train_trials(config, workdir)
    return workdir, results, programs, states


def lines_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_seeds_follow_that_of_the_config_and_share_one_compilation(done, config):
    workdir, _, programs, states = done
    assert [workdir / name for name in states] == trials.workdirs(config, workdir)
    assert list(states) == ["seed_3", "seed_4"]
    assert [run.config.seed for run in programs] == [3, 4]
    assert programs[0].train_step is programs[1].train_step
    assert programs[0].train_step._cache_size() == 1
    assert all(run.config.seeds == 1 and not run.config.search for run in programs)
    kernels = [state.params["classifier"]["kernel"] for state in states.values()]
    assert not np.allclose(*kernels)


@pytest.mark.slow
def test_a_trial_is_the_training_it_would_be_alone(done, config, tmp_path):
    workdir, _, _, states = done
    alone = config.copy_and_resolve_references()
    alone.update(seed=4, seeds=1)
    state = train.train(alone, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, state, states["seed_4"])
    ours, theirs = (
        [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in lines_of(it)]
        for it in (tmp_path, workdir / "seed_4")
    )
    assert ours == theirs


@pytest.mark.slow
def test_the_results_are_those_of_the_last_evaluations(done):
    workdir, results, _, _ = done
    scores = []
    for seed in (3, 4):
        evaluations = [line for line in lines_of(workdir / f"seed_{seed}") if SCORE in line]
        assert [line["step"] for line in evaluations] == [2, 4]  # every epoch
        scores.append(evaluations[-1][SCORE])
    assert results == json.loads((workdir / "results.json").read_text())
    assert results["score"] == SCORE and results["is_higher_better"]
    assert [row["score"] for row in results["trials"]] == scores
    assert results["chosen"]["median"] == np.median(scores)
    assert results["best"]["score"] == max(scores)
    assert (workdir / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_results_are_there_whole_or_not_at_all(done, config, tmp_path, monkeypatch):
    workdir, _, _, _ = done
    for name in ("seed_3", "seed_4"):
        (tmp_path / name).mkdir()
        shutil.copy(workdir / name / "metrics.jsonl", tmp_path / name)
    run = train.prepare(config, tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            trials.run(run, tmp_path, lambda own, where: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed_3", "seed_4"]
    trials.run(run, tmp_path, lambda own, where: None)
    for name in ("results.json", "learning_curves.png"):
        assert (tmp_path / name).read_bytes() == (workdir / name).read_bytes()


@pytest.mark.slow
def test_trials_stopped_between_two_and_within_one_go_on_and_end_in_the_same_results(
    done, config, tmp_path, monkeypatch
):
    _, results, _, states = done
    write = train.RunSaver.write_predictions

    def signalled(saver, *given, **options):
        write(saver, *given, **options)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(train.RunSaver, "write_predictions", signalled)
        with pytest.raises(preemption.Preempted, match="saved at step 4"):
            train.train_trials(config, tmp_path)
    assert not (tmp_path / "seed_4").exists()
    with stopping.signal_after(1), pytest.raises(preemption.Preempted, match="saved at step 1"):
        train.train_trials(config, tmp_path)
    assert train.train_trials(config, tmp_path) == results
    last = train.checkpoint.load_params(tmp_path / "seed_4")[0]
    jax.tree.map(np.testing.assert_array_equal, last, states["seed_4"].params)


def test_without_an_evaluation_set_there_is_nothing_to_compare(config, tmp_path):
    blind = config.copy_and_resolve_references()
    blind.finetuning.eval_file = ""
    with pytest.raises(ValueError, match=r"config\.finetuning\.eval_file"):
        train.train_trials(blind, tmp_path)


def test_the_grid_of_the_paper_is_twelve_settings_of_every_seed():
    config = config_lib.default_config()
    config.update(search=True, seeds=2)
    found = trials.list_trials(config)
    assert len(found) == len({trial.name for trial in found}) == 24
    assert found[0].name == "batch16_rate5e-05_epochs3_seed0"
    assert {trial.setting.num_epochs for trial in found} == {3.0, 4.0}
    assert {trial.setting.global_batch_size for trial in found} == {16, 32}
    assert {trial.setting.peak_learning_rate for trial in found} == {5e-5, 3e-5, 2e-5}


def test_a_trial_of_the_grid_has_its_own_batch_rate_and_length(config):
    run = train.prepare(config, "unused")
    setting = trials.Setting(16, 5e-5, 3.0)
    trial = trials.Trial("name", setting, seed=9)
    own = trials.program_lib.for_job(run, trials.job_of(run.job, trial))
    (phase,) = own.job.phases
    assert (phase.global_batch_size, phase.num_steps) == (16, 3)  # of 16 examples
    batch = next(own.job.data.train_batches(phase, start_step=0, rows=None))
    assert batch["input_ids"].shape[0] == 16
    assert int(own.step_inputs.seed) == 9 and int(own.step_inputs.schedule.total_steps) == 3
    np.testing.assert_allclose(own.step_inputs.schedule.peak_learning_rate, 5e-5)
    assert own.config.phases.phase1.num_steps == 3
    assert run.job.phases[0].num_steps == 4  # the first one is as it was


def made_trials(count=3):
    settings = [trials.Setting(16, rate, 3.0) for rate in (5e-5, 2e-5)]
    return [
        trials.Trial(f"{setting.name}_seed{seed}", setting, seed)
        for setting in settings
        for seed in range(count)
    ]


def summary(values, **options):
    made = made_trials()
    scores = {trial.name: {SCORE: value} for trial, value in zip(made, values, strict=True)}
    return trials.summarize(made, scores, **{"score": SCORE, "is_higher_better": True, **options})


def test_the_statistics_are_numpys_and_the_setting_is_chosen_by_its_median():
    values = [0.2, 0.9, 0.3, 0.5, 0.4, 0.6]
    results = summary(values)
    for row, own in zip(results["settings"], (values[:3], values[3:]), strict=True):
        np.testing.assert_allclose(row["median"], np.median(own))
        np.testing.assert_allclose(row["mean"], np.mean(own))
        np.testing.assert_allclose(row["std"], np.std(own, ddof=1))
        assert row["best"] == max(own) and row["seeds"] == 3
    assert results["chosen"] == results["settings"][1]
    assert results["best"] == results["trials"][1]
    lower = summary(values, is_higher_better=False)
    assert lower["chosen"] == lower["settings"][0] and lower["best"] == lower["trials"][0]


def test_the_scores_of_several_sets_have_their_medians_in_a_line_of_their_own():
    made, other = made_trials(), "eval/zh/accuracy"
    scores = {trial.name: {SCORE: 0.9, other: 0.1 * trial.seed} for trial in made}
    shared = {"score": SCORE, "is_higher_better": True}
    results = trials.summarize(made, scores, **shared, compared=(SCORE, other))
    assert all(row["medians"] == {SCORE: 0.9, other: 0.1} for row in results["settings"])
    assert trials.sentences(results)[1].endswith(f"by set: {SCORE} 0.9000, {other} 0.1000")
    assert "medians" not in trials.summarize(made, scores, **shared)["chosen"]


def test_a_score_that_is_no_number_is_the_worst_and_no_json_error():
    results = summary([math.nan, 0.9, 0.3, 0.1, 0.1, 0.1])
    assert results["settings"][0]["median"] is None
    assert results["chosen"] == results["settings"][1]
    assert results["best"]["score"] == 0.9
    json.dumps(results, allow_nan=False)
    shown = trials.sentences(results)
    assert "median unknown" in shown[0] and "best 0.9000" in shown[0]
    assert shown[-1].endswith("seed1: 0.9000")


def test_one_seed_has_no_deviation_and_a_missing_score_is_named():
    trial = made_trials()[0]
    scores = {trial.name: {SCORE: 0.5}}
    results = trials.summarize([trial], scores, score=SCORE, is_higher_better=True)
    assert results["settings"][0]["std"] is None
    with pytest.raises(ValueError, match="has no score eval/dev/f1; it has eval/dev/accuracy"):
        summary([0.0] * 6, score="eval/dev/f1")
