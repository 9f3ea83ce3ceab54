"""Models of values answer records, arrays and lines alike, and refuse what is not theirs."""

import dataclasses
import io

import jax
import numpy as np
import pytest

import bertjax
from bertjax import evaluate, inference, recipes, train
from bertjax.data import records, value_masking, value_rows
from bertjax.jobs import finetuning as finetuning_job
from bertjax.training import warm_start
from bertjax.workdirs import scalars
from tests import finetuned_workdir, programs, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A directory with records, a workdir of pretraining on them, and a run finetuned from it."""
    directory = tmp_path_factory.mktemp("values")
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        config = small_values.finetuned_from_scratch(directory, "cells")
        config.finetuning.num_epochs = 4.0
        config.finetuning.test_file = config.finetuning.eval_file = str(directory / "train")
        train.train(config, directory / "tuned")
    return directory


def rows_of(directory):
    return value_rows.as_arrays(records.open(directory / "train"))


def logged(workdir, of_set):
    """The last scores that a run has written of a set."""
    found = scalars.last_evaluation(scalars.read(workdir / scalars.FILE))[1]
    return {name.removeprefix(f"eval/{of_set}/"): value for name, value in found.items()}


def without_counts(scores):
    return {name: value for name, value in scores.items() if name not in ("step", "examples")}


@pytest.mark.slow
def test_a_short_pretraining_is_evaluated_as_it_was_scored_and_warns_that_it_learnt_nothing(
    tuned, tmp_path, caplog
):
    small_values.write(tmp_path / "heldout", "cells", rows=16, seed=1)
    options = {"pretraining.predicts": "replaced", "pretraining.exchanged_cells": True}
    config = small_values.make_config("cells", tuned / "train", **options)
    config.data.eval_dir = str(tmp_path / "heldout")
    train.train(config, tmp_path / "run")
    (warning,) = [text for text in caplog.messages if "no better than always_no_loss" in text]
    assert "no better than a baseline: heldout: replaced_loss is" in warning
    found = evaluate.evaluate_checkpoint(tmp_path / "run", config.data.eval_dir, batch_size=5)
    assert without_counts(found) == pytest.approx(logged(tmp_path / "run", "heldout"), abs=1e-5)
    assert {"always_no_loss", "always_no_accuracy"} < found.keys()


def test_predictions_are_those_of_the_run_for_records_arrays_and_lines(tuned):
    given = rows_of(tuned)
    model = bertjax.load(tuned / "tuned")
    of_arrays = model.predict([{"id": at, "values": row} for at, row in enumerate(given)])
    written = np.load(tuned / "tuned" / "predictions" / "test.npy")
    assert [it["label"] for it in of_arrays] == [("low", "high")[it] for it in written.tolist()]
    assert [it["id"] for it in of_arrays] == [*range(len(given))]
    assert "unknown_rate" not in of_arrays[0]
    lines = [[None if np.isnan(it) else float(it) for it in cell] for cell in given[3]]
    assert model.predict([{"id": 3, "values": lines}]) == [of_arrays[3]]
    assert list(of_arrays[0]["probabilities"]) == ["low", "high"]
    flags = [f"--checkpoint={tuned / 'tuned'}", f"--records={tuned / 'train'}"]
    printed = programs.succeed("bertjax.predict", *flags).lines
    assert printed == [{k: v for k, v in it.items() if k != "id"} for it in of_arrays]
    scores = model.evaluate(tuned / "train")
    assert logged(tuned / "tuned", "dev") == pytest.approx(without_counts(scores), abs=1e-5)
    labels = value_rows.columns(records.open(tuned / "train"))["labels"]
    assert scores["accuracy"] == pytest.approx((labels == written).mean())


def test_vectors_are_the_means_of_the_states_for_records_and_arrays(tuned):
    given = np.stack(rows_of(tuned))
    found = bertjax.load(tuned / "first").encode(given, batch_size=5)["features"]
    encoder = inference.load(tuned / "first").module().encoder
    seen = ~np.isnan(given)
    inputs = {
        "values": np.where(seen, given, 0), "observed": seen.astype(np.int32),
        "input_mask": np.ones(given.shape[:2], np.int32),
    }  # fmt: skip
    states = np.asarray(jax.jit(lambda inputs: encoder(inputs))(inputs))
    np.testing.assert_allclose(found, states.mean(axis=1), atol=1e-5)
    flags = [f"--checkpoint={tuned / 'first'}", f"--records={tuned / 'train'}"]
    archive = np.load(io.BytesIO(programs.succeed("bertjax.encode", *flags).output))
    np.testing.assert_allclose(archive["features"], found, atol=1e-5)
    assert len(archive["labels"]) == len(found)


def test_what_a_model_of_values_does_not_read_is_named(tuned):
    model = bertjax.load(tuned / "first")
    with pytest.raises(ValueError, match="reads values, not texts: give it records with --records"):
        model.encode(["a text"])
    with pytest.raises(ValueError, match="no masked-token head"):
        model.fill_mask("a [MASK]")
    with pytest.raises(ValueError, match=r"shape \(2, 99, 1\); the model reads \[rows, up to 16"):
        model.encode(np.zeros((2, 99, 1)))
    with pytest.raises(ValueError, match=r"shape \(3, 1\); the model reads 16 positions of 1"):
        bertjax.load(tuned / "tuned").predict([{"values": [[1.0], [None], [0.5]]}])
    with pytest.raises(ValueError, match="'values' is None; it must be a list"):
        bertjax.load(tuned / "tuned").predict([{"text": "a text"}])
    of_texts = bertjax.load(finetuned_workdir.made("table"))
    with pytest.raises(ValueError, match="the model reads texts, not values"):
        of_texts.encode(np.zeros((2, 3, 1)))


def test_labels_of_other_records_are_compared(tuned, tmp_path):
    small_values.write(tmp_path / "waves", "patches", rows=8)
    with pytest.raises(ValueError, match="build both in one call, or these with --like"):
        evaluate.evaluate_checkpoint(tuned / "tuned", str(tmp_path / "waves"), batch_size=8)


def test_records_of_another_scaling_are_refused_in_place_of_misread(tuned, tmp_path):
    small_values.write(tmp_path / "other", "cells", rows=8)
    manifest = records.Manifest.load(tmp_path / "other")
    columns = [{**it, "mean": 3.0} for it in manifest.statistics["columns"]]
    statistics = {**manifest.statistics, "columns": columns}
    dataclasses.replace(manifest, statistics=statistics).save(tmp_path / "other")
    with pytest.raises(ValueError, match="labels or the scaling of .*other.* with --like"):
        evaluate.evaluate_checkpoint(tuned / "tuned", str(tmp_path / "other"), batch_size=8)
    model = inference.load_finetuned(tuned / "tuned")
    with pytest.raises(ValueError, match="scaling of .*other differ from"):
        value_masking.check(model.value_meaning, records.open(tmp_path / "other"))
    value_masking.check(model.value_meaning, records.open(tuned / "train"))
    config = small_values.make_config("cells", tuned / "train")
    config.data.eval_dir = str(tmp_path / "other")
    with pytest.raises(ValueError, match="columns, channels or scaling are not those of .*train"):
        train.train(config, tmp_path / "run")


def test_records_with_other_columns_or_scaling_are_refused_where_the_weights_are_used(
    tuned, tmp_path, caplog
):
    for name, change in (("scaled", {"mean": 7.0}), ("names", {"name": "other"})):
        small_values.write(tmp_path / name, "cells", rows=8)
        manifest = records.Manifest.load(tmp_path / name)
        manifest.statistics["columns"][1].update(change)
        manifest.save(tmp_path / name)
    scaled, names = tmp_path / "scaled", tmp_path / "names"
    flags = [f"--checkpoint={tuned / 'first'}", f"--records={scaled}"]
    assert f"scaling of {scaled} differ" in programs.run("bertjax.encode", *flags).error
    with pytest.raises(ValueError, match=f"scaling of {scaled} differ"):
        evaluate.evaluate_checkpoint(tuned / "first", str(scaled), batch_size=5)
    config = recipes.load("values").copy_and_resolve_references()
    config.init_from, config.global_batch_size = str(tuned / "first"), 8
    config.model.dtype = "float32"
    config.finetuning.train_file = str(names)
    with pytest.raises(ValueError, match="columns of .*names differ .*'c1', 'other'"):
        finetuning_job.open_job(config)
    config.finetuning.train_file = str(scaled)
    run = train.prepare(config, tmp_path / "run")
    warm_start.of_job(run.job, run.abstract_state.params)
    assert "columns is [" in caplog.text and "and was [" in caplog.text
