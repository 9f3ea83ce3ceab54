"""Finetuning on values: what is learnt, scored and predicted, from records with labels."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertjax import config as config_lib
from bertjax import train
from bertjax.data import records, value_rows
from bertjax.finetuning import feature_sets, values
from bertjax.scores import classification as scores
from bertjax.workdirs import checkpoint, scalars
from data_pipelines import build_images, build_series, build_tables
from tests import small_runs

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


def sizes(config, **changes):
    config.model.update(
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 32, "hidden_dropout_prob": 0.0},
        **{"attention_probs_dropout_prob": 0.0, "type_vocab_size": 0, **changes},
    )
    config.update_from_flattened_dict(
        {"global_batch_size": 32, "log_every_steps": 10, "checkpoint.keep_best": 0}
    )
    config.schedule.update(warmup_steps=5, peak_learning_rate=1e-2)
    return config


def untrained(directory, workdir, **model):
    """A workdir of random weights that read records, as pretraining on them leaves it.

    tests/test_documents.py finetunes what was pretrained.
    """
    config = sizes(config_lib.default_config(), **model)
    config.data.train_dir = str(directory)
    config.pretraining.update(objective="masked_values", pair_loss="none", masking="dynamic")
    length = records.Manifest.load(directory).max_seq_length
    config.model.max_position_embeddings = max(length, 2)
    config.phases.phase1.update(num_steps=3, max_seq_length=length)
    small_runs.untrained(config, workdir)
    return str(workdir)


def finetuned(init_from, directory, workdir, epochs, **changes):
    """The scores of a run on the records of a directory."""
    config = sizes(config_lib.default_config())
    config.update(task="finetuning", init_from=init_from)
    config.finetuning.update(
        dataset="values", train_file=str(directory / "train"), num_epochs=epochs,
        eval_file=str(directory / "heldout"), test_file=str(directory / "heldout"),
    )  # fmt: skip
    config.update_from_flattened_dict(changes)
    train.train(config, workdir)
    lines = scalars.read(workdir / scalars.FILE)
    return {
        name.removeprefix("eval/dev/"): value
        for line in lines
        for name, value in line.items()
        if name.startswith("eval/dev/")
    }


def test_a_number_of_a_tables_rows_is_learnt_and_predicted_in_its_units(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 600))
    shop = rng.choice(["north", "south"], 600)
    price = 3 * a - 2 * b + 5 * (shop == "north") + 20
    table = {"a": a, "b": b, "shop": shop, "price": price, "is_dear": price > 22}
    parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    for label, other in (("price", "is_dear"), ("is_dear", "price")):
        build_tables.build(
            build_tables.Options(
                input=str(tmp_path / "t.parquet"), output=str(tmp_path / label), label=label,
                leave_out=other, scaling="standard", parts="0.7,0.3",
            )
        )  # fmt: skip
    described = values.Labels.of(records.Manifest.load(tmp_path / "is_dear/train"), tmp_path)
    assert (described.kind, described.names) == ("classes", ("false", "true"))
    model = {"embeddings": "columns", "position_embedding": "none", "layer": "pre_norm"}
    start = untrained(tmp_path / "price" / "train", tmp_path / "start", **model)
    found = finetuned(start, tmp_path / "price", tmp_path / "numbers", 5.0)
    assert found["rmse"] < 0.5 * price.std()
    predicted = np.load(tmp_path / "numbers" / "predictions" / "test.npy")
    heldout = records.open(tmp_path / "price" / "heldout")
    described = values.Labels.of(heldout.manifest, heldout.directory)
    labels = value_rows.columns(heldout)["labels"] * described.deviations + described.means
    assert labels.min() >= price.min() - 1e-4 and labels.max() <= price.max() + 1e-4
    errors = predicted - labels
    assert found["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-4)
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    of_mean = np.abs(labels - labels.mean())
    assert found["mean_mae"] == pytest.approx(of_mean.mean(), rel=1e-4)
    assert found["mean_rmse"] == pytest.approx(labels.std(), rel=1e-4)


def test_a_forecast_beats_the_last_value_and_is_scored_beside_it(tmp_path):
    steps = np.arange(900)
    series = np.stack([np.sin(steps / 5), np.cos(steps / 7)], axis=1)
    np.save(tmp_path / "s.npy", series)
    build_series.build(
        build_series.Options(
            input=str(tmp_path / "s.npy"), output=str(tmp_path / "r"), window=48, patch=8,
            horizon=6, parts="600,150,150", season=0,
        )
    )  # fmt: skip
    model = {"embeddings": "patches", "normalized_rows": True}
    start = untrained(tmp_path / "r" / "train", tmp_path / "start", **model)
    found = finetuned(start, tmp_path / "r", tmp_path / "tuned", 2.0)
    assert found["mse"] < 0.3 * found["naive_mse"]
    scaled = (series - series[:600].mean(axis=0)) / series[:600].std(axis=0)
    naive = [
        (scaled[at + step, channel] - scaled[at - 1, channel]) ** 2
        for at in range(600, 750 - 5)
        for channel in range(2)
        for step in range(6)
    ]
    assert found["naive_mse"] == pytest.approx(np.mean(naive), rel=1e-4)


def test_only_the_head_learns_classes_from_a_frozen_encoder(tmp_path):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 300)
    images = rng.integers(0, 90, (300, 8, 8)).astype(np.uint8)
    images[labels == 1, :4] += 120
    np.savez(tmp_path / "d.npz", images=images, labels=labels)
    build_images.build(
        build_images.Options(
            input=str(tmp_path / "d.npz"), output=str(tmp_path / "r"), size=8, patch=4, channels=1,
            labels="labels", parts="0.7,0.3",
        )
    )  # fmt: skip
    model = {"embeddings": "patches", "position_embedding": "sines_of_grid"}
    start = untrained(tmp_path / "r" / "train", tmp_path / "start", **model)
    frozen = {"optimizer.frozen": (r"encoder\..*",), "finetuning.pooling": "mean"}
    found = finetuned(start, tmp_path / "r", tmp_path / "probe", 5.0, **frozen)
    assert found["accuracy"] > 0.9 and found["roc_auc"] > 0.95
    before, after = (checkpoint.load_params(path)[0] for path in (start, tmp_path / "probe"))
    for name in ("patches", "empty"):
        for leaf, value in before["encoder"]["embeddings"][name].items():
            np.testing.assert_array_equal(after["encoder"]["embeddings"][name][leaf], value)


def test_records_without_labels_are_named(tmp_path):
    np.save(tmp_path / "s.npy", np.arange(300.0)[:, None] % 7)
    build_series.build(
        build_series.Options(
            input=str(tmp_path / "s.npy"), output=str(tmp_path / "r"), window=16, patch=4,
            parts="200,100",
        )
    )  # fmt: skip
    start = untrained(tmp_path / "r" / "train", tmp_path / "start", embeddings="patches")
    with pytest.raises(ValueError, match="r/train have no labels: build them with"):
        finetuned(start, tmp_path / "r", tmp_path / "tuned", 1.0)


def test_the_area_under_the_curve_is_scikit_learns():
    from sklearn import metrics

    rng = np.random.default_rng(2)
    for _ in range(20):
        labels = rng.integers(0, 2, 50)
        margins = np.round(rng.normal(size=50) + labels, 1)
        expected = metrics.roc_auc_score(labels, margins)
        assert scores.roc_auc(labels, margins) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(scores.roc_auc([1, 1], [0.0, 1.0]))


def test_the_naive_forecast_repeats_the_last_season():
    scorer = values.ValueScorer.__new__(values.ValueScorer)
    past = np.arange(12, dtype=np.float32).reshape(1, 3, 4)

    class Reader:
        described = values.Labels("forecast", horizon=5, season=3)

        def features(self, name):
            return feature_sets.FeatureSet({}, {"values": past}, row_length=3)

    scorer.reader = Reader()
    assert scorer._naive("dev").tolist() == [[9, 10, 11, 9, 10]]
