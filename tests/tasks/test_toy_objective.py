"""Another pretraining objective is one module and one row of a table: here is one, nothing else."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest
from flax import nnx

from bertjax import config as config_lib
from bertjax import models, tasks, train
from bertjax.models import layers
from bertjax.tasks import base
from bertjax.training import config_faults
from bertjax.workdirs import scalars

pytestmark = pytest.mark.usefixtures("one_device")


class CountingModel(nnx.Module):
    """Tells from the first position which share of a row's tokens is even."""

    def __init__(self, config, *, rngs):
        self.encoder = models.make_encoder(config, rngs=rngs)
        self.count = layers.Dense(
            config.hidden_size,
            1,
            kernel_init=layers.truncated_normal(0.02),
            dtype=np.dtype("float32"),
            rngs=rngs,
        )


@dataclasses.dataclass(frozen=True)
class Counting:
    encoder: models.EncoderConfig
    objectives: ClassVar = {"count_loss": 1.0}
    frozen: ClassVar = ()

    def init(self, rngs):
        return CountingModel(self.encoder, rngs=rngs)

    def weights(self, batch):
        return {"count_loss": batch["example_weights"].sum()}

    def loss(self, model, batch, *, key):
        hidden = model.encoder(batch, key=key)
        found = model.count(hidden[:, 0])[:, 0]
        wanted = (batch["input_ids"] % 2 == 0).mean(axis=1)
        return {"count_loss": base.weighted((found - wanted) ** 2, batch["example_weights"])}

    def evaluate(self, model, batch):
        return self.loss(model, batch, key=None)

    def predict(self, model, batch):
        return {}

    def train_flops(self, batch_size, length, predictions):
        return 3.0 * batch_size * self.encoder.forward_flops(length)


def make_config():
    config = config_lib.default_config()
    config.update_from_flattened_dict(
        {
            **{"data.source": "synthetic", "model.vocab_size": 60, "model.hidden_size": 16},
            **{"model.num_hidden_layers": 1, "model.num_attention_heads": 2},
            **{"model.intermediate_size": 32, "global_batch_size": 8, "log_every_steps": 1},
            **{"phases.phase1.num_steps": 30, "phases.phase1.max_seq_length": 16},
            **{"schedule.warmup_steps": 1, "schedule.peak_learning_rate": 1e-2},
            "pretraining.objective": "counting",
        }
    )
    return config


@pytest.mark.slow
def test_an_objective_is_learnt_that_one_row_adds(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="objective is 'counting'; known are masked_tokens"):
        config_faults.validate(make_config())
    monkeypatch.setitem(
        tasks.OBJECTIVES, "counting", tasks.Objective(lambda sizes, _: Counting(sizes))
    )
    state = train.train(make_config(), tmp_path)
    assert int(state.step) == 30 and "count" in state.params
    losses = [line["train/count_loss"] for line in scalars.read(tmp_path / scalars.FILE)]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(np.isfinite(leaf).all()), state.params))
