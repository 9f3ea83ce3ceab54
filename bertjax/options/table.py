"""All options of a run, by group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bertjax.options import encoder, finetuning, pretraining, run
from bertjax.options.option import Option, flat

# The option that chooses a row -> the table, whose rows own `options` of the same group. The
# package of a table adds it, since it lies above: `tasks` and `finetuning`.
OWNERS: dict[str, Mapping[str, Any]] = {}


def groups() -> dict[str, Any]:
    """Returns the options of a run with one phase, as they are nested."""
    return {
        **run.RUN,
        "phases": {"phase1": run.PHASE},
        "budget": run.BUDGET,
        "model": encoder.MODEL,
        "pretraining": {
            **pretraining.ROWS,
            **pretraining.MASKS,
            **pretraining.OWNED,
            **_declared("pretraining.objective"),
        },
        "finetuning": {**finetuning.ROWS, **finetuning.OWNED, **_declared("finetuning.dataset")},
        "distillation": run.DISTILLATION,
        "data": run.DATA,
        "optimizer": run.OPTIMIZER,
        "schedule": run.SCHEDULE,
        "mesh": run.MESH,
        "checkpoint": run.CHECKPOINT,
        "evaluation": run.EVALUATION,
        "plateau": run.PLATEAU,
    }


def _declared(chooser: str) -> dict[str, Any]:
    return {
        name: row
        for owner in OWNERS.get(chooser, {}).values()
        for name, row in owner.options.items()
    }


def rows() -> dict[str, Option]:
    """Returns the options by dotted name; those of a phase begin with "phases.*"."""
    return {row_name(name): row for name, row in flat(groups()).items()}


def row_name(name: str) -> str:
    """Returns the name of an option's row: all phases have the same rows."""
    return re.sub(r"^phases\.\w+", "phases.*", name)
