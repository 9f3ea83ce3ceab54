"""How likely a pretrained model holds a text to be: its pseudo-log-likelihood.

Every token is masked once, and the log-probabilities of the true ones are added: Salazar et al.
2020, "Masked Language Model Scoring", section 2. Where a word has several pieces, those that stay
visible give away the masked one, so long words look too likely. `word_to_right` masks the pieces
of the same word that stand right of the token as well: Kauf and Ivanova 2023, "A Better Way to Do
Masked Language Model Scoring", section 2.

ELECTRA's discriminator masks nothing: the log-probabilities of "original" of all tokens are added,
one row of the model for a text. It is no likelihood, and is compared in the same way. A model that
reads from left to right masks nothing either: its sum is the log-likelihood, that of [SEP] too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bertjax import inference
from bertjax.data import sentence_rows
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.tasks import base as tasks

TEXTS_READ = 1024  # that are in memory at a time, sorted by length


@dataclasses.dataclass(frozen=True)
class Score:
    """The pseudo-log-likelihood of a text in nats, the sum over its `num_tokens` tokens."""

    log_likelihood: float
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class NoScore:
    """Why a text has no score."""

    fault: str


def scores(
    model: inference.TrainedModel,
    texts: Iterable[str],
    *,
    masking: str = "token",
    batch_size: int = 64,
) -> Iterator[Score | NoScore]:
    """Yields the score of each text in turn, reading only TEXTS_READ of them ahead.

    A score does not depend on the texts around it. `batch_size` counts rows of the model, one for
    each token, over all devices; it is rounded up to a multiple of them. A text that is too long
    for the model has no score.

    Raises:
      ValueError: for an unknown `masking`, or another than the default for a model that masks
        nothing; a model without a head that scores; or outputs that are no numbers.
    """
    if masking not in sentence_rows.MASKINGS:
        raise ValueError(f"masking is {masking!r}; known are {', '.join(sentence_rows.MASKINGS)}")
    task = model.task
    if not isinstance(task, tasks.ScoresSentences):
        raise ValueError(
            "the model has no masked-token head (mlm_head), so it gives texts no likelihood; "
            "`python -m bertjax.encode` gives the features of its encoder"
        )
    if task.sentence_rows == "whole" and masking != "token":
        raise ValueError(
            f"masking is {masking!r}, but the model reads a text as it is and masks nothing: leave "
            "it at 'token'"
        )
    batch_size = -(-batch_size // model.mesh.size) * model.mesh.size
    texts, first = iter(texts), 1
    while chunk := list(itertools.islice(texts, TEXTS_READ)):
        sequences = model.vocabulary.encode_batch(chunk)
        sums = _sums(model, task, sequences, masking, batch_size, first)
        for ids, total in zip(sequences, sums, strict=True):
            if len(ids) + 2 > model.max_length:
                fault = f"it has {len(ids) + 2} tokens with [CLS] and [SEP]; the model reads at "
                yield NoScore(fault + f"most {model.max_length}: shorten it or split it")
            else:
                yield Score(float(total), len(ids))
        first += len(chunk)


def _sums(
    model: inference.TrainedModel,
    task: tasks.ScoresSentences,
    sequences: Sequence[Sequence[int]],
    masking: str,
    batch_size: int,
    first: int,
) -> Float[np.ndarray, " texts"]:
    """Returns the sum over the rows of each text, 0 for one that is too long."""
    sums = np.zeros(len(sequences))
    where = f"the texts from {first} to {first + len(sequences) - 1}"
    rows_of = sentence_rows.ROWS[task.sentence_rows].of
    by_width: dict[int, list[int]] = {}
    for place, ids in enumerate(sequences):
        if len(ids) + 2 <= model.max_length:
            by_width.setdefault(inference.padded_length(len(ids) + 2, model), []).append(place)
    for length, places in sorted(by_width.items()):
        inference.warn_beyond_trained(max(len(sequences[place]) for place in places) + 2, model)
        rows = (
            (place, row)
            for place in places
            for row in rows_of(model.vocabulary, sequences[place], masking)
        )
        while part := list(itertools.islice(rows, batch_size)):
            # A short last batch is filled up, so that it needs no program of its own.
            batch = sentence_rows.batch(
                [row for _, row in part], model.vocabulary, size=batch_size, length=length
            )
            on_devices = sharding.to_devices(batch, model.mesh, batch_size)
            answers = _answers(task, model.graphdef, model.params, on_devices)
            found = np.asarray(answers["log_likelihood"], np.float64)[: len(part)]
            inference.check_numbers(found, where)
            # One by one and in order, in float64.
            np.add.at(sums, [place for place, _ in part], found)
    return sums


@functools.partial(jax.jit, static_argnames=("task", "graphdef"))
def _answers(task: Any, graphdef: Any, params: Any, batch: Any) -> Any:
    return task.predict(parameters.merge(graphdef, params), batch)
