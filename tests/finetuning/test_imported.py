"""Claims about heads that others finetuned: once converted, `predict` answers with them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import inference, predict
from bertjax.convert import pretrained, workdir
from bertjax.finetuning import feature_sets
from tests import programs
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("one_device")


def imported(tmp_path, head, **changes):
    made = dataclasses.replace(weights.make(head), **changes)
    workdir.write(made, tmp_path / "run")
    return inference.load_finetuned(tmp_path / "run")


def logits(model, texts, pairs=None):
    """What the model gives for rows that are made one by one."""
    ids, segments = feature_sets.sequence_pairs(
        model.vocabulary, texts, pairs, max_seq_length=model.options.max_seq_length
    )
    found = []
    for row, segment in zip(ids, segments, strict=True):
        batch = {"input_ids": row, "input_mask": np.ones_like(row), "segment_ids": segment}
        batch = {name: jnp.asarray(values)[None] for name, values in batch.items()}
        module = inference.parameters.merge(model.graphdef, jax.tree.map(jnp.asarray, model.params))
        found.append(model.task.predict(module, batch))
    return found


@pytest.mark.slow
def test_a_class_is_told_by_its_name_for_texts_and_pairs_alike(tmp_path):
    model = imported(tmp_path, "sequence_classification")
    lines = [{"text": "w1 w2"}, {"text": "w3", "text_pair": "w4 w5"}, {"text": "w6"}]
    answers = list(predict.predict(model, lines, batch_size=2))
    alone = [*logits(model, ["w1 w2"]), *logits(model, ["w3"], ["w4 w5"]), *logits(model, ["w6"])]
    for answer, outputs in zip(answers, alone, strict=True):
        wanted = np.asarray(jax.nn.softmax(outputs["logits"][0]))
        assert list(answer["probabilities"]) == list(weights.LABELS.values())
        np.testing.assert_allclose(list(answer["probabilities"].values()), wanted, atol=1e-5)
        assert answer["label"] == weights.LABELS[int(wanted.argmax())]
    assert answers[1] != next(predict.predict(model, [{"text": "w3"}]))


def test_classes_without_names_are_numbered(tmp_path):
    model = imported(tmp_path, "sequence_classification", labels={})
    (answer,) = predict.predict(model, [{"text": "w1"}])
    assert list(answer["probabilities"]) == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_number_is_a_number(tmp_path):
    one = pretrained.select(weights.make("multiple_choice"), "sequence_classification")
    workdir.write(dataclasses.replace(one, is_regression=True), tmp_path / "run")
    model = inference.load_finetuned(tmp_path / "run")
    (answer,) = predict.predict(model, [{"text": "w1 w2"}])
    (wanted,) = logits(model, ["w1 w2"])
    assert answer == {"prediction": pytest.approx(float(wanted["predictions"][0]), abs=1e-5)}


@pytest.mark.parametrize(
    ("labels", "has_entities"),
    [({0: "O", 1: "B-PER", 2: "I-PER"}, True), ({0: "NN", 1: "VB", 2: "JJ"}, False)],
)
def test_tags_name_entities_if_they_are_tags_of_entities(tmp_path, labels, has_entities):
    model = imported(tmp_path, "token_classification", labels=labels)
    (answer,) = predict.predict(model, [{"words": [f"w{number}" for number in range(30)]}])
    assert len(answer["tags"]) == 30 and set(answer["tags"]) <= set(labels.values())
    assert ("entities" in answer) == has_entities


def test_spans_and_choices_answer_and_a_pooler_is_no_hindrance(tmp_path):
    made, pooler = weights.make("question_answering"), weights.make("sequence_classification")
    extra = {path: value for path, value in pooler.params.items() if path.startswith("pooler")}
    model = imported(tmp_path, "question_answering", params=made.params | extra)
    line = {"question": "w1 w2", "context": " ".join(f"w{n}" for n in range(60))}
    (answer,) = predict.predict(model, [line])
    assert answer["answer"] and answer["answer"] in line["context"]
    done = [
        programs.succeed(
            "bertjax.predict", f"--checkpoint={tmp_path / 'run'}", f"--null_threshold={threshold}",
            lines=('{"question": "w1", "context": "w2 w3"}',),
        ).lines[0]["answer"]
        for threshold in (-1e9, 1e9)
    ]  # fmt: skip
    assert [bool(found) for found in done] == [False, True]


def test_one_of_several_endings_is_chosen(tmp_path):
    model = imported(tmp_path, "multiple_choice")
    line = {"context": "w1", "endings": ["w2", "w3", "w4 w5", "w6"]}
    (answer,) = predict.predict(model, [line])
    assert answer["choice"] == int(np.argmax(answer["probabilities"]))


@pytest.mark.parametrize("head", ["pretraining", "none", "next_sentence"])
def test_a_head_that_answers_nothing_is_said_to(tmp_path, head):
    with pytest.raises(ValueError, match="which was finetuned for nothing: finetune it with"):
        imported(tmp_path, head)
