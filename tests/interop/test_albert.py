"""Claims about ALBERT beside transformers with torch: numbers, gradients, files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import models  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import formats, names, pretrained  # noqa: E402
from bertjax.convert.families import albert  # noqa: E402
from bertjax.data import sentence_piece  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from tests import small_records  # noqa: E402
from tests.data import test_sentence_piece  # noqa: E402
from tests.interop import beside  # noqa: E402

SIZES = {
    **{"vocab_size": 61, "hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 29},
    **{"embedding_size": 7, "num_hidden_layers": 3, "num_hidden_groups": 1, "inner_group_num": 1},
    **{"max_position_embeddings": 13},
}
# Several groups, layers in a row, embeddings as wide as the layers, erf.
OTHER = SIZES | {
    **{"embedding_size": 15, "num_hidden_layers": 4, "num_hidden_groups": 2},
    **{"inner_group_num": 2, "hidden_act": "gelu"},
}

CASES = [
    ("pretraining", SIZES),
    ("pretraining", OTHER),
    *((head, SIZES) for head in beside.AUTO if head != "pretraining"),
]
IDS = [head if sizes is SIZES else f"{head}-groups" for head, sizes in CASES]


def of_torch(head, sizes, folder):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    count = {"num_labels": beside.LABELS} if head in pretrained.WITH_LABELS else {}
    config = transformers.AlbertConfig(**sizes, **count)
    model = getattr(transformers, albert.ARCHITECTURES[head])(config)
    found = beside.saved(model, folder)
    assert (found.head, found.unused, found.family) == (head, (), albert.FAMILY)
    return model.eval(), found


@pytest.mark.parametrize(
    ("head", "sizes"),
    CASES,
    ids=IDS,
)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head, sizes):
    theirs, found = of_torch(head, sizes, tmp_path / "hf")
    graphdef = beside.graph_of(beside.MODULES[head], found.config)
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    batch = beside.rows(head)
    mask = batch["input_mask"]
    if head == "none":
        model = parameters.merge(graphdef, params)
        out = theirs(**beside.inputs_of(batch), output_hidden_states=True)
        states = model.encoder.hidden_states(jax.tree.map(jnp.asarray, batch))
        assert len(states) == len(out.hidden_states)
        for mine, wanted in zip(states, out.hidden_states, strict=True):
            np.testing.assert_allclose(
                np.asarray(mine)[mask != 0], wanted.detach().numpy()[mask != 0], atol=2e-5
            )
        pooled = out.pooler_output.detach().numpy()
        np.testing.assert_allclose(model.pooler(states[-1][:, 0]), pooled, atol=1e-5)
        return
    wanted = beside.targets(head, mask)
    out, logits, gradient = beside.trained(
        *(theirs, graphdef, params, batch, wanted),
        lambda model, inputs: beside.our_loss(head, model, inputs, wanted),
    )
    for name, expected in beside.their_logits(head, out).items():
        is_by_token = name == "labels" and head in beside.BY_TOKEN
        shown = mask != 0 if is_by_token else np.ones(beside.BATCH, bool)
        expected = expected.detach().numpy()
        np.testing.assert_allclose(np.asarray(logits[name])[shown], expected[shown], atol=1e-4)
    table = names.in_a_row(names.of_head(albert.TENSORS, head), sizes["inner_group_num"])
    beside.assert_gradients(theirs, gradient, table)


@pytest.mark.parametrize(
    ("head", "sizes"),
    CASES,
    ids=IDS,
)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head, sizes):
    sizes = sizes | {"vocab_size": small_records.vocabulary().vocab_size}
    config = models.EncoderConfig(**sizes, embedding_projection="always")
    rng = np.random.default_rng(0)
    labels = {"multiple_choice": 1}.get(head, beside.LABELS)
    made = pretrained.Pretrained(
        config=config,
        params={
            path: rng.normal(size=shape).astype(np.float32)
            for path, shape in pretrained.shapes(config, labels=labels).items()
            if pretrained.is_of_class(path, head)
        },
        vocabulary=small_records.vocabulary(),
        head=head,
        labels={0: "no", 1: "yes", 2: "perhaps"} if head in pretrained.WITH_LABELS else {},
        source="a test",
    )
    formats.write(made, tmp_path / "source", format="bertjax")
    program.convert(tmp_path / "source", tmp_path / "hf")
    assert "An ALBERT with" in (tmp_path / "hf" / "README.md").read_text()
    model, tokenizer = beside.loaded(beside.AUTO[head], tmp_path / "hf", heard, capfd)
    assert type(model).__name__ == albert.ARCHITECTURES[head]
    beside.assert_comes_back(model, tokenizer, tmp_path / "again", made, made.params)


@pytest.mark.parametrize("casing", [{"lowercase": True}, {}], ids=str)
def test_auto_tokenizer_gives_the_ids_of_the_sentencepiece_model(tmp_path, heard, casing):
    model = test_sentence_piece.model(**test_sentence_piece.BERT)
    ours = sentence_piece.SentencePieceTokenizer(model, **casing)
    config = models.EncoderConfig(**SIZES | {"vocab_size": ours.vocab_size})
    made = pretrained.Pretrained(
        config=config,
        params={
            path: np.zeros(shape, np.float32)
            for path, shape in pretrained.shapes(config, labels=1).items()
            if pretrained.is_required(path, "masked_lm")
        },
        vocabulary=ours,
        head="masked_lm",
        labels={},
        source="a test",
    )
    formats.write(made, tmp_path / "hf", format="huggingface")
    assert (tmp_path / "hf" / "spiece.model").exists()
    heard.clear()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert heard.messages == []
    for text in [*test_sentence_piece.LINES[:3], "  Élan  ﬁ ① [MASK]!", "the\nrunner ran 博推", ""]:
        wanted = [ours.cls_id, *ours.encode_with_masks(text), ours.sep_id]
        assert theirs(text)["input_ids"] == wanted, ascii(text)
    pair = theirs("the runner", "ran home")
    assert sum(pair["token_type_ids"]) == len(ours.encode("ran home")) + 1
    roles = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id)
    assert (*roles, theirs.mask_token_id) == ours.special_ids
    again = formats.read(tmp_path / "hf")
    assert again.vocabulary.describe() == ours.describe()
