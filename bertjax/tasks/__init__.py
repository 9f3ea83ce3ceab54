"""What pretraining learns: a module for each objective, and its row in OBJECTIVES.

What a task is, and the losses that tasks share, is `base`. What finetuning learns is a kind's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.models import EncoderConfig
from bertjax.tasks import base, next_token, pretraining, replaced_tokens, span_boundary

# config.pretraining.objective -> what makes its task of EncoderConfig and config.pretraining.
OBJECTIVES: dict[str, Callable[[EncoderConfig, Any], base.Task]] = {
    "masked_tokens": pretraining.of_options,
    "replaced_tokens": replaced_tokens.of_options,
    "span_boundary": span_boundary.of_options,
    "next_token": next_token.of_options,
}

# Objective -> the sentences about options of a config that do not go together with it.
FAULTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "replaced_tokens": replaced_tokens.faults,
    "span_boundary": span_boundary.faults,
    "next_token": next_token.faults,
}

# Those that read tokens as they are; all others ask for masked ones.
WITHOUT_MASKS = ("next_token",)

# Objective -> its loss that the unigram entropy is the chance level of, if not mlm_loss.
TOKEN_LOSSES = {"next_token": "lm_loss"}

# Objective -> of the averages since the last line: a loss, the level above which it tells of
# nothing learnt, and what to say then. None where the averages do not tell.
CHANCES: dict[str, Callable[[Mapping[str, float]], tuple[str, float, str] | None]] = {
    "replaced_tokens": replaced_tokens.chance
}
