"""The interface of a job for the training loop: its task, its data, its evaluation.

`lengths` has the phases, their steps and batches.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from bertjax.data import contents, mixtures, records
from bertjax.finetuning import base as kinds
from bertjax.jobs import minimal_pairs, teachers
from bertjax.jobs.lengths import Phase
from bertjax.tasks import base as tasks
from bertjax.tokenization import tokenizer

Batches = Iterator[dict[str, np.ndarray]]

MEAN = "mean"  # the set of the mean scores of others

# Options of config.model that a run chooses whatever weights it starts from.
OWN_MODEL_OPTIONS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer", "initializer_range",
    "dtype", "gradient_reduction_dtype", "remat", "attention", "depth_scaled_init",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The facts of a phase's data; the defaults stand for unknown ones.

    lengths: the lengths of the rows in its batches, the longest last
    num_examples: examples of an epoch
    epoch_steps: steps of an epoch, if not all batches are full
    fill: share of the positions that hold tokens
    unigram_entropy: the best loss (nats) of tokens without any context
    languages: by name, how much of each language the whole phase reads
    """

    lengths: tuple[int, ...]
    num_examples: int | None = None
    epoch_steps: float | None = None
    fill: float | None = None
    unigram_entropy: float | None = None
    languages: Mapping[str, mixtures.Part] = dataclasses.field(default_factory=dict)

    def epochs(self, steps: int, batch_size: int) -> float | None:
        """Returns the passes over the examples in a number of steps, None if they are unknown."""
        if not self.num_examples:
            return None
        return steps / (self.epoch_steps or self.num_examples / batch_size)


@dataclasses.dataclass(frozen=True)
class Data(abc.ABC):
    """The source of a job's batches, with the tokenizer of its text.

    `contents` summarizes the training data; None if it was not counted. `manifest` belongs
    to the first training records, if they hold values. The "input_mask" of a batch
    is not 0 where there is a token: [rows, ..., length].
    """

    config: ml_collections.ConfigDict
    vocabulary: tokenizer.Tokenizer | None = None
    contents: contents.RecordSummary | None = None
    manifest: records.Manifest | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", ml_collections.FrozenConfigDict(self.config))

    @abc.abstractmethod
    def train_batches(self, phase: Phase, *, start_step: int, rows: range | None) -> Batches:
        """Yields the phase's batches from global step `start_step` on, this host's rows."""

    @abc.abstractmethod
    def evaluation_batches(self, name: str, *, batch_size: int, rows: range | None) -> Batches:
        """Yields every example of an evaluation or test set once."""

    @abc.abstractmethod
    def num_examples(self, name: str) -> int:
        """Returns the number of examples of an evaluation or test set."""

    @abc.abstractmethod
    def abstract_batch(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of a global batch of the phase, as the devices get it."""

    @abc.abstractmethod
    def of_phase(self, phase: Phase) -> PhaseData:
        """Returns the facts of a phase's data."""

    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """Returns the hashes (JSON) by which a resumed run recognizes its data."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of a run: the sets, the scores, and when.

    `sets` have labels, `test_sets` have none and get predictions only. A run is evaluated every
    `every_steps` and at its end, and is saved then if `is_saved`. `best_score` of `best_set` (MEAN
    or one of the sets; "": the first) decides which checkpoint is best. At most `max_batches` of a
    set are read, 0: all. `scorer` is None if the task has no scores besides its metrics. `chance`
    has the known chance levels of a set, which are reported with its scores, and `tokens_per_byte`
    the tokens per byte of its text. The sets that `answered` names have no losses: they are read
    whole, and it scores them. The scores named in `tunes` are thresholds: the first set tunes them,
    and other sets and the later predictions use them. The scores of the sets in `averaged` are
    reported in one table, with their means.
    """

    every_steps: int
    best_score: str
    is_higher_better: bool
    sets: tuple[str, ...] = ()
    test_sets: tuple[str, ...] = ()
    max_batches: int = 0
    is_saved: bool = False
    scorer: kinds.Scorer | None = None
    chance: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    tokens_per_byte: Mapping[str, float] = dataclasses.field(default_factory=dict)
    answered: Mapping[str, minimal_pairs.PairSet] = dataclasses.field(default_factory=dict)
    tunes: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    best_set: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
    """A config, completed by what its data says and frozen, with its task and its data.

    `chance` belongs to a `tasks.Objective`. `task` may learn from a `teacher`, whose parameters are
    no part of its model. Checkpoints hold `meta` (JSON) too.
    """

    config: ml_collections.ConfigDict
    phases: tuple[Phase, ...]
    task: tasks.Task
    data: Data
    evaluation: Evaluation
    chance: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda averages: {}
    teacher: teachers.Teacher | None = None
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", ml_collections.FrozenConfigDict(self.config))

    @property
    def last_step(self) -> int:
        return self.phases[-1].end_step


def unfrozen(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy that may be changed, also of a job's config."""
    return ml_collections.ConfigDict(config).copy_and_resolve_references()


def epochs(job: Job, step: int) -> float | None:
    """Returns the passes over the training data up to a step, None for data without epochs."""
    passes = 0.0
    for phase in job.phases:
        steps = min(max(step - phase.first_step, 0), phase.num_steps)
        epochs = job.data.of_phase(phase).epochs(steps, phase.global_batch_size)
        if epochs is None:
            return None
        passes += epochs
    return passes


def train_flops(job: Job, phase: Phase, *, length: int | None = None) -> float:
    """Returns the model FLOPs of one step of a phase at `length` tokens, by default the phase's."""
    masked = job.data.abstract_batch(phase).get("masked_lm_positions")
    predictions = 0 if masked is None else masked.shape[1]
    return job.task.train_flops(
        phase.global_batch_size, length or phase.max_seq_length, predictions
    )
