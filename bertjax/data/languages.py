"""The language of texts for a model with an embedding of each: its number, alone and in a batch.

Names are as in config.data.languages. All rows of a shard of records have its language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data import records
from bertjax.options import faults


def names_of(embeddings: int, named: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages of a model in the order of its embeddings, () if it has none.

    Where nothing names them, as in some weights of others, they are called by their numbers.
    """
    return (tuple(named) or tuple(map(str, range(embeddings)))) if embeddings else ()


def number_of(name: str, known: Sequence[str], option: str) -> int | None:
    """Returns the number of a language, None for a model without embeddings of languages.

    `known` are the languages of the model, and `option` is what names one, for messages.
    """
    if name in known:
        return known.index(name)
    given = f"{option} is {name!r}" if name else f"{option} is not given"
    if known:
        raise ValueError(
            f"{given}, but the model has an embedding of each language: give the language of the "
            f"texts, one of {', '.join(known)}"
        )
    if name:
        raise faults.unread(option, name, "the model has no embeddings of languages", "")
    return None


def with_language(batch: Mapping[str, np.ndarray], number: int | None) -> dict[str, np.ndarray]:
    """Returns a batch whose tokens are all of one language; None: as it is."""
    if number is None:
        return dict(batch)
    # A number for each token, like all that is reshaped where an example has several texts.
    return {**batch, records.LANGUAGE_FEATURE: np.full_like(batch["input_ids"], number)}
