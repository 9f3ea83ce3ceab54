"""Claims about the files of RoBERTa and its kin that need no transformers."""

import io
import json

import pytest
import sentencepiece

from bertjax import models, recipes
from bertjax.convert import huggingface_tokenizer, pretrained
from bertjax.convert.families import roberta
from bertjax.data import sentence_piece, tokenizer
from bertjax.training import run_log
from tests import small_byte_bpe, small_records
from tests.data import test_sentence_piece


def test_a_vocabulary_with_another_padding_is_told_before_it_is_trained():
    with pytest.raises(ValueError, match="position_offset is 2, so the id of padding must be 1"):
        config = models.EncoderConfig(position_offset=2, type_vocab_size=1)
        pretrained.Description(config, small_records.vocabulary(), "DIR")
    config = recipes.load("roberta:base")
    with config.unlocked():
        config.model.dtype = "float32"
    assert run_log.obstacles(config, small_byte_bpe.vocabulary()) == []


def test_the_tokenizer_is_read_from_either_of_its_files(tmp_path):
    known = small_byte_bpe.vocabulary()
    known.save(tmp_path)
    for gone in ("", "tokenizer.json", "vocab.json"):
        known.save(tmp_path)
        (tmp_path / gone).unlink() if gone else None
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
        sentence_piece.renumbered(pieces, before=("<s>", "</s>", "<unk>"), first=0, after=())
