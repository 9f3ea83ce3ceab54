"""Protocols of finetuning: the settings under which others report scores of GLUE's tasks.

`config.finetuning.protocol` names a row of PROTOCOLS; its options replace the recipe's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.options import faults as faults_lib

DATASET = "glue"
# Options that may be given lower than the protocol has them.
AT_MOST = ("finetuning.max_seq_length",)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings that `config.search` trains, all combinations."""

    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]
    epochs: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Options by their dotted names, and other values for some tasks.

    An option of None is left open, unless it is given: `jobs.finetuning_rates` decides it.

    tasks: the tasks that it is for; (): all
    grid: None for a single setting
    picks_epoch: a training is scored by its best epoch on the development set, not by the last
    note: the choice made by the development set, for reports
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    of_task: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    grid: Grid | None = None
    picks_epoch: bool = False
    note: str = ""


PROTOCOLS: dict[str, Protocol] = {
    # Source: Devlin et al. 2019, appendix A.3; the middle rates of the paper's and its epochs.
    "": Protocol(grid=Grid((16, 32), (5e-5, 3e-5, 2e-5), (3.0, 4.0))),
    # Source: Geiping and Goldstein 2022; JonasGeiping/cramming, config/eval/GLUE_sane.yaml.
    "sane": Protocol(
        {
            "search": False,
            "global_batch_size": 16,
            "finetuning.num_epochs": 5.0,
            "schedule.name": "cosine",
            "schedule.peak_learning_rate": 4e-5,
            "schedule.warmup_share": 0.1,
        }
    ),
    # Not a protocol of others: by the encoder's width and the number of rows.
    "tuned": Protocol({"search": False, **dict.fromkeys(recipes.BY_WIDTH)}),
    # Source: babylm-org/babylm-eval @45fe2c11, strict/scripts/eval_finetuning.sh and the defaults
    # of strict/evaluation_pipeline/finetune/run.py. Its head, GELU between two norms, is not ours.
    "babylm": Protocol(
        {
            "search": False,
            "global_batch_size": 32,
            "finetuning.num_epochs": 10.0,
            "finetuning.max_seq_length": 512,
            "schedule.name": "cosine",
            "schedule.peak_learning_rate": 3e-5,
            "schedule.warmup_share": 0.06,
            "schedule.end_share": 0.1,
            "optimizer.eps": 1e-8,
            "optimizer.weight_decay": 0.01,
            "optimizer.decay_biases": True,
            "optimizer.clip_norm": 0.0,
            "checkpoint.keep_best": 1,
        },
        of_task={
            "babylm_boolq": {"global_batch_size": 16},
            "babylm_multirc": {"global_batch_size": 16},
            "babylm_wsc": {"finetuning.num_epochs": 30.0},
        },
        tasks=tuple(
            f"babylm_{name}" for name in ("boolq", "mnli", "mrpc", "multirc", "qqp", "rte", "wsc")
        ),
        picks_epoch=True,
        note="best epoch by dev",
    ),
    # Source: Marone et al. 2025 (mmBERT), appendix B.
    "oracle": Protocol(
        {"search": True, "global_batch_size": 32, "schedule.warmup_share": 0.06},
        grid=Grid(
            batch_sizes=(32,),
            learning_rates=(2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5),
            epochs=(1.0, 2.0, 3.0, 5.0, 10.0),
        ),
        note="best setting by dev",
    ),
}


def of_config(config: ml_collections.ConfigDict) -> Protocol:
    """Returns the protocol that a config names."""
    return PROTOCOLS[config.finetuning.protocol]


def applied(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a config with the options of its protocol; one without a protocol as it is."""
    name = config.finetuning.protocol
    if not name or name not in PROTOCOLS:  # an unknown one is reported with all other faults
        return config
    protocol, task = PROTOCOLS[name], config.finetuning.name
    if config.task != "finetuning" or config.finetuning.dataset != DATASET:
        why = "it is for tasks of GLUE (--config=configs/glue.py:rte)"
        raise faults_lib.unread("config.finetuning.protocol", name, why, "")
    if protocol.tasks and task not in protocol.tasks:
        must = f"one of {', '.join(protocol.tasks)} with the protocol {name!r}"
        raise faults_lib.wrong("config.finetuning.name", task, must)
    options = {**protocol.options, **protocol.of_task.get(task, {})}
    given = dict(config_lib.flatten(config))
    usual = [dict(config_lib.flatten(it)) for it in (config_lib.default_config(), _recipe())]
    own = {option for option in options if given[option] not in [it[option] for it in usual]}
    open_options = {option for option, value in options.items() if value is None}
    kept = own & open_options
    kept |= {option for option in own & {*AT_MOST} if given[option] < options[option]}
    if faults := [
        f"config.{option} is {given[option]!r}; the protocol {name!r} has {options[option]!r}"
        for option in sorted(own - kept)
        if given[option] != options[option]
    ]:
        raise ValueError("; ".join(faults) + ": leave the option or the protocol out")
    config = config.copy_and_resolve_references()
    recipes.leave_open(config, *(open_options - kept))
    fixed = options.keys() - open_options - kept
    config.update_from_flattened_dict({option: options[option] for option in fixed})
    return config


def _recipe() -> ml_collections.ConfigDict:
    return recipes.finetuning_config(DATASET)
