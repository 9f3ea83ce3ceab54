"""Claims about ModernBERT beside transformers with torch: numbers, gradients, files, dialects."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import models  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import formats, names, pretrained  # noqa: E402
from bertjax.convert.families import modernbert  # noqa: E402
from bertjax.models import parameters, plain_attention  # noqa: E402
from tests import small_byte_bpe  # noqa: E402
from tests.interop import beside  # noqa: E402

SIZES = {
    **{"vocab_size": 61, "hidden_size": 18, "num_attention_heads": 3, "intermediate_size": 13},
    **{"num_hidden_layers": 4, "max_position_embeddings": 64},
}
OLD = {"global_attn_every_n_layers": 3, "local_attention": 6}
IDS = {"pad_token_id": 0, **dict.fromkeys(("bos_token_id", "cls_token_id"), 1)}
IDS |= dict.fromkeys(("eos_token_id", "sep_token_id"), 2)
HEADS = tuple(modernbert.ARCHITECTURES)
# What of theirs has the attention that is plain torch.
EAGER = {"attn_implementation": "eager"}


def of_torch(head, folder, **fields):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    count = {"num_labels": beside.LABELS} if head in pretrained.WITH_LABELS else {}
    config = transformers.ModernBertConfig(**SIZES, **OLD, **IDS, **EAGER, **count, **fields)
    model = getattr(transformers, modernbert.ARCHITECTURES[head])(config)
    found = beside.saved(model, folder)
    return model.eval(), found


@pytest.mark.parametrize("head", HEADS)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head):
    theirs, found = of_torch(head, tmp_path / "hf")
    assert (found.head, found.unused, found.family) == (head, (), modernbert.FAMILY)
    assert (found.config.window, found.config.global_every) == (3, 3)
    batch = beside.rows(head)
    if head == "none":
        graphdef = beside.graph_of(models.make_bare, found.config)
        params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
        model = parameters.merge(graphdef, params)
        out = theirs(**beside.inputs_of(batch, segments=False))
        hidden = model.encoder(jax.tree.map(jnp.asarray, batch))
        real = batch["input_mask"] != 0
        expected = out.last_hidden_state.detach().numpy()
        np.testing.assert_allclose(np.asarray(hidden)[real], expected[real], atol=5e-5)
        return
    graphdef = beside.graph_of(beside.MODULES[head], found.config)
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    if head == "question_answering":
        # Its softmax is over padding, too, which sees nothing in a window of ours.
        batch["input_mask"] = np.ones_like(batch["input_mask"])
    wanted = beside.targets(head, batch["input_mask"])
    out, logits, gradient = beside.trained(
        *(theirs, graphdef, params, batch, wanted),
        lambda model, inputs: beside.our_loss(head, model, inputs, wanted),
        segments=False,
    )
    seen = {"labels": batch["input_mask"] != 0} if head in beside.BY_TOKEN else {}
    for name, expected in beside.their_logits(head, out).items():
        where = seen.get(name, ...)
        ours, expected = np.asarray(logits[name]), expected.detach().numpy()
        np.testing.assert_allclose(ours[where], expected[where], atol=2e-4)
    tensors = names.of_head(modernbert.TENSORS, head)
    of_theirs = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    of_theirs = names.parted(of_theirs, modernbert.FUSED)
    got = names.to_theirs(parameters.flat(gradient), tensors)
    assert got.keys() == of_theirs.keys()
    for name, array in got.items():
        expected = of_theirs[name]
        if "tok_embeddings" in name:  # torch gives the row of padding no gradient of its lookup
            array, expected = array[1:], expected[1:]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(array, expected, atol=5e-5 * scale + 1e-6, err_msg=name)


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 16, 17, 33])
def test_hidden_states_are_theirs_at_lengths_around_window_and_block(tmp_path, length, monkeypatch):
    monkeypatch.setattr(plain_attention, "WINDOW_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "QUERY_BLOCK", 8)
    monkeypatch.setattr(plain_attention, "MOST_AT_ONCE", 16)
    theirs, found = of_torch("none", tmp_path / "hf")
    graphdef = beside.graph_of(models.make_bare, found.config)
    model = parameters.merge(graphdef, parameters.nested(jax.tree.map(jnp.asarray, found.params)))
    rng = np.random.default_rng(length)
    ids = rng.integers(3, SIZES["vocab_size"], (2, length))
    mask = np.ones((2, length), np.int64)
    mask[1, length // 2 + 1 :] = 0
    with torch.no_grad():
        out = theirs(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state
    inputs = {"input_ids": jnp.asarray(ids, jnp.int32), "input_mask": jnp.asarray(mask)}
    hidden = np.asarray(model.encoder(inputs))
    real = mask != 0
    np.testing.assert_allclose(hidden[real], out.numpy()[real], atol=1e-4)
    # Two in a row: each is what it is alone.
    packed = {
        "input_ids": jnp.asarray(np.concatenate([ids, ids], axis=1), jnp.int32),
        "sequence_ids": jnp.asarray(np.concatenate([mask, 2 * mask], axis=1), jnp.int32),
    }
    both = np.asarray(model.encoder(packed)).reshape(2, 2, length, -1)
    for place in range(2):
        np.testing.assert_allclose(both[:, place][real], out.numpy()[real], atol=1e-4)


def written(head, vocabulary, folder, **fields):
    """Random weights of ours with the head, as a workdir and as they are written from it."""
    sizes = {**SIZES, "vocab_size": vocabulary.vocab_size}
    more = {"window": 5, "global_every": 2, "rotary_base": 160_000.0, "local_rotary_base": 10_000.0}
    config = models.EncoderConfig(
        **sizes, **{**modernbert.FAMILY.traits, **more}, layer_norm_eps=1e-5
    )
    rng = np.random.default_rng(0)
    labels = {"multiple_choice": 1}.get(head, beside.LABELS)
    made = pretrained.Pretrained(
        config=config,
        params={
            path: rng.normal(size=shape).astype(np.float32)
            for path, shape in pretrained.shapes(config, labels=labels).items()
            if pretrained.is_required(path, head, config.pooler)
        },
        vocabulary=vocabulary,
        head=head,
        labels={0: "no", 1: "yes", 2: "perhaps"} if head in pretrained.WITH_LABELS else {},
        source="a test",
        **fields,
    )
    formats.write(made, folder / "source", format="bertjax")
    program.convert(folder / "source", folder / "hf")
    return made


@pytest.mark.parametrize("head", HEADS)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head):
    made = written(head, small_byte_bpe.vocabulary(), tmp_path)
    assert "A ModernBERT with" in (tmp_path / "hf" / "README.md").read_text()
    model, tokenizer = beside.loaded(beside.AUTO[head], tmp_path / "hf", heard, capfd)
    assert type(model).__name__ == modernbert.ARCHITECTURES[head]
    assert tokenizer.model_max_length == 64
    again = beside.assert_comes_back(model, tokenizer, tmp_path / "again", made, made.params)
    assert again.vocabulary.describe() == made.vocabulary.describe()


def test_both_dialects_of_config_are_written(tmp_path):
    written("masked_lm", small_byte_bpe.vocabulary(), tmp_path)
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert fields["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert (fields["global_attn_every_n_layers"], fields["local_attention"]) == (2, 10)
    assert fields["rope_parameters"]["full_attention"]["rope_theta"] == 160_000.0
    assert (fields["global_rope_theta"], fields["local_rope_theta"]) == (160_000.0, 10_000.0)
    # What text-embeddings-inference wants of a file.
    wanted = {"initializer_cutoff_factor", "norm_bias", "pad_token_id", "cls_token_id"}
    assert wanted | {"bos_token_id", "eos_token_id", "sep_token_id"} <= fields.keys()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_reads_what_theirs_reads(tmp_path, pooling):
    theirs, found = of_torch("sequence_classification", tmp_path / "hf", classifier_pooling=pooling)
    assert found.pooling == pooling
    batch = beside.rows("sequence_classification")
    with torch.no_grad():
        expected = theirs(**beside.inputs_of(batch, segments=False)).logits.numpy()

    def make(config, rngs):
        labels = beside.LABELS
        return models.SequenceClassifier(config, num_labels=labels, pooling=pooling, rngs=rngs)

    graphdef = beside.graph_of(make, found.config)
    model = parameters.merge(graphdef, parameters.nested(jax.tree.map(jnp.asarray, found.params)))
    logits = model(jax.tree.map(jnp.asarray, batch))
    np.testing.assert_allclose(logits, expected, atol=2e-4)
    formats.write(found, tmp_path / "again", format="huggingface")
    again = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path / "again")
    assert again.config.classifier_pooling == pooling
    with torch.no_grad():
        logits = again.eval()(**beside.inputs_of(batch, segments=False)).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_an_encoder_without_windows_is_one_whose_every_layer_is_global(tmp_path):
    made = written("none", small_byte_bpe.vocabulary(), tmp_path)
    config = dataclasses.replace(made.config, window=0, global_every=1)
    formats.write(dataclasses.replace(made, config=config), tmp_path / "all", format="huggingface")
    model = transformers.AutoModel.from_pretrained(tmp_path / "all", **EAGER).eval()
    assert set(getattr(model.config, "layer_types", ["full_attention"])) == {"full_attention"}
    assert formats.read(tmp_path / "all").config == config
    ids = np.random.default_rng(0).integers(3, 61, (2, 30))
    graphdef = beside.graph_of(models.make_bare, config)
    ours = parameters.merge(graphdef, parameters.nested(jax.tree.map(jnp.asarray, made.params)))
    inputs = {"input_ids": jnp.asarray(ids, jnp.int32), "input_mask": jnp.ones((2, 30), jnp.int32)}
    with torch.no_grad():
        expected = model(torch.tensor(ids)).last_hidden_state.numpy()
    np.testing.assert_allclose(ours.encoder(inputs), expected, atol=1e-3)
