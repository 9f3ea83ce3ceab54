"""Faults of an encoder's config are named, all at once, with the value that would do."""

import pytest

from bertjax import models
from bertjax.models import encoder_config

ROTARY = {"position_embedding": "rotary"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hidden_size": 30, "num_attention_heads": 4, "hidden_act": "gleu"},
            "hidden_size is 30; .* a multiple of num_attention_heads, 4; hidden_act is 'gleu'",
        ),
        ({"type_vocab_size": -1}, "type_vocab_size is -1; it must be at least 0"),
        ({"embedding_size": -1}, "embedding_size is -1"),
        ({"num_hidden_groups": 13}, "num_hidden_groups is 13; it must be from 0 .* to the 12"),
        ({"inner_group_num": 0}, "inner_group_num is 0; it must be at least 1"),
        ({"num_hidden_groups": 1, "layer": "pre_norm"}, "set num_hidden_groups to 0"),
        ({"position_offset": -1}, "position_offset is -1; .*at least 0"),
        (
            {"position_offset": 51, "vocab_size": 50},
            "position_offset is 51; .*at most vocab_size, 50",
        ),
        ({**ROTARY, "position_offset": 2}, "there is no table of positions"),
        ({**ROTARY, "hidden_size": 36}, "not even"),
        ({**ROTARY, "hidden_size": 33, "num_attention_heads": 0}, "num_attention_heads is 0"),
        ({**ROTARY, "rotary_base": 0.0}, "must be above 0"),
        ({"window": 2, "global_every": 1}, "no layer has that window"),
        ({"window": -1}, "at least 0"),
        ({"norm": "batch"}, "known are layer_norm, scale_only, rms_norm"),
        ({"pooler_act": "no"}, "pooler_act is 'no'; known are tanh, gelu, gelu_tanh, "),
        (
            {"hidden_size": 192, "num_attention_heads": 2, "attention": "pallas"},
            "heads of 32, 64, 128; .* is 96: set attention='xla'",
        ),
        *(
            ({field: "none such"}, f"{field} is 'none such'; known are {', '.join(known)}")
            for field, known in encoder_config.CHOICES.items()
        ),
    ],
)
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        models.EncoderConfig(**options)


def test_a_head_of_any_size_goes_with_plain_attention():
    models.EncoderConfig(hidden_size=192, num_attention_heads=2)
