"""Warns before training if transformers could not load the result."""

from __future__ import annotations

from collections.abc import Collection

import ml_collections

from bertjax import finetuning
from bertjax.convert import families, pretrained
from bertjax.data import tokenizer
from bertjax.models import encoder


def obstacles(
    config: ml_collections.ConfigDict,
    vocabulary: tokenizer.Tokenizer | None,
    paths: Collection[str] = (),
) -> list[str]:
    """Returns a sentence for each part of a resolved config's model that cannot be exported.

    `paths` are those of its parameters.
    """
    faults = []
    if vocabulary is not None and (why := tokenizer.export_fault(vocabulary)):
        faults.append(f"the vocabulary is of the kind {vocabulary.kind}: {why}")
    try:
        families.holding(encoder.EncoderConfig(**config.model), pretrained.head_of(paths))
    except ValueError as error:
        faults.append(str(error))
    if config.task == "finetuning":
        faults.append(finetuning.head_task(config).export_fault)
    return [each for each in faults if each]
