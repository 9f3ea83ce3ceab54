"""Finetuning on values: what is learnt, scored and predicted, from records with labels."""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from flax import nnx
from pyarrow import parquet

from bertjax import config as config_lib
from bertjax import inference, predict, train
from bertjax.cli import programs
from bertjax.data import records, value_rows
from bertjax.finetuning import values
from bertjax.interactive import pictures
from bertjax.scores import classification as scores
from bertjax.workdirs import checkpoint, scalars
from data_pipelines import build_images, build_series, build_tables
from tests import small_runs, small_values

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
    scaled = labels.std() / np.array(described.deviations[0])
    assert found["constant_loss"] == pytest.approx(scaled**2, rel=1e-4)


@pytest.mark.slow
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


@pytest.mark.slow
def test_only_the_head_learns_classes_from_a_frozen_encoder(tmp_path):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 300)
    images = rng.integers(0, 90, (300, 8, 8)).astype(np.uint8)
    images[labels == 1, :4] += 120
    np.savez(tmp_path / "d.npz", images=images, labels=labels)
    build_images.build(
        build_images.Options(
            input=str(tmp_path / "d.npz"), output=str(tmp_path / "r"), size="8", patch=4,
            channels=1, labels="labels", parts="0.7,0.3",
        )
    )  # fmt: skip
    model = {"embeddings": "patches", "position_embedding": "sines_of_grid"}
    start = untrained(tmp_path / "r" / "train", tmp_path / "start", **model)
    frozen = {"optimizer.frozen": (r"encoder\..*",), "finetuning.pooling": "mean"}
    found = finetuned(start, tmp_path / "r", tmp_path / "probe", 5.0, **frozen)
    assert found["accuracy"] > 0.9 and found["roc_auc"] > 0.95
    labels = value_rows.columns(records.open(tmp_path / "r" / "heldout"))["labels"]
    share = labels.mean()
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert found["constant_loss"] == pytest.approx(entropy, rel=1e-6) and found["loss"] < entropy
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
    past = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    described = values.Labels("forecast", horizon=5, season=3)
    assert values.naive_forecast({"values": past}, described).tolist() == [[9, 10, 11, 9, 10]]
    observed = np.ones((1, 12), np.int32)
    observed[:, [0, 3, 6, 9, 10]] = 0
    columns = {"values": past, "observed": observed.reshape(1, 3, 4)}
    assert values.naive_forecast(columns, described).tolist() == [[0, 7, 11, 0, 7]]
    described = values.Labels("forecast", horizon=2)
    observed[:, 11] = 0
    assert values.naive_forecast(columns, described).tolist() == [[8, 8]]


def test_what_was_not_observed_behind_a_window_has_no_weight_in_the_loss():
    encoder = small_values.encoder("patches")
    task = values.Values(encoder, values.Labels("forecast", horizon=3), length=16)
    module = task.init(nnx.Rngs(0))
    rows = small_values.drawn("patches", 2)["values"]
    observed = np.array([[1, 0, 1], [0, 0, 1]], np.int32)
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(2, 3)).astype(np.float32)
    batch = {"values": rows, "observed": np.ones_like(rows, np.int32), "labels": labels,
             "labels_observed": observed, "input_mask": np.ones((2, 16), np.int32),
             "example_weights": np.ones(2, np.float32)}  # fmt: skip
    batch = {name: jnp.asarray(it) for name, it in batch.items()}
    squares = (np.asarray(module(batch)) - labels) ** 2
    loss = task.loss(module, batch, key=None)["loss"]
    assert float(loss.total) == pytest.approx(squares[observed != 0].sum(), rel=1e-5)
    assert float(loss.weight) == float(task.weights(batch)["loss"]) == 3

    def of_labels(labels):
        return task.loss(module, batch | {"labels": labels}, key=None)["loss"].total

    gradient = np.asarray(jax.grad(of_labels)(batch["labels"]))
    assert ((gradient == 0) == (observed == 0)).all()


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    """Two machines of two channels with a missing hour, and a run that forecasts six hours."""
    directory = tmp_path_factory.mktemp("forecaster")
    times = np.datetime64("2026-01-01T00:00:00") + np.arange(200) * np.timedelta64(1, "h")
    lines = ["machine;hour;level;flow"]
    for at, name in enumerate(("north", "south")):
        level = 50 + 10 * at + 5 * np.sin(np.arange(200) * np.pi / 12)
        flow = 1000 + np.cos(np.arange(200) * np.pi / 12)
        cells = zip(times, level, flow, strict=True)
        lines += [f"{name};{time};{a:.4f};{b:.4f}" for time, a, b in cells]
    del lines[140]
    (directory / "m.csv").write_text("\n".join(lines) + "\n")
    build_series.build(
        build_series.Options(
            input=str(directory / "m.csv"), output=str(directory / "r"), window=48, patch=8,
            horizon=6, season=24, series_column="machine", grid="1h",
        )
    )  # fmt: skip
    build_series.build(
        build_series.Options(
            input=str(directory / "m.csv"), output=str(directory / "new"),
            like=str(directory / "r" / "train"),
        )
    )  # fmt: skip
    model = {"embeddings": "patches", "normalized_rows": True}
    start = untrained(directory / "r" / "train", directory / "start", **model)
    found = finetuned(start, directory / "r", directory / "tuned", 3.0)
    return directory, found


@pytest.mark.slow
def test_a_forecast_is_in_units_with_series_channel_and_time(forecaster, capsys, monkeypatch):
    directory, found = forecaster
    assert {*found} >= {"mse", "naive_mse", "mae_in_units/level", "mae_in_units/flow"}
    options = programs.Predict(checkpoint=str(directory / "tuned"), records=str(directory / "new"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    predict.main(options)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(told) == 2 * 2 * 6 and [*told[0]] == ["series", "channel", "time", "value"]
    firsts = [[it["series"], it["channel"], it["time"]] for it in told[::6]]
    assert firsts == [
        [series, channel, "2026-01-09T08:00:00"]
        for series in ("north", "south")
        for channel in ("level", "flow")
    ]
    assert [it["time"][-8:] for it in told[:3]] == ["08:00:00", "09:00:00", "10:00:00"]
    values_of = {channel: [it["value"] for it in told if it["channel"] == channel]
                 for channel in ("level", "flow")}  # fmt: skip
    assert min(values_of["level"]) > 40 and max(values_of["level"]) < 70
    assert min(values_of["flow"]) > 990 and max(values_of["flow"]) < 1010
    path = directory / "forecast.csv"
    predict.main(dataclasses.replace(options, output=str(path), all_windows=True))
    lines = path.read_text().splitlines()
    assert lines[0] == "series,channel,origin,time,value"
    windows = records.Manifest.load(directory / "new").num_examples
    assert len(lines) == 1 + 6 * windows == 1 + 6 * 2 * 2 * (200 - 47)
    first = told[0]
    expected = f"north,level,2026-01-09T07:00:00,{first['time']},"
    (value,) = (it.removeprefix(expected) for it in lines if it.startswith(expected))
    assert float(value) == pytest.approx(first["value"], rel=1e-5)


def test_a_score_in_units_is_the_error_of_the_channel(forecaster):
    directory, found = forecaster
    heldout = records.open(directory / "r" / "heldout")
    rows = value_rows.ForecastRows.of(heldout)
    predicted = np.load(directory / "tuned" / "predictions" / "test.npy")
    truth = rows.index.in_units(rows.columns["labels"], rows.columns["channel"])
    for number, channel in enumerate(("level", "flow")):
        error = np.abs(predicted - truth)[rows.columns["channel"] == number]
        assert found[f"mae_in_units/{channel}"] == pytest.approx(error.mean(), rel=1e-3)
        of_naive = values.naive_forecast(rows.columns, values.Labels.of(heldout.manifest, "r"))
        of_naive = rows.index.in_units(of_naive, rows.columns["channel"])
        error = np.abs(of_naive - truth)[rows.columns["channel"] == number]
        naive = found[f"naive_mae_in_units/{channel}"]
        assert naive == pytest.approx(error.mean(), rel=1e-3)


def test_forecasts_are_drawn_in_units_against_time(forecaster):
    directory, _ = forecaster
    drawn = pictures.forecast(directory / "tuned", directory / "r" / "test")
    assert [axes.get_title() for axes in drawn.axes][:2] == ["north level", "north flow"]
    past, truth, forecast, naive = (line for line in drawn.axes[0].lines)
    assert past.get_xdata()[-1] + np.timedelta64(1, "h") == forecast.get_xdata()[0]
    assert len(past.get_ydata()) == 48 and 44 < past.get_ydata().min() < 46
    np.testing.assert_allclose(naive.get_ydata(), past.get_ydata()[24:30])
    np.testing.assert_allclose(truth.get_ydata(), past.get_ydata()[24:30], atol=1e-3)
    drawn = pictures.forecast(directory / "tuned", directory / "new", rows=1)
    assert len(drawn.axes) == 1 and np.isnan(drawn.axes[0].lines[1].get_ydata()).all()


def test_numbers_beyond_float32_are_an_error_of_their_line(forecaster):
    directory, _ = forecaster
    model = inference.load_finetuned(directory / "tuned")
    rows = [[[value] + [0.0] * 7] * 6 for value in (1.0, 1e39)]
    one, other = predict.predict(model, [{"values": row} for row in rows], strict=False)
    assert len(one["numbers"]) == 6 and "beyond float32" in other["error"]
