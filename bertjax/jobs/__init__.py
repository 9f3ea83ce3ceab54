"""The job that a config describes: its task, its phases and its data, joined.

Here the ConfigDict meets the packages that know nothing of it. The training loop sees only a Job;
each kind of job has a module, and a row of JOBS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_collections

from bertjax import config as config_lib
from bertjax.jobs import finetuning, lengths, pretraining
from bertjax.jobs.base import MEAN, OWN_MODEL_OPTIONS, Batches, Job, epochs, train_flops, unfrozen
from bertjax.jobs.lengths import Phase, phases, steps_of_tokens
from bertjax.tasks import base as tasks
from bertjax.workdirs import reader

__all__ = [
    "JOBS",
    "MEAN",
    "OWN_MODEL_OPTIONS",
    "Batches",
    "Job",
    "JobKind",
    "Phase",
    "epochs",
    "phases",
    "evaluating",
    "in_phase",
    "steps_of_tokens",
    "train_flops",
    "unfrozen",
]


@dataclasses.dataclass(frozen=True)
class JobKind:
    """The ways to make a job of one kind.

    open: the job of a config and, optionally, of the workdirs that may hold the run already
    task: the task of a resolved config and, optionally, of a teacher
    abstract: a job of shapes, to be planned
    evaluating: the job of a trained model whose evaluation sets are at a path (records, or labelled
      files in a language)
    """

    open: Callable[..., Job]
    task: Callable[..., tasks.Task]
    abstract: Callable[[ml_collections.ConfigDict], Job]
    evaluating: Callable[[reader.Workdir, str, str], Job]


def evaluating(trained: reader.Workdir, data: str, language: str = "") -> Job:
    """Returns the job of a model that is evaluated on `data`.

    `data` is labelled files if the model has a task head, records otherwise. `language` is the
    language of a labelled file, for a model with embeddings of languages; "": as it was finetuned.
    """
    is_finetuned = finetuning.kind_of(trained) is not None
    kind = JOBS["finetuning" if is_finetuned else trained.config.task]
    return kind.evaluating(trained, data, language)


def in_phase(job: Job, phase: Phase) -> Job:
    """Returns the job with the model that it has in one phase; mostly the job itself."""
    if phase.rotary_bases == lengths.rotary_bases(job.config.model):
        return job
    config = config_lib.in_phase(unfrozen(job.config), phase.name)
    task = JOBS[config.task].task(config, job.teacher)
    return dataclasses.replace(job, config=config, phases=phases(config), task=task)


JOBS: dict[str, JobKind] = {
    "pretraining": JobKind(
        pretraining.open_job,
        pretraining.pretraining_task,
        pretraining.abstract,
        pretraining.evaluating,
    ),
    "finetuning": JobKind(
        finetuning.open_job,
        finetuning.finetuning_task,
        finetuning.abstract,
        finetuning.evaluating,
    ),
}
