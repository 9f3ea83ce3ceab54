"""Examples of one or two texts with a class or a number, as `glue_files` and `table_files` read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import feature_sets


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One or two texts; `label` is the place of the class, a number (float), or None.

    A tuple has the places of all labels of a text that may have several.

    `source` is "file:line".
    """

    texts: tuple[str, ...]
    label: int | float | tuple[int, ...] | None
    source: str


def text_rows(
    examples: Sequence[Example],
    tokenizer: tokenizers.Tokenizer,
    *,
    max_seq_length: int,
    num_labels: int = 0,
) -> feature_sets.FeatureSet:
    """Returns the rows of the examples; "labels" are int32 classes or float32 numbers, if any.

    Of examples with several labels they are float32, 1 or 0 for each of the `num_labels`.

    Raises:
      ValueError: if there are no examples, some have a label or a second text and some have not,
        or max_seq_length is too small.
    """
    if not examples:
        raise ValueError("there are no examples; a data set needs at least one")
    kinds = {(len(example.texts), type(example.label)) for example in examples}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"{n} texts with {kind.__name__}" for n, kind in kinds))
        raise ValueError(
            f"examples of different kinds ({found}); all of a data set need as many texts and the "
            "same kind of label"
        )
    ((num_texts, label_type),) = kinds
    first, *second = ([example.texts[place] for example in examples] for place in range(num_texts))
    input_ids, segment_ids = feature_sets.sequence_pairs(
        tokenizer, first, second[0] if second else None, max_seq_length=max_seq_length
    )
    columns: dict[str, np.ndarray] = {}
    if label_type is tuple:
        columns["labels"] = np.zeros((len(examples), num_labels), np.float32)
        for row, example in zip(columns["labels"], examples, strict=True):
            row[list(example.label)] = 1  # pyright: ignore[reportArgumentType]  a tuple
    elif label_type is not type(None):
        dtype = np.float32 if label_type is float else np.int32
        columns["labels"] = np.array([example.label for example in examples], dtype)
    tokens = {"input_ids": input_ids, "segment_ids": segment_ids}
    return feature_sets.FeatureSet(tokens, columns, pad_id=tokenizer.pad_id)
