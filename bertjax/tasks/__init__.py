"""What pretraining learns: a module for each objective, and its row in OBJECTIVES.

What a task is, and the losses that tasks share, is `base`. What finetuning learns is a kind's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bertjax.models import EncoderConfig
from bertjax.tasks import base, pretraining

# config.pretraining.objective -> what makes its task of EncoderConfig and config.pretraining.
OBJECTIVES: dict[str, Callable[[EncoderConfig, Any], base.Task]] = {
    "masked_tokens": pretraining.of_options,
}
