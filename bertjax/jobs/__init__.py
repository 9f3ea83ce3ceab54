"""What a config asks for: its task, its phases and its data, joined.

Here the ConfigDict meets the rooms that know nothing of it. The training loop sees only the Job
protocol (`base`); each kind of job has a module, and an entry in JOBS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_collections

from bertjax.jobs.base import (
    OWN_MODEL_OPTIONS,
    Batches,
    Job,
    Phase,
    phases,
)
from bertjax.jobs.finetuning import (
    FinetuningJob,
    finetuning_task,
    open_finetuning,
    outline_finetuning,
)
from bertjax.jobs.pretraining import (
    PretrainingJob,
    draw_masks,
    open_pretraining,
    outline_pretraining,
    pretraining_task,
    record_batches,
)
from bertjax.tasks import base as tasks

__all__ = [
    "JOBS",
    "OWN_MODEL_OPTIONS",
    "Batches",
    "FinetuningJob",
    "Job",
    "JobKind",
    "Phase",
    "PretrainingJob",
    "draw_masks",
    "finetuning_task",
    "open_finetuning",
    "open_pretraining",
    "outline_finetuning",
    "outline_pretraining",
    "phases",
    "pretraining_task",
    "record_batches",
]


@dataclasses.dataclass(frozen=True)
class JobKind:
    """How a job is opened for training, and what can be had without its data.

    `open` takes a config and, optional, the workdirs that may hold the run already; `task` is
    rebuilt from a checkpoint's config; `outline` is the job's shapes, to be planned.
    """

    open: Callable[..., Job]
    task: Callable[[ml_collections.ConfigDict], tasks.Task]
    outline: Callable[[ml_collections.ConfigDict], Job]


JOBS: dict[str, JobKind] = {
    "pretraining": JobKind(
        lambda config, workdirs=(): open_pretraining(config), pretraining_task, outline_pretraining
    ),
    "finetuning": JobKind(open_finetuning, finetuning_task, outline_finetuning),
}
