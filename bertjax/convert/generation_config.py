"""generation_config.json: how transformers searches for targets, and the same in our options.

The fields of a released model are kept as they are and written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import json_text
from bertjax.models import generation
from bertjax.options import faults, schema

FILE = "generation_config.json"
# Option of config.finetuning -> the field, and what it counts besides: the start token.
LENGTHS = {"max_target_length": ("max_length", 1), "min_new_tokens": ("min_new_tokens", 0)}
OF_BEAMS = {"length_penalty": "length_penalty", "early_stopping": "early_stopping"}
NAMES = {"beams": "num_beams", "no_repeat_ngram": "no_repeat_ngram_size", **OF_BEAMS}


def _stops(value: Any, name: str) -> Iterator[ValueError]:
    if value not in generation.EARLY_STOPPING.values():
        yield faults.wrong(name, value, 'true, false or "never"')


# Fields that `options` reads -> their schemas.
READ: dict[str, Any] = {
    "max_length": schema.Whole(2),
    "max_new_tokens": schema.Whole(1),
    "min_length": schema.Whole(0),
    "min_new_tokens": schema.Whole(0),
    "num_beams": schema.Whole(1),
    "no_repeat_ngram_size": schema.Whole(0),
    "length_penalty": float,
    "early_stopping": _stops,
}
# Fields with which transformers finds other texts -> the value with which it does not.
NOT_OURS: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "stop_strings": None,
    "max_time": None,
}


def read(directory: epath.Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a directory's file, or those that an older config.json has of them.

    Without the file an encoder has none.

    Raises:
      ValueError: listing the fields of a wrong type.
    """
    path = directory / FILE
    if path.exists():
        fields = json_text.read_object(path)
    elif not config.get("is_encoder_decoder"):
        return {}
    else:
        # Source: transformers 5.24, GenerationConfig.from_model_config.
        names, decoder = {*READ, *NOT_OURS}, config.get("decoder")
        parts = (decoder if isinstance(decoder, Mapping) else {}, config)
        fields = {name: it for part in parts for name, it in part.items() if name in names}
    fields = {name: it for name, it in fields.items() if it is not None and name[:1] != "_"}
    schemas = {name: it for name, it in READ.items() if name in fields}
    faults.check(f"{path} cannot be used", schema.faults(fields, schemas, ""))
    return fields


def options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of config.finetuning that fields decide, and warns of the others."""
    found = {ours: fields[theirs] for ours, theirs in NAMES.items() if theirs in fields}
    if "early_stopping" in found:
        names = {value: name for name, value in generation.EARLY_STOPPING.items()}
        found["early_stopping"] = names[found["early_stopping"]]
    if found.get("beams", 1) == 1:
        found = {name: it for name, it in found.items() if name not in OF_BEAMS}
    if most := fields.get("max_new_tokens", fields.get("max_length", 1) - 1):
        found["max_target_length"] = most
    if least := fields.get("min_new_tokens", max(fields.get("min_length", 1) - 1, 0)):
        found["min_new_tokens"] = least
    if others := [f"{it} {fields[it]}" for it, no in NOT_OURS.items() if fields.get(it, no) != no]:
        logging.warning(
            "The model's search in transformers has %s, which this one does not know: its texts "
            "may differ", ", ".join(others),
        )  # fmt: skip
    return found


def of_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields for options of config.finetuning; undoes `options`."""
    fields = {theirs: chosen[ours] + more for ours, (theirs, more) in LENGTHS.items()}
    fields |= {theirs: chosen[ours] for ours, theirs in NAMES.items()}
    fields["early_stopping"] = generation.EARLY_STOPPING[chosen["early_stopping"]]
    unread = set() if chosen["beams"] > 1 else {*OF_BEAMS}
    unread |= set() if chosen["min_new_tokens"] else {"min_new_tokens"}
    return {name: it for name, it in fields.items() if name not in unread}


def with_length(fields: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Returns the fields with a length, by default our 64 tokens, or `longest` if it is less."""
    if "max_new_tokens" in fields:
        return dict(fields)
    return {"max_length": min(longest, generation.Search.max_length) + 1, **fields}


def write(fields: Mapping[str, Any], directory: epath.Path) -> None:
    """Writes the file."""
    text = json.dumps(fields, indent=2, sort_keys=True)
    (directory / FILE).write_text(text + "\n")
