"""Encoder-decoders in files: what they share comes back, and what is refused has a name."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert import formats, heads, huggingface_config, pretrained
from bertjax.models import decoder_sharing
from tests.convert import weights

HEAD = "sequence_to_sequence"


def make(shares="embeddings", **changes):
    decoder = dataclasses.replace(weights.CONFIG, **changes)
    return weights.make(HEAD, decoder=decoder, shares=shares)


@pytest.mark.parametrize("shares", decoder_sharing.LACKING)
@pytest.mark.parametrize("format", ["huggingface", "bertjax"])
def test_there_and_back_is_the_identity(tmp_path, format, shares):
    changes = {} if shares == "layers" else {"num_hidden_layers": 3, "num_attention_heads": 2}
    made = make(shares, **changes)
    assert (heads.of_paths(made.params), made.shares) == (HEAD, shares)
    formats.write(made, tmp_path / "there", format=format)
    read = formats.read(tmp_path / "there")
    weights.assert_equal(read, made)
    assert read.shares == shares
    ends = (made.vocabulary.cls_id, made.vocabulary.sep_id)
    assert (read.start_id, read.end_id) == (ends if format == "huggingface" else (None, None))


def test_ties_are_two_equal_copies_in_a_file_and_a_pooler_is_zero(tmp_path):
    made = make("layers")
    formats.write(made, tmp_path / "hf", format="huggingface")
    loaded = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    for name in ("embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.bias"):
        np.testing.assert_array_equal(loaded[f"encoder.{name}"], loaded[f"decoder.bert.{name}"])
    assert not loaded["encoder.pooler.dense.weight"].any()
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (fields["decoder_start_token_id"], fields["eos_token_id"]) == (2, 3)
    assert fields["pad_token_id"] == fields["decoder"]["pad_token_id"] == 0
    assert fields["decoder"]["is_decoder"] and "is_decoder" not in fields["encoder"]
    # One number of a copy differs: only the embeddings are shared.
    loaded["decoder.bert.encoder.layer.1.output.dense.bias"][0] += 1
    safetensors.numpy.save_file(loaded, tmp_path / "hf" / "model.safetensors")
    assert formats.read(tmp_path / "hf").shares == "embeddings"


def test_what_differs_cannot_be_shared():
    with pytest.raises(ValueError, match=r"shares its encoder's embeddings has no decoder\.emb"):
        decoder_sharing.with_sharing(make("none").params, "embeddings")
    # Another norm computes otherwise with equal tables: the words alone are the encoder's.
    made = make("embeddings")
    whole = decoder_sharing.with_sharing(made.params, "none")
    other = dataclasses.replace(made.config, layer_norm_eps=1e-5)
    kept = decoder_sharing.with_most_sharing(whole, made.config, other)
    assert decoder_sharing.sharing(kept) == "words"


def fields_of(tmp_path):
    formats.write(make(), tmp_path / "hf", format="huggingface", overwrite=True)
    return json.loads((tmp_path / "hf" / "config.json").read_text())


def test_a_config_that_no_encoder_decoder_has_is_refused(tmp_path):
    fields = fields_of(tmp_path)
    part = fields["decoder"]
    for changes, said in (
        ({"decoder_start_token_id": None}, "start_token_id is None; it must be the first id"),
        ({"eos_token_id": [3]}, r"eos_token_id is \[3\]; it must be the last"),
        ({"decoder": part | {"hidden_size": 48}}, "hidden_size is 48; it must be 32"),
        ({"decoder": part | {"is_decoder": False}}, r"decoder\.is_decoder is False; only True"),
        ({"decoder": part | {"hidden_act": "tanh"}}, r"decoder\.hidden_act is 'tanh'; known are"),
        ({"decoder": {"model_type": "gpt2"}}, "with encoder 'bert' and decoder 'gpt2'; known are"),
        ({"decoder": 3}, "with encoder 'bert' and decoder None; known are bert-encoder-decoder"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False; only True"),
    ):
        with pytest.raises(ValueError, match=said):
            huggingface_config.parse_config(fields | changes, source="config.json")


def test_a_field_that_is_not_known_is_named_with_its_part(tmp_path, caplog):
    fields = fields_of(tmp_path)
    fields["decoder"]["experts"] = 4
    huggingface_config.parse_config(fields, source="config.json")
    (message,) = caplog.messages
    assert message.startswith("decoder of config.json has the unknown field experts = 4")


def test_its_head_is_of_no_other_model_and_its_encoder_is_a_bert():
    made = dataclasses.replace(make(), model_type="bert-encoder-decoder")
    with pytest.raises(ValueError, match="has no mlm_head, .* its own head is 'sequence_to_seq"):
        pretrained.select(made, "masked_lm")
    encoder = pretrained.select(made, "none")
    assert (encoder.decoder, encoder.family.model_type) == (None, "bert")


def test_a_decoder_without_a_first_id_is_not_written(tmp_path):
    bare = dataclasses.replace(make(), vocabulary=None)
    with pytest.raises(ValueError, match="no vocabulary and no start_id"):
        formats.write(bare, tmp_path / "hf", format="huggingface")
    kept = dataclasses.replace(bare, start_id=7, end_id=8)
    formats.write(kept, tmp_path / "hf", format="huggingface")
    read = formats.read(tmp_path / "hf")
    assert (read.start_id, read.end_id) == (7, 8)
