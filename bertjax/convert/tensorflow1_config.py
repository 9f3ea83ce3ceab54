"""bert_config.json of the released BERT code, and what it means as an EncoderConfig.

Source: google-research/bert, modeling.py, BertConfig.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.convert import pretrained
from bertjax.models import encoder

CONFIG_FILE = "bert_config.json"

# For fields that a file leaves out, as the released BertConfig has them. (Its released models have
# two segments, and their files say so.)
RELEASED_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 16,
    "initializer_range": 0.02,
}
# In the released multilingual and Chinese files; the released code does not read them.
UNREAD_FIELDS = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
# What a released config cannot say stands under this field; the released code passes over it.
OUR_FIELD = "bertjax"
# tf.contrib.layers.layer_norm, variance_epsilon: not an option there.
RELEASED_LAYER_NORM_EPS = 1e-12


@dataclasses.dataclass(frozen=True)
class Description:
    """What a bert_config.json says; `head` is empty where that is for the weights to say."""

    config: encoder.EncoderConfig
    head: str = ""
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)


def read(path: epath.Path) -> Description:
    """Returns what a bert_config.json means.

    "gelu" is the exact one, as when the models were released and as in transformers; the released
    code has computed the tanh form under that name since February 2019.

    Raises:
      ValueError: if it is not there, or naming every field that is missing, unknown or has an
        unsupported value.
    """
    fields = _read_fields(path)
    own = fields.get(OUR_FIELD, {})
    known = {**RELEASED_DEFAULTS, "vocab_size": None}
    faults = []
    if "vocab_size" not in fields:
        faults.append("vocab_size is missing")
    for name in sorted(fields.keys() - known.keys() - {*UNREAD_FIELDS, OUR_FIELD}):
        faults.append(
            f"{name} is {fields[name]!r}; the released BERT has no such option: if it changes "
            "nothing in the model, remove it from the file"
        )
    sizes = {name: fields.get(name, default) for name, default in known.items()}
    sizes["vocab_size"] = sizes["vocab_size"] or 1
    sizes["layer_norm_eps"] = own.get("layer_norm_eps", RELEASED_LAYER_NORM_EPS)
    sizes["hidden_act"] = own.get("hidden_act", sizes["hidden_act"])
    head = own.get("head", "")
    if head not in ("", *pretrained.PARTS):
        faults.append(f"{OUR_FIELD}.head is {head!r}; known are {', '.join(pretrained.PARTS)}")
    try:
        labels = {int(label): name for label, name in own.get("labels", {}).items()}
        description = Description(encoder.EncoderConfig(**sizes), head, labels)
    except (ValueError, TypeError) as error:
        faults.append(str(error))
    else:
        if not faults:
            return description
    raise ValueError(f"{path.name} does not describe a BERT: " + "; ".join(faults))


def write(weights: pretrained.Pretrained, path: epath.Path) -> None:
    """Writes a bert_config.json; what the released code would not follow is logged."""
    config = weights.config
    fields = {name: getattr(config, name) for name in ("vocab_size", *RELEASED_DEFAULTS)}
    own: dict[str, Any] = {}
    if config.hidden_act == "gelu_tanh":
        fields["hidden_act"] = "gelu"  # The name that the released code knows it by.
        own["hidden_act"] = config.hidden_act
    if config.layer_norm_eps != RELEASED_LAYER_NORM_EPS:
        own["layer_norm_eps"] = config.layer_norm_eps
        logging.warning(
            "The model has layer_norm_eps %g; the released code computes with %g whatever the "
            "config says",
            config.layer_norm_eps,
            RELEASED_LAYER_NORM_EPS,
        )
    if weights.head != pretrained.head_of(weights.params.keys()):
        own["head"] = weights.head
    if weights.labels:
        own["labels"] = {str(label): name for label, name in weights.labels.items()}
    fields |= {OUR_FIELD: own} if own else {}
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def _read_fields(path: epath.Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.name} is missing: copy the model's into {path.parent}")
    try:
        fields = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    own = fields.get(OUR_FIELD, {}) if isinstance(fields, dict) else None
    if not isinstance(own, dict) or not isinstance(own.get("labels", {}), dict):
        raise ValueError(f"{path.name} must hold a JSON object, not {str(fields)[:40]!r}")
    return fields
