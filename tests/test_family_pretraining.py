"""A family's pretraining is as sound as BERT's: it learns, resumes to the bit, on any mesh."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import tasks, train
from bertjax.data import tokenizer
from bertjax.training import preemption
from configs import albert, electra, left_to_right_base, modernbert, roberta
from tests import small_byte_bpe, small_records, stopping

pytestmark = pytest.mark.slow

STEPS = 150
SIZES = {
    "model.vocab_size": 0,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.max_position_embeddings": 24,
    "model.hidden_dropout_prob": 0.0,  # it is drawn for each micro-batch
    "model.attention_probs_dropout_prob": 0.0,
    "schedule.warmup_steps": 10,
    "schedule.peak_learning_rate": 3e-3,
    "global_batch_size": 16,
    "phases.phase1.max_seq_length": 16,
    "checkpoint.save_every_steps": 1_000,
    "checkpoint.keep_best": 0,
    "log_every_steps": 1,
}
# What is said of masks, where there are any.
MASKS = {
    "pretraining.masking": "static",
    "pretraining.mask_share": 0.8,
    "pretraining.keep_share": 0.1,
    "pretraining.max_predictions_per_seq": 3,
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
    "albert": Family(
        albert.get_config,
        {"model.embedding_size": 16, "optimizer.name": "adamw", "optimizer.bias_correction": True},
        {"pair_objective": "sop"},
    ),
    "electra": Family(
        electra.get_config,
        {"mesh.data": -1, "model.embedding_size": 16, "pretraining.generator.hidden_size": 16},
    ),
    "modernbert": Family(
        modernbert.get_config,
        {
            **{f"phases.phase1.{name}": 0 for name in ("num_tokens", "ramp_from", "ramp_tokens")},
            **{f"phases.phase{number}.num_tokens": 0 for number in (2, 3)},
            **{f"phases.phase{number}.num_steps": 0 for number in (2, 3)},
            **{"phases.phase1.global_batch_size": 0, "phases.phase3.masked_lm_prob": 0.0},
            **{
                "schedule.warmup_tokens": 0,
                "schedule.decay_tokens": 0,
                "schedule.decay_share": 0.3,
            },
            **{"model.window": 2, "model.global_every": 2, "optimizer.weight_decay": 1e-3},
            "phases.phase1.rotary_base": 160_000.0,  # in windows 10,000
            "evaluation.masked_lm_prob": 0.0,  # the records' own masks
        },
        {"known": small_byte_bpe.vocabulary()},
    ),
    "left_to_right": Family(
        left_to_right_base.get_config,
        {"mesh.data": 1, "phases.phase2.num_steps": 0},
        {"is_masked": False},
    ),
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run of all steps on one device."""

    family: Family
    root: Any
    state: Any
    lines: list[dict[str, float]]


def make_config(family, directory, **changes):
    config = family.recipe()
    config.update_from_flattened_dict(
        {
            **SIZES,
            **(MASKS if family.records.get("is_masked", True) else {}),
            "phases.phase1.num_steps": STEPS,
            "data.train_dir": str(directory),
            **family.changes,
            **changes,
        }
    )
    return config


def lines_of(workdir):
    """The numbers of every step."""
    written = (workdir / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, written) if "train/loss" in line]


def run(config, workdir, devices=1):
    """The last state, and the numbers of every step."""
    with pytest.MonkeyPatch.context() as patch:
        some = jax.devices()[:devices]
        patch.setattr(jax, "devices", lambda: some)
        state = train.train(config, workdir)
    return jax.device_get(state), lines_of(workdir)


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tmp_path_factory):
    family = FAMILIES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    small_records.write(root / "train", counts=(64, 64), is_alike=True, **family.records)
    return Trained(family, root, *run(make_config(family, root / "train"), root / "run"))


def test_a_token_that_fills_its_row_is_learnt_far_below_chance(trained):
    """By the last tenth the loss is a nat below that of even chances."""
    objective = tasks.OBJECTIVES[trained.family.recipe().pretraining.objective]
    last = [line[f"train/{objective.token_loss}"] for line in trained.lines[-STEPS // 10 :]]
    vocabulary = tokenizer.load(trained.root / "train")
    words = vocabulary.vocab_size - len(vocabulary.special_ids)
    assert np.mean(last) < np.log(words) - 1


def test_a_stopped_run_ends_as_if_it_never_had_been(trained):
    config, workdir = make_config(trained.family, trained.root / "train"), trained.root / "parts"
    with stopping.signal_after(STEPS // 3), pytest.raises(preemption.Preempted):
        run(config, workdir)
    state, _ = run(config, workdir)
    for got, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(trained.state), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


def test_micro_batches_on_eight_devices_have_the_losses_of_one(trained):
    """ELECTRA in one batch: its samples are drawn for each micro-batch, as dropout is."""
    draws = trained.family is FAMILIES["electra"]
    config = make_config(
        trained.family,
        trained.root / "train",
        **{"gradient_accumulation_steps": 1 if draws else 2, "mesh.data": 8, "sharding": "fsdp"},
    )
    with stopping.signal_after(5), pytest.raises(preemption.Preempted):
        run(config, trained.root / "mesh", devices=8)
    lines = lines_of(trained.root / "mesh")
    assert len(lines) >= 4
    for line, alone in zip(lines, trained.lines, strict=False):
        assert line["train/loss"] == pytest.approx(alone["train/loss"], rel=1e-4)
