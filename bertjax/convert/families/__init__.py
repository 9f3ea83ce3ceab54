"""The families of weights, one file each: their names, configs and tokenizers in other programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bertjax import models
from bertjax.convert import names
from bertjax.convert.families import (
    albert,
    bart,
    base,
    bert,
    bert_generation,
    deberta_v2,
    distilbert,
    electra,
    encoder_decoder,
    esm,
    eurobert,
    modernbert,
    modernbert_decoder,
    mpnet,
    nomic_bert,
    roberta,
    vit_mae,
    xlm,
)
from bertjax.options import faults
from bertjax.tokenization import tokenizer

# Name -> family. The name is the model_type of config.json, after the one of its parts if it has
# any. If several families can hold an encoder, it is written as the first.
FAMILIES: dict[str, base.Family] = {
    family.name: family
    for family in (
        bert.FAMILY,
        albert.FAMILY,
        distilbert.FAMILY,
        roberta.XLM_FAMILY,
        roberta.CAMEMBERT_FAMILY,
        roberta.FAMILY,
        electra.FAMILY,
        deberta_v2.FAMILY,
        modernbert.FAMILY,
        modernbert_decoder.FAMILY,
        mpnet.FAMILY,
        nomic_bert.FAMILY,
        eurobert.FAMILY,
        xlm.FAMILY,
        esm.FAMILY,
        vit_mae.FAMILY,
        bert_generation.FAMILY,
        encoder_decoder.of(bert.FAMILY),
        encoder_decoder.of(bert_generation.FAMILY),
        bart.FAMILY,
    )
}

# The first released configs of BERT have no model_type.
WITHOUT_MODEL_TYPE = bert.FAMILY.model_type


def named(name: object) -> base.Family:
    """Returns the family of this name."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise faults.unknown("model_type", name, FAMILIES)
    return FAMILIES[name]


def describing(fields: Mapping[str, Any]) -> base.Family:
    """Returns the family of the fields of a config.json."""
    model_type = fields.get("model_type") or WITHOUT_MODEL_TYPE
    candidates = [family for family in FAMILIES.values() if family.model_type == model_type]
    if not candidates:
        return named(model_type)  # raises
    for family in candidates:
        if all(_type_of(fields, part) == it.model_type for part, it in family.nested.items()):
            return family
    parts = " and ".join(f"{part} {_type_of(fields, part)!r}" for part in candidates[0].nested)
    known = ", ".join(family.name for family in candidates)
    raise ValueError(f"model_type is {model_type!r} with {parts}; known are {known}")


def _type_of(fields: Mapping[str, Any], part: str) -> Any:
    """Returns the model_type of a nested config, None without one."""
    nested = fields.get(part)
    return nested.get("model_type") if isinstance(nested, Mapping) else None


def holding(
    config: models.EncoderConfig,
    head: str = "none",
    vocabulary: tokenizer.Tokenizer | None = None,
    decoder: models.EncoderConfig | None = None,
) -> base.Family:
    """Returns the first family with encoders of this kind and a class with this head.

    A family with special ids for SentencePiece is chosen only for a vocabulary with these ids.
    """
    lacking: dict[str, list[str]] = {}
    for family in FAMILIES.values():
        lacking[family.title] = family.lacks(config)
        if decoder is not None:
            lacking[family.title] += [f"decoder with {it}" for it in family.lacks(decoder)]
        if head not in family.architectures:
            heads = ", ".join(family.architectures)
            lacking[family.title].append(f"class for the head {head!r} (known: {heads})")
        pieces = family.tokenizer.pieces
        if pieces and not pieces.are_of(vocabulary):
            lacking[family.title].append("vocabulary with these special tokens")
        if not lacking[family.title]:
            return family
    fewest = min(map(len, lacking.values()))
    nearest = (
        f"{title} has no {', '.join(reasons)}"
        for title, reasons in lacking.items()
        if len(reasons) == fewest
    )
    raise ValueError(
        f"no known family of weights ({', '.join(lacking)}) has such models; the nearest: "
        f"{'; '.join(nearest)}. --format=bertjax keeps them, --head=none writes an encoder alone"
    )


def releasing(variables: Collection[str], files: Collection[str]) -> base.Family:
    """Returns the family whose released code made a checkpoint with these variables.

    It is the family that knows most of them, or among equals the one with its config in `files`,
    the names in the checkpoint's directory.
    """

    def likeness(family: base.Family) -> tuple[int, bool]:
        released = family.released
        if released is None:
            return -1, False
        return len(names.our_paths(variables, released.names)), released.config in files

    return max(FAMILIES.values(), key=likeness)
