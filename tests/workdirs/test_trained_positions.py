"""Claims about how many positions of a model were trained."""

import types

import pytest

from bertjax import config as config_lib
from bertjax.workdirs import checkpoint, reader, trained_positions
from tests import small_runs


def described(task="pretraining", lengths=(64,), steps=(10,), meta=(), **changes):
    config = config_lib.default_config()
    config.task = task
    phases = zip(lengths, steps, strict=True)
    small_runs.set_phases(config, *({"max_seq_length": n, "num_steps": m} for n, m in phases))
    config.update_from_flattened_dict(changes)
    return types.SimpleNamespace(config=config, meta=dict(meta))


def test_they_are_those_of_the_longest_phase_that_has_steps():
    assert trained_positions.number(described()) == 64
    assert trained_positions.number(described(lengths=(128, 512), steps=(9, 1))) == 512
    assert trained_positions.number(described(lengths=(128, 512), steps=(9, 0))) == 128
    finetuned = described("finetuning", **{"finetuning.max_seq_length": 48})
    assert trained_positions.number(finetuned) == 48
    # Converted weights are taken to be trained.
    assert trained_positions.number(described(meta={"converted": {}})) is None
    assert trained_positions.number(described(init_from="elsewhere/bert")) is None


@pytest.mark.parametrize(("source", "expected"), [(32, 64), (256, 256), (None, None)])
def test_those_of_the_run_it_began_from_count(tmp_path, monkeypatch, source, expected):
    (tmp_path / "checkpoints").mkdir()
    meta = {"converted": {}} if source is None else {}
    before = described(lengths=(source or 512,), meta=meta)
    monkeypatch.setattr(reader, "describe", lambda path: before)
    assert trained_positions.number(described(init_from=str(tmp_path))) == expected


def test_sources_that_are_damaged_or_name_each_other_are_not_known(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    circle = described(init_from=str(tmp_path))
    monkeypatch.setattr(reader, "describe", lambda path: circle)
    assert trained_positions.number(circle) is None

    def fail(path):
        raise checkpoint.CheckpointError("damaged")

    monkeypatch.setattr(reader, "describe", fail)
    assert trained_positions.number(circle) is None


def test_only_longer_texts_are_warned_of(caplog):
    for trained, length, is_warned in [(64, 64, False), (64, 65, True), (None, 512, False)]:
        caplog.clear()
        assert trained_positions.warn_beyond(trained, length, "finetuning at 65") == is_warned
        words = "finetuning at 65: positions 64 to 64 were never trained"
        assert (words in caplog.text) == is_warned
