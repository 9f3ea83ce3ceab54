"""Claims about ALBERT beside transformers with torch: numbers, gradients, files."""

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
from bertjax.convert.families import albert  # noqa: E402
from bertjax.data import sentence_piece  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from bertjax.tasks import base, pretraining  # noqa: E402
from tests import small_records  # noqa: E402
from tests.data import test_sentence_piece  # noqa: E402
from tests.interop.test_distilbert import heard  # noqa: E402, F401  a fixture

BATCH, LENGTH, LABELS = 4, 11, 3
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

# Head -> class, how it is found, and our module with it.
MODELS = {
    "pretraining": (
        "AlbertForPreTraining",
        "AutoModelForPreTraining",
        lambda config, rngs: pretraining.PretrainingModel(config, pair_loss="sop", rngs=rngs),
    ),
    "masked_lm": (
        "AlbertForMaskedLM",
        "AutoModelForMaskedLM",
        lambda config, rngs: pretraining.PretrainingModel(config, pair_loss="none", rngs=rngs),
    ),
    "none": (
        "AlbertModel",
        "AutoModel",
        lambda config, rngs: nnx.Dict(
            encoder=models.make_encoder(config, rngs=rngs), pooler=models.Pooler(config, rngs=rngs)
        ),
    ),
    "sequence_classification": (
        "AlbertForSequenceClassification",
        "AutoModelForSequenceClassification",
        lambda config, rngs: models.SequenceClassifier(config, num_labels=LABELS, rngs=rngs),
    ),
    "token_classification": (
        "AlbertForTokenClassification",
        "AutoModelForTokenClassification",
        lambda config, rngs: models.TokenClassifier(config, num_labels=LABELS, rngs=rngs),
    ),
    "question_answering": (
        "AlbertForQuestionAnswering",
        "AutoModelForQuestionAnswering",
        models.SpanClassifier,
    ),
    "multiple_choice": (
        "AlbertForMultipleChoice",
        "AutoModelForMultipleChoice",
        models.MultipleChoice,
    ),
}
CASES = [
    ("pretraining", SIZES),
    ("pretraining", OTHER),
    *((head, SIZES) for head in MODELS if head != "pretraining"),
]


IDS = [head if sizes is SIZES else f"{head}-groups" for head, sizes in CASES]


def of_torch(head, sizes, folder):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    count = {"num_labels": LABELS} if head in pretrained.WITH_LABELS else {}
    torch.manual_seed(7)
    model = getattr(transformers, MODELS[head][0])(transformers.AlbertConfig(**sizes, **count))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.2
            is_norm = name.lower().endswith("norm.weight")
            parameter.copy_(1 + noise if is_norm else noise)
    model.save_pretrained(folder)
    found = formats.read(folder)
    assert (found.head, found.unused, found.family) == (head, (), albert.FAMILY)
    return model.eval(), found


def rows(head):
    rng = np.random.default_rng(3)
    outer = (BATCH, 2) if head == "multiple_choice" else (BATCH,)
    lengths = rng.integers(4, LENGTH, (*outer, 1))
    lengths.flat[0] = LENGTH
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    ids = rng.integers(1, SIZES["vocab_size"], mask.shape) * mask
    segments = rng.integers(0, 2, mask.shape) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def targets(head, mask):
    """Labels as transformers takes them, -100 where there are none."""
    rng = np.random.default_rng(4)
    if head in ("pretraining", "masked_lm"):
        drawn = rng.integers(1, SIZES["vocab_size"], mask.shape)
        labels = np.where((rng.random(mask.shape) < 0.4) & (mask != 0), drawn, -100)
        order = {"sentence_order_label": np.array([0, 1, 1, 0])}
        return {"labels": labels} | (order if head == "pretraining" else {})
    if head == "token_classification":
        return {"labels": np.where(mask != 0, rng.integers(0, LABELS, mask.shape), -100)}
    if head == "question_answering":
        return {"start_positions": np.array([1, 2, 0, 3]), "end_positions": np.array([3, 2, 1, 3])}
    return {"labels": rng.integers(0, 2 if head == "multiple_choice" else LABELS, BATCH)}


def logits_of(head, model, inputs):
    """Our logits by the names of transformers' labels for them."""
    if head in ("pretraining", "masked_lm"):
        hidden = model.encoder(inputs)
        logits = {"labels": model.mlm_logits(hidden, jnp.tile(jnp.arange(LENGTH), (BATCH, 1)))}
        pair = {"sentence_order_label": model.pair_logits} if head == "pretraining" else {}
        return logits | {name: make(hidden) for name, make in pair.items()}
    if head == "question_answering":
        return dict(zip(("start_positions", "end_positions"), model(inputs), strict=True))
    return {"labels": model(inputs)}


def our_loss(head, model, inputs, wanted):
    logits, total = logits_of(head, model, inputs), 0.0
    for name, labels in wanted.items():
        weights = (jnp.asarray(labels) >= 0).astype(jnp.float32)
        losses = base.cross_entropy(logits[name], jnp.maximum(jnp.asarray(labels), 0))
        total += (losses * weights).sum() / weights.sum()
    return total / (2 if head == "question_answering" else 1), logits


def their_logits(head, out):
    if head == "pretraining":
        return {"labels": out.prediction_logits, "sentence_order_label": out.sop_logits}
    if head == "question_answering":
        return {"start_positions": out.start_logits, "end_positions": out.end_logits}
    return {"labels": out.logits}


@pytest.mark.parametrize(
    ("head", "sizes"),
    CASES,
    ids=IDS,
)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, head, sizes):
    theirs, found = of_torch(head, sizes, tmp_path / "hf")
    graphdef, _ = parameters.split(
        nnx.eval_shape(lambda: MODELS[head][2](found.config, rngs=nnx.Rngs(0)))
    )
    params = parameters.nested(jax.tree.map(jnp.asarray, found.params))
    batch = rows(head)
    mask = batch["input_mask"]
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]),
        "attention_mask": torch.tensor(mask),
        "token_type_ids": torch.tensor(batch["segment_ids"]),
    }
    ours = jax.tree.map(jnp.asarray, batch)
    if head == "none":
        model = parameters.merge(graphdef, params)
        out = theirs(**inputs, output_hidden_states=True)
        states = model.encoder.hidden_states(ours)
        assert len(states) == len(out.hidden_states)
        for mine, wanted in zip(states, out.hidden_states, strict=True):
            np.testing.assert_allclose(
                np.asarray(mine)[mask != 0], wanted.detach().numpy()[mask != 0], atol=2e-5
            )
        pooled = out.pooler_output.detach().numpy()
        np.testing.assert_allclose(model.pooler(states[-1]), pooled, atol=1e-5)
        return
    wanted = targets(head, mask)
    out = theirs(**inputs, **{name: torch.tensor(x) for name, x in wanted.items()})
    out.loss.backward()

    def objective(params):
        return our_loss(head, parameters.merge(graphdef, params), ours, wanted)

    (loss, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
    for name, expected in their_logits(head, out).items():
        is_by_token = name == "labels" and logits[name].shape[:2] == mask.shape[:2]
        shown = mask != 0 if is_by_token and mask.ndim == 2 else np.ones(BATCH, bool)
        expected = expected.detach().numpy()
        np.testing.assert_allclose(np.asarray(logits[name])[shown], expected[shown], atol=1e-4)
    table = names.in_a_row(names.of_head(albert.TENSORS, head), sizes["inner_group_num"])
    got = names.to_theirs(parameters.flat(gradient), table)
    of_theirs = dict(theirs.named_parameters())
    assert got.keys() == of_theirs.keys()
    for name, array in got.items():
        expected = of_theirs[name].grad.numpy().copy()
        if name.endswith("word_embeddings.weight"):
            # torch gives the row of padding_idx no gradient of its lookup; nothing reads it here.
            array, expected = array[1:], expected[1:]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(array, expected, atol=2e-5 * scale + 1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("head", "sizes"),
    CASES,
    ids=IDS,
)
def test_what_we_write_loads_without_a_word_and_comes_back(tmp_path, heard, capfd, head, sizes):  # noqa: F811
    sizes = sizes | {"vocab_size": small_records.vocabulary().vocab_size}
    config = models.EncoderConfig(**sizes, embedding_projection="always")
    rng = np.random.default_rng(0)
    labels = {"multiple_choice": 1}.get(head, LABELS)
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
    heard.clear()
    capfd.readouterr()
    model, report = getattr(transformers, MODELS[head][1]).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert heard.messages == [] and capfd.readouterr() == ("", "")
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == model.config.architectures[0] == MODELS[head][0]
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again = formats.read(tmp_path / "again")
    assert (again.head, again.config) == (head, made.config)
    assert {path: array.tobytes() for path, array in again.params.items()} == {
        path: array.tobytes() for path, array in made.params.items()
    }


@pytest.mark.parametrize("casing", [{"lowercase": True}, {}], ids=str)
def test_auto_tokenizer_gives_the_ids_of_the_sentencepiece_model(tmp_path, heard, casing):  # noqa: F811
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
