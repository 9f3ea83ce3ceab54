"""config.json: one to one with EncoderConfig, and what is not supported is named."""

import json
import logging

import pytest

from bertjax import models
from bertjax.convert import huggingface_config
from bertjax.convert.families import bert

# The fields that transformers 4 and 5 write for BERT, and those of the first released configs.
FIELDS = {
    "architectures": ["BertForPreTraining"], "attention_probs_dropout_prob": 0.2,
    "classifier_dropout": None, "dtype": "float32", "hidden_act": "relu",
    "hidden_dropout_prob": 0.3, "hidden_size": 24, "initializer_range": 0.05,
    "intermediate_size": 48, "is_decoder": False, "layer_norm_eps": 1e-6,
    "max_position_embeddings": 40, "model_type": "bert", "num_attention_heads": 3,
    "num_hidden_layers": 5, "pad_token_id": 0, "pooler_fc_size": 768, "pruned_heads": {},
    "position_embedding_type": "absolute", "tie_word_embeddings": True,
    "transformers_version": "5.23.0", "type_vocab_size": 4, "use_cache": True, "vocab_size": 99,
}  # fmt: skip


def parse(**fields):
    return huggingface_config.parse_config(FIELDS | fields, source="config.json")


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        yield caplog


def test_fields_map_one_to_one(warnings):
    assert parse().encoder == models.EncoderConfig(
        vocab_size=99, hidden_size=24, num_hidden_layers=5, num_attention_heads=3,
        intermediate_size=48, hidden_act="relu", hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.2, max_position_embeddings=40, type_vocab_size=4,
        initializer_range=0.05, layer_norm_eps=1e-6,
    )  # fmt: skip
    assert parse().head == "pretraining"
    assert not warnings.records


def test_what_is_written_is_read_back_and_each_gelu_is_the_one_that_is_meant():
    """Every head: families/test_families.py."""
    head, labels = "sequence_classification", {0: "no", 1: "yes"}
    for activation in ("gelu", "gelu_tanh", "relu"):
        config = models.EncoderConfig(hidden_act=activation, hidden_size=24, num_attention_heads=3)
        fields = huggingface_config.to_json(config, bert.FAMILY, head=head, labels=labels)
        read = huggingface_config.parse_config(json.loads(json.dumps(fields)), source="config.json")
        assert (read.encoder, read.head, read.labels) == (config, head, labels)
    names = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    for theirs, ours in names.items():
        assert parse(hidden_act=theirs).encoder.hidden_act == ours
    # Fields that are not there have the defaults of BERT.
    assert huggingface_config.parse_config({}, source="").encoder == models.EncoderConfig()


UNSUPPORTED = [
    ("position_embedding_type", "relative_key"),
    ("hidden_act", "swish"),
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("model_type", "gpt2"),
    ("tie_word_embeddings", False),
    ("pruned_heads", {"0": [1]}),
    ("quantization_config", {"bits": 4}),
    ("hidden_size", "24"),
    ("hidden_size", 25),
    ("num_hidden_layers", True),
    ("layer_norm_eps", None),
    ("layer_norm_eps", float("inf")),
    ("id2label", {"1": "yes"}),
    ("architectures", "BertModel"),
]


def test_unsupported_values_are_named_all_at_once():
    for field, value in UNSUPPORTED:
        with pytest.raises(ValueError, match=rf"(?s)^config\.json .*{field}"):
            parse(**{field: value})
    with pytest.raises(ValueError, match="(?s)type is 'x'.*hidden_act is 'y'.*12"):
        parse(position_embedding_type="x", hidden_act="y", hidden_size=12, num_attention_heads=5)


MODERN = {"model_type": "modernbert", "hidden_size": 24, "num_attention_heads": 3}


def test_a_modernbert_that_computes_something_else_is_refused():
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(ValueError, match="rope_parameters has rope"):
        huggingface_config.parse_config(MODERN | rotary, source="config.json")


@pytest.mark.parametrize(("width", "window"), [(128, 64), (1, -1), (0, -1)])
def test_a_window_of_modernbert_reaches_half_of_it_to_each_side(width, window):
    fields = MODERN | {"local_attention": width}
    assert huggingface_config.parse_config(fields, source="config.json").encoder.window == window


def test_unknown_fields_and_other_dropouts_are_warned_of(warnings):
    for fields, told in (
        (FIELDS | {"rotary_base": 10000}, ["the unknown field rotary_base = 10000"]),
        (FIELDS | {"classifier_dropout": 0.4}, ["classifier_dropout 0.4"]),
        (MODERN | {"mlp_dropout": 0.0, "classifier_dropout": 0.0}, []),
        (MODERN | {"embedding_dropout": 0.1, "classifier_dropout": 0.1}, []),
        (MODERN | {"classifier_dropout": 0.1}, ["classifier_dropout 0.1"]),
        (MODERN | {"mlp_dropout": 0.2, "embedding_dropout": 0.2}, ["mlp_dropout 0.2"]),
    ):
        warnings.clear()
        huggingface_config.parse_config(fields, source="config.json")
        assert len(warnings.messages) == len(told)
        for message, text in zip(warnings.messages, told, strict=True):
            assert message.startswith(f"config.json has {text}")
    warnings.clear()
    auto_map = {"AutoModel": "x.Model"}
    huggingface_config.parse_config(FIELDS | {"auto_map": auto_map}, source="config.json")
    assert "names Python code (auto_map), which is never run" in warnings.messages[0]


def test_labels_are_in_the_order_of_their_numbers():
    labels = {str(number): f"L{number}" for number in reversed(range(11))}
    assert list(parse(id2label=labels).labels) == list(range(11))
    assert parse(num_labels=2).labels == {0: "LABEL_0", 1: "LABEL_1"}


def test_a_file_that_is_not_a_config_or_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        huggingface_config.read_config(tmp_path)
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "holds a list"),
        ('{"model_type": ["bert"]}', r"config.json .*model_type is \['bert'\]; known are .*bert"),
        ('{"intermediate_size": -1}', "(?s)config.json .*intermediate_size is -1; it must be"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            huggingface_config.read_config(tmp_path)
