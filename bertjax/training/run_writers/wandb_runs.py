"""Scalars of a run at Weights & Biases, online or into a directory for `wandb sync`.

W&B's own variables choose the destination: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.training.run_writers import base

PROJECT = "bertjax"  # without WANDB_PROJECT

# W&B shows a run as crashed or failed where it is not 0.
_EXIT_CODES: dict[base.Outcome, int] = {"finished": 0, "stopped": 75, "failed": 1}


def _package() -> Any:
    import wandb
    import wandb.errors

    return wandb


class WeightsAndBiases:
    """A run of W&B, with the run's identity as its id: a resumed run goes on with it."""

    def __init__(self, run: base.Run):
        wandb = self._wandb = _package()
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=run.identity,
                name=run.name,
                config={**run.config},
                dir=os.environ.get("WANDB_DIR") or str(run.directory),
                resume="allow",
                allow_val_change=True,
            )
        except wandb.errors.Error as error:
            raise ValueError(
                f"W&B cannot be written to ({error}). `wandb login`, or set WANDB_MODE=offline, or "
                "leave 'wandb' out of config.writers"
            ) from error
        # By W&B's own count a resumed run could not add to a step that it has begun to tell.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def picture(self, path: Path) -> None:
        self._run.log({path.stem: self._wandb.Image(str(path))})

    def close(self, outcome: base.Outcome) -> None:
        if outcome == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=_EXIT_CODES[outcome])
