"""`bertjax.evaluate` scores a model of every objective and kind, and gives its baselines."""

import json

import numpy as np
import pytest

from bertjax import evaluate, finetuning, tasks
from bertjax.cli import programs
from bertjax.data import value_masking
from bertjax.scores import baselines
from tests import small_datasets, small_embeddings, small_records, small_runs, small_values
from tests.tasks import test_objective_options

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

OF_TEXT = test_objective_options.OBJECTIVES
SIZES = {
    **{"model.hidden_size": 32, "model.num_hidden_layers": 1, "model.num_attention_heads": 2},
    **{"model.intermediate_size": 32, "model.max_position_embeddings": 16},
    **{"pretraining.masking": "static", "global_batch_size": 48},
}
REPLACED = {"pretraining.predicts": "replaced", "pretraining.exchanged_cells": True}
OF_VALUES = {
    "masked_values": [("patches", {}), ("cells", {}), ("cells", REPLACED)],
    "masked_autoencoder": [("pixels", {})],
}


@pytest.mark.parametrize("name", sorted(tasks.OBJECTIVES.keys() - OF_VALUES.keys()))
def test_a_pretraining_on_text_is_compared_with_the_frequencies(tmp_path, name):
    config = small_runs.config_of(tmp_path, **SIZES | OF_TEXT[name])
    config.pretraining.objective = name
    is_masked = config.pretraining.masking == "static"
    for part, documents in (("train", range(90)), ("heldout", range(90, 99))):
        options = {"documents": documents, "counts": (len(documents),), "is_masked": is_masked}
        small_records.write(tmp_path / part, **options)
    small_runs.untrained(config, tmp_path / "run")
    found = evaluate.evaluate_checkpoint(
        tmp_path / "run", str(tmp_path / "heldout"), batch_size=4, chance=True
    )
    losses = {it for it in baselines.best(found) if it.endswith("_loss")}
    assert losses >= {tasks.OBJECTIVES[name].token_loss}
    assert losses == {it for it in found if it in baselines.BASELINES and it.endswith("_loss")}


@pytest.mark.parametrize(
    ("kind", "options"), [case for cases in OF_VALUES.values() for case in cases]
)
def test_a_pretraining_on_values_is_compared_with_no_learning(
    tmp_path, capsys, caplog, kind, options
):
    small_values.write(tmp_path / "train", kind)
    small_values.write(tmp_path / "heldout", kind, rows=16, seed=1)
    (tmp_path / "heldout" / value_masking.DONORS_FILE).unlink(missing_ok=True)  # as of new data
    config = small_values.make_config(kind, tmp_path / "train", **options)
    small_runs.untrained(config, tmp_path / "run")
    data = str(tmp_path / "heldout")
    evaluate.main(programs.Evaluate(checkpoint=str(tmp_path / "run"), data=data, json=True))
    found = json.loads(capsys.readouterr().out)
    assert not caplog.messages
    compared = baselines.best(found)
    assert {*compared} == {it for it in found if it in baselines.BASELINES}
    assert compared and np.isfinite([*found.values()]).all()
    if options:
        share = found["replaced_share"]
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        assert found["always_no_loss"] == pytest.approx(entropy)
        assert found["always_no_accuracy"] == pytest.approx(1 - share)
        assert 0.3 < share < 0.7


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
