"""Scalars of a run at services that keep them: Weights & Biases and MLflow.

Their own variables choose the destination: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and WANDB_DIR
(offline for `wandb sync`), MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from bertjax.training.run_writers import base

PROJECT = "bertjax"  # without WANDB_PROJECT

# W&B shows a run as crashed or failed where it is not 0.
_EXIT_CODES: dict[base.Outcome, int] = {"finished": 0, "stopped": 75, "failed": 1}


class WeightsAndBiases:
    """A run of W&B, with the run's identity as its id: a resumed run goes on with it."""

    def __init__(self, run: base.Run):
        import wandb
        import wandb.errors

        self._wandb: Any = wandb
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


EXPERIMENT = "bertjax"  # without MLFLOW_EXPERIMENT_NAME
IDENTITY_TAG = "bertjax.identity"

# Limits of one request to MLflow's REST API.
MOST_PARAMS = 100
MOST_METRICS = 1000
LONGEST_PARAM = 500  # characters, which every server of MLflow takes
LONGEST_NAME = 250
# Source: mlflow/utils/validation.py of version 3.7, of names of metrics and parameters; a colon
# does not fit on Windows.
_OTHER_CHARACTERS = re.compile(r"[^/\w.\- ]")
HTTP_BAD_REQUEST = 400

# User and password in scheme://user:password@host; a password may hold an @.
_USER = re.compile(r"(\w[\w+.-]*://)[^\s/?#'\"]*@")

_STATUSES: dict[base.Outcome, str] = {
    "finished": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
}


def without_password(text: str) -> str:
    """Returns a text with *** in the place of user and password in each address."""
    return _USER.sub(r"\1***@", text)


def _first_line(error: Exception) -> str:
    return without_password((str(error).splitlines() or [""])[0])


class MLflow:
    """A run of MLflow; a tag with the run's identity finds it again.

    A server that does not answer stops no training: what it did not take is sent again with the
    next scalars, and metrics.jsonl has everything.
    """

    def __init__(self, run: base.Run):
        import mlflow
        import mlflow.entities
        import mlflow.exceptions

        self._mlflow: Any = mlflow
        self._unsent: list[Any] = []
        self._names: dict[str, str] = {}
        try:
            self._client = mlflow.MlflowClient()
            self._run_id = self._run_of(run)
            self._client.update_run(self._run_id, status="RUNNING")
            self._send_config(run)
        except mlflow.exceptions.MlflowException as error:
            raise ValueError(
                f"MLflow cannot be written to at {without_password(mlflow.get_tracking_uri())} "
                f"({without_password(str(error))}). Set "
                "MLFLOW_TRACKING_URI, or leave 'mlflow' out of config.writers"
            ) from None  # whose words hold the address

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def _run_of(self, run: base.Run) -> str:
        """Returns the id of the run of this identity, which is made if it is new."""
        query = f"tags.`{IDENTITY_TAG}` = '{run.identity}'"
        if runs := self._client.search_runs([self._experiment()], query):
            return runs[0].info.run_id
        tags = {IDENTITY_TAG: run.identity}
        new_run = self._client.create_run(self._experiment(), tags=tags, run_name=run.name)
        return new_run.info.run_id

    def _send_config(self, run: base.Run) -> None:
        """Adds the options; MLflow never changes one, so those that a resumed run changed stay."""
        known = self._client.get_run(self._run_id).data.params
        params = [
            self._mlflow.entities.Param(self._name(name), str(value)[:LONGEST_PARAM])
            for name, value in run.config.items()
            if self._name(name) not in known
        ]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + MOST_PARAMS])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = round(1000 * time.time())
        self._unsent += [
            self._mlflow.entities.Metric(self._name(name), value, now, step)
            for name, value in values.items()
        ]
        self._send()

    def _name(self, name: str) -> str:
        """Returns a name that every server takes, and no other has; another one is logged."""
        if name not in self._names:
            fitting = _OTHER_CHARACTERS.sub("_", unicodedata.normalize("NFC", name))
            # MLflow takes a name for a path, which must be the shortest one to its place.
            fitting = posixpath.normpath(fitting).lstrip("./")[:LONGEST_NAME] or "_"
            numbered = (f"{fitting[: LONGEST_NAME - 6]}_{n}" for n in itertools.count(2))
            candidates = itertools.chain([fitting], numbered)
            self._names[name] = next(it for it in candidates if it not in self._names.values())
            if self._names[name] != name:
                logging.warning("MLflow has %r under the name %r", name, self._names[name])
        return self._names[name]

    def _send(self) -> None:
        while self._unsent:
            some = self._unsent[:MOST_METRICS]
            try:
                self._client.log_batch(self._run_id, metrics=some)
            except self._mlflow.exceptions.MlflowException as error:
                if error.get_http_status_code() == HTTP_BAD_REQUEST:
                    self._send_singly(some)
                    del self._unsent[:MOST_METRICS]
                    continue
                logging.warning(
                    "MLflow did not take %d numbers, which are sent again later: %s",
                    len(self._unsent), _first_line(error),
                )  # fmt: skip
                return
            del self._unsent[:MOST_METRICS]

    def _send_singly(self, metrics: Sequence[Any]) -> None:
        """Sends the numbers of a refused batch, each by itself; those that are refused are lost."""
        for metric in metrics:
            try:
                self._client.log_batch(self._run_id, metrics=[metric])
            except self._mlflow.exceptions.MlflowException as error:
                logging.warning(
                    "MLflow refuses %s = %s at step %d, which metrics.jsonl has: %s",
                    metric.key, metric.value, metric.step, _first_line(error),
                )  # fmt: skip

    def picture(self, path: Path) -> None:
        try:
            self._client.log_artifact(self._run_id, str(path))
        except self._mlflow.exceptions.MlflowException as error:
            logging.warning("MLflow did not take %s: %s", path.name, _first_line(error))

    def close(self, outcome: base.Outcome) -> None:
        self._send()
        try:
            self._client.set_terminated(self._run_id, status=_STATUSES[outcome])
        except self._mlflow.exceptions.MlflowException as error:
            logging.warning(
                "MLflow does not know that the run is %s: %s", outcome, _first_line(error)
            )
