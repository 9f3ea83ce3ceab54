"""Claims about the files of RoBERTa and its kin that need no transformers."""

import io
import json
import math

import pytest
import sentencepiece

from bertjax import models, recipes
from bertjax.convert import families, huggingface_config, huggingface_tokenizer, pretrained
from bertjax.convert.families import roberta
from bertjax.data import sentence_piece, tokenizer
from bertjax.training import outlook
from tests import small_byte_bpe, small_records
from tests.data import test_sentence_piece

# The config.json of roberta-base, as it was released.
RELEASED = {
    "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
    "type_vocab_size": 1, "vocab_size": 50265,
}  # fmt: skip


def parse(**changes):
    return huggingface_config.parse_config(RELEASED | changes, source="config.json")


@pytest.mark.parametrize(("head", "count"), [("masked_lm", 124_697_433), ("none", 124_645_632)])
def test_the_released_model_has_its_number_of_parameters(caplog, head, count):
    found = parse()
    assert caplog.messages == []
    assert (found.head, found.family.title) == ("masked_lm", "RoBERTa")
    shapes = pretrained.shapes(found.encoder)
    of_class = (shapes[path] for path in shapes if pretrained.is_of_class(path, head))
    assert sum(map(math.prod, of_class)) == count


def test_the_released_model_is_that_of_the_recipe():
    recipe = recipes.load("roberta:base").model.to_dict() | {"dtype": "float32", "attention": "xla"}
    assert parse().encoder == models.EncoderConfig(**recipe)
    assert families.holding(parse().encoder) is roberta.FAMILY
    assert parse().encoder.max_position_embeddings == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token_id": 3}, "pad_token_id is 3; only 1 is supported: positions begin behind"),
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'; known are gelu"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_what_is_computed_otherwise_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        parse(**changes)


def test_an_encoder_of_another_activation_is_not_written_as_one():
    config = models.EncoderConfig(position_offset=2, type_vocab_size=1, hidden_act="relu")
    assert roberta.FAMILY.lacks(config) == ["hidden_act 'relu'"]


def test_a_vocabulary_with_another_padding_is_told_before_it_is_trained():
    with pytest.raises(ValueError, match="position_offset is 2, so the id of padding must be 1"):
        pretrained.Description(parse().encoder, small_records.vocabulary(), "DIR")
    config = recipes.load("roberta:base")
    with config.unlocked():
        config.model.dtype = "float32"
    assert outlook.obstacles(config, small_byte_bpe.vocabulary()) == []


def test_the_tokenizer_is_read_from_either_of_its_files(tmp_path):
    known = small_byte_bpe.vocabulary()
    known.save(tmp_path)
    for gone in ((), ("tokenizer.json",)):
        for name in gone:
            (tmp_path / name).unlink()
        read = huggingface_tokenizer.read_tokenizer(tmp_path, roberta.TOKENIZER)
        assert read is not None and read.describe() == known.describe()
    known.save(tmp_path)
    (tmp_path / "vocab.json").unlink()
    read = huggingface_tokenizer.read_tokenizer(tmp_path, roberta.TOKENIZER)
    assert read is not None and read.describe() == known.describe()


@pytest.fixture(scope="module")
def pieces() -> bytes:
    """A model as fairseq's are: <unk>, <s> and </s> come first."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(test_sentence_piece.LINES),
        model_writer=written,
        vocab_size=70,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
    )
    return written.getvalue()


@pytest.mark.parametrize(
    ("family", "shift", "specials"),
    [
        # pad, unk, cls, sep, mask; the last is behind all pieces
        (roberta.XLM_FAMILY, 1, (1, 3, 0, 2)),
        (roberta.CAMEMBERT_FAMILY, 4, (1, 3, 5, 6)),
    ],
    ids=["xlm-roberta", "camembert"],
)
def test_pieces_have_the_numbers_that_fairseq_gave_them(tmp_path, pieces, family, shift, specials):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(pieces)
    plain = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    # What version 4 of transformers writes beside it.
    mask = len(plain) + shift
    decoder = {str(mask): {"content": "<mask>", "lstrip": True, "special": True}}
    config = {"added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    read = huggingface_tokenizer.read_tokenizer(tmp_path, family.tokenizer)
    assert read is not None
    assert read.special_ids == (*specials, mask) and read.vocab_size == mask + 1
    assert read.pair_separators == 2
    for text in (*test_sentence_piece.LINES[:3], "\u2603 zzz <s> </s>"):
        expected = [3 if i == plain.unk_id() else i + shift for i in plain.encode(text)]
        assert read.encode(text) == expected
    assert read.encode_with_masks("the <mask> ran")[1] == mask
    read.save(tmp_path / "saved")
    assert tokenizer.load(tmp_path / "saved").describe() == read.describe()
    tokenizer.check_padding(read, 2, "DIR")


@pytest.mark.parametrize(
    "model", [b"no model", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff", b"\x0a\x02\x18\x01"]
)
def test_a_damaged_model_is_named(tmp_path, model):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    with pytest.raises(ValueError, match="sentencepiece.bpe.model is not a sentencepiece model"):
        huggingface_tokenizer.read_tokenizer(tmp_path, roberta.XLM_FAMILY.tokenizer)


def test_another_model_than_that_of_the_weights_is_refused(pieces):
    with pytest.raises(ValueError, match="from 0 on hold </s>, <s>, <unk>, which have ids"):
        sentence_piece.renumbered(pieces, before=("<s>", "</s>", "<unk>"), first=0, after=())
