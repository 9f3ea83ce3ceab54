"""The families of weights, one file each: how others name, describe and tokenize them."""

from __future__ import annotations

from collections.abc import Collection

from bertjax import models
from bertjax.convert import names
from bertjax.convert.families import (
    albert,
    base,
    bert,
    distilbert,
    electra,
    esm,
    modernbert,
    modernbert_decoder,
    roberta,
    vit_mae,
    xlm,
)
from bertjax.data import tokenizer

# model_type of config.json -> family. Where several hold an encoder, the first is written.
FAMILIES: dict[str, base.Family] = {
    family.model_type: family
    for family in (
        bert.FAMILY,
        albert.FAMILY,
        distilbert.FAMILY,
        roberta.XLM_FAMILY,
        roberta.CAMEMBERT_FAMILY,
        roberta.FAMILY,
        electra.FAMILY,
        modernbert.FAMILY,
        modernbert_decoder.FAMILY,
        xlm.FAMILY,
        esm.FAMILY,
        vit_mae.FAMILY,
    )
}

# The first released configs of BERT have no model_type.
WITHOUT_MODEL_TYPE = bert.FAMILY.model_type


def named(model_type: object) -> base.Family:
    """Returns the family of this model_type.

    Raises:
      ValueError: if there is none, with those that are known.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type is {model_type!r}; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def holding(
    config: models.EncoderConfig,
    head: str = "none",
    vocabulary: tokenizer.Tokenizer | None = None,
) -> base.Family:
    """Returns the first family that has encoders of this kind, and a class with this head.

    A family with ids of its own for a SentencePiece vocabulary is meant by that vocabulary alone.

    Raises:
      ValueError: if none has.
    """
    lacking: dict[str, list[str]] = {}
    for family in FAMILIES.values():
        lacking[family.title] = family.lacks(config)
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
        f"no family of weights that is known here ({', '.join(lacking)}) has such models; the "
        f"nearest: {'; '.join(nearest)}. --format=bertjax keeps them"
    )


def releasing(variables: Collection[str], files: Collection[str]) -> base.Family:
    """Returns the family whose released code made a checkpoint with these variables.

    It is the family that knows most of them; among equals, the one whose config is in `files`, the
    names of the checkpoint's directory.
    """

    def likeness(family: base.Family) -> tuple[int, bool]:
        released = family.released
        if released is None:
            return -1, False
        return len(names.our_paths(variables, released.names)), released.config in files

    return max(FAMILIES.values(), key=likeness)
