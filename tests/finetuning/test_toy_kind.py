"""Another kind of finetuning is one file and one row of a table: here is one, and nothing else.

The programs of all kinds train it, evaluate it, ask it and export it.
"""

import json

import numpy as np
import pytest

from bertjax import evaluate, finetuning, inference, predict, train
from bertjax.convert import __main__ as convert
from bertjax.finetuning import base, feature_sets, texts
from bertjax.training import config_faults
from tests import small_datasets

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

LABELS = ("other", "reversed")


class ReversalReader(base.Reader):
    """Whether the words of one text are those of another from behind; it makes its own examples."""

    labels = LABELS
    text_keys = ("words", "backwards")
    evaluation_sets = ("dev",)
    test_sets = ("riddles",)

    def missing(self):
        return iter(())

    def _examples(self, name):
        rng = np.random.default_rng(len(name))
        examples = []
        for number in range(24):
            words = [f"w{word}" for word in rng.integers(0, 90, 4)]
            other = words[::-1] if number % 2 else words
            pair = " ".join(words), " ".join(other)
            examples.append(feature_sets.TextExample(pair, number % 2, f"{name}:{number}"))
        return examples

    def rows(self, examples):
        length = self.options.max_seq_length
        return feature_sets.text_rows(examples, self.tokenizer, max_seq_length=length)


class ReversalScorer(base.Scorer):
    best_score = "accuracy"

    def scores(self, name, outputs):
        right = self.reader.features(name).columns["labels"] == outputs["predictions"]
        return {"accuracy": float(right.mean())}

    def predictions(self, predicted):
        numbers = predicted.outputs["predictions"].tolist()
        return [{"is_reversed": number == 1} for number in numbers]


REVERSALS = base.FinetuningKind(
    ReversalReader,
    lambda encoder, options: texts.Classification(encoder, len(options.labels)),
    ReversalScorer,
)


@pytest.fixture
def config(tmp_path, source):
    made = small_datasets.make_config(tmp_path / "unused", "table", source)
    files = dict.fromkeys(("train_file", "eval_file", "test_file"), "")
    made.finetuning.update(dataset="reversals", num_epochs=1.0, **files)
    return made


@pytest.mark.slow
def test_another_kind_needs_a_row_of_the_table_and_nothing_more(tmp_path, config, monkeypatch):
    with pytest.raises(ValueError, match="dataset is 'reversals'; known are glue, table, squad"):
        config_faults.validate(config)
    monkeypatch.setitem(finetuning.KINDS, "reversals", REVERSALS)
    config_faults.validate(config)
    run = tmp_path / "run"
    assert int(train.train(config, run).step) == 3
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 <= lines[-1]["eval/dev/accuracy"] <= 1
    scores = evaluate.evaluate_checkpoint(str(run), "no file", batch_size=8)
    assert scores["examples"] == 24
    assert scores["accuracy"] == pytest.approx(lines[-1]["eval/dev/accuracy"])
    lines = (run / "predictions" / "riddles.jsonl").read_text().splitlines()
    answers = [json.loads(line)["is_reversed"] for line in lines]
    assert len(answers) == 24 and set(answers) <= {False, True}

    model = inference.load_finetuned(run)
    riddles = ReversalReader(model.options, model.vocabulary).examples("riddles")
    asked = [{"words": words, "backwards": back} for words, back in (r.texts for r in riddles)]
    told = list(predict.predict(model, asked, batch_size=8))
    assert [it["is_reversed"] for it in told] == answers
    with pytest.raises(ValueError, match="line 1: the key 'backwards' is missing"):
        list(predict.predict(model, [{"words": "w1"}]))

    convert.convert(run, tmp_path / "exported")
    exported = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert exported["architectures"] == ["BertForSequenceClassification"]
    assert exported["id2label"] == {"0": "other", "1": "reversed"}
