"""Claims about the options of finetuning that a run takes from the encoder's width and the rows."""

import pathlib
import re

import pytest

from bertjax import jobs, recipes, train
from bertjax.jobs import finetuning_rates
from bertjax.plan import assumptions
from bertjax.training import config_faults, trials
from bertjax.workdirs import reader, scalars
from tests import small_datasets

BASE = {
    "schedule.peak_learning_rate": 2e-5,
    "finetuning.num_epochs": 3.0,
    "schedule.warmup_share": 0.1,
}
SMALL_MODEL = finetuning_rates.by_table(width=32, rows=16)

OPEN = (
    "classification", "classification:regression", "conll", "embeddings", "embeddings:cosine",
    "embeddings:distillation", "embeddings:softmax",
)  # fmt: skip
# Recipes of papers, and those that no table was measured for -> learning rate, epochs, warm-up.
FIXED = {
    "glue:rte": (2e-5, 3.0, 0.1),
    "squad:v1": (5e-5, 3.0, 0.1),
    "squad:v2": (5e-5, 2.0, 0.1),
    "swag": (2e-5, 3.0, 0.1),
    "embeddings:simcse": (3e-5, 1.0, 0.1),
    "conll:feature_based": (1e-3, 10.0, 0.1),
    "bert2bert": (5e-5, 3.0, 0.1),
    "values": (1e-3, 10.0, 0.1),
}


def values_of(config):
    schedule = config.schedule
    return schedule.peak_learning_rate, config.finetuning.num_epochs, schedule.warmup_share


def open_config(directory, source, kind="table", **changes):
    config = small_datasets.make_config(directory, kind, source)
    config.schedule.warmup_steps = 10_000
    recipes.leave_open(config, *recipes.BY_WIDTH)
    config.update_from_flattened_dict(changes)
    return config


@pytest.mark.parametrize("width", [768, 1024])
@pytest.mark.parametrize("rows", [1, 1_000, 1_000_000])
def test_base_and_larger_take_the_papers_values_whatever_the_rows(width, rows):
    assert finetuning_rates.by_table(width, rows) == BASE


def test_narrower_encoders_take_higher_learning_rates_and_fewer_rows_more_epochs():
    rate, epochs, _ = recipes.BY_WIDTH
    for rows in (100, 2_000, 100_000):
        rates = [finetuning_rates.by_table(width, rows)[rate] for width in (128, 256, 384, 768)]
        assert rates == sorted(rates, reverse=True) and len({*rates}) == 4
    for width in (128, 256, 384):
        counts = [finetuning_rates.by_table(width, rows)[epochs] for rows in (200, 2_000, 100_000)]
        assert counts == sorted(counts, reverse=True) and len({*counts}) == 3


def test_recipes_of_ones_own_tables_are_open_and_those_of_papers_are_not():
    assert all(values_of(recipes.load(name)) == (None, None, None) for name in OPEN)
    assert {name: values_of(recipes.load(name)) for name in FIXED} == FIXED


def test_a_job_takes_the_table_and_an_option_that_is_given_counts_first(tmp_path, source, caplog):
    caplog.set_level("INFO", logger="absl")
    config = open_config(tmp_path / "data", source)
    config_faults.validate(config)
    job = jobs.JOBS["finetuning"].open(config)
    assert values_of(job.config) == tuple(SMALL_MODEL.values())
    (line,) = [it.message for it in caplog.records if "encoder's width of 32" in it.message]
    assert "16 training rows" in line and all(f"config.{it}=" in line for it in recipes.BY_WIDTH)
    given = {"schedule.peak_learning_rate": 0.25, "finetuning.num_epochs": 7.0}
    config = open_config(tmp_path / "other", source, **given, **{"schedule.warmup_steps": 3})
    job = jobs.JOBS["finetuning"].open(config)
    assert values_of(job.config) == (0.25, 7.0, 0.0)  # a share would replace the warm-up in steps
    assert job.config.phases.phase1.num_steps == 14


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_fault_of_an_option_beside_open_ones_is_found(tmp_path, source, value):
    config = open_config(tmp_path / "data", source, **{"finetuning.num_epochs": value})
    with pytest.raises(ValueError, match=rf"config\.finetuning\.num_epochs is {value}"):
        config_faults.validate(config)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_resumed_run_keeps_its_values_when_the_table_has_changed(
    tmp_path, source, monkeypatch, caplog
):
    caplog.set_level("INFO", logger="absl")
    few = {"finetuning.num_epochs": 2.0, "finetuning.length_buckets": False}
    config = open_config(tmp_path / "data", source, **few)
    train.train(config, tmp_path / "run")
    rates = finetuning_rates.Rates(0.5, {0: 9.0})
    monkeypatch.setattr(finetuning_rates, "TABLE", {0: rates})
    again = train.prepare(config, tmp_path / "run").config
    assert values_of(again) == (SMALL_MODEL["schedule.peak_learning_rate"], 2.0, 0.1)
    assert values_of(reader.read(tmp_path / "run").config) == values_of(again)
    assert values_of(train.prepare(config, tmp_path / "new").config) == (0.5, 2.0, 0.1)


def test_a_job_has_one_number_of_epochs_although_its_last_batch_is_not_full(tmp_path, source):
    config = open_config(tmp_path / "data", source, global_batch_size=6)
    job = jobs.JOBS["finetuning"].open(config)
    assert job.config.phases.phase1.num_steps == 3 * SMALL_MODEL["finetuning.num_epochs"]
    assert jobs.epochs(job, job.last_step) == SMALL_MODEL["finetuning.num_epochs"]
    assert jobs.epochs(job, 3) == 1.0


def test_a_plan_takes_the_table_by_the_width_of_the_config():
    config = recipes.load("classification").copy_and_resolve_references()
    config.init_from = "unread"
    planned, told = assumptions.with_length(config, 200)
    assert values_of(planned) == tuple(BASE.values()) and "3 epochs" in told[0]
    config.model.update(hidden_size=128, num_attention_heads=2)
    planned, _ = assumptions.with_length(config, 200)
    assert values_of(planned) == tuple(finetuning_rates.by_table(128, 200).values())


@pytest.mark.usefixtures("one_device")
def test_the_protocol_tuned_goes_by_the_table_also_with_several_seeds(tmp_path, source):
    config = small_datasets.make_config(tmp_path / "data", "glue", source, seeds=2)
    config.schedule.update(peak_learning_rate=2e-5, warmup_share=0.1, warmup_steps=10_000)
    config.finetuning.update(protocol="tuned", num_epochs=3.0)
    run = train.prepare(config, tmp_path / "run")
    assert values_of(run.config) == tuple(SMALL_MODEL.values())
    rate, epochs, _ = SMALL_MODEL.values()
    (setting,) = {trial.setting for trial in trials.list_trials(run.config)}
    assert (setting.peak_learning_rate, setting.num_epochs) == (rate, epochs)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_two_hundred_rows_make_a_small_encoder_better_than_the_majority(tmp_path):
    source = small_datasets.write_source(
        tmp_path / "source", hidden_size=128, num_attention_heads=2, intermediate_size=512
    )
    config = recipes.load("classification").copy_and_resolve_references()
    config.init_from, config.mesh.data = str(source), 1
    config.finetuning.max_seq_length = 32
    for name, rows in {"train": 200, "eval": 100}.items():
        path = tmp_path / f"{name}.csv"
        lines = [
            f"{' '.join([*words[:3], f'w{number % 2}', *words[3:]])},{number % 2}"
            for number, words in enumerate(small_datasets.sentences(rows, rows))
        ]
        path.write_text("\n".join(["text,label", *lines]) + "\n")
        config.finetuning[f"{name}_file"] = str(path)
    train.train(config, tmp_path / "run")
    _, scores = scalars.last_evaluation(scalars.read(tmp_path / "run" / scalars.FILE))
    assert scores["eval/dev/accuracy"] > 0.9 > scores["eval/dev/majority_accuracy"]


def test_the_page_shows_the_table():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "finetuning.md").read_text("utf-8")
    for least in finetuning_rates.TABLE:
        values = [finetuning_rates.by_table(least, rows) for rows in (0, 1_000, 4_000)]
        epochs = " | ".join(f"{each['finetuning.num_epochs']:g}" for each in values)
        rate = f"{values[0]['schedule.peak_learning_rate']:.0e}".replace("e-0", "e-")
        row = rf"\| {least or 'below'}\b[^|]* \| {rate} \| {re.escape(epochs)} \|"
        assert re.search(row, page)
