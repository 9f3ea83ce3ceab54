"""Claims about RoBERTa and its kin beside transformers with torch: numbers, gradients, files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import models  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import families, formats, names, pretrained  # noqa: E402
from bertjax.convert.families import bert, roberta  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from tests import small_byte_bpe  # noqa: E402
from tests.interop import beside  # noqa: E402

SIZES = {
    **{"vocab_size": 61, "hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 29},
    **{"num_hidden_layers": 2, "max_position_embeddings": 13 + 2, "type_vocab_size": 1},
    **{"layer_norm_eps": 1e-5},
}
HEADS = tuple(roberta.ARCHITECTURES)
CONFIGS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}


def of_torch(head, folder, kind="Roberta"):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    count = {"num_labels": beside.LABELS} if head in pretrained.WITH_LABELS else {}
    made = getattr(transformers, f"{kind}Config")(**SIZES, **count)
    model = getattr(transformers, bert.classes(kind)[head])(made)
    found = beside.saved(model, folder)
    return model.eval(), found


@pytest.mark.parametrize("head", HEADS)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head):
    theirs, found = of_torch(head, tmp_path / "hf")
    assert (found.head, found.unused, found.family) == (head, (), roberta.FAMILY)
    graphdef = beside.graph_of(beside.MODULES[head], found.config)
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    batch = beside.rows(head, padding=1)  # with segments, of which there is one
    if head == "none":
        model = parameters.merge(graphdef, params)
        out = theirs(**beside.inputs_of(batch, segments=False), output_hidden_states=True)
        states = model.encoder.hidden_states(jax.tree.map(jnp.asarray, batch))
        for mine, wanted in zip(states, out.hidden_states, strict=True):
            # At padding, too: it has its row of positions.
            np.testing.assert_allclose(mine, wanted.detach().numpy(), atol=2e-5)
        pooled = out.pooler_output.detach().numpy()
        np.testing.assert_allclose(model.pooler(states[-1][:, 0]), pooled, atol=1e-5)
        return
    wanted = beside.targets(head, batch["input_mask"])
    out, logits, gradient = beside.trained(
        *(theirs, graphdef, params, batch, wanted),
        lambda model, inputs: beside.our_loss(head, model, inputs, wanted),
        segments=False,
    )
    for name, expected in beside.their_logits(head, out).items():
        np.testing.assert_allclose(logits[name], expected.detach().numpy(), atol=1e-4)
    tensors = names.of_head(roberta.TENSORS, head)
    got = beside.assert_gradients(theirs, gradient, tensors, reads_padding=True)
    table = got["roberta.embeddings.position_embeddings.weight"]
    assert (table[:2] == 0).all() and (np.abs(table[2 : 2 + beside.LENGTH]) > 0).all()


def test_positions_of_rows_padded_in_front_are_theirs_where_they_are_told(tmp_path):
    theirs, found = of_torch("none", tmp_path / "hf")
    batch = {
        name: np.roll(array, 3, axis=1) for name, array in beside.rows("none", padding=1).items()
    }
    batch["input_ids"] = np.where(
        batch["input_mask"] != 0, batch["input_ids"] + (batch["input_ids"] == 1), 1
    )
    mask = batch["input_mask"]
    with torch.no_grad():
        out = theirs(torch.tensor(batch["input_ids"]), attention_mask=torch.tensor(mask))
    graphdef = beside.graph_of(beside.MODULES["none"], found.config)
    model = parameters.merge(graphdef, parameters.nested(jax.tree.map(jnp.asarray, found.params)))
    inputs = {"input_ids": batch["input_ids"], "sequence_ids": mask}
    hidden = model.encoder(jax.tree.map(jnp.asarray, inputs))
    real = mask != 0
    expected = out.last_hidden_state.numpy()
    np.testing.assert_allclose(np.asarray(hidden)[real], expected[real], atol=2e-5)


def written(head, vocabulary, folder):
    """Random weights of ours with the head, as a workdir and as they are written from it."""
    config = models.EncoderConfig(
        **SIZES | {"vocab_size": vocabulary.vocab_size, "max_position_embeddings": 64},
        position_offset=2,
        initializer="normal",
    )
    rng = np.random.default_rng(0)
    labels = {"multiple_choice": 1}.get(head, beside.LABELS)
    made = pretrained.Pretrained(
        config=config,
        params={
            path: rng.normal(size=shape).astype(np.float32)
            for path, shape in pretrained.shapes(config, labels=labels).items()
            if pretrained.is_of_class(path, head)
        },
        vocabulary=vocabulary,
        head=head,
        labels={0: "no", 1: "yes", 2: "perhaps"} if head in pretrained.WITH_LABELS else {},
        source="a test",
    )
    formats.write(made, folder / "source", format="bertjax")
    program.convert(folder / "source", folder / "hf")
    return made


@pytest.mark.parametrize("head", HEADS)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head):
    made = written(head, small_byte_bpe.vocabulary(), tmp_path)
    assert "A RoBERTa with" in (tmp_path / "hf" / "README.md").read_text()
    model, tokenizer = beside.loaded(beside.AUTO[head], tmp_path / "hf", heard, capfd)
    assert type(model).__name__ == roberta.ARCHITECTURES[head]
    assert model.config.max_position_embeddings == 66 and tokenizer.model_max_length == 64
    again = beside.assert_comes_back(model, tokenizer, tmp_path / "again", made, made.params)
    assert again.vocabulary.describe() == made.vocabulary.describe()


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_its_kin_is_read_and_written_as_what_it_is(tmp_path, kind):
    theirs, found = of_torch("sequence_classification", tmp_path / "hf", CONFIGS[kind])
    assert (found.family.model_type, found.head) == (kind, "sequence_classification")
    formats.write(found, tmp_path / "again", format="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "again")
    ours, mine = theirs.state_dict(), again.state_dict()
    assert ours.keys() == mine.keys()
    assert all(torch.equal(ours[name], mine[name]) for name in ours)
    assert families.named(kind).title in str(found.family.title)


@pytest.mark.parametrize("prefix", [False, True])
def test_auto_tokenizer_gives_our_ids(tmp_path, prefix):
    ours = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    written("masked_lm", ours, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [
        "",
        " ",
        "The runner, ran\n\n to  the 博 tree!",
        "the <mask> ran<mask>.",
        "don't \ufffd",
    ]
    for text in texts:
        wanted = [ours.cls_id, *ours.encode_with_masks(text), ours.sep_id]
        assert theirs(text)["input_ids"] == wanted, ascii(text)
    pair = theirs("the runner", "ran home")["input_ids"]
    a, b = ours.encode("the runner"), ours.encode("ran home")
    assert pair == [0, *a, 2, 2, *b, 2]
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
    assert theirs.decode(ours.encode("the runner ran")).strip() == "the runner ran"


def test_a_released_roberta_is_read_as_it_is_configured(tmp_path):
    theirs = transformers.RobertaConfig()
    # What the released files say, where the class's defaults are others.
    theirs.update({"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5})
    theirs.save_pretrained(tmp_path)
    from bertjax import recipes
    from bertjax.convert import huggingface_config

    read = huggingface_config.read_config(tmp_path).encoder
    recipe = recipes.load("roberta:base").model.to_dict() | {"dtype": "float32", "attention": "xla"}
    assert dataclasses.asdict(read) == recipe
