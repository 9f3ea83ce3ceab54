import json
import math

import numpy as np
import pytest

from bertjax import jobs, train
from bertjax.data import records
from bertjax.jobs import base
from configs import smoke
from tests import small_records

SIZES = {"de": (24, 25), "eo": (8,), "fr": (16, 16)}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("languages")
    small_records.write_languages(root / "train", SIZES, documents=range(90))
    held_out = {"fr": (9,), "de": (10,)}
    small_records.write_languages(root / "heldout", held_out, documents=range(90, 99), seed=7)
    small_records.write(root / "unnamed", documents=range(90))
    with_pairs = {"de": (24, 25), "de+fr": (16, 16)}
    small_records.write_languages(root / "pairs", with_pairs, documents=range(90))
    small_records.write_languages(root / "heldout_pairs", {**held_out, "fr+de": (8,)}, seed=7)
    return root


def make_config(directories, train="train", held_out="heldout", **changes):
    config = smoke.get_config()
    config.data.update(source="records", train_dir=f"{directories}/{train}")
    config.data.eval_dir = f"{directories}/{held_out}" if held_out else ""
    config.data.eval_may_overlap = True
    config.phases.phase1.update(num_steps=4, max_seq_length=16)
    config.global_batch_size = 8
    config.model.dtype = "float32"
    config.update_from_flattened_dict({name.replace("__", "."): it for name, it in changes.items()})
    return config


def test_held_out_records_are_scored_by_language_and_the_mean_decides(directories):
    job = jobs.JOBS["pretraining"].open(make_config(directories))
    assert job.evaluation.sets == ("de", "fr") and job.evaluation.averaged == ("de", "fr")
    assert job.evaluation.best_set == base.MEAN
    assert job.evaluation.tokens_per_byte == {"fr": 16 / 48, "de": 16 / 48}
    assert {"unigram_loss", "most_frequent_token_accuracy"} <= job.evaluation.chance["de"].keys()
    assert [job.data.num_examples(name) for name in ("fr", "de")] == [9, 10]
    batches = [*job.data.evaluation_batches("fr", batch_size=4, rows=None)]
    assert sum(batch["example_weights"].sum() for batch in batches) == 9
    one = jobs.JOBS["pretraining"].open(make_config(directories, held_out="unnamed"))
    assert one.evaluation.sets == ("heldout",) and not one.evaluation.best_set


def test_an_exponent_without_several_languages_is_warned_of(directories, caplog):
    changes = {"phases__phase1__language_alpha": 0.3}
    jobs.JOBS["pretraining"].open(make_config(directories, **changes))
    assert "language_alpha is 0.3" not in caplog.text
    jobs.JOBS["pretraining"].open(make_config(directories, "unnamed", **changes))
    assert "language_alpha is 0.3" in caplog.text


def test_what_is_read_of_a_language_follows_alpha_and_the_list(directories):
    def read(**changes):
        job = jobs.JOBS["pretraining"].open(make_config(directories, **changes))
        return job.data.languages(job.phases[0])

    tokens = 4 * 8 * 16
    natural = read()
    assert {name: part.share for name, part in natural.items()} == pytest.approx(
        {name: sum(counts) / 89 for name, counts in SIZES.items()}
    )
    assert natural["eo"].tokens == pytest.approx(tokens * 8 / 89)
    assert natural["eo"].times == pytest.approx(tokens / (16 * 89))
    even = read(phases__phase1__language_alpha=0.0)
    assert {part.share for part in even.values()} == {1 / 3}
    assert read(phases__phase1__languages="eo=0.5, fr").keys() == {"eo", "fr"}
    assert not read(train="unnamed")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"phases__phase1__languages": "de, ja"}, "the records have no ja: they have de, eo, fr"),
        ({"train": "unnamed", "phases__phase1__languages": "de"}, "have no de"),
        ({"train": "unnamed", "model__language_embeddings": 4}, "unnamed names no languages"),
        ({"model__language_embeddings": 2}, "language_embeddings is 2, for 3 languages"),
        ({"train": "pairs", "model__window": 4}, "'window': 4.*leave out the records of de.fr"),
        ({"train": "pairs", "model__left_to_right": True}, "attention is to see whole"),
        (
            {"model__language_embeddings": 4, "data__languages": ("de", "fr")},
            "records are in eo, but the model has embeddings of de, fr",
        ),
    ],
)
def test_records_without_the_languages_of_a_run_are_refused(directories, changes, told):
    with pytest.raises(ValueError, match=told):
        jobs.JOBS["pretraining"].open(make_config(directories, **changes))


@pytest.mark.parametrize("names", [(), ("fr", "eo", "ja", "de")])
def test_rows_have_the_number_of_their_language_in_the_runs_order(directories, names):
    changes = {"model__language_embeddings": 4, "data__languages": names}
    job = jobs.JOBS["pretraining"].open(make_config(directories, **changes))
    order = names or ("de", "eo", "fr")
    assert job.config.data.languages == order
    manifest = job.data.train_sets["phase1"].manifest
    of_shard = np.full(len(manifest.shards), -1)
    for name in SIZES:
        of_shard[manifest.shards_of(name)] = order.index(name)
    batches = job.data.train_batches(job.phases[0], start_step=0, rows=None)
    for _ in range(4):
        batch = next(batches)
        expected = of_shard[batch["record_positions"][:, 0]]
        np.testing.assert_array_equal(batch[records.LANGUAGE_FEATURE], expected)
    for name in ("fr", "de"):
        for batch in job.data.evaluation_batches(name, batch_size=4, rows=None):
            assert (batch[records.LANGUAGE_FEATURE] == order.index(name)).all()
    assert job.data.abstract_batch(job.phases[0])[records.LANGUAGE_FEATURE].shape == (8,)


def test_translations_have_the_language_and_position_of_each_token(directories):
    changes = {"model__language_embeddings": 4, "data__languages": ("fr", "eo", "de")}
    job = jobs.JOBS["pretraining"].open(
        make_config(directories, "pairs", "heldout_pairs", **changes)
    )
    batch = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    is_pair = batch["record_positions"][:, :1] > 1  # behind two shards of de
    is_second = batch["segment_ids"] == 1
    assert 0 < is_pair.sum() < len(is_pair)
    expected = np.where(is_pair & is_second, 0, 2)
    np.testing.assert_array_equal(batch[records.LANGUAGE_FEATURE], expected)
    np.testing.assert_array_equal(
        batch[records.POSITIONS_FEATURE], np.where(is_second, np.arange(16) - 8, np.arange(16))
    )
    (heldout, *_) = job.data.evaluation_batches("fr+de", batch_size=4, rows=None)
    np.testing.assert_array_equal(
        heldout[records.LANGUAGE_FEATURE], np.where(heldout["segment_ids"] == 1, 2, 0)
    )
    shapes = job.data.abstract_batch(job.phases[0])
    assert shapes.keys() == batch.keys() - {"record_positions"}
    assert {shapes[name].shape for name in ("positions", "language")} == {(8, 16)}


def test_the_mean_is_over_languages_not_over_translations(directories):
    job = jobs.JOBS["pretraining"].open(make_config(directories, held_out="heldout_pairs"))
    assert job.evaluation.sets == ("de", "fr", "fr+de")
    assert job.evaluation.averaged == ("de", "fr") and job.evaluation.best_set == base.MEAN


@pytest.mark.usefixtures("one_device", "quick_runs")
@pytest.mark.parametrize("embeddings", [0, 2])
def test_a_run_learns_from_translations_and_scores_them(directories, tmp_path, embeddings):
    config = make_config(
        directories, "pairs", "heldout_pairs", model__language_embeddings=embeddings
    )
    config.phases.phase1.languages = "de+fr=0.5, de"
    config.evaluation.every_steps = 4
    train.train(config, tmp_path / "run")
    scores = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    by_set = [scores[f"eval/{name}/mlm_loss"] for name in ("fr", "de")]
    assert math.isclose(scores["eval/mean/mlm_loss"], sum(by_set) / 2, rel_tol=1e-6)
    assert np.isfinite(scores["eval/fr+de/mlm_loss"])


@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_run_takes_over_no_embedding_of_another_language(directories, tmp_path):
    changes = {"model__language_embeddings": 4, "phases__phase1__num_steps": 1}
    named = {"data__languages": ("fr", "eo", "de"), **changes}
    train.train(make_config(directories, held_out="", **named), tmp_path / "first")
    later = make_config(directories, held_out="", **changes)
    later.init_from = str(tmp_path / "first")
    with pytest.raises(ValueError, match=r"languages fr, eo, de, .* are de, eo, fr: say"):
        train.train(later, tmp_path / "second")
    later.data.languages = ("fr", "eo", "de", "ja")
    train.train(later, tmp_path / "second")


@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_run_in_several_languages_says_what_it_reads_and_scores(directories, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    config = make_config(directories, phases__phase1__language_alpha=0.5)
    config.evaluation.every_steps = 4
    train.train(config, tmp_path / "run")
    assert "phase1: languages:\n  de: " in caplog.text
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    for name in ("fr", "de", "mean"):
        assert f'"eval/{name}/mlm_loss"' in lines and f'"eval/{name}/bits_per_byte"' in lines
    last = json.loads(lines.splitlines()[-1])
    by_set = [last[f"eval/{name}/mlm_loss"] for name in ("fr", "de")]
    assert math.isclose(last["eval/mean/mlm_loss"], sum(by_set) / 2, rel_tol=1e-6)
