"""Claims about finetuning jobs: what is read, what is filled in, and what is refused."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from bertjax import jobs
from bertjax.convert import workdir
from bertjax.devices import sharding
from bertjax.files import directories
from bertjax.finetuning import choices, conll_files, spans, tag_schemes, tags, texts
from bertjax.jobs import base, finetuning
from bertjax.models import lora, parameters, sentence_vectors
from bertjax.tasks import base as tasks_base
from bertjax.training import config_faults, optim, warm_start
from bertjax.workdirs import reader
from tests import (
    finetuned_workdir,
    small_datasets,
    small_embeddings,
    small_records,
    small_sentences,
)
from tests.convert import weights

TASK = {
    "glue": texts.Classification,
    "regression": texts.Regression,
    "table": texts.Classification,
    "multi_label": texts.MultiLabel,
    "squad_v1": spans.SpanExtraction,
    "squad_v2": spans.SpanExtraction,
    "conll": tags.TokenClassification,
    "swag": choices.MultipleChoice,
}
LABELS = {
    "glue": ("entailment", "not_entailment"),
    "table": ("class 0", "class 1", "class 2"),
    "multi_label": ("has 0", "has 1", "has 2"),
    "conll": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"),
}


@pytest.fixture
def open_job(tmp_path, source):
    """Opens a job over new files of a kind, with changes of its config."""

    def opened(kind="glue", **changes):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        return finetuning.open_job(small_datasets.make_config(directory, kind, source, **changes))

    return opened


def first_batch(job, step=0):
    return next(job.data.train_batches(job.phases[0], start_step=step, rows=None))


@pytest.mark.parametrize("kind", small_datasets.KINDS)
def test_every_kind_has_its_task_its_labels_and_batches_of_the_shapes_it_says(open_job, kind):
    job = open_job(kind, **{"finetuning.length_buckets": False})
    assert isinstance(job, jobs.Job) and isinstance(job.task, TASK[kind])
    assert job.config.finetuning.labels == LABELS.get(kind, ())
    assert (job.evaluation.sets, job.evaluation.test_sets) == (("dev",), ("test",))
    batch = first_batch(job)
    del batch["record_positions"]
    shapes = job.data.abstract_batch(job.phases[0])
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (array.shape, array.dtype) for name, array in shapes.items()
    }
    for name in ("dev", "test"):  # Every example is evaluated once.
        batches = job.data.evaluation_batches(name, batch_size=5, rows=None)
        positions = np.concatenate([batch["record_positions"] for batch in batches])
        count = len(job.data.reader.features(name))
        assert sorted(positions[positions >= 0]) == list(range(count))
    with pytest.raises(ValueError, match="the set is 'heldout'; known are dev, test"):
        job.data.evaluation_batches("heldout", batch_size=5, rows=None)


@pytest.mark.parametrize(
    ("scheme", "given", "wanted"),
    [
        *(("iobes", "", "iobes"), ("iob2", "", "iob2"), ("iob1", "", "iob1")),
        *(("iob1", "iob1", "iob1"), ("iob2", "iobes", None)),
    ],
)
def test_answers_have_the_scheme_of_the_training_file(
    tmp_path, source, scheme, given, wanted, caplog
):
    changes = {"finetuning.name": given}
    config = small_datasets.make_config(tmp_path / "data", "conll", source, **changes)
    path = epath.Path(config.finetuning.train_file)
    sentences = conll_files.read_sentences(path)
    lines = []
    for sentence in sentences:
        converted = tag_schemes.convert(sentence.tags, scheme)
        lines += [f"{word} {tag}" for word, tag in zip(sentence.words, converted, strict=True)]
        lines.append("")
    path.write_text("\n".join(lines))
    if wanted is None:
        with pytest.raises(ValueError, match="in IOBES"):
            finetuning.open_job(config)
        return
    with caplog.at_level("INFO", logger="absl"):
        job = finetuning.open_job(config)
    assert job.config.finetuning.tag_scheme == wanted
    assert job.config.finetuning.labels == LABELS["conll"]  # what is learnt is IOB2
    scorer = tags.CONLL.open(job.config.finetuning, job.data.vocabulary)
    outputs = small_datasets.true_answers(scorer.reader, "dev")
    assert scorer.scores("dev", outputs)["f1"] == 100
    scorer.write_predictions("dev", outputs, epath.Path(tmp_path), {})
    columns = [line.split() for line in (tmp_path / "dev.conll").read_text().splitlines() if line]
    assert all(gold == predicted for *_, gold, predicted in columns)
    converted = [tag for it in sentences for tag in tag_schemes.convert(it.tags, scheme)]
    assert [column[-1] for column in columns] == converted
    told = f"predictions have the tags of {wanted.upper()}, as {path} has them"
    assert (told in caplog.text) == (wanted != "iob2")


def test_the_phase_has_the_steps_of_its_epochs_and_follows_a_change_of_the_batch(open_job):
    job = open_job("glue", **{"finetuning.num_epochs": 2.3})
    assert job.phases == (jobs.Phase("phase1", 0, 5, 8, 32),)  # 2.3 x 2, rounded up
    assert job.config.phases.phase1.num_steps == 5
    config = base.unfrozen(job.config)
    config.global_batch_size, config.finetuning.num_epochs = 5, 3.0
    assert finetuning.with_config(job, config).phases[0].num_steps == 12  # 3 x ceil(16 / 5)


def test_another_seed_is_another_order_and_the_same_seed_the_same(open_job):
    job = open_job()
    config = base.unfrozen(job.config)
    config.seed = 1
    other = finetuning.with_config(job, config)

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
    assert job.data.vocabulary.describe() == stored
    assert job.data.identity()["tokenizer_sha256"] == stored["sha256"]


def test_a_run_that_has_begun_has_sizes_and_vocabulary_in_its_workdir(tmp_path, open_job, source):
    finetuned_workdir.write(tmp_path / "run", "glue")
    config = small_datasets.make_config(tmp_path / "data", "glue", source, init_from="gone")
    job = jobs.JOBS["finetuning"].open(config, [tmp_path / "not begun", tmp_path / "run"])
    assert job.config.model.hidden_size == finetuned_workdir.SIZES["hidden_size"]
    assert job.data.vocabulary.describe() == small_records.vocabulary().describe()
    assert job.config.init_from == "gone"
    missing = "config.init_from is gone: gone does"
    with pytest.raises(FileNotFoundError, match=missing):
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
    # So are low-rank factors.
    job = open_job("glue", **{"finetuning.lora_rank": 2})
    assert job.task.options == lora.LoraOptions(2, 16.0, (lora.ATTENTION_QUERY_VALUE,))
    made = warm_start.of_job(job, tasks_base.abstract_model(job.task)[1])
    assert {name.split(".")[0] for name in made.fresh} == {"classifier", "lora"}
    assert {name.split(".")[0] for name in made.values} == {"encoder", "pooler"}


def test_a_checkpoint_tells_its_task_without_the_data(open_job):
    job = open_job("conll", **{"finetuning.feature_based": True, "model.attention": "xla"})
    meta = json.loads(json.dumps({"config": job.config.to_dict()}))
    assert jobs.JOBS["finetuning"].task(reader.config_of(meta, 0)) == job.task
    assert job.task.is_feature_based and job.task.num_labels == 5


def test_identity_is_of_the_rows_and_not_of_where_they_lie(tmp_path, open_job):
    job = open_job("table")
    moved = tmp_path / "elsewhere.csv"
    shutil.copy(job.config.finetuning.train_file, moved)
    same = open_job("table", **{"finetuning.train_file": str(moved)}).data.identity()
    assert same == job.data.identity() and json.loads(json.dumps(same)) == same
    moved.write_text(moved.read_text().replace("class 2", "class 1", 1))
    assert open_job("table", **{"finetuning.train_file": str(moved)}).data.identity() != same


def test_labels_that_are_given_keep_their_order_and_are_all_there_are(open_job):
    names = ("class 2", "class 1", "class 0")
    assert open_job("table", **{"finetuning.labels": names}).config.finetuning.labels == names
    with pytest.raises(ValueError, match=r"train.csv:4: 'label' is 'class 2'; known are"):
        open_job("table", **{"finetuning.labels": ("class 0", "class 1")})


def test_length_buckets_are_of_the_config(open_job):
    changes = {"finetuning.max_seq_length": 40}
    for is_cut, lengths in ((True, (16, 32, 40)), (False, (40,))):
        job = open_job("glue", **changes, **{"finetuning.length_buckets": is_cut})
        assert job.data.of_phase(job.phases[0]).lengths == lengths


def test_what_is_missing_is_named_before_anything_is_compiled(tmp_path, open_job):
    bare = dataclasses.replace(weights.make(), vocabulary=None)
    workdir.write(bare, tmp_path / "bare")
    for kind, changes, message in (
        ("glue", {"init_from": ""}, "config.init_from is empty"),
        ("glue", {"finetuning.name": "ax"}, "name is 'ax'; known are cola"),
        ("table", {"finetuning.train_file": ""}, "config.finetuning.train_file is empty"),
        ("glue", {"finetuning.max_seq_length": 41}, "max_seq_length is 41; it must be at most"),
        ("glue", {"init_from": str(tmp_path / "bare")}, "has no vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            open_job(kind, **changes)
    wrong = tmp_path / "wrong.csv"  # A fault in any set is reported when the job opens.
    for option, text, message in (
        ("eval_file", "text,label\nw1 w2,class 7\n", r"csv:2: 'label' is 'class 7'; known are cla"),
        ("test_file", "texts\nw1 w2\n", r"wrong.csv:1: there is no column 'text'"),
    ):
        wrong.write_text(text)
        with pytest.raises(ValueError, match=message):
            open_job("table", **{f"finetuning.{option}": str(wrong)})


def test_weights_of_one_segment_take_texts_and_pairs(tmp_path, open_job):
    made = weights.make()
    name = "encoder.embeddings.segment.embedding"
    sizes = dataclasses.replace(made.config, type_vocab_size=1)
    params = {**made.params, name: made.params[name][:1]}
    workdir.write(dataclasses.replace(made, config=sizes, params=params), tmp_path / "one")
    for kind in ("table", "glue"):
        assert open_job(kind, init_from=str(tmp_path / "one")).config.model.type_vocab_size == 1


def test_an_abstract_job_has_the_shapes_of_a_job_and_reads_nothing():
    config = small_datasets.config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.max_seq_length = 64
    with pytest.raises(ValueError, match="config.model.vocab_size is 0"):
        finetuning.abstract(config)
    config.model.vocab_size, config.model.dtype = 100, "float32"
    job = finetuning.abstract(config)
    assert job.task.num_labels == 2 and not job.evaluation.sets and job.evaluation.test_sets == ()
    assert job.data.abstract_batch(job.phases[0])["input_ids"].shape == (256, 64)
    with pytest.raises(ValueError, match="it has no data"):
        job.data.train_batches(job.phases[0], start_step=0, rows=None)


def test_weights_and_files_that_are_not_there_are_told_at_once(tmp_path, source):
    config = small_datasets.make_config(tmp_path / "data", "table", source)
    config.finetuning.update(eval_file="no_dev.csv", test_file="no_test.csv")
    config.init_from = str(tmp_path / "no_weights")
    with pytest.raises(FileNotFoundError) as caught:
        finetuning.open_job(config)
    lines = str(caught.value).splitlines()
    assert lines[0] == "several things are wrong:" and "no_weights" in lines[1]
    assert lines[2:] == [
        "  config.finetuning.eval_file is no_dev.csv, which does not exist",
        "  config.finetuning.test_file is no_test.csv, which does not exist",
    ]


def test_a_directory_in_place_of_a_file_is_named_with_what_it_holds(open_job, tmp_path):
    plain, records, model = tmp_path / "plain", tmp_path / "records", tmp_path / "model"
    plain.mkdir()
    directories.mark(records, "records")
    finetuned_workdir.write(model, "table")
    content = "records is a directory with records of data_pipelines.build, and finetuning reads"
    for kind, given, message in (
        ("table", records, f"train_file: .*{content} .*: give a file, as"),
        ("conll", plain, "train_file: .*plain is a directory, and finetuning reads"),
    ):
        with pytest.raises(ValueError, match=message):
            open_job(kind, **{"finetuning.train_file": str(given)})
    with pytest.raises(ValueError, match=f"--data: .*{content}"):
        finetuning.evaluating(reader.read(model), str(records))


def test_sets_whose_words_the_vocabulary_lacks_are_warned_of_at_the_start(tmp_path, source, caplog):
    for kind in ("conll", "squad_v1"):
        config = small_datasets.make_config(tmp_path / kind, kind, source)
        finetuning.open_job(config)
        assert "[UNK]" not in caplog.text
        for option in ("train_file", "eval_file"):
            path = epath.Path(config.finetuning[option])
            path.write_text(re.sub(r"\bw(?=\d)", "щ", path.read_text()))
        finetuning.open_job(config)
        for name in ("Training set", "Evaluation set dev"):
            assert re.search(
                rf"{name}: \d+ of \d+ tokens are \[UNK\]; of \d+ texts at", caplog.text
            )
        caplog.clear()


BILSTM = {"finetuning.bilstm_size": 6}


@pytest.fixture(scope="module")
def left_to_right(tmp_path_factory):
    """Weights whose attention looks to the left alone."""
    directory = tmp_path_factory.mktemp("left_to_right") / "weights"
    made = weights.make("masked_lm")
    config = dataclasses.replace(made.config, left_to_right=True)
    workdir.write(dataclasses.replace(made, config=config), directory)
    return directory


@pytest.mark.parametrize("kind", ["glue", "swag"])
def test_what_has_seen_nothing_is_not_read_but_through_a_bilstm(tmp_path, left_to_right, kind):
    config = small_datasets.make_config(tmp_path / "data", kind, left_to_right)
    with pytest.raises(ValueError, match="has seen nothing there") as fault:
        finetuning.open_job(config)
    assert "--config.finetuning.bilstm_size=WIDTH" in str(fault.value)
    assert ("pooling=last" in str(fault.value)) == (kind == "glue")
    config.update_from_flattened_dict(BILSTM)
    job = finetuning.open_job(config)
    assert job.task.bilstm_size == 6 and job.task.encoder.left_to_right


@pytest.mark.parametrize("kind", ["squad_v2", "conll", "swag"])  # a table has the task of glue
def test_every_kind_may_have_a_bilstm_which_is_fresh_and_trained_as_a_head(open_job, kind):
    job = open_job(kind, **BILSTM, **{"finetuning.lora_rank": 2})
    params = tasks_base.abstract_model(job.task)[1]
    assert params["lstm"]["backward"]["input"]["kernel"].shape == (32, 24)
    assert "pooler" not in params and "lstm" not in params["lora"]
    options = optim.OptimizerOptions(head_multiplier=3.0, layer_decay=0.5)
    rates = optim.rate_multipliers(options, params)
    assert set(jax.tree.leaves(rates["lstm"])) == {3.0}
    frozen = optim.frozen_parameters(job.task.frozen, params)
    assert all(jax.tree.leaves(frozen["encoder"])) and not any(jax.tree.leaves(frozen["lstm"]))
    for table in sharding.RULES:
        mesh = sharding.make_mesh(jax.devices()[:4], data=2, tensor=2)
        placed = sharding.shardings(mesh, params, params, rule_table=table)
        assert {leaf.spec for leaf in jax.tree.leaves(placed["lstm"])} == {sharding.P()}
    found = warm_start.of_job(job, params)
    of_lstm = {name for name in parameters.flat(params) if name.startswith("lstm.")}
    assert of_lstm <= set(found.fresh)


@pytest.mark.parametrize("theirs", [{"bilstm_size": 16}, {"pooling": "max"}])
def test_a_teacher_has_the_head_that_it_was_finetuned_with(open_job, tmp_path, theirs):
    finetuned_workdir.write(tmp_path / "teacher", "glue", **theirs)
    job = open_job("glue", **BILSTM, **{"distillation.teacher": str(tmp_path / "teacher")})
    assert job.task.task.bilstm_size == 6
    teacher = job.task.teacher
    told = {"bilstm_size": 0, "pooling": "cls"} | theirs
    assert {name: getattr(teacher, name) for name in told} == told
    assert ("lstm" in job.teacher.params) == ("bilstm_size" in theirs)


def test_a_teacher_makes_the_vectors_that_its_files_say(tmp_path, source):
    projections = (sentence_vectors.Projection(32),)
    theirs = dataclasses.replace(small_sentences.VECTORS, pooling="max", projections=projections)
    small_sentences.write(tmp_path / "teacher", theirs, format="bertjax")
    config = small_embeddings.make_config(tmp_path / "data", source, loss="distillation")
    config.distillation.teacher = str(tmp_path / "teacher")
    job = finetuning.open_job(config)
    assert (job.task.teacher.pooling, job.task.teacher.projections) == ("max", projections)
    assert job.task.pooling == "mean" and not job.task.projections
    assert job.teacher.params["projections"]["0"]["kernel"].shape == (16, 32)


def test_dense_layers_of_the_weights_are_those_of_the_job_unless_it_has_others(tmp_path):
    projections = (sentence_vectors.Projection(8, "gelu", False),)
    vectors = dataclasses.replace(small_sentences.VECTORS, projections=projections)
    small_sentences.write(tmp_path / "weights", vectors, format="bertjax")
    config = small_embeddings.make_config(tmp_path / "data", tmp_path / "weights")
    job = finetuning.open_job(config)
    assert job.task.projections == projections
    params = tasks_base.abstract_model(job.task)[1]
    assert not warm_start.of_job(job, params).fresh
    rates = optim.rate_multipliers(optim.OptimizerOptions(head_multiplier=3.0), params)
    assert set(jax.tree.leaves(rates["projections"])) == {1.0}
    config.finetuning.projections = ((9, "tanh", True),)
    with pytest.raises(ValueError, match=r"projections is .*must be \(\(8, 'gelu', False\),\)"):
        finetuning.open_job(config)
    config = small_datasets.make_config(tmp_path / "table", "table", tmp_path / "weights")
    job = finetuning.open_job(config)
    found = warm_start.of_job(job, tasks_base.abstract_model(job.task)[1])
    assert "projections.0.kernel" in found.unused


@pytest.mark.parametrize(
    "kind", ["table", "multi_label", "squad_v1", "squad_v2", "conll", "swag", "embeddings"]
)
def test_every_kind_is_scored_on_several_files_by_name(tmp_path, source, kind):
    if kind == "embeddings":
        config = small_embeddings.make_config(tmp_path, source)
        path = config.finetuning.eval_file.split(",")[0]
    else:
        config = small_datasets.make_config(tmp_path / "data", kind, source)
        path = config.finetuning.eval_file
    other = tmp_path / f"lang=zh{epath.Path(path).suffix}"
    shutil.copy(path, other)
    config.finetuning.update(eval_file="", eval_files=f"en={path}, zh={other}")
    evaluation = finetuning.open_job(config).evaluation
    assert evaluation.sets == evaluation.averaged == ("en", "zh")
    reader = evaluation.scorer.reader
    assert (reader.file("en"), reader.file("zh")) == (path, str(other))
    for name in ("en", "zh"):
        if kind != "embeddings":
            outputs = small_datasets.true_answers(reader, name)
            assert evaluation.scorer.scores(name, outputs)[evaluation.best_score] in (1, 100)
    if kind == "squad_v2":  # With the threshold of another set, here one that answers nothing.
        scores = evaluation.scorer.scores_with("zh", outputs, {"null_threshold": -99.0})
        assert (scores["null_threshold"], scores["HasAns_f1"], scores["NoAns_f1"]) == (-99, 0, 100)


def test_faults_of_several_evaluation_files_are_reported_at_once(tmp_path, open_job):
    """Labels that training has not: each once, with the number of rows that have it."""
    tables, tags = [], []
    for name, labels in (("nl", ("ja", "nee", "ja", "class 0")), ("zh", ("class 1", "是"))):
        rows = [f"w{number},{label}" for number, label in enumerate(labels)]
        tables.append(f"{name}={tmp_path / name}.csv")
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows, ""]))
        tags.append(f"{name}={tmp_path / name}.conll")
        (tmp_path / f"{name}.conll").write_text(f"w1 B-{name}\nw2 O\n\nw1 B-PER\nw3 B-{name}\n")
    known = "known are class 0, class 1, class 2"
    for kind, files, expected in (
        ("table", tables, (
            "several evaluation files are faulty:",
            f"nl.csv:2: 'label' is 'ja'; {known} (1 more have it)",
            f"nl.csv:3: 'label' is 'nee'; {known}\n",
            f"zh.csv:3: 'label' is '是'; {known}")),
        ("conll", tags, ("nl.conll:1: the tag is 'B-nl'; known", "zh.conll:1: the tag is 'B-zh'")),
    ):  # fmt: skip
        options = {"finetuning.eval_file": "", "finetuning.eval_files": ",".join(files)}
        with pytest.raises(ValueError) as caught:
            open_job(kind, **options)
        assert [part for part in expected if part not in str(caught.value)] == []
    gone = {"finetuning.eval_file": "", "finetuning.eval_files": "en=a.csv,zh=b.csv"}
    with pytest.raises(FileNotFoundError, match="is en=a.csv,zh=b.csv, a.csv and b.csv do not"):
        open_job("table", **gone)
    both = {"finetuning.eval_file": "a.csv", "finetuning.eval_files": "en=b.csv"}
    for kind, changes, message in (
        ("table", both, "eval_file is 'a.csv' and config.finetuning.eval_files is 'en=b.csv'"),
        ("table", {"finetuning.eval_files": "b.csv"}, "'b.csv' must be NAME=PATH"),
        ("glue", {"finetuning.eval_files": "en=b.csv"}, "GLUE's files are those of"),
    ):
        config = small_datasets.make_config(tmp_path / kind / message[:5], kind, tmp_path)
        config.update_from_flattened_dict(changes)
        with pytest.raises(ValueError, match=message):
            config_faults.validate(config)
