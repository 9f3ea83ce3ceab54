"""Rows of tokens as a model reads them: [CLS] tokens [SEP], one segment, padded."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from bertjax.data import padding
from bertjax.inference import saved_model
from bertjax.workdirs import trained_positions

UNIT = 32  # length of a row where a program has few texts: few programs are compiled


def single_segment_batch(
    sequences: Sequence[Sequence[int]], model: saved_model.TrainedModel, *, unit: int = UNIT
) -> dict[str, np.ndarray]:
    """Returns [CLS] tokens [SEP] rows, padded to a multiple of `unit`.

    Raises:
      ValueError: if a sequence is longer than the model can read.
    """
    longest = max(len(sequence) for sequence in sequences) + 2
    if longest > model.max_length:
        raise ValueError(
            f"a text has {longest} tokens with [CLS] and [SEP]; the model reads at most "
            f"{model.max_length}: shorten it or split it"
        )
    warn_beyond_trained(longest, model)
    length = padding.padded_length(longest, model.max_length, unit=unit)
    return padding.cls_rows(sequences, model.vocabulary, length=length)


def warn_beyond_trained(longest: int, model: saved_model.TrainedModel) -> None:
    """Warns once if the model was trained on rows of fewer tokens than `longest`."""
    if model.trained_length is not None and longest > model.trained_length:
        _warn_of_long_texts(model.trained_length, model.max_length)


@functools.cache  # once in a program, not for each batch
def _warn_of_long_texts(trained: int, max_length: int) -> None:
    trained_positions.warn_beyond(trained, max_length, f"texts of more than {trained} tokens")
