"""Claims about finetuned models in transformers: they answer what `predict` answers here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import inference, predict
from bertjax.convert import __main__ as program
from bertjax.models import parameters
from tests import finetuned_workdir, lazily

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

WORDS = [f"w{number}" for number in range(20)]


@pytest.fixture
def exported(tmp_path):
    """Returns our model and, from its export, transformers' model and tokenizer."""

    def make(dataset, name, **options):
        finetuned_workdir.write(tmp_path / "run", dataset, **options)
        program.convert(tmp_path / "run", tmp_path / "hf")
        model = getattr(transformers, name).from_pretrained(
            tmp_path / "hf", attn_implementation="eager"
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
        return inference.load_finetuned(tmp_path / "run"), model.eval(), tokenizer

    return make


def answer(ours, line):
    (found,) = predict.predict(ours, [line], batch_size=1)
    return found


ENDINGS = ["w3", "w4 w5", "w6", "w7 w8 w9"]
# The class and what predict is given, as their tokenizer is given it; options of the workdir.
PAIRS = [
    (
        *("glue", "SequenceClassification", {"sentence1": "w1 w2", "sentence2": "w3 w4 w5"}),
        *(("w1 w2", "w3 w4 w5"), {"lora_rank": 2}),
    ),
    (
        *("swag", "MultipleChoice", {"context": "w1 w2", "endings": ENDINGS}),
        *((["w1 w2"] * 4, ENDINGS), {}),
    ),
]


@pytest.mark.parametrize(("dataset", "name", "line", "texts", "options"), PAIRS)
def test_pairs_of_texts_have_the_same_probabilities(exported, dataset, name, line, texts, options):
    ours, theirs, tokenizer = exported(dataset, f"AutoModelFor{name}", **options)
    inputs = tokenizer(*texts, return_tensors="pt", padding=True)
    if dataset == "swag":
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        logits = theirs(**inputs).logits[0]
    found, best, wanted = answer(ours, line), int(logits.argmax()), logits.softmax(-1).numpy()
    if dataset == "swag":
        assert found["choice"] == best
        np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-4)
    else:
        assert found["label"] == theirs.config.id2label[best]
        np.testing.assert_allclose(list(found["probabilities"].values()), wanted, atol=1e-4)


def test_several_labels_have_the_same_probabilities_in_their_pipeline(exported):
    ours, theirs, tokenizer = exported(
        "table", "AutoModelForSequenceClassification", is_multi_label=True
    )
    classify = transformers.pipeline(
        "text-classification", model=theirs, tokenizer=tokenizer, top_k=None
    )
    wanted = {it["label"]: it["score"] for it in classify(["w1 w2 w3"])[0]}
    found = answer(ours, {"text": "w1 w2 w3"})["probabilities"]
    assert found == pytest.approx(wanted, abs=1e-4)
    inputs = tokenizer("w1 w2 w3", return_tensors="pt")
    loss = theirs(**inputs, labels=torch.tensor([[1.0, 0.0, 1.0]])).loss
    batch = {"input_ids": inputs["input_ids"], "input_mask": inputs["attention_mask"]}
    batch["segment_ids"] = inputs["token_type_ids"]
    batch = {name: np.asarray(rows) for name, rows in batch.items()}
    batch |= {"labels": np.float32([[1, 0, 1]]), "example_weights": np.ones(1, np.float32)}
    module = parameters.merge(ours.graphdef, jax.tree.map(jnp.asarray, ours.params))
    mine = ours.task.loss(module, jax.tree.map(jnp.asarray, batch), key=None)["loss"]
    assert mine.value() == pytest.approx(float(loss.detach()), rel=1e-4)


def test_a_regression_gives_its_number_in_their_pipeline(exported):
    ours, theirs, tokenizer = exported(
        "table", "AutoModelForSequenceClassification", is_regression=True
    )
    classify = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer)
    wanted = classify("w1 w2 w3")[0]["score"]
    assert answer(ours, {"text": "w1 w2 w3"})["prediction"] == pytest.approx(wanted, abs=1e-4)
    assert not 0 <= wanted <= 1  # so it is not a sigmoid


def test_words_have_the_same_tags(exported):
    ours, theirs, tokenizer = exported("conll", "AutoModelForTokenClassification")
    with torch.no_grad():
        logits = theirs(**tokenizer(" ".join(WORDS), return_tensors="pt")).logits[0, 1:-1]
    wanted = [theirs.config.id2label[int(place)] for place in logits.argmax(-1)]
    assert answer(ours, {"words": WORDS})["tags"] == wanted
    assert len(set(wanted)) > 1


def test_a_question_has_the_same_best_span(exported):
    ours, theirs, tokenizer = exported("squad", "AutoModelForQuestionAnswering")
    context = "W5, w6 w7; w8 w9 w10"
    inputs = tokenizer("w1 w2", context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        out = theirs(**inputs)
    start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
    places = np.flatnonzero(inputs["token_type_ids"][0].numpy())[:-1]
    first, last = max(
        ((a, b) for a in places for b in places if b >= a), key=lambda it: start[it[0]] + end[it[1]]
    )
    wanted = context[offsets[first][0] : offsets[last][1]]
    assert answer(ours, {"question": "w1 w2", "context": context})["answer"] == wanted
