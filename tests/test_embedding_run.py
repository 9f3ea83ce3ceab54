"""Embeddings through the programs: trained, scored, asked, continued."""

import json
import shutil

import jax
import numpy as np
import pytest

from bertjax import encode, evaluate, inference, predict, train
from bertjax.convert import __main__ as convert
from bertjax.convert import formats
from bertjax.finetuning import embeddings
from bertjax.models import parameters, sentence_vectors
from bertjax.workdirs import reader
from tests import small_datasets, small_embeddings, small_sentences

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


def lines_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, source):
    """Returns a run by ranking, whose last lines have the scores of every kind of set."""
    directory = tmp_path_factory.mktemp("embeddings")
    config = small_embeddings.make_config(
        directory / "data",
        source,
        **{"finetuning.num_epochs": 12.0, "finetuning.query_prompt": "w9 "},
        **{"finetuning.length_buckets": False},
    )
    config.finetuning.test_file = str(directory / "data" / "sts.jsonl")
    config.gradient_accumulation_steps = 2
    config.evaluation.every_steps = 1000
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda: devices)
        train.train(config, directory / "run")
    return directory


def last_scores(directory):
    lines = lines_of(directory / "run")
    return next(line for line in reversed(lines) if "eval/sts/spearman" in line)


def test_texts_that_share_a_topic_come_together(trained):
    lines, scores = lines_of(trained / "run"), last_scores(trained)
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < 0.7 * losses[0] and "train/accuracy" in lines[0]
    assert scores["eval/sts/spearman"] > 0.8 and scores["eval/triplets/accuracy"] > 0.9
    assert scores["eval/beir/ndcg_at_10"] > 0.8 and scores["eval/topics/accuracy"] > 0.5
    assert not [name for name in scores if name.endswith("loss")]


def test_a_saved_model_has_the_scores_of_its_run(trained):
    wanted = last_scores(trained)
    for name, file in {"sts": "sts.jsonl", "beir": "beir", "topics": "topics.jsonl"}.items():
        path = str(trained / "data" / file)
        found = evaluate.evaluate_checkpoint(str(trained / "run"), path, batch_size=8)
        of_set = {it.split("/")[-1]: value for it, value in wanted.items() if f"/{name}/" in it}
        assert {it: found[it] for it in of_set} == pytest.approx(of_set, abs=1e-5)
    several = f"{trained}/data/sts.jsonl,{trained}/data/triplets.jsonl"
    found = evaluate.evaluate_checkpoint(str(trained / "run"), several, batch_size=8)
    assert found["sts/examples"] == 24 and "triplets/accuracy" in found


def test_lines_are_answered_with_vectors_and_cosines(trained):
    model = inference.load_finetuned(trained / "run")
    asked = [
        {"text": "w1 w50", "id": 7},
        {"text": "w1 w50", "second_text": "w1 w51"},
        {"document": "w1 w51"},
        {"text": "w1 w50", "document": "w1 w51"},
        {"text": "w1 w50", "second_text": "w4 w52"},
    ]
    told = list(predict.predict(model, asked, batch_size=4))
    query, document = (np.array(told[place]["embedding"]) for place in (0, 2))
    assert told[0]["id"] == 7 and len(query) == 32
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-6)
    assert told[3]["cosine"] == pytest.approx(query @ document, abs=1e-5)
    assert told[1]["cosine"] > told[4]["cosine"]
    with pytest.raises(ValueError, match="line 1: its keys are 'second_text'; it must have 'text'"):
        list(predict.predict(model, [{"second_text": "w1"}]))


def test_the_cosines_of_a_test_set_are_written(trained):
    rows = (trained / "run" / "predictions" / "test.tsv").read_text().splitlines()
    assert len(rows) == 25 and rows[0] == "index\tprediction"
    cosines = [float(row.split("\t")[1]) for row in rows[1:]]
    assert np.mean(cosines[1::2]) > np.mean(cosines[::2])  # the odd ones share a topic


def test_what_the_data_told_is_kept_and_the_encoder_exported_without_a_head(trained, tmp_path):
    convert.convert(trained / "run", tmp_path / "exported")
    exported = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert exported["architectures"] == ["BertModel"]
    found = reader.read(trained / "run")
    options = found.config.finetuning
    assert options.num_texts == 2 and options.labels == () and options.normalize
    assert set(found.params) == {"encoder"}


@pytest.mark.slow
def test_dense_layers_of_the_weights_are_trained_resumed_and_exported(tmp_path):
    projections = (sentence_vectors.Projection(8),)
    vectors = sentence_vectors.SentenceVectors(pooling="cls", projections=projections)
    small_sentences.write(tmp_path / "source", vectors)
    before = formats.read(tmp_path / "source").params
    changes = {"finetuning.pooling": "cls", "finetuning.matryoshka_dims": (8, 4)}
    changes |= {"checkpoint.save_every_steps": 4, "checkpoint.keep_last": 9}
    config = small_embeddings.make_config(tmp_path / "data", tmp_path / "source", **changes)
    config.finetuning.eval_file = str(tmp_path / "data" / "sts.jsonl")
    train.train(config, tmp_path / "run")
    after = reader.read(tmp_path / "run")
    assert after.config.finetuning.projections == ((8, "tanh", True),)
    after = parameters.flat(after.params)
    for name in ("projections.0.kernel", "projections.0.bias"):
        assert np.abs(after[name] - before[name]).max() > 1e-4
    shutil.rmtree(tmp_path / "source")  # its checkpoints are enough
    shutil.copytree(tmp_path / "run/checkpoints/4", tmp_path / "again/checkpoints/4")
    shutil.copytree(tmp_path / "run/vocabulary", tmp_path / "again/vocabulary")
    train.train(config, tmp_path / "again")
    again = parameters.flat(reader.read(tmp_path / "again").params)
    assert {name: array.tobytes() for name, array in again.items()} == {
        name: array.tobytes() for name, array in after.items()
    }
    convert.convert(tmp_path / "run", tmp_path / "exported")
    texts = ["w1 w50", "w4 w52 w3"]
    tokens = encode.encode(inference.load(tmp_path / "run"), texts, pooling="none")
    pooled = tokens["features"][tokens["offsets"]].astype(np.float64)
    sums = pooled @ after["projections.0.kernel"] + after["projections.0.bias"]
    expected = np.tanh(sums) / np.linalg.norm(np.tanh(sums), axis=1, keepdims=True)
    for path in ("run", "exported"):
        found = encode.encode(inference.load(tmp_path / path), texts)["features"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    told = predict.predict(
        inference.load_finetuned(tmp_path / "run"), [{"text": it} for it in texts]
    )
    np.testing.assert_allclose([it["embedding"] for it in told], expected, atol=1e-5)
    found = evaluate.evaluate_checkpoint(
        str(tmp_path / "run"), config.finetuning.eval_file, batch_size=8
    )
    (spearman,) = [it["eval/dev/spearman"] for it in lines_of(tmp_path / "run")[-1:]]
    assert found["spearman"] == pytest.approx(spearman, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [loss for loss in embeddings.LOSSES if loss != "ranking"])
def test_every_other_loss_is_learnt_from_its_files(tmp_path, source, loss):
    changes = {"finetuning.num_epochs": 8.0, "evaluation.every_steps": 99}
    changes["finetuning.lora_rank"] = 4
    if loss == "simcse":
        changes["model.hidden_dropout_prob"] = 0.1
    if loss == "softmax":
        changes["finetuning.num_epochs"] = 25.0
    if loss == "distillation":
        teacher = small_datasets.write_source(tmp_path / "teacher")
        changes |= {"distillation.teacher": str(teacher), "finetuning.normalize": False}
        # It learns the vectors that it would answer itself, after noise: the other loss has none.
        changes["model.hidden_dropout_prob"] = 0.1
    config = small_embeddings.make_config(tmp_path / "data", source, loss=loss, **changes)
    train.train(config, tmp_path / "run")
    losses = [line["train/loss"] for line in lines_of(tmp_path / "run") if "train/loss" in line]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    data = str(tmp_path / "data/sts.jsonl")
    found = evaluate.evaluate_checkpoint(str(tmp_path / "run"), data, batch_size=8)
    scores = next(it for it in reversed(lines_of(tmp_path / "run")) if "eval/sts/spearman" in it)
    # With LoRA merged into its kernels.
    assert found["spearman"] == pytest.approx(scores["eval/sts/spearman"], abs=1e-3)


def test_a_file_among_several_that_is_not_there_is_named(tmp_path, source):
    config = small_embeddings.make_config(tmp_path / "data", source)
    config.finetuning.train_file += f"=2,{tmp_path}/lost.csv=0.5"
    missing = r"train_file is .*=0\.5, .*lost\.csv does not exist"
    with pytest.raises(FileNotFoundError, match=missing):
        train.train(config, tmp_path / "run")
