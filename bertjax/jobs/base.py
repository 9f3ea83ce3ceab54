"""What the training loop needs to know of a config's task and data, and what all jobs share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import ml_collections
import numpy as np
from etils import epath

from bertjax import config as config_lib
from bertjax.data import tokenizer
from bertjax.tasks import base as tasks

Batches = Iterator[dict[str, np.ndarray]]

# Options of config.model that a run chooses whatever weights it starts from.
OWN_MODEL_OPTIONS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("dtype", "remat", "attention"),
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of steps with one batch shape; `first_step` counts from the start of the run."""

    name: str
    first_step: int
    num_steps: int
    global_batch_size: int
    max_seq_length: int

    @property
    def end_step(self) -> int:
        return self.first_step + self.num_steps


@runtime_checkable
class Job(Protocol):
    """What the training loop needs to know of a config's task and data."""

    @property
    def config(self) -> ml_collections.ConfigDict:
        """The config with what only the data tells (the vocabulary size) filled in."""
        ...

    @property
    def phases(self) -> tuple[Phase, ...]: ...

    @property
    def task(self) -> tasks.Task: ...

    @property
    def has_evaluation(self) -> bool:
        """Whether there is an evaluation set."""
        ...

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the data sets with right answers that are not trained on."""
        ...

    @property
    def test_sets(self) -> tuple[str, ...]:
        """The names of those without: predictions are all that is wanted of them."""
        ...

    @property
    def best_score(self) -> tuple[str, bool] | None:
        """The score of the first evaluation set that decides what is best; True: higher is."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns what must be the same for a resumed run to see the same data (JSON)."""
        ...

    def train_batches(self, phase: Phase, *, start_step: int, rows: range | None) -> Batches:
        """Yields the phase's batches from global step `start_step` on, this host's rows."""
        ...

    def evaluation_batches(self, name: str, *, batch_size: int, rows: range | None) -> Batches:
        """Yields every example of an evaluation or test set once."""
        ...

    def scores(self, name: str, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the scores of what the task predicts for an evaluation set.

        `outputs` are the task's predictions, a row for each example in the order of the set; rows
        of tokens are padded to the longest. Empty for a job whose task predicts nothing.
        """
        ...

    def write_predictions(
        self, name: str, outputs: Mapping[str, np.ndarray], directory: epath.PathLike
    ) -> None:
        """Writes predictions for a set, as `scores` takes them, in the format its users expect."""
        ...

    def abstract_batch(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and types of a global batch of the phase, as the devices get it."""
        ...

    def train_flops(self, phase: Phase) -> float:
        """Returns the model FLOPs of one step of the phase."""
        ...

    def chance_loss(self, phase: Phase) -> tuple[str, float] | None:
        """Returns the name of the loss that has a known value before anything is learnt, and it."""
        ...

    def vocabulary(self) -> tokenizer.Tokenizer | None:
        """Returns what turned text into the data's tokens, None where no text was read."""
        ...

    def save_vocabulary(self, directory: epath.Path) -> None:
        """Writes what turns text into tokens, so that the workdir is enough to use the model."""
        ...


def phases(config: ml_collections.ConfigDict) -> tuple[Phase, ...]:
    """Returns the phases in the order in which they run, with their places in the run."""
    found, first_step = [], 0
    for name in config_lib.phase_names(config):
        options = config.phases[name]
        batch_size = options.global_batch_size or config.global_batch_size
        phase = Phase(name, first_step, options.num_steps, batch_size, options.max_seq_length)
        found.append(phase)
        first_step = phase.end_step
    return tuple(found)


def phase_seed(seed: int, index: int) -> int:
    """Returns the seed of a phase's data: two over the same records see them in other orders."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])
