"""Claims about DistilBERT beside transformers with torch: numbers, gradients, files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import models  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import formats, names, pretrained  # noqa: E402
from bertjax.convert.families import distilbert  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from tests.convert import weights  # noqa: E402
from tests.interop import beside  # noqa: E402

SIZES = {"vocab_size": 61, "dim": 15, "n_heads": 3, "n_layers": 3, "hidden_dim": 29}
HEADS = [head for head in beside.AUTO if head != "pretraining"]
MODULES = {**beside.MODULES, "none": models.make_bare}


def of_torch(head, folder):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    with_labels = head not in ("question_answering", "multiple_choice")
    labels = {"num_labels": beside.LABELS} if with_labels else {}
    config = transformers.DistilBertConfig(
        **SIZES, **labels, max_position_embeddings=13, sinusoidal_pos_embds=head == "none"
    )
    model = getattr(transformers, distilbert.ARCHITECTURES[head])(config)
    found = beside.saved(model, folder)
    assert (found.head, found.unused, found.family) == (head, (), distilbert.FAMILY)
    return model.eval(), found


@pytest.mark.parametrize("head", HEADS)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head):
    theirs, found = of_torch(head, tmp_path / "hf")
    graphdef = beside.graph_of(MODULES[head], found.config)
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    batch = beside.rows(head)
    mask = batch["input_mask"]
    if head == "none":
        model = parameters.merge(graphdef, params)
        inputs = beside.inputs_of(batch, segments=False)
        wanted = theirs(**inputs).last_hidden_state.detach().numpy()
        got = np.asarray(model.encoder(jax.tree.map(jnp.asarray, batch)))
        np.testing.assert_allclose(got[mask != 0], wanted[mask != 0], atol=2e-5)
        return
    wanted = beside.targets(head, mask)
    out, logits, gradient = beside.trained(
        *(theirs, graphdef, params, batch, wanted),
        lambda model, inputs: beside.our_loss(head, model, inputs, wanted),
        segments=False,
    )
    shown = mask != 0 if head in beside.BY_TOKEN else np.ones(beside.BATCH, bool)
    for name, expected in beside.their_logits(head, out).items():
        got, expected = np.asarray(logits[name]), expected.detach().numpy()
        np.testing.assert_allclose(got[shown], expected[shown], rtol=1e-4, atol=1e-4)
    beside.assert_gradients(theirs, gradient, names.of_head(distilbert.TENSORS, head))


def small(head):
    """Random weights of ours as a DistilBERT's, with a vocabulary."""
    made = weights.make(head)
    config = dataclasses.replace(made.config, **distilbert.FAMILY.traits)
    params = {path: array for path, array in made.params.items() if "segment" not in path}
    return dataclasses.replace(made, config=config, params=params)


@pytest.mark.parametrize("head", HEADS)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head):
    made = small(head)
    formats.write(made, tmp_path / "source", format="bertjax")
    program.convert(tmp_path / "source", tmp_path / "hf")
    assert "A DistilBERT with" in (tmp_path / "hf" / "README.md").read_text()
    model, tokenizer = beside.loaded(beside.AUTO[head], tmp_path / "hf", heard, capfd)
    assert type(model).__name__ == distilbert.ARCHITECTURES[head]
    encoded = tokenizer("w1 w2", "w3", return_tensors="pt")
    assert encoded.keys() == {"input_ids", "attention_mask"}
    if head != "multiple_choice":
        model(**encoded)
    # The pooler of a bare model is no part of theirs.
    wanted = {p: a for p, a in made.params.items() if head != "none" or not p.startswith("pooler")}
    beside.assert_comes_back(model, tokenizer, tmp_path / "again", made, wanted)


def test_a_model_with_a_pooler_is_no_other_model_of_theirs(tmp_path):
    """Whatever the head leaves out of a classifier, its class has no pre_classifier."""
    formats.write(small("sequence_classification"), tmp_path / "source", format="huggingface")
    program.convert(tmp_path / "source", tmp_path / "hf", head="none")
    _, report = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys"))


def test_heads_that_it_lacks_are_refused_with_those_that_it_has(tmp_path):
    made = small("pretraining")
    with pytest.raises(
        ValueError,
        match=r"nearest: DistilBERT has no class for the head 'pretraining' \(known: masked_lm,",
    ):
        formats.write(made, tmp_path / "hf", format="huggingface")
    assert pretrained.select(made, "masked_lm").family is distilbert.FAMILY
