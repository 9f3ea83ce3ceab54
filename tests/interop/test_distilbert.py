"""Claims about DistilBERT beside transformers with torch: numbers, gradients, files."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import models  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import formats, names, pretrained  # noqa: E402
from bertjax.convert.families import distilbert  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from bertjax.tasks import base, pretraining  # noqa: E402
from tests.convert import weights  # noqa: E402

SIZES = {"vocab_size": 61, "dim": 15, "n_heads": 3, "n_layers": 3, "hidden_dim": 29}
BATCH, LENGTH, LABELS = 4, 11, 3

# Head -> class, and our module with it.
MODELS = {
    "masked_lm": ("DistilBertForMaskedLM", None),
    "none": ("DistilBertModel", models.make_bare),
    "sequence_classification": (
        "DistilBertForSequenceClassification",
        lambda config, rngs: models.SequenceClassifier(config, num_labels=LABELS, rngs=rngs),
    ),
    "token_classification": (
        "DistilBertForTokenClassification",
        lambda config, rngs: models.TokenClassifier(config, num_labels=LABELS, rngs=rngs),
    ),
    "question_answering": ("DistilBertForQuestionAnswering", models.SpanClassifier),
    "multiple_choice": ("DistilBertForMultipleChoice", models.MultipleChoice),
}
AUTO = {
    "masked_lm": "AutoModelForMaskedLM",
    "none": "AutoModel",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}


def of_torch(head, folder):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    labels = {} if head in ("question_answering", "multiple_choice") else {"num_labels": LABELS}
    config = transformers.DistilBertConfig(
        **SIZES, **labels, max_position_embeddings=13, sinusoidal_pos_embds=head == "none"
    )
    torch.manual_seed(7)
    model = getattr(transformers, MODELS[head][0])(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.2
            parameter.copy_(1 + noise if name.endswith("norm.weight") else noise)
    model.save_pretrained(folder)
    found = formats.read(folder)
    assert (found.head, found.unused, found.family) == (head, (), distilbert.FAMILY)
    return model.eval(), found


def ours(found, head):
    make = MODELS[head][1]
    if make is None:
        made = pretraining.PretrainingModel(found.config, pair_loss="none", rngs=nnx.Rngs(0))
    else:
        made = make(found.config, rngs=nnx.Rngs(0))
    return parameters.split(made)[0], parameters.nested(jax.tree.map(jnp.asarray, found.params))


def rows(head):
    rng = np.random.default_rng(3)
    outer = (BATCH, 2) if head == "multiple_choice" else (BATCH,)
    lengths = rng.integers(4, LENGTH, (*outer, 1))
    lengths.flat[0] = LENGTH
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    ids = rng.integers(1, SIZES["vocab_size"], mask.shape) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": rng.integers(0, 2, mask.shape)}


def targets(head, mask):
    """Labels as transformers takes them, -100 where there are none."""
    rng = np.random.default_rng(4)
    if head == "masked_lm":
        drawn = rng.integers(1, SIZES["vocab_size"], mask.shape)
        return {"labels": np.where((rng.random(mask.shape) < 0.4) & (mask != 0), drawn, -100)}
    if head == "token_classification":
        return {"labels": np.where(mask != 0, rng.integers(0, LABELS, mask.shape), -100)}
    if head == "question_answering":
        return {"start_positions": np.array([1, 2, 0, 3]), "end_positions": np.array([3, 2, 1, 3])}
    most = 2 if head == "multiple_choice" else LABELS
    return {"labels": rng.integers(0, most, BATCH)}


def our_loss(head, model, inputs, wanted):
    if head == "masked_lm":
        positions = jnp.tile(jnp.arange(LENGTH), (BATCH, 1))
        logits = model.mlm_logits(model.encoder(inputs), positions)
    elif head == "question_answering":
        outputs = model(inputs)
        losses = [
            base.cross_entropy(logits, jnp.asarray(wanted[name])).mean()
            for logits, name in zip(outputs, ("start_positions", "end_positions"), strict=True)
        ]
        return sum(losses) / 2, jnp.stack(outputs, axis=-1)
    else:
        logits = model(inputs)
    labels = jnp.asarray(wanted["labels"])
    is_labelled = (labels >= 0).astype(jnp.float32)
    losses = base.cross_entropy(logits, jnp.maximum(labels, 0))
    return (losses * is_labelled).sum() / is_labelled.sum(), logits


@pytest.mark.parametrize("head", MODELS)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head):
    theirs, found = of_torch(head, tmp_path / "hf")
    graphdef, params = ours(found, head)
    batch = rows(head)
    mask = batch["input_mask"]
    inputs = {"input_ids": torch.tensor(batch["input_ids"]), "attention_mask": torch.tensor(mask)}
    if head == "none":
        model = parameters.merge(graphdef, params)
        wanted = theirs(**inputs).last_hidden_state.detach().numpy()
        got = np.asarray(model.encoder(jax.tree.map(jnp.asarray, batch)))
        np.testing.assert_allclose(got[mask != 0], wanted[mask != 0], atol=2e-5)
        return
    wanted = targets(head, mask)
    out = theirs(**inputs, **{name: torch.tensor(x) for name, x in wanted.items()})
    out.loss.backward()

    def objective(params):
        model = parameters.merge(graphdef, params)
        return our_loss(head, model, jax.tree.map(jnp.asarray, batch), wanted)

    (loss, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
    if head == "question_answering":
        their_logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
    else:
        their_logits = out.logits
    per_token = head in ("masked_lm", "token_classification")
    shown = mask != 0 if per_token else np.ones(logits.shape[:1], bool)
    np.testing.assert_allclose(
        np.asarray(logits)[shown], their_logits.detach().numpy()[shown], rtol=1e-4, atol=1e-4
    )
    table = names.of_head(distilbert.TENSORS, head)
    of_theirs = dict(theirs.named_parameters())
    got = names.to_theirs(parameters.flat(gradient), table)
    assert got.keys() == of_theirs.keys()
    for name, array in got.items():
        expected = of_theirs[name].grad.numpy().copy()
        if name.endswith("word_embeddings.weight"):
            # torch gives the row of padding_idx no gradient of its lookup; nothing reads it here.
            array, expected = array[1:], expected[1:]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(array, expected, atol=2e-5 * scale + 1e-6, err_msg=name)


@pytest.fixture
def heard(caplog):
    """Whatever transformers logs; it hands nothing on to the root logger."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    transformers.utils.logging.disable_progress_bar()
    yield caplog
    transformers.utils.logging.enable_progress_bar()
    logger.removeHandler(caplog.handler)


def small(head):
    """Random weights of ours as a DistilBERT's, with a vocabulary."""
    made = weights.make(head)
    config = dataclasses.replace(made.config, **distilbert.FAMILY.traits)
    params = {path: array for path, array in made.params.items() if "segment" not in path}
    return dataclasses.replace(made, config=config, params=params)


@pytest.mark.parametrize("head", AUTO)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head):
    made = small(head)
    formats.write(made, tmp_path / "source", format="bertjax")
    program.convert(tmp_path / "source", tmp_path / "hf")
    assert "A DistilBERT with" in (tmp_path / "hf" / "README.md").read_text()
    heard.clear()
    capfd.readouterr()
    model, report = getattr(transformers, AUTO[head]).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert heard.messages == [] and capfd.readouterr() == ("", "")
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == model.config.architectures[0] == MODELS[head][0]
    encoded = tokenizer("w1 w2", "w3", return_tensors="pt")
    assert encoded.keys() == {"input_ids", "attention_mask"}
    if head != "multiple_choice":
        model(**encoded)
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    # The pooler of a bare model is no part of theirs.
    wanted = {p: a for p, a in made.params.items() if head != "none" or not p.startswith("pooler")}
    again = formats.read(tmp_path / "again")
    assert (again.head, again.config) == (head, made.config)
    assert {path: array.tobytes() for path, array in again.params.items()} == {
        path: array.tobytes() for path, array in wanted.items()
    }


def test_a_model_with_a_pooler_is_no_other_model_of_theirs(tmp_path):
    """Whatever the head leaves out of a classifier, its class has no pre_classifier."""
    formats.write(small("sequence_classification"), tmp_path / "source", format="huggingface")
    program.convert(tmp_path / "source", tmp_path / "hf", head="none")
    _, report = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys"))


def test_heads_that_it_lacks_are_refused_with_those_that_it_has(tmp_path):
    made = small("pretraining")
    with pytest.raises(ValueError, match="'pretraining'; known of DistilBERT are masked_lm, none"):
        formats.write(made, tmp_path / "hf", format="huggingface")
    assert pretrained.select(made, "masked_lm").family is distilbert.FAMILY
