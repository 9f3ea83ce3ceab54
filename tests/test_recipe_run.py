"""Whole runs in which something changes on the way: all of it is a function of the step."""

import shutil

import jax
import numpy as np
import pytest

from bertjax import train
from configs import smoke

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def make_config(**changes):
    """One layer of 16 on random tokens: 12 steps of 8 sequences on one device."""
    config = smoke.get_config()
    config.model.update(vocab_size=50, hidden_size=16, num_hidden_layers=1, intermediate_size=32)
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=12, max_seq_length=16)
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=2)
    config.log_every_steps = 1
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


def assert_same_state(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


def saved_steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def test_the_state_before_the_decay_is_kept_and_a_longer_run_goes_on_from_it(tmp_path):
    options = {
        "schedule.name": "wsd",
        "schedule.decay_steps": 5,
        "checkpoint.keep_last": 1,
        "optimizer.name": "stable_adamw",
        "optimizer.fully_decoupled_decay": True,
    }
    train.train(make_config(**options), tmp_path / "short")
    assert saved_steps(tmp_path / "short") == [7, 12]
    longer = make_config(**options | {"phases.phase1.num_steps": 16})
    with pytest.raises(ValueError, match="cannot be continued"):
        train.train(longer, tmp_path / "short")
    shutil.copytree(tmp_path / "short" / "checkpoints" / "7", tmp_path / "on" / "checkpoints" / "7")
    going_on = train.train(longer, tmp_path / "on")
    assert_same_state(going_on, train.train(longer, tmp_path / "long"))
    assert saved_steps(tmp_path / "on") == [11, 16]  # 7 is before no decay of this run
