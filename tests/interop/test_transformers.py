"""Claims about what transformers makes of our exports, with torch on the CPU."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax import fill_mask, inference, models, train  # noqa: E402
from bertjax.convert import __main__ as program  # noqa: E402
from bertjax.convert import (  # noqa: E402
    formats,
    huggingface_tokenizer,
    huggingface_write,
    pretrained,
    workdir,
)
from bertjax.convert.families import bert  # noqa: E402
from bertjax.models import parameters  # noqa: E402
from bertjax.tasks import base as tasks_base  # noqa: E402
from bertjax.tasks import pretraining  # noqa: E402
from configs import smoke  # noqa: E402
from tests import small_records  # noqa: E402
from tests.convert import test_huggingface_tokenizer as written  # noqa: E402
from tests.convert import weights  # noqa: E402
from tests.data import test_added_tokens as added  # noqa: E402

# Head -> the classes that must find all their weights in its export.
CLASSES = {
    "pretraining": ("AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModel"),
    "masked_lm": ("AutoModelForMaskedLM",),
    "none": ("AutoModel",),
    "next_sentence": ("AutoModelForNextSentencePrediction", "AutoModel"),
    "sequence_classification": ("AutoModelForSequenceClassification", "AutoModel"),
    "token_classification": ("AutoModelForTokenClassification",),
    "question_answering": ("AutoModelForQuestionAnswering",),
    "multiple_choice": ("AutoModelForMultipleChoice", "AutoModel"),
}


# The head of the weights, --head and the class that then has nothing to say of the export.
SILENT = [
    ("pretraining", None, "AutoModelForPreTraining"),
    ("pretraining", "masked_lm", "AutoModelForMaskedLM"),
    ("pretraining", "none", "AutoModel"),
    ("masked_lm", None, "AutoModelForMaskedLM"),
    ("none", None, "AutoModel"),
    ("pretraining", "next_sentence", "AutoModelForNextSentencePrediction"),
    ("sequence_classification", None, "AutoModelForSequenceClassification"),
    ("sequence_classification", "none", "AutoModel"),
    ("token_classification", None, "AutoModelForTokenClassification"),
    ("question_answering", None, "AutoModelForQuestionAnswering"),
    ("multiple_choice", None, "AutoModelForMultipleChoice"),
    ("multiple_choice", "none", "AutoModel"),
]


def load(name, directory):
    model, report = getattr(transformers, name).from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    return model.eval(), report


@pytest.mark.parametrize("head", CLASSES)
def test_every_class_finds_all_its_weights(tmp_path, head):
    huggingface_write.write(weights.make(head), tmp_path / "hf", card="")
    for place, name in enumerate(CLASSES[head]):
        model, report = load(name, tmp_path / "hf")
        assert not report["missing_keys"] and not report["mismatched_keys"], name
        if place == 0:  # the class that the head is made for uses everything, too
            assert not report["unexpected_keys"]
            assert type(model).__name__ == model.config.architectures[0]
            assert head != "sequence_classification" or model.config.id2label == weights.LABELS


@pytest.mark.parametrize(("head", "chosen", "name"), SILENT)
def test_the_class_of_the_head_loads_without_a_word(tmp_path, heard, capfd, head, chosen, name):
    formats.write(weights.make(head), tmp_path / "source", format="huggingface")
    program.convert(tmp_path / "source", tmp_path / "hf", head=chosen)
    heard.clear()
    capfd.readouterr()
    getattr(transformers, name).from_pretrained(tmp_path / "hf")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert heard.messages == []  # Python's own warnings are errors in all tests
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("head", CLASSES)
def test_what_came_from_the_released_code_loads_without_a_word(tmp_path, heard, head):
    """The released code has poolers everywhere, and no names for classes."""
    made = weights.make("sequence_classification" if head == "token_classification" else head)
    variables = dataclasses.replace(made, labels={})
    weights.write(variables, tmp_path / "tf1", "tf1")
    program.convert(tmp_path / "tf1", tmp_path / "hf", head=head)
    heard.clear()
    getattr(transformers, CLASSES[head][0]).from_pretrained(tmp_path / "hf")
    assert heard.messages == []


def test_without_a_pooler_automodel_is_silent_if_it_is_asked_for_none(tmp_path, heard):
    huggingface_write.write(
        pretrained.select(weights.make("masked_lm"), "none"), tmp_path / "hf", card=""
    )
    transformers.AutoModel.from_pretrained(tmp_path / "hf", add_pooling_layer=False)
    assert heard.messages == []
    transformers.AutoModel.from_pretrained(tmp_path / "hf")
    assert "pooler.dense.weight" in heard.text and "MISSING" in heard.text


def test_a_class_without_the_heads_of_the_export_names_them(tmp_path, heard):
    huggingface_write.write(weights.make(), tmp_path / "hf", card="")
    transformers.AutoModel.from_pretrained(tmp_path / "hf")
    assert "cls.predictions.bias" in heard.text and "MISSING" not in heard.text


def test_logits_are_equal(tmp_path):
    made = weights.make()
    huggingface_write.write(made, tmp_path / "hf", card="")
    theirs, _ = load("AutoModelForPreTraining", tmp_path / "hf")
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 95, (3, 12))
    mask = (np.arange(12) < np.array([[12], [7], [9]])).astype(np.int32)
    segments = (np.arange(12) > 5).astype(np.int32) * np.ones_like(mask)
    with torch.no_grad():
        out = theirs(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            token_type_ids=torch.tensor(segments),
        )
    task = pretraining.Pretraining(models.EncoderConfig(**vars(made.config)))
    graphdef, _ = tasks_base.abstract_model(task)
    ours = parameters.merge(graphdef, jax.tree.map(jnp.asarray, parameters.nested(made.params)))
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    hidden = ours.encoder(jax.tree.map(jnp.asarray, inputs))
    positions = jnp.tile(jnp.arange(12), (3, 1))
    real = mask != 0
    logits = np.asarray(ours.mlm_logits(hidden, positions))
    np.testing.assert_allclose(logits[real], out.prediction_logits.numpy()[real], atol=1e-4)
    pair = np.asarray(ours.pair_logits(hidden))
    np.testing.assert_allclose(pair, out.seq_relationship_logits.numpy(), atol=1e-4)


@pytest.mark.parametrize("casing", [{}, {"lowercase": False}, {"strip_accents": False}])
def test_auto_tokenizer_gives_our_ids(tmp_path, casing):
    ours = written.vocabulary(**casing)
    huggingface_write.write(weights.make(vocabulary=ours), tmp_path / "hf", card="")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in written.NASTY:
        wanted = [ours.cls_id, *ours.encode_with_masks(text), ours.sep_id]
        assert theirs(text)["input_ids"] == wanted, ascii(text)
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
    assert theirs.model_max_length == 40


def test_auto_tokenizer_finds_added_tokens_as_we_do_and_we_read_what_it_saves(tmp_path):
    ours = added.ours()
    formats.write(weights.make(vocabulary=ours), tmp_path / "hf", format="huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs.save_pretrained(tmp_path / "theirs")
    again = huggingface_tokenizer.read_tokenizer(tmp_path / "theirs", bert.TOKENIZER)
    for text in [*added.TEXTS, *added.drawn(100)]:
        found = theirs(text, add_special_tokens=False)["input_ids"]
        assert found == ours.encode(text) == again.encode(text), ascii(text)


@pytest.mark.parametrize("way", added.WAYS)
def test_what_transformers_finds_in_any_file_we_find(tmp_path, way):
    files = dict(added.WAYS[way])
    # Theirs wants a whole tokenizer.json; only its added tokens are looked at here.
    if "tokenizer" in files:
        made = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                {entry: number for number, entry in enumerate(added.ENTRIES)}, unk_token="[UNK]"
            )
        )
        made.normalizer = tokenizers.normalizers.BertNormalizer()
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        files["tokenizer"] = json.loads(made.to_str()) | files["tokenizer"]
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    files["tokenizer_config"] = config | files.get("tokenizer_config", {})
    added.write(tmp_path, config={"model_type": "bert"}, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)
    for text in ["[E1] state [E2] <url>", "[e1]<URL>x", "nothing"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text), text


@pytest.mark.slow
def test_a_trained_model_fills_the_same_masks_with_the_same_probabilities(tmp_path):
    config = smoke.get_config()
    config.data.source = "records"
    config.data.train_dir = str(small_records.write(tmp_path / "train"))
    config.model.update(vocab_size=0, max_position_embeddings=40, num_hidden_layers=2)
    config.model.update(hidden_size=32, num_attention_heads=4, intermediate_size=64)
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=6, max_seq_length=16)
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        devices = jax.local_devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        train.train(config, tmp_path / "run")
    program.convert(tmp_path / "run", tmp_path / "hf", license="mit")
    text = "W3 w4, [MASK] w\u00e96 w7 [MASK]!"
    ours = fill_mask.fill_mask(inference.load(tmp_path / "run"), text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model, _ = load("AutoModelForMaskedLM", tmp_path / "hf")
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**inputs).logits[0].softmax(-1)
    masks = torch.nonzero(inputs["input_ids"][0] == tokenizer.mask_token_id).flatten()
    assert len(masks) == len(ours) == 2
    for position, candidates in zip(masks, ours, strict=True):
        best = probabilities[position].topk(5)
        assert tokenizer.convert_ids_to_tokens(best.indices) == [c["token"] for c in candidates]
        wanted = [c["probability"] for c in candidates]
        np.testing.assert_allclose(best.values.numpy(), wanted, atol=1e-4)


def test_what_transformers_saves_comes_back_the_same(tmp_path):
    formats.write(weights.make(), tmp_path / "hf", format="huggingface")
    model, _ = load("AutoModelForPreTraining", tmp_path / "hf")
    model.save_pretrained(tmp_path / "theirs")
    # Version 5 saves tokenizer.json alone, without vocab.txt.
    transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    wanted_vocabulary = formats.read(tmp_path / "hf").vocabulary
    assert formats.read(tmp_path / "theirs").vocabulary.describe() == wanted_vocabulary.describe()
    workdir.write(formats.read(tmp_path / "theirs"), tmp_path / "run")
    wanted = formats.read(tmp_path / "hf").params
    got = workdir.read(tmp_path / "run").params
    assert {path: array.tobytes() for path, array in got.items()} == {
        path: array.tobytes() for path, array in wanted.items()
    }
