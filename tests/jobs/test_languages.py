import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

import bertjax
from bertjax import jobs, train
from bertjax.convert import families, formats
from bertjax.data import records
from bertjax.jobs import base
from configs import smoke
from tests import small_datasets, small_records
from tests.convert import weights
from tests.interop import exports

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
    config.model.update(hidden_size=16, num_attention_heads=2, intermediate_size=32)
    config.model.num_hidden_layers = 1
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
        return job.data.of_phase(job.phases[0]).languages

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
        ({"train": "pairs", "pretraining__objective": "hybrid"}, "read from left to right by pos"),
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


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_run_reads_and_scores_languages_and_translations_and_says_so(
    directories, tmp_path, caplog
):
    caplog.set_level("INFO", logger="absl")
    config = make_config(directories, "pairs", "heldout_pairs", model__language_embeddings=2)
    config.phases.phase1.languages = "de+fr=0.5, de"
    config.evaluation.every_steps = 4
    train.train(config, tmp_path / "run")
    assert "phase1: languages:\n  de" in caplog.text
    scores = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("fr", "de", "fr+de", "mean"):
        figures = [scores[f"eval/{name}/{it}"] for it in ("mlm_loss", "bits_per_byte")]
        assert np.isfinite(figures).all()
    by_set = [scores[f"eval/{name}/mlm_loss"] for name in ("fr", "de")]
    assert math.isclose(scores["eval/mean/mlm_loss"], sum(by_set) / 2, rel_tol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_an_xlm_trained_on_keeps_the_names_of_its_languages(directories, tmp_path):
    names = ("fr", "eo", "de")
    made = exports.make(families.named("xlm"), "masked_lm")
    made = dataclasses.replace(made, languages=names, vocabulary=None)  # as XLM's own weights
    formats.write(made, tmp_path / "xlm", format="huggingface")
    sizes = {f"model__{name}": it for name, it in dataclasses.asdict(made.config).items()}
    own = {f"model__{name}" for name in jobs.OWN_MODEL_OPTIONS}
    changes = {name: sizes[name] for name in sizes.keys() - own}
    changes |= {"phases__phase1__num_steps": 1, "pretraining__pair_loss": "none"}
    config = make_config(directories, held_out="", **changes)
    config.init_from = str(tmp_path / "xlm")
    with pytest.raises(ValueError, match=r"languages fr, eo, de, .* has de, eo, fr: say"):
        train.train(config, tmp_path / "run")
    config.data.languages = names
    train.train(config, tmp_path / "run")
    trained = dataclasses.replace(formats.read(tmp_path / "run"), vocabulary=None)
    assert trained.languages == names
    formats.write(trained, tmp_path / "exported", format="huggingface")
    assert formats.describe(tmp_path / "exported").languages == names


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Weights with embeddings of languages, to finetune."""
    directory = tmp_path_factory.mktemp("origin") / "weights"
    formats.write(weights.in_languages("pretraining"), directory, format="bertjax")
    return directory


def finetuning_config(directory, kind, origin, **changes):
    options = {f"finetuning.{name}": value for name, value in changes.items()}
    return small_datasets.make_config(directory, kind, origin, **options)


@pytest.mark.parametrize("kind", ["table", "swag"])
def test_finetuning_reads_each_file_in_its_language(tmp_path, origin, kind):
    config = finetuning_config(tmp_path, kind, origin, language="fr", length_buckets=False)
    config.finetuning.update(
        eval_file="", eval_files=f"de={config.finetuning.eval_file},fr={tmp_path / 'copy.csv'}"
    )
    shutil.copy(config.finetuning.train_file, tmp_path / "copy.csv")
    job = jobs.JOBS["finetuning"].open(config)
    assert job.config.data.languages == weights.LANGUAGES
    trained = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    shapes = job.data.abstract_batch(job.phases[0])
    del trained["record_positions"]
    assert {name: it.shape for name, it in trained.items()} == {
        name: it.shape for name, it in shapes.items()
    }
    assert (trained[records.LANGUAGE_FEATURE] == 2).all()
    for name, number in (("de", 0), ("fr", 2), ("test", 2)):
        for batch in job.data.evaluation_batches(name, batch_size=8, rows=None):
            assert (batch[records.LANGUAGE_FEATURE] == number).all()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "config.finetuning.language is not given, but .* one of de, eo, fr"),
        ({"language": "it"}, "config.finetuning.language is 'it', but .* one of de, eo, fr"),
        ({"language": "fr", "eval_files": "de=F,dev=G"}, "a name in .*eval_files is 'dev', but"),
    ],
)
def test_finetuning_needs_the_names_of_its_languages(tmp_path, origin, source, changes, told):
    config = finetuning_config(tmp_path, "table", origin, **changes)
    if "eval_files" in changes:
        config.finetuning.eval_file = ""
        for name in ("F", "G"):
            shutil.copy(config.finetuning.train_file, tmp_path / f"{name}.csv")
        config.finetuning.eval_files = f"de={tmp_path / 'F.csv'},dev={tmp_path / 'G.csv'}"
    with pytest.raises(ValueError, match=told):
        jobs.JOBS["finetuning"].open(config)
    config.finetuning.language, config.init_from = "fr", str(source)
    with pytest.raises(ValueError, match="language is 'fr', but the model has no embeddings of"):
        jobs.JOBS["finetuning"].open(config)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_a_run_goes_on_and_predicts_in_the_language_that_it_was_finetuned_in(tmp_path, origin):
    config = finetuning_config(tmp_path, "table", origin, language="fr", num_epochs=1.0)
    train.train(config, tmp_path / "run")
    train.train(config, tmp_path / "run")
    other = config.copy_and_resolve_references()
    other.finetuning.language = "de"
    with pytest.raises(ValueError, match=r"finetuning\.language: was 'fr', is 'de'"):
        train.train(other, tmp_path / "run")
    model, data = bertjax.load(tmp_path / "run"), config.finetuning.train_file
    lines = [{"text": "w1 w2"}]
    default, *by_name = (model.predict(lines, language=name) for name in ("", "fr", "de"))
    assert default == by_name[0] != by_name[1]
    shutil.copy(data, tmp_path / "copy.csv")
    named = model.evaluate(f"de={data},fr={tmp_path / 'copy.csv'}")
    assert model.evaluate(data)["loss"] == pytest.approx(named["fr/loss"], rel=1e-6)
    german = model.evaluate(data, language="de")
    assert german["loss"] == pytest.approx(named["de/loss"], rel=1e-6)
    assert german["loss"] != pytest.approx(named["fr/loss"], rel=1e-3)
    for where, told in ((f"de={data}", "leave it at"), (data, "one of de, eo, fr")):
        with pytest.raises(ValueError, match=told):
            model.evaluate(where, language="it")
    assert formats.read(tmp_path / "run").languages == weights.LANGUAGES


def test_a_teacher_reads_the_numbers_of_the_students_languages(tmp_path, origin, source):
    config = finetuning_config(tmp_path, "table", origin, language="fr")
    config.distillation.teacher = str(tmp_path / "teacher")
    made = weights.in_languages("sequence_classification", names=("fr", "eo", "de"))
    labels = {number: f"class {number}" for number in range(3)}
    formats.write(dataclasses.replace(made, labels=labels), tmp_path / "teacher", format="bertjax")
    told = "of the languages fr, eo, de, .* of de, eo, fr"
    with pytest.raises(ValueError, match=told):
        jobs.JOBS["finetuning"].open(config)


def test_pairs_are_scored_in_their_language(directories, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"sentence_good": "w1", "sentence_bad": "w2"}\n')
    changes = {"model__language_embeddings": 4, "evaluation__pairs_file": str(path)}
    with pytest.raises(ValueError, match="config.evaluation.pairs_language is not given"):
        jobs.JOBS["pretraining"].open(make_config(directories, **changes))
    changes |= {"evaluation__pairs_language": "fr"}
    job = jobs.JOBS["pretraining"].open(make_config(directories, **changes))
    (batch,) = job.data.evaluation_batches("pairs", batch_size=2, rows=None)
    assert (batch[records.LANGUAGE_FEATURE] == 2).all()
