"""Claims about finetuning jobs: what is read, what is filled in, and what is refused."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from bertjax import jobs
from bertjax.convert import huggingface_write, workdir
from bertjax.finetuning import choices, glue_files, glue_submission, spans, tags, texts
from bertjax.models import lora
from bertjax.tasks import base as tasks_base
from bertjax.training import warm_start
from bertjax.workdirs import reader
from tests import finetuned_workdir, small_datasets, small_records
from tests.convert import weights

TASK = {
    "glue": texts.Classification,
    "regression": texts.Regression,
    "table": texts.Classification,
    "squad_v1": spans.SpanExtraction,
    "squad_v2": spans.SpanExtraction,
    "conll": tags.TokenClassification,
    "swag": choices.MultipleChoice,
}
LABELS = {
    "glue": ("entailment", "not_entailment"),
    "table": ("class 0", "class 1", "class 2"),
    "conll": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"),
}


@pytest.fixture
def open_job(tmp_path, source):
    """Opens a job over new files of a kind, with changes of its config."""

    def opened(kind="glue", **changes):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        return jobs.open_finetuning(small_datasets.make_config(directory, kind, source, **changes))

    return opened


def first_batch(job, step=0):
    return next(job.train_batches(job.phases[0], start_step=step, rows=None))


def true_answers(job, name):
    """What a model that knows every answer predicts."""
    features = job.dataset.features(name)
    if "start_positions" in features.columns:
        positions = np.arange(job.config.finetuning.max_seq_length)
        ends = {"start_logits": "start_positions", "end_logits": "end_positions"}
        return {
            logits: np.where(positions == features.columns[column][:, None], 9.0, 0.0)
            for logits, column in ends.items()
        }
    if "labels" in features.columns:
        return {"predictions": features.columns["labels"]}
    predictions = np.full((len(features), job.config.finetuning.max_seq_length), -1)
    for row, labels in zip(predictions, features.tokens["labels"], strict=True):
        row[: len(labels)] = labels
    return {"predictions": predictions}


@pytest.mark.parametrize("kind", small_datasets.KINDS)
def test_every_kind_has_its_task_its_labels_and_batches_of_the_shapes_it_says(open_job, kind):
    job = open_job(kind, **{"finetuning.length_buckets": False})
    assert isinstance(job, jobs.Job) and isinstance(job.task, TASK[kind])
    assert job.config.finetuning.labels == LABELS.get(kind, ())
    assert (job.evaluation_sets, job.test_sets) == (("dev",), ("test",))
    batch = first_batch(job)
    del batch["record_positions"]
    shapes = job.abstract_batch(job.phases[0])
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (array.shape, array.dtype) for name, array in shapes.items()
    }


@pytest.mark.parametrize("kind", small_datasets.KINDS)
def test_right_answers_have_the_best_score_and_wrong_ones_a_lower_one(open_job, kind):
    job = open_job(kind)
    name, higher_is_better = job.best_score
    assert higher_is_better
    answers = true_answers(job, "dev")
    best = 100.0 if kind in ("squad_v1", "squad_v2", "conll") else 1.0
    assert job.scores("dev", answers)[name] == pytest.approx(best)
    shifted = {field: np.roll(array, 1, axis=0) for field, array in answers.items()}
    assert job.scores("dev", shifted)[name] < best


@pytest.mark.parametrize("kind", small_datasets.KINDS)
def test_every_example_is_evaluated_once_and_so_is_every_test(open_job, kind):
    job = open_job(kind)
    for name in (*job.evaluation_sets, *job.test_sets):
        batches = job.evaluation_batches(name, batch_size=5, rows=None)
        positions = np.concatenate([batch["record_positions"] for batch in batches])
        count = len(job.dataset.features(name))
        assert sorted(positions[positions >= 0]) == list(range(count))
    with pytest.raises(ValueError, match="the set is 'heldout'; known are dev, test"):
        job.evaluation_batches("heldout", batch_size=5, rows=None)


def test_the_phase_has_the_steps_of_its_epochs_and_follows_a_change_of_the_batch(open_job):
    job = open_job("glue", **{"finetuning.num_epochs": 2.3})
    assert job.phases == (jobs.Phase("phase1", 0, 5, 8, 32),)  # 2.3 x 2, rounded up
    assert job.config.phases.phase1.num_steps == 5
    config = job.config.copy_and_resolve_references()
    config.global_batch_size, config.finetuning.num_epochs = 5, 3.0
    assert dataclasses.replace(job, config=config).phases[0].num_steps == 12  # 3 x ceil(16 / 5)


def test_another_seed_is_another_order_and_the_same_seed_the_same(open_job):
    job = open_job()
    config = job.config.copy_and_resolve_references()
    config.seed = 1
    other = dataclasses.replace(job, config=config)

    def order(job, step):
        return first_batch(job, step)["record_positions"].tolist()

    assert order(job, 0) == order(job, 0) != order(other, 0)
    assert order(job, 1) != order(job, 0)


def test_sizes_and_vocabulary_come_from_the_weights_and_dropout_from_the_config(open_job, source):
    given = {"model.num_hidden_layers": 7, "model.hidden_dropout_prob": 0.25}
    job = open_job("glue", **given)
    assert job.config.model.num_hidden_layers == weights.CONFIG.num_hidden_layers
    assert job.config.model.vocab_size == weights.CONFIG.vocab_size
    assert job.task.encoder.hidden_dropout_prob == 0.25
    stored = workdir.read(source).vocabulary.describe()
    assert job.vocabulary().describe() == stored
    assert job.identity()["tokenizer_sha256"] == stored["sha256"]


def test_a_hugging_face_directory_can_be_started_from(tmp_path, open_job):
    made = weights.make("pretraining")
    # Writing tokenizer.json takes long; vocab.txt is enough.
    huggingface_write.write(dataclasses.replace(made, vocabulary=None), tmp_path / "hf", card="")
    made.vocabulary.save(tmp_path / "hf")
    job = open_job("glue", init_from=str(tmp_path / "hf"))
    assert job.config.model.hidden_size == weights.CONFIG.hidden_size


def test_a_run_that_has_begun_has_sizes_and_vocabulary_in_its_workdir(tmp_path, open_job, source):
    finetuned_workdir.write(tmp_path / "run", "glue")
    config = small_datasets.make_config(tmp_path / "data", "glue", source, init_from="gone")
    job = jobs.JOBS["finetuning"].open(config, [tmp_path / "not begun", tmp_path / "run"])
    assert job.config.model.hidden_size == finetuned_workdir.SIZES["hidden_size"]
    assert job.vocabulary().describe() == small_records.vocabulary().describe()
    assert job.config.init_from == "gone"
    with pytest.raises(
        FileNotFoundError, match="config.init_from is gone, to start from: gone does"
    ):
        jobs.JOBS["finetuning"].open(config, [tmp_path / "not begun"])


def test_encoder_and_pooler_are_taken_and_the_head_is_fresh(tmp_path, open_job):
    """Weights of another classifier, even one of the same shape, leave the head alone."""
    for head in ("pretraining", "sequence_classification"):
        path = small_datasets.write_source(tmp_path / head, head)
        job = open_job("table", init_from=str(path))
        _, params = tasks_base.abstract_model(job.task)
        made = warm_start.of_job(job, params)
        assert {name.split(".")[0] for name in made.values} == {"encoder", "pooler"}
        assert set(made.fresh) == {"classifier.kernel", "classifier.bias"}
        heads = {"mlm_head", "nsp_head"} if head == "pretraining" else {"classifier"}
        assert {name.split(".")[0] for name in made.unused} == heads


def test_low_rank_factors_are_fresh_beside_the_kernels_that_are_taken(open_job):
    job = open_job("glue", **{"finetuning.lora_rank": 2})
    assert job.task.options == lora.LoraOptions(2, 16.0, (lora.ATTENTION_QUERY_VALUE,))
    made = warm_start.of_job(job, tasks_base.abstract_model(job.task)[1])
    assert {name.split(".")[0] for name in made.fresh} == {"classifier", "lora"}
    assert {name.split(".")[0] for name in made.values} == {"encoder", "pooler"}


def test_a_checkpoint_tells_its_task_without_the_data(open_job):
    job = open_job("conll", **{"finetuning.feature_based": True})
    meta = json.loads(json.dumps({"config": job.config.to_dict()}))
    assert jobs.JOBS["finetuning"].task(reader.config_of(meta)) == job.task
    assert job.task.is_feature_based and job.task.num_labels == 5


def test_identity_is_of_the_rows_and_not_of_where_they_lie(tmp_path, open_job):
    job = open_job("table")
    moved = tmp_path / "elsewhere.csv"
    shutil.copy(job.config.finetuning.train_file, moved)
    same = open_job("table", **{"finetuning.train_file": str(moved)}).identity()
    assert same == job.identity() and json.loads(json.dumps(same)) == same
    moved.write_text(moved.read_text().replace("class 2", "class 1", 1))
    assert open_job("table", **{"finetuning.train_file": str(moved)}).identity() != same


def test_labels_that_are_given_keep_their_order_and_are_all_there_are(open_job):
    names = ("class 2", "class 1", "class 0")
    assert open_job("table", **{"finetuning.labels": names}).config.finetuning.labels == names
    with pytest.raises(ValueError, match=r"train.csv:4: 'label' is 'class 2'; known are"):
        open_job("table", **{"finetuning.labels": ("class 0", "class 1")})


def test_length_buckets_are_of_the_config(open_job):
    changes = {"finetuning.max_seq_length": 40}
    assert open_job("glue", **changes).buckets == (16, 32, 40)
    assert open_job("glue", **changes, **{"finetuning.length_buckets": False}).buckets == (40,)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("glue", {"init_from": ""}, "config.init_from is empty; finetuning begins with weights"),
        ("glue", {"finetuning.name": "ax"}, "name is 'ax'; tasks of GLUE to train on are cola"),
        ("glue", {"finetuning.data_dir": ""}, "config.finetuning.data_dir is empty"),
        ("table", {"finetuning.train_file": ""}, "config.finetuning.train_file is empty"),
        ("squad_v1", {"finetuning.name": ""}, "version, v1 or v2"),
        ("conll", {"finetuning.name": "bio"}, "scheme of the tags, one of iob1, iob2"),
        (
            "glue",
            {"finetuning.max_seq_length": 41},
            "max_seq_length is 41; the model reads at most",
        ),
        ("table", {"finetuning.label_column": "class"}, r"train.csv:1: there is no column 'class'"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_compiled(open_job, kind, changes, message):
    with pytest.raises(ValueError, match=message):
        open_job(kind, **changes)


def test_a_fault_in_the_evaluation_file_is_told_when_the_job_opens(tmp_path, open_job):
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("text,label\nw1 w2,class 7\n")
    with pytest.raises(ValueError, match=r"wrong.csv:2: 'label' is 'class 7'; known are class 0"):
        open_job("table", **{"finetuning.eval_file": str(wrong)})


def test_a_fault_in_the_test_file_is_told_when_the_job_opens(tmp_path, open_job):
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("texts\nw1 w2\n")
    with pytest.raises(ValueError, match=r"wrong.csv:1: there is no column 'text'"):
        open_job("table", **{"finetuning.test_file": str(wrong)})


def test_the_sentences_of_a_document_are_read_together_where_the_config_says_so(tmp_path, open_job):
    path = tmp_path / "documents.conll"
    sentences = [[f"w{n}" for n in range(first, first + 9)] for first in range(0, 54, 9)]
    blocks = ["\n".join(f"{word} O" for word in words) for words in sentences]
    path.write_text("-DOCSTART- O\n\n" + "\n\n".join([*blocks[:4], "-DOCSTART- O", *blocks[4:]]))
    options = {"finetuning.train_file": str(path), "finetuning.eval_file": str(path)}
    options |= {"finetuning.test_file": "", "finetuning.labels": ("O", "B-PER")}
    assert len(open_job("conll", **options).dataset.features("dev")) == 6
    job = open_job("conll", **options, **{"finetuning.context": "document"})
    features = job.dataset.features("dev")
    # 36 words of which 30 fit, in two rows, and 18 in one; each is scored once.
    assert [len(row) - 2 for row in features.tokens["input_ids"]] == [30, 30, 18]
    assert sum(np.count_nonzero(row >= 0) for row in features.tokens["labels"]) == 54
    answers = true_answers(job, "dev")["predictions"]
    found = job.dataset.tagged_rows("dev").tags(list(answers), job.dataset.labels)
    assert found == [("O",) * 9] * 6


def test_weights_without_a_vocabulary_are_refused(tmp_path, open_job):
    bare = dataclasses.replace(weights.make(), vocabulary=None)
    workdir.write(bare, tmp_path / "bare")
    with pytest.raises(ValueError, match="has no vocabulary; finetuning reads text"):
        open_job("glue", init_from=str(tmp_path / "bare"))


def test_pairs_need_weights_that_know_two_segments(tmp_path, open_job):
    made = weights.make()
    name = "encoder.embeddings.segment.embedding"
    sizes = dataclasses.replace(made.config, type_vocab_size=1)
    one = dataclasses.replace(
        made, config=sizes, params={**made.params, name: made.params[name][:1]}
    )
    workdir.write(one, tmp_path / "one")
    assert open_job("table", init_from=str(tmp_path / "one")).config.model.type_vocab_size == 1
    with pytest.raises(ValueError, match="rows have 2 segments, but the weights"):
        open_job("glue", init_from=str(tmp_path / "one"))


def test_the_outline_has_the_shapes_of_a_job_and_reads_nothing():
    config = small_datasets.config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.max_seq_length = 64
    with pytest.raises(ValueError, match="config.model.vocab_size is 0"):
        jobs.outline_finetuning(config)
    config.model.vocab_size, config.model.dtype = 100, "float32"
    job = jobs.outline_finetuning(config)
    assert job.task.num_labels == 2 and not job.has_evaluation and job.test_sets == ()
    assert job.abstract_batch(job.phases[0])["input_ids"].shape == (256, 64)
    with pytest.raises(ValueError, match="outline of a job; it has no data"):
        job.train_batches(job.phases[0], start_step=0, rows=None)


def test_the_tuned_threshold_is_kept_and_decides_what_is_written(tmp_path, open_job):
    job = open_job("squad_v2")
    answers = true_answers(job, "dev")
    scores = job.scores("dev", answers)
    assert job.config.finetuning.null_threshold == scores["null_threshold"] != 0
    config = job.config.copy_and_resolve_references()
    for threshold, is_silent in ((-100.0, True), (100.0, False)):
        config.finetuning.null_threshold = threshold
        replaced = dataclasses.replace(job, config=config)
        replaced.write_predictions("test", answers, tmp_path / "out")
        written = json.loads((tmp_path / "out/test/predictions.json").read_text())
        assert all((answer == "") == is_silent for answer in written.values())


def test_predictions_of_classes_are_written_by_name(tmp_path, open_job):
    job = open_job("table")
    job.write_predictions("test", {"predictions": np.array([2, 0])}, tmp_path / "out")
    lines = (tmp_path / "out/test.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\tclass 2", "1\tclass 0"]


def test_predictions_for_a_whole_test_set_of_glue_are_the_servers_file(
    tmp_path, open_job, monkeypatch
):
    job = open_job("glue")
    predictions = {"predictions": np.arange(16) % 2}
    job.write_predictions("test", predictions, tmp_path / "few")
    assert [path.name for path in (tmp_path / "few").iterdir()] == ["test.tsv"]
    monkeypatch.setitem(glue_submission.TEST_ROWS, "RTE.tsv", 16)
    job.write_predictions("test", predictions, tmp_path / "whole")
    lines = (tmp_path / "whole/RTE.tsv").read_text().splitlines()
    assert lines[:3] == ["index\tprediction", "0\tentailment", "1\tnot_entailment"]


def test_a_set_of_glue_that_is_not_there_is_no_test_set(tmp_path, open_job):
    job = open_job("glue")
    directory = tmp_path / "without"
    shutil.copytree(job.config.finetuning.data_dir, directory)
    (directory / "RTE/test.tsv").unlink()
    assert open_job("glue", **{"finetuning.data_dir": str(directory)}).test_sets == ()


def test_mnli_has_two_evaluation_sets_and_answers_the_diagnostic_set(tmp_path, source):
    config = small_datasets.make_config(tmp_path / "data", "glue", source)
    config.finetuning.name = "mnli"
    rows = [f"w{n}\tw{n + 1}\t{('neutral', 'entailment')[n % 2]}" for n in range(6)]
    labelled = "\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n"
    for split in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        path = tmp_path / "data/MNLI" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(labelled)
    (tmp_path / "data/diagnostic").mkdir()
    (tmp_path / "data/diagnostic/diagnostic.tsv").write_text(labelled)
    job = jobs.open_finetuning(config)
    assert job.evaluation_sets == ("matched", "mismatched")
    assert job.test_sets == ("test_matched", "test_mismatched", "ax")
    assert job.config.finetuning.labels == ("contradiction", "entailment", "neutral")
    job.write_predictions("ax", {"predictions": np.zeros(6, int)}, tmp_path / "out")
    assert "0\tcontradiction" in (tmp_path / "out/ax.tsv").read_text()


def test_one_task_of_tfds_has_no_diagnostic_set(source, monkeypatch):
    asked = []
    monkeypatch.setattr(
        glue_files, "read_split", lambda location, name, split: asked.append((name, split)) or []
    )
    options = small_datasets.config_lib.default_config().finetuning
    options.update(name="mnli", data_dir="tfds:glue/mnli")
    assert texts.Glue(options, None).test_sets == ("test_matched", "test_mismatched")
    assert asked == [("mnli", "test_matched"), ("mnli", "test_mismatched")]
    options.data_dir = "tfds:glue"
    assert texts.Glue(options, None).test_sets == ("test_matched", "test_mismatched", "ax")


def test_answers_that_no_window_holds_are_counted_and_the_first_is_named(open_job, caplog):
    open_job("squad_v1")
    assert "in no window" not in caplog.text
    job = open_job("squad_v1", **{"finetuning.max_seq_length": 8})  # 3 tokens of context
    starts = job.dataset.features("train").columns["start_positions"]
    windows = job.dataset.windows("train")
    found = {window.question for window, start in zip(windows, starts, strict=True) if start}
    assert 0 < len(found) < 16
    assert f"{16 - len(found)} of 16 questions have an answer that is whole in no" in caplog.text
    assert re.search(r"such as .*train\.json: question 'q\d+'", caplog.text)
