"""What the training loop needs to know of a config: its task, its data, how it is evaluated.

How long it is, in steps of which batches, is `lengths`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import ml_collections
import numpy as np
from etils import epath

from bertjax.data import contents, tokenizer
from bertjax.jobs import teachers
from bertjax.jobs.lengths import Phase
from bertjax.tasks import base as tasks

Batches = Iterator[dict[str, np.ndarray]]
Outputs = Mapping[str, np.ndarray]

# Options of config.model that a run chooses whatever weights it starts from.
OWN_MODEL_OPTIONS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("initializer", "initializer_range"),
    *("dtype", "gradient_reduction_dtype", "remat", "attention"),
    "depth_scaled_init",
)


class Data(Protocol):
    """Where a job's batches come from."""

    def train_batches(self, phase: Phase, *, start_step: int, rows: range | None) -> Batches:
        """Yields the phase's batches from global step `start_step` on, this host's rows."""
        ...

    def evaluation_batches(self, name: str, *, batch_size: int, rows: range | None) -> Batches:
        """Yields every example of an evaluation or test set once."""
        ...

    def num_train_examples(self, phase: Phase) -> int | None:
        """Returns the number of examples of an epoch of the phase, None where there are none."""
        ...

    def num_examples(self, name: str) -> int:
        """Returns the number of examples of an evaluation or test set."""
        ...

    def abstract_batch(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of a global batch of the phase, as the devices get it."""
        ...

    def token_mask(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns which positions of a batch hold a token, not 0 there: [rows, ..., length]."""
        ...

    def batch_lengths(self, phase: Phase) -> tuple[int, ...]:
        """Returns the lengths that the rows of the phase's batches have, the longest last."""
        ...

    def chance_loss(self, phase: Phase) -> tuple[str, float] | None:
        """Returns the name of the loss that has a known value before anything is learnt, and it."""
        ...

    def fill(self, phase: Phase) -> float | None:
        """Returns the share of a phase's positions that hold tokens, None where it is not known."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns what a run keeps to know its data again (JSON); asked for at every save."""
        ...

    def contents(self) -> contents.Contents | None:
        """Returns what the training data is made of, in little; None where nobody has counted."""
        ...

    def vocabulary(self) -> tokenizer.Tokenizer | None:
        """Returns what turned text into the data's tokens, None where no text was read."""
        ...


class Scorer(Protocol):
    """What a task's answers to a set are worth, and the files its users expect of them."""

    def scores(self, name: str, outputs: Outputs) -> dict[str, float]:
        """Returns the scores of the answers to an evaluation set.

        `outputs` are the task's answers, a row for each example in the order of the set; rows of
        tokens are padded to the longest.
        """
        ...

    def majority(self, name: str) -> tuple[str, dict[str, float]] | None:
        """Returns the most frequent answer to a set, and the scores of giving no other."""
        ...

    def only_answer(self, name: str, outputs: Outputs, scores: Mapping[str, float]) -> str | None:
        """Returns the answer that is given to everything, None where there are several."""
        ...

    def write_predictions(
        self, name: str, outputs: Outputs, directory: epath.Path, tuned: Mapping[str, float]
    ) -> None:
        """Writes answers to any set into a directory that is there, by what was tuned."""
        ...


class AnswerScorer(Protocol):
    """What answers alone are worth, of a set that has no losses."""

    def scores(self, outputs: Outputs) -> dict[str, float]:
        """Returns the scores of the task's answers, a row for each in the order of the set."""
        ...


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a run says of data that it does not train on, and when.

    `sets` have right answers, `test_sets` have none: predictions are all that is wanted of them. A
    run is evaluated every `every_steps` and at its end, and is saved then if `is_saved`.
    `best_score` of the first set decides what is best. Of a set `max_batches` are read, 0: all.
    `scorer` is None where the task's own metrics are all there is. `chance` has what answering a
    set without reading scores, where that is known beforehand; it is told with the scores. Those of
    the sets that `answered` names have no losses: they are read whole, and scored by it. The
    scores named in `tunes` are numbers that the model's answers go by from then on.
    """

    every_steps: int
    best_score: str
    is_higher_better: bool
    sets: tuple[str, ...] = ()
    test_sets: tuple[str, ...] = ()
    max_batches: int = 0
    is_saved: bool = False
    scorer: Scorer | None = None
    chance: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    answered: Mapping[str, AnswerScorer] = dataclasses.field(default_factory=dict)
    tunes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """A config with all that it asks for; `config` has what only the data tells filled in.

    `chance` is that of `tasks.Objective`. `task` may learn from a
    `teacher`, whose parameters are no part of its model.
    """

    config: ml_collections.ConfigDict
    phases: tuple[Phase, ...]
    task: tasks.Task
    data: Data
    evaluation: Evaluation
    chance: Callable[[Mapping[str, float]], tuple[str, float, str] | None] | None = None
    teacher: teachers.Teacher | None = None

    @property
    def last_step(self) -> int:
        return self.phases[-1].end_step


def train_flops(job: Job, phase: Phase, *, length: int | None = None) -> float:
    """Returns the model FLOPs of one step of a phase whose batch is `length` tokens long.

    Without a length it is that of the phase.
    """
    masked = job.data.abstract_batch(phase).get("masked_lm_positions")
    predictions = 0 if masked is None else masked.shape[1]
    return job.task.train_flops(
        phase.global_batch_size, length or phase.max_seq_length, predictions
    )
