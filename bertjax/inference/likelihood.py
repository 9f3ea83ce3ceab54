"""Pseudo-log-likelihoods: how likely a text is by a pretrained model.

Every token is masked once, and the log-probabilities of the true tokens are added: Salazar et al.
2020, "Masked Language Model Scoring", section 2. In a word of several pieces, the visible pieces
give away the masked one, so long words look too likely. `word_to_right` also masks the pieces of
the same word to the right of the token: Kauf and Ivanova 2023, "A Better Way to Do Masked Language
Model Scoring", section 2.

ELECTRA's discriminator masks nothing: the log-probabilities of "original" of all tokens are added,
one row of the model for a text. It compares texts as a likelihood does. A model
that reads from left to right masks nothing either: its sum is the log-likelihood, with [SEP].
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

from bertjax.data import languages, padding, sentence_rows, unknown_tokens
from bertjax.devices import sharding
from bertjax.inference import rows, saved_model
from bertjax.models import parameters
from bertjax.tasks import base as tasks
from bertjax.tasks import prediction

TEXTS_READ = 1024  # texts in memory at a time, sorted by length


@dataclasses.dataclass(frozen=True)
class Score:
    """The pseudo-log-likelihood of a text in nats, the sum over its `num_tokens` tokens.

    `unknown_rate` is the share of [UNK] among them.
    """

    log_likelihood: float
    num_tokens: int
    unknown_rate: float = 0.0


@dataclasses.dataclass(frozen=True)
class NoScore:
    """The reason why a text has no score."""

    fault: str


def scores(
    model: saved_model.TrainedModel,
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
      ValueError: for an unknown `masking`, or another one than the default for a model that masks
        nothing; for a model without a head that scores; for outputs that are not finite.
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
    counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
    while chunk := list(itertools.islice(texts, TEXTS_READ)):
        sequences = model.vocabulary.encode_batch(chunk)
        sums = _sums(model, task, sequences, masking, batch_size, first)
        for number, (ids, total) in enumerate(zip(sequences, sums, strict=True), start=first):
            share = counted.add(ids, f"text {number}")
            if len(ids) + 2 > model.max_length:
                fault = f"it has {len(ids) + 2} tokens with [CLS] and [SEP]; the model reads at "
                yield NoScore(fault + f"most {model.max_length}: shorten it or split it")
            else:
                yield Score(float(total), len(ids), share)
        first += len(chunk)
    counted.warn()


def _sums(
    model: saved_model.TrainedModel,
    task: tasks.ScoresSentences,
    sequences: Sequence[Sequence[int]],
    masking: str,
    batch_size: int,
    first: int,
) -> Float[np.ndarray, " texts"]:
    """Returns the sum over the rows of each text, 0 for texts that are too long."""
    sums = np.zeros(len(sequences))
    where = f"the texts from {first} to {first + len(sequences) - 1}"
    rows_of = sentence_rows.ROWS[task.sentence_rows].of
    by_length: dict[int, list[int]] = {}
    for place, ids in enumerate(sequences):
        if len(ids) + 2 <= model.max_length:
            length = padding.padded_length(len(ids) + 2, model.max_length, unit=rows.UNIT)
            by_length.setdefault(length, []).append(place)
    for length, places in sorted(by_length.items()):
        rows.warn_beyond_trained(max(len(sequences[place]) for place in places) + 2, model)
        numbered = (
            (place, row)
            for place in places
            for row in rows_of(model.vocabulary, sequences[place], masking)
        )
        while part := list(itertools.islice(numbered, batch_size)):
            # A short last batch is filled up, so that no further program is compiled.
            in_batch, shape = [row for _, row in part], {"size": batch_size, "length": length}
            batch = sentence_rows.batch(in_batch, model.vocabulary, **shape)
            batch = languages.with_language(batch, model.language)
            on_devices = sharding.to_devices(batch, model.mesh, batch_size)
            predictions = _predictions(task, model.graphdef, model.params, on_devices)
            terms = np.asarray(predictions["log_likelihood"], np.float64)[: len(part)]
            prediction.check_numbers(terms, where)
            # One by one and in order, in float64.
            np.add.at(sums, [place for place, _ in part], terms)
    return sums


@functools.partial(jax.jit, static_argnames=("task", "graphdef"))
def _predictions(task: Any, graphdef: Any, params: Any, batch: Any) -> Any:
    return task.predict(parameters.merge(graphdef, params), batch)
