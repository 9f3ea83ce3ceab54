"""Learning rate, epochs and warm-up of finetuning, by the encoder's width and the training rows.

Recipes for a user's own tables leave them open: None, in `recipes.BY_WIDTH`. TABLE decides
them when a run starts. The run stores them, and a resumed run keeps them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import logging
from etils import epath

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.workdirs import reader


@dataclasses.dataclass(frozen=True)
class Rates:
    """The learning rate of a width, and the epochs by the least number of training rows."""

    peak_learning_rate: float
    epochs: Mapping[int, float]


_FEWER_FOR_MORE_ROWS = {4_000: 3.0, 1_000: 10.0, 0: 20.0}
# By the least width. Sources: 768: Devlin et al. 2019, section 4.1. Narrower encoders take higher
# rates: Turc et al. 2019 (arXiv:1908.08962) try up to 3e-4 for all 24 of theirs. 20 epochs for few
# rows: Mosbach et al. 2021, section 6. docs/finetuning.md says how these values were chosen.
TABLE = {
    768: Rates(2e-5, {0: 3.0}),
    384: Rates(1e-4, _FEWER_FOR_MORE_ROWS),
    256: Rates(3e-4, _FEWER_FOR_MORE_ROWS),
    0: Rates(1e-3, _FEWER_FOR_MORE_ROWS),
}
WARMUP_SHARE = 0.1


def by_table(width: int, rows: int) -> dict[str, float]:
    """Returns the options of an encoder's width and a number of training rows, by dotted name."""
    rates = next(rates for least, rates in TABLE.items() if width >= least)
    epochs = next(epochs for least, epochs in rates.epochs.items() if rows >= least)
    return dict(
        zip(recipes.BY_WIDTH, (rates.peak_learning_rate, epochs, WARMUP_SHARE), strict=True)
    )


def decide(
    config: ml_collections.ConfigDict, rows: int, workdirs: Sequence[epath.PathLike] = ()
) -> None:
    """Gives open options a value: as a run in `workdirs` has it, else by the table.

    The config has the encoder's width.
    """
    names = open_options(config)
    if not names:
        return
    begun = next((it for it in map(reader.describe, workdirs) if it is not None), None)
    if begun is not None:
        _fill(config, dict(config_lib.flatten(begun.config)))
        return
    width = config.model.hidden_size
    values = by_table(width, rows)
    # Another number of steps than the default was given, and a share would replace it.
    if config.schedule.warmup_steps != config_lib.default_config().schedule.warmup_steps:
        values["schedule.warmup_share"] = 0.0
    _fill(config, values)
    logging.info(
        "%s, by the encoder's width of %d and %s training rows (docs/finetuning.md)",
        ", ".join(f"config.{name}={values[name]:g}" for name in names), width, f"{rows:,}",
    )  # fmt: skip


def as_of_base(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy with BERT-base's values in place of open options, to be checked."""
    config = config.copy_and_resolve_references()
    _fill(config, by_table(width=768, rows=0))
    return config


def open_options(config: ml_collections.ConfigDict) -> list[str]:
    """Returns the names of the open options that the table decides: none in pretraining."""
    options = dict(config_lib.flatten(config))
    is_finetuning = options["task"] == "finetuning"
    return [name for name in recipes.BY_WIDTH if is_finetuning and options[name] is None]


def _fill(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> None:
    with config.ignore_type():
        config.update_from_flattened_dict({name: values[name] for name in open_options(config)})
