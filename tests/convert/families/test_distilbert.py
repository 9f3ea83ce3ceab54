"""Claims about DistilBERT's files that need no transformers."""

import math

import pytest

from bertjax import models
from bertjax.convert import huggingface_config, pretrained

# The config.json of distilbert-base-uncased, as it was released.
RELEASED = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
    "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
    "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12, "n_layers": 6,
    "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False, "tie_weights_": True, "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}  # fmt: skip


def parse(**changes):
    return huggingface_config.parse_config(RELEASED | changes, source="config.json")


def test_the_released_model_has_its_number_of_parameters(caplog):
    found = parse()
    assert caplog.messages == []
    assert (found.head, found.family.title) == ("masked_lm", "DistilBERT")
    assert found.encoder == models.EncoderConfig(
        num_hidden_layers=6, type_vocab_size=0, pooler_act="relu"
    )
    shapes = pretrained.shapes(found.encoder)
    count = sum(
        math.prod(shape)
        for path, shape in shapes.items()
        if pretrained.is_required(path, "masked_lm")
    )
    assert count == 66_985_530


def test_a_file_of_sizes_alone_has_six_layers():
    assert (
        huggingface_config.parse_config({"model_type": "distilbert"}, source="config.json").encoder
        == parse().encoder
    )


def test_an_untied_output_layer_is_refused():
    with pytest.raises(ValueError, match="tie_weights_ is False; only True is supported"):
        parse(tie_weights_=False)
