"""Claims about the files of RoBERTa and its kin that need no transformers."""

import io
import json
import os

import pytest
import sentencepiece

from bertjax import models, recipes
from bertjax.convert import families, huggingface_tokenizer, pretrained
from bertjax.convert.families import roberta
from bertjax.tokenization import sentence_piece, tokenizer
from bertjax.training import run_log
from tests import small_byte_bpe, small_records
from tests.data_pipelines import test_train_vocabulary
from tests.tokenization import test_sentence_piece

# The ids that were published with the released models, of their whole rows.
# Source: fairseq, examples/xlmr/README.md; the card of camembert-base.
PUBLISHED = {
    "xlm-roberta": {
        "Hello world!": [0, 35378, 8999, 38, 2],
        "你好，世界": [0, 6, 124084, 4, 3221, 2],
        "नमस्ते दुनिया": [0, 68700, 97883, 29405, 2],
        "مرحبا بالعالم": [0, 665, 193478, 258, 1705, 77796, 2],
        "Bonjour le monde": [0, 84602, 95, 11146, 2],
    },
    "camembert": {"J'aime le camembert !": [5, 121, 11, 660, 16, 730, 25543, 110, 83, 6]},
}
# Environment variables with the directories of these models.
RELEASED = {"xlm-roberta": "BERTJAX_XLM_R", "camembert": "BERTJAX_CAMEMBERT"}


def test_a_vocabulary_with_another_padding_is_told_before_it_is_trained():
    with pytest.raises(ValueError, match="position_offset is 2, so the id of padding must be 1"):
        config = models.EncoderConfig(position_offset=2, type_vocab_size=1)
        pretrained.Description(config, small_records.vocabulary(), "DIR")
    config = recipes.load("roberta:base")
    with config.unlocked():
        config.model.dtype = "float32"
    assert run_log.obstacles(config, small_byte_bpe.vocabulary()) == []


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
    # Version 4 of transformers writes this file, too.
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


def test_a_damaged_model_is_named_and_another_than_that_of_the_weights_refused(tmp_path, pieces):
    for model in (b"no model", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff", b"\x0a\x02\x18\x01"):
        (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
        with pytest.raises(ValueError, match="piece.bpe.model is not a sentencepiece model"):
            huggingface_tokenizer.read_tokenizer(tmp_path, roberta.XLM_FAMILY.tokenizer)
    with pytest.raises(ValueError, match="from 0 on hold </s>, <s>, <unk>, which have ids"):
        sentence_piece.renumbered(pieces, sentence_piece.Pieces(("<s>", "</s>", "<unk>"), 0, ()))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_released_model_gives_the_published_ids(name):
    if not (directory := os.environ.get(RELEASED[name])):
        pytest.skip(f"{RELEASED[name]} names no directory of the released model")
    read = huggingface_tokenizer.read_tokenizer(directory, families.named(name).tokenizer)
    assert read is not None
    for text, ids in PUBLISHED[name].items():
        assert [read.cls_id, *read.encode(text), read.sep_id] == ids


def test_a_vocabulary_with_the_special_tokens_of_a_family_makes_the_encoder_one_of_it():
    config = models.EncoderConfig(
        position_offset=2, type_vocab_size=1, layer_norm_eps=1e-5, initializer="normal"
    )
    for name in sentence_piece.PIECES:
        known = test_train_vocabulary.trained(
            test_sentence_piece.LINES, kind="sentencepiece", special_tokens=name, size=90
        )
        assert families.holding(config, "masked_lm", known) is families.named(name)
    for known in (None, small_byte_bpe.vocabulary()):
        assert families.holding(config, "masked_lm", known) is roberta.FAMILY
