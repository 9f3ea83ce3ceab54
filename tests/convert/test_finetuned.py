"""Claims about finetuned workdirs in other formats: the task's class, its labels, LoRA merged."""

import json

import numpy as np
import pytest

from bertjax import finetuning, inference, jobs, predict
from bertjax.convert import __main__ as program
from bertjax.convert import formats, huggingface_config, pretrained, workdir
from bertjax.convert.families import bert
from bertjax.models import parameters
from bertjax.tasks import base as tasks
from tests import finetuned_workdir
from tests.convert import weights

TABLE = {"0": "bad", "1": "good", "2": "so-so"}
# The data set and its options, the class of transformers, and id2label.
EXPORTS = [
    ("glue", {}, "BertForSequenceClassification", {"0": "entailment", "1": "not_entailment"}),
    ("table", {"lora_rank": 2}, "BertForSequenceClassification", TABLE),
    ("table", {"is_multi_label": True}, "BertForSequenceClassification", TABLE),
    ("table", {"is_regression": True}, "BertForSequenceClassification", {"0": "LABEL_0"}),
    (
        "conll",
        {},
        "BertForTokenClassification",
        {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"},
    ),
    ("squad", {}, "BertForQuestionAnswering", None),
    ("swag", {}, "BertForMultipleChoice", None),
]


@pytest.mark.parametrize(("dataset", "options", "name", "labels"), EXPORTS)
def test_an_export_names_the_class_of_its_task_and_its_labels(
    tmp_path, dataset, options, name, labels
):
    made = finetuned_workdir.write(tmp_path / "run", dataset, **options)
    program.convert(tmp_path / "run", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == [name]
    assert config.get("id2label") == labels
    if labels is not None:
        assert config["label2id"] == {label: int(number) for number, label in labels.items()}
    is_multi_label = options.get("is_multi_label", False)
    wanted = "multi_label_classification" if is_multi_label else None
    wanted = "regression" if options.get("is_regression") else wanted
    assert config.get("problem_type") == wanted
    read, ours = formats.read(tmp_path / "hf"), workdir.read(tmp_path / "run")
    weights.assert_equal(read, ours)
    assert read.is_regression == ours.is_regression
    assert read.is_multi_label == ours.is_multi_label == is_multi_label
    # Each parameter of the task is there, but for LoRA's factors.
    _, shapes = tasks.abstract_model(jobs.JOBS["finetuning"].task(made))
    paths = {path for path in parameters.flat(shapes) if not path.startswith("lora")}
    assert ours.params.keys() == paths


def test_lora_is_merged_into_the_kernels_that_it_changed(tmp_path):
    config = finetuned_workdir.write(tmp_path / "run", "glue", lora_rank=2, lora_alpha=6.0)
    params = parameters.flat(finetuned_workdir.random_params(config))
    read = workdir.read(tmp_path / "run").params
    changed = {path for path in read if not np.array_equal(read[path], params[path])}
    assert changed == {
        f"encoder.layers.{layer}.attention.{part}.kernel"
        for layer in range(2)
        for part in ("query", "value")
    }
    path = "encoder.layers.1.attention.value"
    a, b = (params[f"lora.{path}.{factor}.kernel"] for factor in "ab")
    wanted = params[f"{path}.kernel"] + 6.0 / 2 * a @ b
    np.testing.assert_allclose(read[f"{path}.kernel"], wanted, atol=1e-6)
    assert not [path for path in read if path.startswith("lora")]


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        ("glue", {"pooling": "mean"}, "config.finetuning.pooling=mean; the classifiers"),
        ("table", {"pooling": "max", "lora_rank": 2}, "config.finetuning.pooling=max"),
        ("conll", {"feature_based": True}, "BiLSTM on the last layers"),
        ("swag", {"bilstm_size": 6}, "config.finetuning.bilstm_size"),
    ],
)
def test_what_no_format_can_hold_is_refused_and_its_encoder_is_not(
    tmp_path, dataset, options, reason
):
    finetuned_workdir.write(tmp_path / "run", dataset, **options)
    for format in formats.WRITERS:
        with pytest.raises(ValueError, match=reason):
            program.convert(tmp_path / "run", tmp_path / "out", format=format)
    if "pooling" in options:  # an encoder and a classifier are not a tagger
        with pytest.raises(ValueError, match=reason):
            program.convert(tmp_path / "run", tmp_path / "out", head="token_classification")
    assert not (tmp_path / "out").exists()
    program.convert(tmp_path / "run", tmp_path / "out", head="none")
    encoder = formats.read(tmp_path / "out").params
    ours = workdir.read(tmp_path / "run").params
    assert encoder.keys() == {path for path in ours if path.startswith("encoder")}


@pytest.mark.parametrize("option", ["is_regression", "is_multi_label"])
def test_what_a_classifier_is_for_goes_through_every_format(tmp_path, option):
    finetuned_workdir.write(tmp_path / "run", "table", **{option: True})
    assert not getattr(pretrained.select(workdir.read(tmp_path / "run"), "none"), option)
    source = "run"
    for format in ("huggingface", "bertjax"):
        target = f"{source}_{format}"
        program.convert(tmp_path / source, tmp_path / target, format=format)
        assert getattr(formats.read(tmp_path / target), option)
        source = target
    lines = [{"text": "w1 w2"}, {"text": "w3"}]
    answers = [
        list(predict.predict(inference.load_finetuned(tmp_path / name), lines, batch_size=2))
        for name in ("run", source)
    ]
    assert answers[0] == answers[1] and ("labels" in answers[0][0]) == (option == "is_multi_label")


def test_one_label_is_a_number_and_several_numbers_are_refused(tmp_path):
    """As in transformers, whose classifiers of one label are regressions without a type."""
    for names, problem, is_regression in (
        ({0: "score"}, None, True),
        ({0: "score"}, "regression", True),
        ({0: "score"}, "multi_label_classification", False),
        ({0: "a", 1: "b"}, None, False),
    ):
        fields = huggingface_config.to_json(
            weights.CONFIG, bert.FAMILY, head="sequence_classification", labels=names
        )
        read = huggingface_config.parse_config(fields | {"problem_type": problem}, source="a test")
        assert read.is_regression == is_regression
    for problem in ("classification", ["regression"], 1):
        with pytest.raises(ValueError, match="problem_type is .*; known are regression, single_l"):
            huggingface_config.parse_config({"problem_type": problem}, source="a test")
    made = weights.make("sequence_classification")
    assert len(made.labels) > 1
    formats.write(made, tmp_path / "hf", format="huggingface")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"problem_type": "regression"}))
    with pytest.raises(ValueError, match="problem_type regression and .* labels; one number"):
        formats.read(tmp_path / "hf")
    assert formats.read(tmp_path / "hf", head="none").head == "none"


def test_a_checkpoint_that_does_not_name_its_head_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "checkpoint_meta", lambda config: {})
    finetuned_workdir.write(tmp_path / "run", "table")
    for read in (formats.read, lambda path: program.convert(path, tmp_path / "hf")):
        with pytest.raises(ValueError, match=r"run was finetuned, but .* finetune again into a ne"):
            read(tmp_path / "run")
    assert list(predict.predict(inference.load_finetuned(tmp_path / "run"), [{"text": "w1"}]))


def test_the_card_of_a_finetuned_model_tells_its_data_and_no_path(tmp_path):
    finetuned_workdir.write(
        tmp_path / "run", "table", lora_rank=2, train_file="/secret/train.csv", num_epochs=2.5
    )
    line = {"step": 0, "eval/dev/accuracy": 0.75}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    program.convert(tmp_path / "run", tmp_path / "hf", license="mit")
    card = (tmp_path / "hf" / "README.md").read_text()
    for fact in (
        "pipeline_tag: text-classification",
        "- finetuned: 2.5 epochs, inputs of at most 32 tokens, LoRA of rank 2, merged",
        "of the kind `table`",
        "`bad`, `good`, `so-so`",
        "On held-out sets, at step 0.",
        "| dev/accuracy | 0.7500 |",
    ):
        assert fact in card, card
    assert "secret" not in card and "masked" not in card
