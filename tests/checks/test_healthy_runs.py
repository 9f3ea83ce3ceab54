"""Recipes have no fault, cut to a small width and 60 steps, in what they set themselves."""

import pytest

from bertjax import config as config_lib
from bertjax import recipes, train
from bertjax.checks import runs, table
from tests import marks, small_byte_bpe, small_datasets, small_records, small_values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device", "quick_runs")]

OF_VALUES = {"patchtst": "patches", "tables": "cells", "mae": "pixels"}
OF_LABELS = {"classification": "table", "conll": "conll", "glue": "glue", "squad": "squad_v1",
             "swag": "swag", "bert2bert": "sequences"}  # fmt: skip
# These are trained elsewhere: from records of values, files of pairs, or several shards.
LEFT_OUT = {"values", "embeddings", "smoke"}
SLOW = (
    *("bert_large", "electra", "modernbert", "mass", "tables", "mae", "classification", "squad"),
)
ZERO = ("num_tokens", "num_epochs", "ramp_from", "ramp_tokens", "global_batch_size")
SIZES = {"vocab_size": 0, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "max_position_embeddings": 24}  # fmt: skip
GENERATOR = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 64}  # fmt: skip


def cut(config, directory):
    """Makes a recipe of pretraining small, and keeps what it says of its objective."""
    options = dict(config_lib.flatten(config))
    config.model.update(SIZES)
    if config.pretraining.objective == "replaced_tokens":
        config.pretraining.generator.update(GENERATOR)
    for name in config_lib.phase_names(config):
        phase = config.phases[name]
        phase.update({option: type(phase[option])(0) for option in ZERO})
        phase.update(num_steps=60 * (name == "phase1"), max_seq_length=16)
    schedule = config.schedule
    for part, share in (("warmup", 0.1), ("decay", 0.3)):
        names = [f"{part}_{unit}" for unit in ("steps", "tokens", "share")]
        if any(options[f"schedule.{name}"] for name in names):
            schedule.update(dict(zip(names, (0, 0, share), strict=True)))
    schedule.peak_learning_rate = 1e-2 if options["optimizer.name"] == "lamb" else 3e-3
    config.update_from_flattened_dict({
        "global_batch_size": 32, "gradient_accumulation_steps": 1, "mesh.data": -1,
        "data.train_dir": str(directory / "train"), "data.eval_dir": str(directory / "heldout"),
        "model.mask_id": -1, "evaluation.every_steps": 30, "evaluation.global_batch_size": 16,
    })  # fmt: skip


def of_text(name, directory):
    config = recipes.load(name).copy_and_resolve_references()
    cut(config, directory)
    options = config.pretraining
    shared: dict = {"known": small_byte_bpe.vocabulary()} if config.model.position_offset else {}
    shared |= {
        "is_alike": True,
        "is_masked": options.masking == "static",
        "pair_objective": options.pair_loss or "none",
    }
    for part, seed in (("train", 0), ("heldout", 1)):
        small_records.write(directory / part, counts=(256, 256), seed=seed, **shared)
    return config


def of_values(name, directory):
    kind = OF_VALUES[name]
    config = recipes.load(name).copy_and_resolve_references()
    cut(config, directory)
    config.schedule.peak_learning_rate = 1e-2
    if name == "mae":
        config.pretraining.decoder.update(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    config.model.update(small_values.SIZES | small_values.MODELS[kind])
    config.phases.phase1.max_seq_length = small_values.LENGTHS[kind]
    for part, seed in (("train", 0), ("heldout", 1)):
        small_values.write(directory / part, kind, seed=seed)
    return config


def of_labels(name, directory, source):
    config = recipes.load(name).copy_and_resolve_references()
    files = small_datasets.make_config(directory / "files", OF_LABELS[name], source)
    config.update_from_flattened_dict(dict(config_lib.flatten(files)))
    return config


def made(name, directory, source):
    if name in OF_LABELS:
        return of_labels(name, directory, source)
    return (of_values if name in OF_VALUES else of_text)(name, directory)


@pytest.mark.parametrize("name", marks.cases(sorted({*recipes.names()} - LEFT_OUT), slow=SLOW))
def test_a_recipe_has_no_fault_but_that_60_steps_may_be_too_few_to_learn(name, tmp_path, source):
    config = made(name, tmp_path, source)
    train.train(config, tmp_path / "run")
    found = {fault for fault, _ in table.faults(runs.read(tmp_path / "run"))}
    found -= {*table.MEANWHILE, "trivial targets"}  # a row is one token, again and again
    if name in OF_LABELS:  # some small data sets are evaluated on what they train on
        found -= {"evaluated on training examples"}
    assert found == set()
