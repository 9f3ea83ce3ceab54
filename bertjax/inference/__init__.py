"""Saved models ready for texts: what predict, encode, fill_mask and score share."""

from bertjax.inference.rows import single_segment_batch
from bertjax.inference.saved_model import (
    FinetunedModel,
    TrainedModel,
    all_devices,
    in_language,
    load,
    load_finetuned,
)
from bertjax.tasks.prediction import check_numbers

__all__ = [
    "FinetunedModel",
    "TrainedModel",
    "all_devices",
    "check_numbers",
    "in_language",
    "load",
    "load_finetuned",
    "single_segment_batch",
]
