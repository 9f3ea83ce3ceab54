"""ModernBERT read from left to right: Ettin's decoders, and the causal side of hybrid models.

Source: transformers, models/modernbert_decoder of 5.24 (modeling_modernbert_decoder.py,
configuration_modernbert_decoder.py) and masking_utils.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax import models
from bertjax.convert import heads
from bertjax.convert.families import base, bert, modernbert
from bertjax.convert.names import Name

_BODY, _LAYER = "model", bert.LAYER
_ATTENTION = f"{_BODY}.layers.{{layer}}.attn"
_OF_HEAD = ("causal_lm",)

# The names that differ from ModernBERT's: three separate kernels, and the head.
_OTHERS = (
    *(
        Name(f"{_ATTENTION}.{theirs}_proj.weight", f"{_LAYER}.attention.{ours}.kernel", "transpose")
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"))
    ),
    Name("lm_head.dense.weight", "lm_head.dense.kernel", "transpose", heads=_OF_HEAD),
    Name("lm_head.norm.weight", "lm_head.norm.scale", heads=_OF_HEAD),
    Name("decoder.bias", "lm_head.bias", heads=_OF_HEAD),
)
_OURS = {name.ours for name in _OTHERS}


def in_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same as `modernbert.in_numbers`, with the decoder's definition of the window.

    Half of `local_attention` counts the token itself, so 2 lets it see itself alone.
    """
    local = fields.get("local_attention", 128)
    if local in (0, 1):
        raise ValueError(f"local_attention is {local}; it must be at least 2: the token itself")
    result = modernbert.in_numbers(fields)
    if result.get("global_attn_every_n_layers", 3) == 1:
        result["local_attention"] = 2  # our 0: no layer has a window
    elif local == 2:
        result["local_attention"] = 0  # our -1
    return result


def in_both(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the same as `modernbert.in_both`, with the decoder's definition of the window."""
    window = max(config.window or modernbert.DEFAULT_WINDOW, 0)
    return modernbert.in_both(config) | {"local_attention": 2 * (window + 1)}


FAMILY = dataclasses.replace(
    modernbert.FAMILY,
    model_type="modernbert-decoder",
    title="ModernBERT decoder",
    fields={
        **modernbert.FIELDS,
        "local_attention": base.Field("window", int, default=128, times=2, more=2),
    },
    # Numbers all of them, whatever the vocabulary.
    stated={**modernbert.FAMILY.stated, **dict.fromkeys(modernbert.IDS, 0)},
    # Half of local_attention once more.
    without_effect=modernbert.WITHOUT_EFFECT | {"sliding_window"},
    architectures=heads.classes("ModernBertDecoder", ("causal_lm", "none")),
    tensors=(
        *_OTHERS,
        *(name for name in modernbert.TENSORS if name.ours not in _OURS and not name.heads),
    ),
    fused={theirs: parts for theirs, parts in modernbert.FUSED.items() if ".mlp." in theirs},
    traits={**modernbert.FAMILY.traits, "left_to_right": True},
    read=in_numbers,
    restated=in_both,
    pooling="",
)
