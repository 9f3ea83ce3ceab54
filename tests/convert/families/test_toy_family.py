"""Claims about an invented family: its one file is this one, its row is put into FAMILIES.

The toy computes what BERT computes, always with ReLU. Everything that is written down is called
otherwise: tensors, variables, classes, sizes, files.
"""

import dataclasses
import json

import pytest
import safetensors.numpy

from bertjax.convert import __main__ as program
from bertjax.convert import families, formats, heads
from bertjax.convert.families import base, bert
from tests.convert import weights

# BERT's words -> the toy's.
TENSOR_WORDS = {
    "bert.encoder.layer.": "body.blocks.", "bert.": "body.", "attention.self.": "mixer.",
    "word_embeddings": "words", "LayerNorm": "norm", "cls.predictions.": "vocabulary_head.",
}  # fmt: skip
VARIABLE_WORDS = {"bert/encoder/layer_": "body/block_", "bert/": "body/", "cls/": "heads/"}
CLASSIFIER = "sequence_classification"


def renamed(name, words):
    for theirs, toys in words.items():
        name = name.replace(theirs, toys)
    return name


def tensors():
    """The pooler belongs to the classifier where there is one, as in RoBERTa."""
    for entry in bert.TENSORS:
        name = renamed(entry.theirs, TENSOR_WORDS)
        if not entry.ours.startswith(("pooler", "classifier")):
            yield dataclasses.replace(entry, theirs=name)
            continue
        others = tuple(head for head in heads.HEADS if head != CLASSIFIER)
        yield dataclasses.replace(entry, theirs=name, heads=others)
        part = "dense" if entry.ours.startswith("pooler") else "out"
        in_classifier = f"classifier.{part}.{name.split('.')[-1]}"
        yield dataclasses.replace(entry, theirs=in_classifier, heads=(CLASSIFIER,))


TOY = base.Family(
    model_type="toy",
    title="Toy",
    fields={
        "width": base.Field("hidden_size", int, default=32),
        "max_positions": base.Field("max_position_embeddings", int),
        **{
            name: field
            for name, field in bert.FIELDS.items()
            if name not in ("hidden_size", "max_position_embeddings", "hidden_act")
        },
    },
    fixed={"is_decoder": False},
    stated={"blocks": "plain"},
    without_effect=base.BOOKKEEPING | {"blocks"},
    architectures={head: f"ToyFor{head.title()}" for head in heads.HEADS},
    tensors=tuple(tensors()),
    prefix="body.",
    tokenizer=dataclasses.replace(
        bert.TOKENIZER,
        fields=bert.TOKENIZER.fields | {"model_input_names": ["input_ids", "attention_mask"]},
        pair="{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0",
        ids={"padding_id": "pad_id", "start_id": "cls_id"},
    ),
    fused={
        f"body.blocks.{{layer}}.mixer.{leaf}": [
            f"body.blocks.{{layer}}.mixer.{part}.{leaf}" for part in ("query", "key", "value")
        ]
        for leaf in ("weight", "bias")
    },
    tied={"vocabulary_head.decoder.weight": "body.embeddings.words.weight"},
    traits={"hidden_act": "relu"},
    released=dataclasses.replace(
        bert.RELEASED,
        names=tuple(
            dataclasses.replace(entry, theirs=renamed(entry.theirs, VARIABLE_WORDS))
            for entry in bert.VARIABLES
        ),
        config="toy_config.json",
        checkpoint="toy.ckpt",
        defaults={n: v for n, v in bert.RELEASED.defaults.items() if n != "hidden_act"},
    ),
)


@pytest.fixture(autouse=True)
def row(monkeypatch):
    """The one line that a new family adds to a file that is there."""
    monkeypatch.setitem(families.FAMILIES, "toy", TOY)


def make(head="pretraining", segments=2):
    made = weights.make(head, config=dataclasses.replace(weights.CONFIG, type_vocab_size=segments))
    config = dataclasses.replace(made.config, hidden_act="relu")
    return dataclasses.replace(made, config=config, model_type="toy")


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("head", ["pretraining", "none", CLASSIFIER])
def test_through_a_workdir_and_back_every_byte_is_the_same(tmp_path, head, caplog):
    formats.write(make(head), tmp_path / "a", format="huggingface")
    program.convert(tmp_path / "a", tmp_path / "run", format="bertjax")
    program.convert(tmp_path / "run", tmp_path / "b")
    weights.assert_equal(formats.read(tmp_path / "b"), make(head))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert "unknown field" not in caplog.text


def test_what_is_written_speaks_its_language(tmp_path):
    formats.write(make(CLASSIFIER), tmp_path / "toy", format="huggingface")
    fields = json.loads((tmp_path / "toy" / "config.json").read_text())
    assert fields["architectures"] == ["ToyForSequence_Classification"]
    assert (fields["model_type"], fields["blocks"]) == ("toy", "plain")
    assert (fields["width"], fields["max_positions"], fields["start_id"]) == (32, 40, 2)
    assert not {"hidden_size", "hidden_act", "pad_token_id"} & fields.keys()
    written = set(safetensors.numpy.load_file(tmp_path / "toy" / "model.safetensors"))
    for name in ("body.embeddings.words.weight", "classifier.dense.bias", "classifier.out.bias"):
        assert name in written
    assert not [name for name in written if "bert" in name or "pooler" in name or "query" in name]
    card = (tmp_path / "toy" / "README.md").read_text()
    assert "- toy\n" in card and "A Toy with" in card
    del fields["width"]  # which has a default
    (tmp_path / "toy" / "config.json").write_text(json.dumps(fields))
    assert formats.read(tmp_path / "toy").config.hidden_size == 32


@pytest.mark.parametrize(
    ("segments", "inputs"), [(1, ["input_ids", "attention_mask"]), (2, base.WITH_SEGMENTS)]
)
def test_its_tokenizer_gives_segments_where_the_model_has_two(tmp_path, segments, inputs):
    formats.write(make(CLASSIFIER, segments), tmp_path / "toy", format="huggingface")
    tokenizer = json.loads((tmp_path / "toy" / "tokenizer_config.json").read_text())
    assert tokenizer["model_input_names"] == inputs


def test_the_name_of_another_head_is_unused_and_not_double(tmp_path):
    formats.write(make(CLASSIFIER), tmp_path / "toy", format="huggingface")
    read = formats.read(tmp_path / "toy", head="none")
    assert set(read.unused) == {
        f"classifier.{part}.{leaf}" for part in ("dense", "out") for leaf in ("weight", "bias")
    }
    assert {path.split(".")[0] for path in read.params} == {"encoder"}


def test_its_variables_tell_a_checkpoint_of_its_released_code(tmp_path):
    weights.write(make(), tmp_path / "toy", "tf1")
    assert {"toy_config.json", "toy.ckpt.index"} < files(tmp_path / "toy").keys()
    read = formats.read(tmp_path / "toy")
    weights.assert_equal(read, make())
    assert read.model_type == "toy"
    weights.write(weights.make(), tmp_path / "bert", "tf1")
    assert formats.read(tmp_path / "bert").model_type == "bert"


def test_what_no_family_has_is_kept_in_a_workdir_and_nowhere_else(tmp_path, monkeypatch):
    # Another table: what is deleted and put back stands behind all others, and the first counts.
    others = {name: it for name, it in families.FAMILIES.items() if name != "bert"}
    monkeypatch.setattr(families, "FAMILIES", others)
    formats.write(weights.make(), tmp_path / "run", format="bertjax")
    program.convert(tmp_path / "run", tmp_path / "again", format="bertjax")
    weights.assert_equal(formats.read(tmp_path / "again"), weights.make())
    with pytest.raises(ValueError, match="no known family .* --format=bertjax keeps them"):
        program.convert(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
