"""Claims about reading a workdir: which checkpoint, where its parameters lie, what it tells."""

import functools
import json

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax.devices import sharding
from bertjax.workdirs import checkpoint, reader
from tests import finetuned_workdir, small_runs

SCORES = {2: 0.25, 4: 0.75, 6: 0.5}


def write(directory, scores=SCORES, *, is_higher_better=True):
    """Checkpoints whose one parameter is their step; returns their meta item."""
    config = finetuned_workdir.config("table")
    if not is_higher_better:
        config.task = "pretraining"
    meta = {"config": config.to_dict(), "skipped": {}}
    retention = checkpoint.RetentionOptions(
        keep_last=9, best_metric="score", is_higher_better=is_higher_better
    )
    for step, score in scores.items():
        with checkpoint.Checkpointer(directory, retention) as checkpointer:
            params = {"w": {"kernel": np.full((2, 3), step, np.float32)}}
            checkpointer._save(step, {"params": params}, meta)
            if score is not None:
                checkpointer.add_evaluation(step, {"score": score}, {})
    return meta


@pytest.mark.parametrize(("is_higher_better", "best"), [(True, 4), (False, 2)])
def test_the_newest_the_best_or_that_of_a_step_is_read(tmp_path, is_higher_better, best):
    write(tmp_path, is_higher_better=is_higher_better)
    for name, step in [("newest", 6), ("best", best), ("4", 4), (2, 2)]:
        workdir = reader.read(tmp_path, step=name)
        assert workdir.step == step
        np.testing.assert_array_equal(workdir.params["w"]["kernel"], step)
        assert isinstance(workdir.params["w"]["kernel"], np.ndarray)
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 5; it has 2, 4, 6"):
        reader.read(tmp_path, step="5")
    with pytest.raises(ValueError, match="the step is 'last'; it must be newest, best or a number"):
        reader.read(tmp_path, step="last")
    mesh = sharding.make_mesh(jax.devices()[:4], data=4)
    kernel = reader.read(tmp_path, mesh=mesh).params["w"]["kernel"]
    assert kernel.sharding.is_fully_replicated and len(kernel.sharding.device_set) == 4


def test_without_a_score_none_is_the_best(tmp_path):
    write(tmp_path, {2: None, 4: None})
    with pytest.raises(ValueError, match="has a score to choose the best by.* 2, 4"):
        reader.read(tmp_path, step="best")


def test_a_description_reads_no_parameters_and_says_what_misses(tmp_path):
    write(tmp_path)
    for file in (tmp_path / checkpoint.DIRECTORY).glob("*/params/**/*"):
        file.unlink() if file.is_file() else None
    found = reader.describe(tmp_path)
    assert (found.step, found.config.finetuning.dataset) == (6, "table")
    with pytest.raises(FileNotFoundError, match="vocabulary does not exist: a run on synthetic"):
        found.needed_vocabulary()
    assert reader.describe(tmp_path / "nothing") is None


def test_a_meta_item_of_other_types_is_named(tmp_path, monkeypatch):
    config = config_lib.default_config().to_dict()
    for said, fault in (
        (True, "'bool' object"),
        ({**config, "model": {**config["model"], "vocab_size": 3.7}}, "vocab_size is 3.7; it must"),
    ):
        monkeypatch.setattr(checkpoint, "read_meta", lambda _, said=said: ({"config": said}, 6))
        with pytest.raises(checkpoint.CheckpointError, match=rf"step 6 in {tmp_path}.*{fault}"):
            reader.describe(tmp_path)


# An entry of a meta item -> a value that it cannot have.
META_FAULTS = {
    "config": [],
    "config.model": 3,
    "config.model.vocab_size": [7],
    "config.phases.phase1.num_steps": "9",
    "config.finetuning.labels": "abc",
    "config.finetuning.is_regression": 1,
    "config.init_from": {},
    "meta.fingerprints": "x",
    "meta.fingerprints.params": 5,
    "meta.identity": ["a"],
    "meta.identity.manifests": [1],
    "meta.skipped.total": "1",
    "meta.sums.loss": 2.5,
    "meta.tuned.threshold": None,
    "meta.finetuned.head": ["x"],
    "meta.converted.labels": ["x"],
    "meta.teacher_sha256": 1,
    "meta.is_higher_better": "no",
}


def test_a_value_of_another_type_in_a_meta_item_is_named_with_file_and_key(tmp_path):
    write(tmp_path, {2: 0.5})
    path = tmp_path / checkpoint.DIRECTORY / "2" / "meta" / "metadata"
    whole = json.loads(path.read_text())
    for name, value in META_FAULTS.items():
        *groups, last = name.removeprefix("meta.").split(".")
        meta = json.loads(json.dumps(whole))
        part = functools.reduce(lambda part, group: part.setdefault(group, {}), groups, meta)
        part[last] = value
        path.write_text(json.dumps(meta))
        with pytest.raises(
            checkpoint.CheckpointError, match=f"{path} is not a meta .*{name} is .*must be"
        ):
            reader.read(tmp_path)
    for name in ("config", "fingerprints"):
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        with pytest.raises(checkpoint.CheckpointError, match=f"{path} is not a meta item"):
            reader.read(tmp_path)
    path.write_text(json.dumps(whole))
    with pytest.raises(
        checkpoint.CheckpointError, match=f"step 2 in {tmp_path}.* lacks 'identity'"
    ):
        reader.read(tmp_path).identity("manifests")


def test_what_the_run_left_to_its_trial_is_read_as_plain_jax():
    for run, read in {"auto": "xla", "pallas": "pallas", "xla": "xla"}.items():
        config = config_lib.default_config().to_dict()
        config["model"]["attention"] = run
        assert reader.config_of({"config": config}, 1).model.attention == read


def test_the_model_of_a_step_has_the_rotary_bases_of_its_phase():
    config = config_lib.default_config()
    config.model.update(position_embedding="rotary", window=4, global_every=2)
    config.phases.phase1.num_steps = 3
    small_runs.set_phases(config, {}, {"rotary_base": 500.0})
    configs = [reader.config_of({"config": config.to_dict()}, step) for step in (0, 1, 3, 4, 6)]
    models = [it.model for it in configs]
    assert [it.rotary_base for it in models] == [10_000.0] * 3 + [500.0] * 2
    assert [it.local_rotary_base or it.rotary_base for it in models] == [10_000.0] * 5
    assert configs[-1].phases.phase2.rotary_base == 0.0  # said of the model, and not once more
