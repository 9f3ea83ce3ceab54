"""Claims about heads that others finetuned: once converted, `predict` answers with them."""

import csv
import dataclasses
import json

import jax
import numpy as np
import pytest

from bertjax import evaluate, inference, jobs, predict
from bertjax.convert import pretrained, workdir
from bertjax.finetuning import feature_sets
from bertjax.models import parameters
from bertjax.workdirs import reader
from tests import programs
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


def imported(tmp_path, head, **changes):
    made = dataclasses.replace(weights.make(head), **changes)
    workdir.write(made, tmp_path / "run")
    return inference.load_finetuned(tmp_path / "run")


def logits(model, texts, pairs=None):
    """Returns the outputs of the model for each text or pair, in rows of 16 tokens."""
    ids, segments = feature_sets.sequence_pairs(model.vocabulary, texts, pairs, max_seq_length=16)
    named = {
        **{"input_ids": ids, "segment_ids": segments},
        "input_mask": [np.ones_like(row) for row in ids],
    }
    batch = {
        name: np.stack([np.pad(row, (0, 16 - len(row))) for row in rows])
        for name, rows in named.items()
    }

    @jax.jit
    def outputs(params, batch):
        return model.task.predict(parameters.merge(model.graphdef, params), batch)

    found = outputs(model.params, batch)
    return [{name: rows[place] for name, rows in found.items()} for place in range(len(ids))]


@pytest.mark.slow
def test_a_class_is_told_by_its_name_for_texts_and_pairs_alike(tmp_path):
    model = imported(tmp_path, "sequence_classification")
    lines = [{"text": "w1 w2"}, {"text": "w3", "text_pair": "w4 w5"}, {"text": "w6"}]
    answers = list(predict.predict(model, lines, batch_size=2))
    alone = [*logits(model, ["w1 w2"]), *logits(model, ["w3"], ["w4 w5"]), *logits(model, ["w6"])]
    for answer, outputs in zip(answers, alone, strict=True):
        wanted = np.asarray(jax.nn.softmax(outputs["logits"]))
        assert list(answer["probabilities"]) == list(weights.LABELS.values())
        np.testing.assert_allclose(list(answer["probabilities"].values()), wanted, atol=1e-5)
        assert answer["label"] == weights.LABELS[int(wanted.argmax())]
    assert answers[1] != next(predict.predict(model, [{"text": "w3"}]))


def test_classes_without_names_are_numbered_and_a_number_is_a_number(tmp_path):
    model = imported(tmp_path / "classes", "sequence_classification", labels={})
    (answer,) = predict.predict(model, [{"text": "w1"}])
    assert list(answer["probabilities"]) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    one = pretrained.select(weights.make("multiple_choice"), "sequence_classification")
    workdir.write(dataclasses.replace(one, is_regression=True), tmp_path / "run")
    model = inference.load_finetuned(tmp_path / "run")
    (answer,) = predict.predict(model, [{"text": "w1 w2"}])
    (wanted,) = logits(model, ["w1 w2"])
    assert answer["prediction"] == pytest.approx(float(wanted["predictions"]), abs=1e-5)


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
    for threshold in (-1e9, 1e9):
        done = programs.succeed(
            *("bertjax.predict", f"--checkpoint={tmp_path / 'run'}"),
            f"--null_threshold={threshold}",
            lines=('{"question": "w1", "context": "w2 w3"}',),
        )
        assert bool(done.lines[0]["answer"]) == (threshold > 0)
    model = imported(tmp_path / "choices", "multiple_choice")
    line = {"context": "w1", "endings": ["w2", "w3", "w4 w5", "w6"]}
    (answer,) = predict.predict(model, [line])
    assert answer["choice"] == int(np.argmax(answer["probabilities"]))


def scores_of(tmp_path, data):
    """Returns the scores of `evaluate` for the model in tmp_path."""
    scores = evaluate.evaluate_checkpoint(str(tmp_path / "run"), str(data), batch_size=4)
    return {name: value for name, value in scores.items() if name != "step"}


def table(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_a_classifier_is_scored_by_the_names_or_numbers_of_its_classes(tmp_path, caplog):
    model = imported(tmp_path, "sequence_classification")
    columns = ("text", "text_pair", "label")
    texts = [("w1 w2", "w3"), ("w4", "w5 w6"), ("w7 w8", "w9"), ("w2", "w4 w1")]
    places = [0, 2, 1, 1]
    outputs = logits(model, *zip(*texts, strict=True))
    shares = [np.asarray(jax.nn.softmax(one["logits"])) for one in outputs]
    losses = [-np.log(share[place]) for share, place in zip(shares, places, strict=True)]
    hits = [share.argmax() == place for share, place in zip(shares, places, strict=True)]
    for spelt in (weights.LABELS, {place: str(place) for place in weights.LABELS}):
        rows = [(*row, spelt[place]) for row, place in zip(texts, places, strict=True)]
        scores = scores_of(tmp_path, table(tmp_path / "dev.csv", columns, rows))
        assert scores["examples"] == 4
        assert scores["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert scores["accuracy"] == pytest.approx(np.mean(hits)) and "macro_f1" in scores
        assert ("0 is 'no', 1 is 'yes', 2 is 'perhaps'" in caplog.text) == (spelt[0] == "0")


def scorer_of_file(tmp_path, model, file):
    """Returns the scorer that `evaluate` opens for a file."""
    found = reader.read(tmp_path / "run")
    job = jobs.evaluating(found, str(file))
    assert type(job.data.reader) is model.kind.reader
    return job.evaluation.scorer


def test_a_file_of_texts_alone_has_no_pairs_and_another_class_is_refused(tmp_path):
    model = imported(tmp_path, "sequence_classification")
    file = table(tmp_path / "dev.csv", ("text", "label"), [("w1", "yes"), ("w2", "no")])
    examples = scorer_of_file(tmp_path, model, file).reader.examples("dev")
    assert [(one.texts, one.label) for one in examples] == [(("w1",), 1), (("w2",), 0)]
    file = table(tmp_path / "dev.csv", ("text", "label"), [("w1", "never"), ("w2", "3")])
    with pytest.raises(ValueError, match=r"(?s)'label' is 'never'; known are no, yes, perhaps"):
        scorer_of_file(tmp_path, model, file).reader.examples("dev")
    file = table(tmp_path / "dev.csv", ("sentence", "label"), [("w1", "yes")])
    with pytest.raises(ValueError, match=r"(?s)no column 'text'; .* 'sentence', .* call them text"):
        scorer_of_file(tmp_path, model, file).reader.examples("dev")


def test_a_label_has_one_spelling_in_the_model_and_in_files(tmp_path):
    names = {0: "s\u0327\u0131k", 1: "x"}
    model = imported(tmp_path / "m", "sequence_classification", labels=names)
    assert model.options.labels == ("şık", "x")
    (tmp_path / "a.csv").write_text("text;label\nw1;s\u0327\u0131k\nw2;x\n")
    model.options.eval_file = str(tmp_path / "a.csv")
    reader = model.kind.open(model.options, model.vocabulary).reader
    assert [example.label for example in reader.examples("dev")] == [0, 1]


def test_labels_of_a_classifier_may_be_columns_of_the_file(tmp_path):
    model = imported(tmp_path, "sequence_classification", is_multi_label=True)
    file = table(tmp_path / "dev.csv", ("yes", "text", "no", "perhaps"), [(1, "w1", 1, 0)])
    assert scorer_of_file(tmp_path, model, file).reader.examples("dev")[0].label == (0, 1)
    file = table(tmp_path / "dev.csv", ("label", "text"), [("yes|perhaps", "w1")])
    assert scorer_of_file(tmp_path, model, file).reader.examples("dev")[0].label == (1, 2)


def with_labels(names):
    """A tagger's weights with a row for each name."""
    made, rng = weights.make("token_classification"), np.random.default_rng(1)
    size = weights.CONFIG.hidden_size
    changed = {"classifier.kernel": (size, len(names)), "classifier.bias": (len(names),)}
    drawn = {path: rng.normal(0, 0.5, shape) for path, shape in changed.items()}
    params = made.params | {path: value.astype(np.float32) for path, value in drawn.items()}
    return {"params": params, "labels": dict(enumerate(names))}


GOLD = ["O", "B-X", "I-X", "B-X", "O", "B-X", "O"]  # in IOB2


def tagged_file(tmp_path):
    lines = (f"w{number} {tag}\n" for number, tag in enumerate(GOLD))
    (tmp_path / "dev.conll").write_text("".join(lines))
    return tmp_path / "dev.conll"


@pytest.mark.parametrize(
    ("names", "spelt"),
    [
        ("O B-X I-X", "O B-X I-X B-X O B-X O"),
        ("O I-X B-X I-Y", "O I-X I-X B-X O I-X O"),
        ("O I-X", "O I-X I-X I-X O I-X O"),
        ("B-X I-X E-X S-X O", "O B-X E-X S-X O S-X O"),
    ],
    ids=["iob2", "iob1", "io", "iobes"],
)
def test_the_right_tags_are_spelt_as_the_labels_of_a_tagger(tmp_path, names, spelt):
    names, spelt = names.split(), spelt.split()
    model = imported(tmp_path, "token_classification", **with_labels(names))
    scorer = scorer_of_file(tmp_path, model, tagged_file(tmp_path))
    (row,) = scorer.reader.features("dev").tokens["labels"]
    assert [names[number] for number in row[1:-1]] == spelt
    # Two entities that touch are one where no tag can tell them apart: of 3 none of the two.
    recall = pytest.approx(100 if "B-X" in names else 100 / 3)
    assert scorer.scores("dev", {"predictions": row[None]})["recall"] == recall


def test_a_tagger_is_scored_on_every_word(tmp_path):
    names = ["B-X", "I-X", "E-X", "S-X", "O"]
    model = imported(tmp_path, "token_classification", **with_labels(names))
    (outputs,) = logits(model, [" ".join(f"w{number}" for number in range(len(GOLD)))])
    found = [names[number] for number in outputs["predictions"][1 : 1 + len(GOLD)].tolist()]
    spelt = ["O", "B-X", "E-X", "S-X", "O", "S-X", "O"]
    hits = [one == other for one, other in zip(found, spelt, strict=True)]
    assert scores_of(tmp_path, tagged_file(tmp_path))["accuracy"] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_span_model_is_scored_as_the_version_of_the_file(tmp_path, version):
    model = imported(tmp_path, "question_answering")
    lines = [{"question": f"w{n}", "context": "w5 w6 w7 w8 w9"} for n in range(3)]
    texts = [answer["answer"] for answer in predict.predict(model, lines)]
    qas = [
        {"id": str(n), "question": line["question"], "is_impossible": False}
        | {"answers": [{"text": text, "answer_start": line["context"].index(text)}]}
        for n, (line, text) in enumerate(zip(lines, texts, strict=True))
    ]
    if version == "v2":
        qas[2] |= {"is_impossible": True, "answers": []}
    else:
        qas[2]["answers"] = [{"text": "w5 w6 w7 w8 w9", "answer_start": 0}]
        for qa in qas:
            del qa["is_impossible"]
    paragraph = {"context": lines[0]["context"], "qas": qas}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    scores = scores_of(tmp_path, tmp_path / "dev.json")
    if version == "v2":
        assert scores["HasAns_exact"] + scores["NoAns_exact"] >= 100 and "null_threshold" in scores
    else:
        wanted = 100 * (2 + (texts[2] == "w5 w6 w7 w8 w9")) / 3
        assert scores["exact_match"] == pytest.approx(wanted)


def test_a_head_that_answers_nothing_is_said_to(tmp_path):
    for head in ("pretraining", "none", "next_sentence"):
        with pytest.raises(ValueError, match="task 'pretraining', which was not finetuned: fine"):
            imported(tmp_path / head, head)
