"""Claims about ELECTRA beside transformers with torch: numbers, gradients, files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import formats, names  # noqa: E402
from bertjax.convert.families import electra  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from bertjax.tasks import replaced_tokens  # noqa: E402
from tests.convert import weights  # noqa: E402
from tests.convert.families import test_electra  # noqa: E402
from tests.interop import beside, exports  # noqa: E402

SIZES = {
    **{"vocab_size": 61, "embedding_size": 10, "hidden_size": 15, "num_attention_heads": 3},
    **{"num_hidden_layers": 2, "intermediate_size": 29, "max_position_embeddings": 13},
}
# Head -> our module with it.
MODULES = {
    **{
        head: beside.MODULES[head] for head in beside.MODULES if head not in ("pretraining", "none")
    },
    "replaced_tokens": replaced_tokens.Discriminator,
}
AUTO = {head: exports.AUTO[head] for head in (*beside.MODULES, "replaced_tokens")}


def of_torch(head, folder, **sizes):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    labels = {"num_labels": beside.LABELS} if head.endswith("classification") else {}
    config = transformers.ElectraConfig(
        **SIZES | sizes, **labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = getattr(transformers, electra.ARCHITECTURES[head])(config)
    found = beside.saved(model, folder)
    assert (found.head, found.unused, found.family) == (head, (), electra.FAMILY)
    return model.train(), found  # the dropout before a classifier is theirs alone: it is 0


def replaced_loss(model, batch, labels):
    """The discriminator's loss, and its logits."""
    logits = model.replaced_logits(batch)
    real = batch["input_mask"].astype(jnp.float32)
    found = replaced_tokens._scores(logits, jnp.asarray(labels == 1), real, None)
    return found["discriminator_loss"].total / real.sum(), {"labels": logits}


@pytest.mark.parametrize(
    ("head", "width"), [*((head, 10) for head in MODULES), ("replaced_tokens", 15)]
)
def test_logits_losses_and_gradients_are_theirs(tmp_path, head, width):
    theirs, found = of_torch(
        head,
        tmp_path / "hf",
        embedding_size=width,
        classifier_dropout=0.0,
        summary_last_dropout=0.0,
    )
    graphdef = beside.graph_of(MODULES[head], found.config)
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    batch = beside.rows(head)
    mask = batch["input_mask"]
    if head == "replaced_tokens":
        labels = np.random.default_rng(4).integers(0, 2, mask.shape)
        wanted = {"labels": torch.tensor(labels).float()}
        loss = lambda model, inputs: replaced_loss(model, inputs, labels)  # noqa: E731
    else:
        wanted = beside.targets(head, mask)
        loss = lambda model, inputs: beside.our_loss(head, model, inputs, wanted)  # noqa: E731
    out, logits, gradient = beside.trained(theirs, graphdef, params, batch, wanted, loss)
    is_by_token = head in (*beside.BY_TOKEN, "replaced_tokens")
    shown = mask != 0 if is_by_token else np.ones(beside.BATCH, bool)
    for name, expected in beside.their_logits(head, out).items():
        got, expected = np.asarray(logits[name]), expected.detach().numpy()
        np.testing.assert_allclose(got[shown], expected[shown], rtol=1e-4, atol=1e-4)
    beside.assert_gradients(theirs, gradient, names.of_head(electra.TENSORS, head))


def loaded(head, directory, heard, capfd):
    """Their model of an export and its tokenizer, of which they say nothing."""
    model, tokenizer = beside.loaded(AUTO[head], directory, heard, capfd)
    assert type(model).__name__ == electra.ARCHITECTURES[head]
    return model, tokenizer


@pytest.mark.parametrize("head", [head for head in beside.AUTO if head != "pretraining"])
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
    # The pooler of a bare model is no part of theirs.
    wanted = {p: a for p, a in made.params.items() if head != "none" or not p.startswith("pooler")}
    beside.assert_comes_back(model, tokenizer, tmp_path / "again", made, wanted)


def test_of_one_workdir_both_models_load_without_a_word(tmp_path, heard, capfd):
    formats.write(test_electra.make(), tmp_path / "run", format="bertjax")
    for head in ("replaced_tokens", "masked_lm", "none"):
        program.convert(tmp_path / "run", tmp_path / head, head=head)
        model, _ = loaded(head, tmp_path / head, heard, capfd)
        assert model.config.hidden_size == (64 if head == "masked_lm" else 128)
