"""`bertjax.evaluate` scores a model of every objective and kind, and gives its baselines."""

import json

import numpy as np
import pytest

from bertjax import evaluate, finetuning, tasks
from bertjax.cli import programs
from bertjax.scores import baselines
from tests import small_datasets, small_embeddings, small_records, small_runs, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

SIZES = {
    **{"model.hidden_size": 32, "model.num_hidden_layers": 1, "model.num_attention_heads": 2},
    **{"model.intermediate_size": 32, "model.max_position_embeddings": 16},
    **{"pretraining.masking": "static", "pretraining.pair_loss": "none"},
    **{"global_batch_size": 48, "evaluation.global_batch_size": 48},
}
UNMASKED = {"is_masked": False}
# Objective -> the options of its records, and its own.
OF_TEXT = {
    "masked_tokens": ({}, {"pretraining.pair_loss": "nsp"}),
    "replaced_tokens": ({}, {"pretraining.generator.num_attention_heads": 2}),
    "hybrid": ({}, {}),
    "prefix_rows": ({}, {}),
    "span_boundary": (
        UNMASKED, {"pretraining.masking": "dynamic", "pretraining.mask_strategy": "span"}),
    "next_token": (
        UNMASKED, {"pretraining.masking": "none", "model.left_to_right": True,
                   "checkpoint.best_metric": "lm_loss"}),
    "masked_spans_to_sequence": (
        UNMASKED, {"pretraining.masking": "dynamic", "checkpoint.best_metric": "lm_loss"}),
}  # fmt: skip
REPLACED = {"pretraining.predicts": "replaced", "pretraining.exchanged_cells": True}
OF_VALUES = {
    "masked_values": [("patches", {}), ("cells", {}), ("cells", REPLACED)],
    "masked_autoencoder": [("pixels", {})],
}


def test_every_objective_has_a_case():
    assert {*tasks.OBJECTIVES} == {*OF_TEXT, *OF_VALUES}


def of_text(name, directory):
    of_records, options = OF_TEXT[name]
    for part, count in (("train", 90), ("heldout", 9)):
        numbers = range(count) if part == "train" else range(90, 90 + count)
        counts = (count,)
        small_records.write(directory / part, documents=numbers, counts=counts, **of_records)
    changes = {**SIZES, "pretraining.objective": name, **options}
    return small_runs.config_of(directory, **changes)


@pytest.mark.parametrize("name", OF_TEXT)
def test_a_pretraining_on_text_is_compared_with_the_frequencies(tmp_path, name):
    small_runs.untrained(of_text(name, tmp_path), tmp_path / "run")
    found = evaluate.evaluate_checkpoint(
        tmp_path / "run", str(tmp_path / "heldout"), batch_size=4, chance=True
    )
    losses = {it for it in baselines.best(found) if it.endswith("_loss")}
    assert losses >= {tasks.OBJECTIVES[name].token_loss}
    assert losses == {it for it in found if it in baselines.BASELINES and it.endswith("_loss")}


@pytest.mark.parametrize(
    ("kind", "options"), [case for cases in OF_VALUES.values() for case in cases]
)
def test_a_pretraining_on_values_is_compared_with_no_learning(tmp_path, capsys, kind, options):
    small_values.write(tmp_path / "train", kind)
    small_values.write(tmp_path / "heldout", kind, rows=16, seed=1)
    config = small_values.make_config(kind, tmp_path / "train", **options)
    small_runs.untrained(config, tmp_path / "run")
    data = str(tmp_path / "heldout")
    evaluate.main(programs.Evaluate(checkpoint=str(tmp_path / "run"), data=data, json=True))
    found = json.loads(capsys.readouterr().out)
    compared = baselines.best(found)
    assert {*compared} == {it for it in found if it in baselines.BASELINES}
    assert compared and np.isfinite([*found.values()]).all()
    if options:
        share = found["replaced_share"]
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        assert found["always_no_loss"] == pytest.approx(entropy)
        assert found["always_no_accuracy"] == pytest.approx(1 - share)
        assert 0.3 < share < 0.7
    assert len(baselines.not_better(found)) == len({it for it in compared if "loss" in it})


def of_kind(name, directory, source):
    """A config of a kind, and what its model is evaluated on."""
    if name == "values":
        config = small_values.finetuned_from_scratch(directory)
        return config, config.finetuning.train_file
    if name == "embeddings":
        config = small_embeddings.make_config(directory / "data", source)
        return config, str(directory / "data" / "sts.jsonl")
    kind = "squad_v2" if name == "squad" else name
    config = small_datasets.make_config(directory / "data", kind, source)
    return config, config.finetuning.train_file or config.finetuning.data_dir


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return small_datasets.write_source(tmp_path_factory.mktemp("source") / "source")


# Kind -> the score of the most frequent class, where classes are predicted.
MAJORITIES = {
    **dict.fromkeys(("glue", "table", "swag", "conll", "values"), "majority_accuracy"),
    "squad": "majority_f1",
    **dict.fromkeys(("embeddings", "sequences")),
}


@pytest.mark.parametrize("name", finetuning.KINDS)
def test_a_finetuned_model_of_every_kind_is_compared_with_the_majority(tmp_path, source, name):
    config, data = of_kind(name, tmp_path, source)
    small_runs.untrained(config, tmp_path / "run")
    found = evaluate.evaluate_checkpoint(tmp_path / "run", data, batch_size=8, chance=True)
    assert found["examples"] > 0 and len(found) > 3
    baseline = MAJORITIES[name]
    assert baseline in {None, *baselines.best(found).values()}
    assert (baseline is None) == (not any("majority" in it for it in found))
