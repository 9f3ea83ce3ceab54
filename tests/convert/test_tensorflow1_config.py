"""Claims about bert_config.json, read and written."""

from __future__ import annotations

import json

import pytest
from etils import epath

from bertjax.convert import pretrained, tensorflow1_config
from bertjax.convert.families import bert
from bertjax.models import EncoderConfig

TINY = EncoderConfig(vocab_size=12, hidden_size=4, num_attention_heads=2, intermediate_size=6)


@pytest.fixture
def path(tmp_path) -> epath.Path:
    return epath.Path(tmp_path) / "bert_config.json"


def read(path: epath.Path) -> tensorflow1_config.Description:
    return tensorflow1_config.read_config(path, bert.FAMILY)


def model(config: EncoderConfig, head: str = "none") -> pretrained.Pretrained:
    return pretrained.Pretrained(
        config=config, params={}, vocabulary=None, head=head, labels={}, source="here"
    )


def test_left_out_fields_are_those_of_the_released_code(path):
    path.write_text('{"vocab_size": 7}')
    # The released BertConfig says 16 segments; its models have 2, and their files say so.
    assert read(path).config == EncoderConfig(vocab_size=7, type_vocab_size=16)


def test_the_fields_of_the_released_multilingual_files_are_passed_over(path):
    path.write_text('{"vocab_size": 7, "directionality": "bidi", "pooler_fc_size": 768}')
    assert read(path).config.vocab_size == 7


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        EncoderConfig(vocab_size=12, hidden_act="gelu_tanh"),
        EncoderConfig(vocab_size=12, hidden_act="relu", hidden_dropout_prob=0.25),
        EncoderConfig(vocab_size=12, layer_norm_eps=1e-5),
    ],
)
def test_what_is_written_is_read(path, config):
    tensorflow1_config.write_config(model(config), path)
    assert read(path).config == config


def test_the_released_code_sees_only_activations_that_it_knows(path):
    tensorflow1_config.write_config(model(EncoderConfig(hidden_act="gelu_tanh")), path)
    assert json.loads(path.read_text())["hidden_act"] == "gelu"


def test_a_plain_model_has_no_field_of_ours(path):
    tensorflow1_config.write_config(model(TINY), path)
    assert tensorflow1_config.OUR_FIELD not in json.loads(path.read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "bert_config.json is not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"hidden_size": 8}', "vocab_size is missing"),
        ('{"vocab_size": 7, "hidden_act": "swish"}', "hidden_act is 'swish'; known are gelu"),
        ('{"vocab_size": 7, "embedding_size": 2}', "embedding_size is 2; the released BERT has no"),
        ('{"vocab_size": "7"}', "does not describe a BERT"),
        ('{"vocab_size": 7, "bertjax": {"head": "tail"}}', "bertjax.head is 'tail'; known are"),
        ('{"vocab_size": 7, "bertjax": {"labels": {"a": "b"}}}', "does not describe a BERT"),
        ('{"vocab_size": 7, "bertjax": {"labels": []}}', "must hold a JSON object"),
    ],
)
def test_what_is_no_config_is_named(path, text, said):
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read(path)


def test_all_faults_of_a_config_are_reported_at_once(path):
    path.write_text('{"hidden_act": "swish", "hidden_size": 10, "position_embedding_type": "rope"}')
    with pytest.raises(ValueError, match=r"vocab_size.*position_embedding_type.*multiple.*swish"):
        read(path)


def test_a_missing_config_says_what_to_copy(path):
    with pytest.raises(ValueError, match="bert_config.json is missing: copy"):
        read(path)
