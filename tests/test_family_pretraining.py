"""A family's pretraining is as sound as BERT's: it learns."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import tasks, train
from bertjax.convert import __main__ as program
from bertjax.convert import formats
from bertjax.convert.families import eurobert
from bertjax.tokenization import tokenizer
from configs import (
    albert,
    deberta_v3,
    electra,
    left_to_right_base,
    mass,
    modernbert,
    roberta,
    xlm_r,
)
from tests import marks, small_byte_bpe, small_records
from tests.data_pipelines import test_train_vocabulary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device", "quick_runs")]

STEPS = 150
SIZES = {
    **{"model.vocab_size": 0, "model.hidden_size": 32, "model.num_hidden_layers": 2},
    **{"model.num_attention_heads": 2, "model.intermediate_size": 64},
    **{"model.max_position_embeddings": 24, "phases.phase1.max_seq_length": 16},
    **{"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
    **{"schedule.warmup_steps": 10, "schedule.peak_learning_rate": 3e-3, "log_every_steps": 1},
    **{"global_batch_size": 16, "checkpoint.save_every_steps": 1_000, "checkpoint.keep_best": 0},
}
# What is said of masks, where there are any.
MASKS = {
    **{"pretraining.masking": "static", "pretraining.max_predictions_per_seq": 3},
    **{"pretraining.mask_share": 0.8, "pretraining.keep_share": 0.1},
}


@dataclasses.dataclass(frozen=True)
class Family:
    """A recipe, what differs from it, and its records."""

    recipe: Callable[[], Any]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    records: dict[str, Any] = dataclasses.field(default_factory=dict)


FAMILIES = {
    "bert": Family(config_lib.default_config),
    "roberta": Family(roberta.get_config, records={"known": small_byte_bpe.vocabulary()}),
    "xlm_r": Family(
        xlm_r.get_config,
        records={
            "known": test_train_vocabulary.trained(
                small_records.WORDS, kind="sentencepiece", special_tokens="xlm-roberta", size=90
            )
        },
    ),
    "albert": Family(
        albert.get_config,
        {"model.embedding_size": 16, "optimizer.name": "adamw", "optimizer.bias_correction": True},
        {"pair_objective": "sop"},
    ),
    "electra": Family(
        electra.get_config,
        {"mesh.data": -1, "model.embedding_size": 16, "pretraining.generator.hidden_size": 16},
    ),
    "deberta_v3": Family(
        deberta_v3.get_config,
        {
            **{"mesh.data": -1, "pretraining.generator.num_hidden_layers": 1},
            "pretraining.generator.num_attention_heads": 2,
            **{"pretraining.generator.hidden_size": 32, "optimizer.weight_decay": 1e-3},
            **{"pretraining.generator.intermediate_size": 64},
            **{"model.relative_buckets": 8, "model.relative_span": 24},
        },
    ),
    "modernbert": Family(
        modernbert.get_config,
        {
            **{f"phases.phase1.{name}": 0 for name in ("num_tokens", "ramp_from", "ramp_tokens")},
            **{f"phases.phase{number}.num_tokens": 0 for number in (2, 3)},
            **{f"phases.phase{number}.num_steps": 0 for number in (2, 3)},
            **{"phases.phase1.global_batch_size": 0, "phases.phase3.masked_lm_prob": 0.0},
            **{"schedule.warmup_tokens": 0, "schedule.decay_tokens": 0},
            "schedule.decay_share": 0.3,
            **{"model.window": 2, "model.global_every": 2, "optimizer.weight_decay": 1e-3},
            "phases.phase1.rotary_base": 160_000.0,  # in windows 10,000
            "evaluation.masked_lm_prob": 0.0,  # the records' own masks
        },
        {"known": small_byte_bpe.vocabulary()},
    ),
    "mass": Family(mass.get_config, records={"is_masked": False}),
    "eurobert": Family(
        config_lib.default_config,
        {
            **{f"model.{name}": value for name, value in eurobert.FAMILY.traits.items()},
            **{"model.num_key_value_heads": 1, "model.layer_norm_eps": 1e-5},
            "pretraining.pair_loss": "none",
        },
        {"known": small_byte_bpe.vocabulary(), "pair_objective": "none"},
    ),
    "left_to_right": Family(
        left_to_right_base.get_config,
        {"mesh.data": 1, "phases.phase2.num_steps": 0},
        {"is_masked": False},
    ),
}


def make_config(family, directory):
    config = family.recipe()
    config.update_from_flattened_dict(
        {
            **SIZES,
            **(MASKS if family.records.get("is_masked", True) else {}),
            "phases.phase1.num_steps": STEPS,
            "data.train_dir": str(directory),
            **family.changes,
        }
    )
    return config


@pytest.mark.parametrize(
    "name", marks.cases(FAMILIES, slow=("roberta", "albert", "deberta_v3", "modernbert", "mass"))
)
def test_a_token_that_fills_its_row_is_learnt_far_below_chance(name, tmp_path):
    """In the last tenth of the run the loss is a nat below a uniform guess."""
    family, directory = FAMILIES[name], tmp_path / "train"
    small_records.write(directory, counts=(64, 64), is_alike=True, **family.records)
    train.train(make_config(family, directory), tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    loss = f"train/{tasks.OBJECTIVES[family.recipe().pretraining.objective].token_loss}"
    losses = [line[loss] for line in lines if loss in line]
    vocabulary = tokenizer.load(directory)
    words = vocabulary.vocab_size - len(vocabulary.special_ids)
    assert np.mean(losses[-STEPS // 10 :]) < np.log(words) - 1


def test_pretraining_goes_on_from_an_exported_eurobert(tmp_path):
    family, directory, rate = FAMILIES["eurobert"], tmp_path / "train", 1e-3
    small_records.write(directory, counts=(64, 64), is_alike=True, **family.records)
    config = make_config(family, directory)
    config.phases.phase1.num_steps = 2
    train.train(config, tmp_path / "first")
    program.convert(tmp_path / "first", tmp_path / "hf")
    config.update(init_from=str(tmp_path / "hf"), seed=7)
    config.schedule.update(name="constant", warmup_steps=0, peak_learning_rate=rate)
    train.train(config, tmp_path / "second")
    exported, after = (formats.read(tmp_path / it) for it in ("hf", "second"))
    assert exported.family is eurobert.FAMILY and exported.config == after.config
    for path, start in exported.params.items():
        moved = np.abs(after.params[path] - start).max()
        assert 0.1 * rate < moved < 2.1 * rate, path
