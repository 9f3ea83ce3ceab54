"""Claims about ELECTRA beside transformers with torch: numbers, gradients, files."""

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
from bertjax.convert import formats, names  # noqa: E402
from bertjax.convert.families import electra  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from bertjax.tasks import base, pretraining, replaced_tokens  # noqa: E402
from tests.convert import weights  # noqa: E402
from tests.convert.families import test_electra  # noqa: E402

SIZES = {
    **{"vocab_size": 61, "embedding_size": 10, "hidden_size": 15, "num_attention_heads": 3},
    **{"num_hidden_layers": 2, "intermediate_size": 29, "max_position_embeddings": 13},
}
BATCH, LENGTH, LABELS = 4, 11, 3

# Head -> our module with it.
MODELS = {
    "replaced_tokens": replaced_tokens.Discriminator,
    "masked_lm": lambda config, rngs: pretraining.PretrainingModel(
        config, pair_loss="none", rngs=rngs
    ),
    "sequence_classification": lambda config, rngs: models.SequenceClassifier(
        config, num_labels=LABELS, rngs=rngs
    ),
    "token_classification": lambda config, rngs: models.TokenClassifier(
        config, num_labels=LABELS, rngs=rngs
    ),
    "question_answering": models.SpanClassifier,
    "multiple_choice": models.MultipleChoice,
}
AUTO = {
    "replaced_tokens": "AutoModelForPreTraining",
    "masked_lm": "AutoModelForMaskedLM",
    "none": "AutoModel",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}


def of_torch(head, folder, **sizes):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    labels = {"num_labels": LABELS} if head.endswith("classification") else {}
    config = transformers.ElectraConfig(
        **SIZES | sizes, **labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    torch.manual_seed(7)
    model = getattr(transformers, electra.ARCHITECTURES[head])(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.2
            parameter.copy_(1 + noise if name.endswith("Norm.weight") else noise)
    model.save_pretrained(folder)
    found = formats.read(folder)
    assert (found.head, found.unused, found.family) == (head, (), electra.FAMILY)
    return model.train(), found  # the dropout before a classifier is theirs alone: it is 0


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
    if head == "replaced_tokens":
        return {"labels": rng.integers(0, 2, mask.shape)}
    if head == "masked_lm":
        drawn = rng.integers(1, SIZES["vocab_size"], mask.shape)
        return {"labels": np.where((rng.random(mask.shape) < 0.4) & (mask != 0), drawn, -100)}
    if head == "token_classification":
        return {"labels": np.where(mask != 0, rng.integers(0, LABELS, mask.shape), -100)}
    if head == "question_answering":
        return {"start_positions": np.array([1, 2, 0, 3]), "end_positions": np.array([3, 2, 1, 3])}
    return {"labels": rng.integers(0, 2 if head == "multiple_choice" else LABELS, BATCH)}


def our_loss(head, model, batch, wanted):
    """The loss, and logits in their order."""
    if head == "replaced_tokens":
        logits = model.replaced_logits(batch)
        real = batch["input_mask"].astype(jnp.float32)
        found = replaced_tokens._scores(logits, jnp.asarray(wanted["labels"] == 1), real)
        return found["discriminator_loss"].total / real.sum(), logits
    if head == "question_answering":
        outputs = model(batch)
        losses = [
            base.cross_entropy(logits, jnp.asarray(wanted[name])).mean()
            for logits, name in zip(outputs, ("start_positions", "end_positions"), strict=True)
        ]
        return sum(losses) / 2, jnp.stack(outputs, axis=-1)
    if head == "masked_lm":
        positions = jnp.tile(jnp.arange(LENGTH), (BATCH, 1))
        logits = model.mlm_logits(model.encoder(batch), positions)
    else:
        logits = model(batch)
    labels = jnp.asarray(wanted["labels"])
    is_labelled = (labels >= 0).astype(jnp.float32)
    losses = base.cross_entropy(logits, jnp.maximum(labels, 0))
    return (losses * is_labelled).sum() / is_labelled.sum(), logits


@pytest.mark.parametrize(
    ("head", "width"), [*((head, 10) for head in MODELS), ("replaced_tokens", 15)]
)
def test_logits_losses_and_gradients_are_theirs(tmp_path, head, width):
    theirs, found = of_torch(
        head,
        tmp_path / "hf",
        embedding_size=width,
        classifier_dropout=0.0,
        summary_last_dropout=0.0,
    )
    made = nnx.eval_shape(lambda: MODELS[head](found.config, rngs=nnx.Rngs(0)))
    graphdef, params = parameters.split(made)[0], parameters.nested(found.params)
    batch = rows(head)
    mask, wanted = batch["input_mask"], targets(head, batch["input_mask"])
    out = theirs(
        input_ids=torch.tensor(batch["input_ids"]),
        attention_mask=torch.tensor(mask),
        token_type_ids=torch.tensor(batch["segment_ids"]),
        **{
            name: torch.tensor(x).float() if head == "replaced_tokens" else torch.tensor(x)
            for name, x in wanted.items()
        },
    )
    out.loss.backward()

    def objective(params):
        model = parameters.merge(graphdef, params)
        return our_loss(head, model, jax.tree.map(jnp.asarray, batch), wanted)

    params = jax.tree.map(jnp.asarray, params)
    (loss, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
    if head == "question_answering":
        their_logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
    else:
        their_logits = out.logits
    per_token = head in ("replaced_tokens", "masked_lm", "token_classification")
    shown = mask != 0 if per_token else np.ones(logits.shape[:1], bool)
    np.testing.assert_allclose(
        np.asarray(logits)[shown], their_logits.detach().numpy()[shown], rtol=1e-4, atol=1e-4
    )
    of_theirs = dict(theirs.named_parameters())
    got = names.to_theirs(parameters.flat(gradient), names.of_head(electra.TENSORS, head))
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


def loaded(head, directory, heard, capfd):
    """Their model of an export and its tokenizer, of which they say nothing."""
    heard.clear()
    capfd.readouterr()
    model, report = getattr(transformers, AUTO[head]).from_pretrained(
        directory, output_loading_info=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert heard.messages == [] and capfd.readouterr() == ("", "")
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == model.config.architectures[0] == electra.ARCHITECTURES[head]
    return model, tokenizer


@pytest.mark.parametrize("head", [head for head in AUTO if head != "replaced_tokens"])
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head):
    made = weights.make(head)
    made = dataclasses.replace(
        made, config=dataclasses.replace(made.config, **electra.FAMILY.traits)
    )
    formats.write(made, tmp_path / "source", format="bertjax")
    program.convert(tmp_path / "source", tmp_path / "hf")
    model, tokenizer = loaded(head, tmp_path / "hf", heard, capfd)
    if head != "multiple_choice":
        model(**tokenizer("w1 w2", "w3", return_tensors="pt"))
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    # The pooler of a bare model is no part of theirs.
    wanted = {p: a for p, a in made.params.items() if head != "none" or not p.startswith("pooler")}
    again = formats.read(tmp_path / "again")
    assert (again.head, again.config) == (head, made.config)
    assert {path: array.tobytes() for path, array in again.params.items()} == {
        path: array.tobytes() for path, array in wanted.items()
    }


def test_of_one_workdir_both_models_load_without_a_word(tmp_path, heard, capfd):
    formats.write(test_electra.make(), tmp_path / "run", format="bertjax")
    for head in ("replaced_tokens", "masked_lm", "none"):
        program.convert(tmp_path / "run", tmp_path / head, head=head)
        model, _ = loaded(head, tmp_path / head, heard, capfd)
        assert model.config.hidden_size == (64 if head == "masked_lm" else 128)
