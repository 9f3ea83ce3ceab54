"""Claims about options that records decide: which they are, and that a given one counts first."""

import dataclasses
import json
import re

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import recipes, train
from bertjax.data import records
from bertjax.jobs import automatic
from bertjax.training import config_faults, time_budget
from bertjax.workdirs import checkpoint
from tests import small_records, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


@pytest.fixture
def directory(tmp_path):
    """Records of 16 tokens that say the length of their text in tokens."""
    path = small_records.write(tmp_path / "records")
    return with_tokens(path, 1_000)


def with_tokens(path, tokens, **fields):
    manifest = records.Manifest.load(path)
    statistics = {**manifest.statistics, "tokens": tokens}
    dataclasses.replace(manifest, statistics=statistics, **fields).save(path)
    return path


# Sizes that compile in a second.
SMALL = {
    **{"model.hidden_size": 32, "model.num_attention_heads": 2, "model.num_hidden_layers": 1},
    **{"global_batch_size": 8, "log_every_steps": 1},
}


def own(directory, **changes):
    config = recipes.load("own")
    config.data.train_dir = str(directory)
    with config.ignore_type():
        config.update_from_flattened_dict(changes)
    return config


def test_length_masks_and_pairs_are_those_of_the_records_and_the_recipe_is_then_without_fault(
    directory,
):
    settled = automatic.decided(own(directory), None)
    assert settled.phases.phase1.max_seq_length == 16
    assert (settled.pretraining.masking, settled.pretraining.pair_loss) == ("static", "nsp")
    assert not [name for name, value in config_lib.flatten(settled) if value is None]
    config_faults.validate(settled)
    changed = {"max_predictions_per_seq": 0, "pair_objective": "none", "features": {}}
    with_tokens(directory, 1_000, **changed)
    settled = automatic.decided(own(directory), None)
    assert (settled.pretraining.masking, settled.pretraining.pair_loss) == ("dynamic", "none")


@pytest.mark.parametrize(
    ("tokens", "layers", "width"),
    [
        (1_000, 2, 128),
        (3_145_727, 2, 128),
        (3_145_728, 4, 256),
        (10**8, 12, 768),
        (10**11, 12, 768),
    ],
)
def test_the_layers_have_at_most_a_parameter_for_each_token(directory, tokens, layers, width):
    model = automatic.decided(own(with_tokens(directory, tokens)), None).model
    assert (model.num_hidden_layers, model.hidden_size) == (layers, width)
    assert model.intermediate_size == 4 * width and model.num_attention_heads == width // 64
    assert layers == 2 or 12 * layers * width**2 <= tokens


def test_forty_passes_over_the_text_in_batches_that_leave_ten_thousand_steps(directory):
    manifest = records.Manifest.load(directory)
    for examples, passes, batch_size in (
        (168, 1, 32), (2**23, 1, 256), (2**23, 10, 256), (400_000, 10, 128), (16_000, 1, 64),
    ):  # fmt: skip
        shards = (dataclasses.replace(manifest.shards[0], examples=examples, bytes=2**32),)
        arguments = {"dupe_factor": passes}
        with_tokens(directory, 1_000, shards=shards, arguments=arguments)
        settled = automatic.decided(own(directory), None)
        assert settled.global_batch_size == batch_size
        assert settled.phases.phase1.num_epochs * passes == 40
        steps = 40 / passes * examples / batch_size
        assert settled.evaluation.every_steps == pytest.approx(max(1, steps / 10), abs=1)
        assert steps >= 10_000 or batch_size == 32


def test_an_option_that_is_given_counts_and_others_follow_it(directory):
    given = {"model.hidden_size": 64, "phases.phase1.num_steps": 50}
    settled = automatic.decided(own(directory, **given), None)
    assert settled.model.hidden_size == 64 and settled.model.intermediate_size == 256
    assert settled.phases.phase1.num_steps == 50 and settled.phases.phase1.num_epochs == 0
    assert settled.evaluation.every_steps == 5
    config = recipes.load("smoke")
    assert automatic.decided(config, None) == config


def test_what_records_cannot_decide_is_named(directory):
    config = recipes.load("own")
    with pytest.raises(ValueError, match=r"train_dir is ''.*give --config.data.train_dir=DIR"):
        automatic.decided(config, None)
    recipes.leave_open(config, "optimizer.beta2")
    with pytest.raises(ValueError, match=r"config.optimizer.beta2 has no value; .*hidden_size"):
        automatic.decided(config, None)
    with pytest.raises(ValueError, match="do not say how many tokens .* such as bert_mini"):
        automatic.decided(own(small_records.write(directory / "more")), None)


@pytest.mark.parametrize("recipe", ["patchtst:mini", "tables:mini", "mae:mini"])
def test_the_length_of_values_is_that_of_the_records(tmp_path, recipe):
    kind = {"patchtst": "patches", "tables": "cells", "mae": "pixels"}[recipe.partition(":")[0]]
    small_values.write(tmp_path / "records", kind, rows=8)
    config = recipes.load(recipe)
    config.data.train_dir = str(tmp_path / "records")
    settled = automatic.decided(config, None)
    assert settled.phases.phase1.max_seq_length == small_values.LENGTHS[kind]
    assert settled.model.max_position_embeddings == small_values.LENGTHS[kind]
    config_faults.validate(settled)


def hourly(directory, hours):
    return own(directory, **SMALL, **{"budget.hours": hours}, **{"phases.phase1.num_steps": 9_000})


def test_a_resumed_run_has_the_options_and_the_steps_that_it_began_with(
    directory, tmp_path, monkeypatch
):
    def of_a_second(run, phase, train_state):
        return 1.0, train_state

    with monkeypatch.context() as patched:
        patched.setattr(time_budget, "seconds_per_step", of_a_second)
        run = train.prepare(hourly(directory, 3 / 3600), tmp_path / "run")
        assert run.job.last_step == run.config.phases.phase1.num_steps == 3
        assert run.config.budget.decisions == ((0, 9_000), (0, 3))
        assert run.config.evaluation.every_steps == 1  # a tenth of them, not of 9,000
    before = json.loads(run.config.to_json())
    with checkpoint.Checkpointer(tmp_path / "run", checkpoint.RetentionOptions()) as checkpointer:
        params = {"params": {"w": np.zeros(1, np.float32)}}
        checkpointer._save(3, params, {"config": before, "skipped": {}})
    time_budget.Budget(run, tmp_path / "run", 0)
    # A machine of another speed measures nothing; a corpus of this length had a larger model.
    monkeypatch.setattr(time_budget, "bounded", None)
    with_tokens(directory, 10**8)
    config = own(directory, **{"budget.hours": 3 / 3600})
    again = json.loads(train.prepare(config, tmp_path / "run").config.to_json())
    assert again["model"] == before["model"] and again["phases"] == before["phases"]
    assert automatic.decided(config, None).model.hidden_size == 768


def test_another_recipe_takes_no_lengths_of_phases_that_it_lacks():
    saved = recipes.load("bert_base").to_dict()  # phase1 and phase2
    other = recipes.load("babylm:mini")
    other.budget.extend_to = 2_000_000
    settled = automatic.decided(other, saved)  # what differs is listed by the resume
    assert settled.phases.phase1.num_steps == saved["phases"]["phase1"]["num_steps"]


@pytest.mark.slow
def test_the_speed_is_that_of_the_steps_of_the_run(directory, tmp_path):
    assert train.prepare(hourly(directory, 1e-9), tmp_path / "run").job.last_step == 1
    assert train.prepare(hourly(directory, 1e5), tmp_path / "run").job.last_step == 9_000


def test_hours_are_at_least_none_and_for_pretraining(directory):
    config = recipes.load("smoke")
    config.budget.hours = -1.0
    with pytest.raises(
        ValueError, match=re.escape("config.budget.hours is -1.0; it must be at least 0")
    ):
        config_faults.validate(config)
