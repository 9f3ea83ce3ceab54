"""The config of released TensorFlow 1 code (bert_config.json), and what it means as EncoderConfig.

What it can say belongs to the family; what it cannot say stands under a field of ours.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.convert import families, pretrained
from bertjax.convert.families import base
from bertjax.data import json_text
from bertjax.models import embedding_sharing, encoder

# What a released config cannot say stands under this field; the released code passes over it.
OUR_FIELD = "bertjax"


@dataclasses.dataclass(frozen=True)
class Description:
    """What a bert_config.json says; `head` is empty where that is for the weights to say.

    `generator` is that of the generator that lies beside a discriminator.
    """

    config: encoder.EncoderConfig
    head: str = ""
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)
    is_regression: bool = False
    is_multi_label: bool = False
    generator: encoder.EncoderConfig | None = None


def released(family: base.Family) -> base.Released:
    """Returns how the family's released code writes its models down.

    Raises:
      ValueError: if it was not released in TensorFlow 1.
    """
    if family.released is None:
        others = [name for name, other in families.FAMILIES.items() if other.released]
        raise ValueError(
            f"{family.title} was not released in TensorFlow 1; of the families that are known here "
            f"{', '.join(others)} were: give another --format"
        )
    return family.released


def read_config(
    path: epath.Path, family: base.Family, shapes: Mapping[str, Sequence[int]] | None = None
) -> Description:
    """Returns what the config at `path` means.

    Of code that has no such file the `shapes` of the variables, by our paths, tell the sizes.

    "gelu" is the exact one, as when the models were released and as in transformers; the released
    code has computed the tanh form under that name since February 2019.

    Raises:
      ValueError: if it is not there, or naming every field that is missing, unknown or has an
        unsupported value.
    """
    code, shapes = released(family), shapes or {}
    if code.head_size and not path.exists() and shapes:
        fields: dict[str, Any] = pretrained.sizes_of(shapes, "encoder", head_size=code.head_size)
    else:
        fields = _read_fields(path)
    own = fields.get(OUR_FIELD, {})
    known = {**code.defaults, "vocab_size": None}
    faults = []
    if "vocab_size" not in fields:
        faults.append("vocab_size is missing")
    for name in sorted(fields.keys() - known.keys() - {*code.unread, OUR_FIELD}):
        faults.append(
            f"{name} is {fields[name]!r}; the released {family.title} has no such option: if it "
            "changes nothing in the model, remove it from the file"
        )
    sizes = {name: fields.get(name, default) for name, default in known.items()}
    sizes |= {  # "hidden_dropout_prob": 0
        name: float(value)
        for name, value in sizes.items()
        if isinstance(known[name], float) and type(value) is int
    }
    sizes["vocab_size"] = sizes["vocab_size"] or 1
    sizes |= {**family.traits, **code.computed_with}
    sizes["hidden_act"] = code.means.get(sizes["hidden_act"], sizes["hidden_act"])
    sizes |= {name: own[name] for name in ("hidden_act", *code.computed_with) if name in own}
    head = own.get("head", "")
    if head not in ("", *pretrained.PARTS):
        faults.append(f"{OUR_FIELD}.head is {head!r}; known are {', '.join(pretrained.PARTS)}")
    try:
        labels = {int(label): name for label, name in own.get("labels", {}).items()}
        kinds = {name: bool(own.get(name)) for name in ("is_regression", "is_multi_label")}
        config = encoder.EncoderConfig(**sizes)
        generator = _generator(config, shapes, code, own.get("generator", {}))
        description = Description(config, head, labels, **kinds, generator=generator)
    except (ValueError, TypeError) as error:
        faults.append(str(error))
    else:
        if not faults:
            return description
    raise ValueError(f"{path.name} does not describe a {family.title}: " + "; ".join(faults))


def _generator(
    config: encoder.EncoderConfig,
    shapes: Mapping[str, Sequence[int]],
    code: base.Released,
    own: Mapping[str, int],
) -> encoder.EncoderConfig | None:
    path = f"{embedding_sharing.GENERATOR}.encoder"
    if not any(name.startswith(f"{path}.layers.") for name in shapes):
        return None
    sizes = pretrained.sizes_of(shapes, path, head_size=code.head_size)
    shared = {} if "embedding_size" in sizes else {"embedding_size": config.embedding_width}
    return dataclasses.replace(config, **sizes | shared | dict(own))


def write_config(weights: pretrained.Pretrained, path: epath.Path) -> None:
    """Writes the config; what the released code would not follow is logged."""
    config, code = weights.config, released(weights.family)
    fields = {name: getattr(config, name) for name in ("vocab_size", *code.defaults)}
    own: dict[str, Any] = {}
    if config.hidden_act in code.called:
        called = fields["hidden_act"] = code.called[config.hidden_act]
        if code.means.get(called, called) != config.hidden_act:
            own["hidden_act"] = config.hidden_act
    for name, value in code.computed_with.items():
        if getattr(config, name) == value:
            continue
        own[name] = getattr(config, name)
        logging.warning(
            "The model has %s %s; the released code computes with %s whatever the config says",
            name,
            own[name],
            value,
        )
    if weights.generator is not None:
        own["generator"] = {"num_attention_heads": weights.generator.num_attention_heads}
    if weights.head != pretrained.head_of(weights.params.keys()):
        own["head"] = weights.head
    if weights.labels:
        own["labels"] = {str(label): name for label, name in weights.labels.items()}
    own |= {name: True for name in ("is_regression", "is_multi_label") if getattr(weights, name)}
    fields |= {OUR_FIELD: own} if own else {}
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def _read_fields(path: epath.Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.name} is missing: copy the model's into {path.parent}")
    try:
        fields = json_text.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    own = fields.get(OUR_FIELD, {}) if isinstance(fields, dict) else None
    if not isinstance(own, dict) or not isinstance(own.get("labels", {}), dict):
        raise ValueError(f"{path.name} must hold a JSON object, not {str(fields)[:40]!r}")
    return fields
