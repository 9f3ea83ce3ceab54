"""Records that hold no text are pretrained on with one row of embeddings and one objective."""

import dataclasses
import shutil
from typing import ClassVar

import jax
import numpy as np
import pytest
from flax import nnx

from bertjax import config as config_lib
from bertjax import models, tasks, train
from bertjax.data import encoding, record_files, records
from bertjax.models import encoder, layers
from bertjax.tasks import base
from bertjax.training import config_faults
from bertjax.workdirs import scalars
from tests import small_records

# Slow tests run optimized code: this is the whole run that is compared so.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

LENGTH, WIDTH = 12, 3


def dense(inputs, outputs, stddev, rngs):
    options = {"kernel_init": layers.truncated_normal(stddev), "dtype": np.dtype("float32")}
    return layers.Dense(inputs, outputs, **options, rngs=rngs)


class ValueEmbeddings(nnx.Module):
    """A dense layer over the values of each position."""

    def __init__(self, config, *, rngs):
        self.dense = dense(WIDTH, config.hidden_size, 0.5, rngs)

    def __call__(self, inputs, *, key=None):
        return self.dense(inputs["values"])


class Averager(nnx.Module):
    def __init__(self, config, *, rngs):
        self.encoder = models.make_encoder(config, rngs=rngs)
        self.mean = dense(config.hidden_size, WIDTH, 0.02, rngs)


@dataclasses.dataclass(frozen=True)
class Averaging:
    """Predicts from the first position the mean of the values over a row."""

    encoder: models.EncoderConfig
    objectives: ClassVar = {"mean_loss": 1.0}
    frozen: ClassVar = ()

    def init(self, rngs):
        return Averager(self.encoder, rngs=rngs)

    def weights(self, batch):
        return {"mean_loss": batch["example_weights"].sum()}

    def loss(self, model, batch, *, key):
        errors = model.mean(model.encoder(batch, key=key)[:, 0]) - batch["values"].mean(axis=1)
        return {"mean_loss": base.weighted((errors**2).mean(axis=1), batch["example_weights"])}

    def evaluate(self, model, batch):
        return self.loss(model, batch, key=None)

    def predict(self, model, batch):
        return {}

    def train_flops(self, batch_size, length, predictions):
        return 3.0 * batch_size * self.encoder.forward_flops(length)


def write(directory, count, seed):
    """Rows of numbers around a mean of their own, in four shards; the manifest describes them."""
    directory.mkdir()
    rng = np.random.default_rng(seed)
    shards = []
    for number in range(4):
        values = rng.normal(size=(count, 1, WIDTH)) + 0.3 * rng.normal(size=(count, LENGTH, WIDTH))
        examples = encoding.encode_batch({"values": values.astype(np.float32)})
        shards.append(record_files.write_shard(directory / f"{number}.tfrecord", examples))
    small_records.manifest(
        tokenizer={},
        max_seq_length=LENGTH,
        shards=tuple(shards),
        seed=seed,
        features={"values": records.Feature((records.LENGTH, WIDTH), "float32")},
    ).save(directory)
    return str(directory)


def make_config(directory):
    config = config_lib.default_config()
    config.update_from_flattened_dict(
        {
            "data.train_dir": write(directory / "train", 20, 0),
            "data.eval_dir": write(directory / "heldout", 5, 1),
            **{"model.embeddings": "values", "model.hidden_size": 16},
            **{"model.num_hidden_layers": 1, "model.num_attention_heads": 2},
            **{"model.intermediate_size": 32, "global_batch_size": 8, "log_every_steps": 1},
            **{"phases.phase1.num_steps": 30, "phases.phase1.max_seq_length": LENGTH},
            **{"schedule.warmup_steps": 1, "schedule.peak_learning_rate": 1e-2},
            **{"pretraining.objective": "averaging", "pretraining.pair_loss": "none"},
            **{"pretraining.masking": "none", "evaluation.global_batch_size": 8},
            **{"checkpoint.save_every_steps": 15, "checkpoint.keep_last": 9},
            "checkpoint.best_metric": "mean_loss",
        }
    )
    return config


@pytest.mark.slow
def test_values_are_pretrained_on_and_a_resumed_run_is_one_that_never_stopped(
    tmp_path, monkeypatch
):
    config = make_config(tmp_path)
    with pytest.raises(ValueError, match="objective is 'averaging'; known are masked_tokens"):
        config_faults.validate(config)
    monkeypatch.setitem(encoder.EMBEDDINGS, "values", ValueEmbeddings)
    objective = tasks.Objective(lambda sizes, _: Averaging(sizes), reads_masks=False)
    monkeypatch.setitem(tasks.OBJECTIVES, "averaging", objective)
    whole = train.train(config, tmp_path / "whole")

    lines = scalars.read(tmp_path / "whole" / scalars.FILE)
    losses = [line["train/mean_loss"] for line in lines if "train/mean_loss" in line]
    scores = [line["eval/heldout/mean_loss"] for line in lines if "eval/heldout/mean_loss" in line]
    assert len(losses) == 30 and np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert scores[-1] < 0.5 * np.mean(losses[:5])

    part = tmp_path / "part" / "checkpoints"
    part.mkdir(parents=True)
    shutil.copytree(tmp_path / "whole" / "checkpoints" / "15", part / "15")
    resumed = train.train(config, tmp_path / "part")
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
