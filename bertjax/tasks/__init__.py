"""What pretraining learns: a module for each objective, and its row in OBJECTIVES.

What a task is, and the losses that tasks share, is `base`. What finetuning learns is a kind's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.models import EncoderConfig
from bertjax.tasks import base, next_token, pretraining, replaced_tokens, span_boundary


def _no_faults(config: Any) -> Iterator[str]:
    del config
    yield from ()


@dataclasses.dataclass(frozen=True)
class Objective:
    """What config.pretraining.objective chooses.

    `make` makes its task of an EncoderConfig and config.pretraining. `faults` are sentences about
    options of a config that do not go together with it. With `reads_masks` batches have masked
    tokens. `token_loss` is its loss that the unigram entropy is the chance level of. `chance` finds
    in the averages since the last line a loss, the level above which it tells of nothing learnt,
    and what to say then; None where they do not tell.
    """

    make: Callable[[EncoderConfig, Any], base.Task]
    faults: Callable[[Any], Iterator[str]] = _no_faults
    reads_masks: bool = True
    token_loss: str = "mlm_loss"
    chance: Callable[[Mapping[str, float]], tuple[str, float, str] | None] | None = None


OBJECTIVES: dict[str, Objective] = {
    "masked_tokens": Objective(pretraining.of_options),
    "replaced_tokens": Objective(
        replaced_tokens.of_options, replaced_tokens.faults, chance=replaced_tokens.chance
    ),
    "span_boundary": Objective(span_boundary.of_options, span_boundary.faults),
    "next_token": Objective(
        next_token.of_options, next_token.faults, reads_masks=False, token_loss="lm_loss"
    ),
}
