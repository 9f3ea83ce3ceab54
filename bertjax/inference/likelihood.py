"""Pseudo-log-likelihoods: how likely a text is by a pretrained model.

Every token is masked once, and the log-probabilities of the true tokens are added: Salazar et al.
2020, "Masked Language Model Scoring", section 2. In a word of several pieces, the visible pieces
give away the masked one, so long words look too likely. `word_to_right` also masks the pieces of
the same word to the right of the token: Kauf and Ivanova 2023, "A Better Way to Do Masked Language
Model Scoring", section 2.

ELECTRA's discriminator masks nothing: the log-probabilities of "original" of all tokens are added,
one row of the model for a text. It compares texts as a likelihood does. A model
that reads from left to right masks nothing either: its sum is the log-likelihood.
Special tokens are read, but no sum has them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.data import minimal_pairs, padding, sentence_rows
from bertjax.devices import sharding
from bertjax.inference import rows, saved_model
from bertjax.models import parameters
from bertjax.options import faults
from bertjax.tasks import base as tasks
from bertjax.tasks import mixed_rows, prediction
from bertjax.tokenization import tokenizer, unknown_tokens

TEXTS_READ = 1024  # texts in memory at a time, sorted by length


@dataclasses.dataclass(frozen=True)
class Score:
    """The pseudo-log-likelihood of a text in nats, the sum over its `num_tokens` tokens.

    `unknown_rate` is the share of [UNK] among them and the tokens of a context.
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
    texts: Iterable[str | minimal_pairs.Continuation],
    *,
    masking: str = "token",
    reading: str = "",
    batch_size: int = 64,
) -> Iterator[Score | NoScore]:
    """Yields the score of each text in turn, reading only TEXTS_READ of them ahead.

    For a `Continuation`, tokens that end after the context are scored; a token may straddle the
    border. A score does not depend on the texts around it. `batch_size` counts rows of the
    model, one for each token, over all devices; it is rounded up to a multiple of them. A text that
    is too long for the model has no score. `reading` is how a hybrid model reads a text: a key of
    READINGS, "" the first of them.
    Source: babylm-org/babylm-eval, strict/evaluation_pipeline/sentence_zero_shot/dataset.py

    Raises:
      ValueError: for an unknown `masking`, or another one than the default for a model that masks
        nothing; for a `reading` of a model that has but one; for a model without a head that
        scores; for outputs that are not finite.
    """
    if masking not in sentence_rows.MASKINGS:
        raise faults.unknown("masking", masking, sentence_rows.MASKINGS)
    task, head = model.task, next((head for head in HEADS if head in model.params), None)
    if head is None or not isinstance(task, tasks.ScoresSentences):
        raise ValueError(
            "the model has no masked-token head (mlm_head), so it gives texts no likelihood; "
            "`python -m bertjax.encode` gives the features of its encoder"
        )
    parts = _parts(task, head, reading)
    if parts[0].rows == "whole" and masking != "token":
        why = "the model reads a text as it is and masks nothing"
        raise faults.unread("masking", masking, why, "token")
    batch_size = -(-batch_size // model.mesh.size) * model.mesh.size
    texts, first = iter(texts), 1
    counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
    while chunk := list(itertools.islice(texts, TEXTS_READ)):
        sequences = _encode(model.vocabulary, chunk)
        sums = np.zeros(len(sequences))
        for part in parts:
            sums += _sums(model, part, sequences, masking, batch_size, first)
        for number, ((ids, scored), total) in enumerate(
            zip(sequences, sums, strict=True), start=first
        ):
            share = counted.add(ids, f"text {number}")
            if len(ids) + 2 > model.max_length:
                fault = f"it has {len(ids) + 2} tokens with [CLS] and [SEP]; the model reads at "
                yield NoScore(fault + f"most {model.max_length}: shorten it or split it")
            else:
                yield Score(float(total), len(scored), share)
        first += len(chunk)
    counted.warn()


class _Encoded(NamedTuple):
    """The ids of a text, with its context, and the places among them of those that count."""

    ids: Sequence[int]
    scored: Sequence[int]


def _encode(
    vocabulary: tokenizer.Tokenizer, texts: Sequence[str | minimal_pairs.Continuation]
) -> list[_Encoded]:
    pairs = [("", text) if isinstance(text, str) else text for text in texts]
    whole = iter(vocabulary.encode_batch([text for context, text in pairs if not context]))
    encoded = []
    for context, text in pairs:
        if context:
            ids, _, ends = vocabulary.encode_with_offsets(context + text)
            scored = np.flatnonzero(ends > len(context))
            encoded.append(_Encoded(ids.tolist(), scored.tolist()))
        else:
            ids = next(whole)
            encoded.append(_Encoded(ids, range(len(ids))))
    return encoded


def _sums(
    model: saved_model.TrainedModel,
    part: Part,
    sequences: Sequence[_Encoded],
    masking: str,
    batch_size: int,
    first: int,
) -> Float[np.ndarray, " texts"]:
    """Returns the sum over the rows of each text, 0 for texts that are too long."""
    sums, rows_kind = np.zeros(len(sequences)), sentence_rows.ROWS[part.rows]
    where = f"the texts from {first} to {first + len(sequences) - 1}"
    by_length: dict[int, list[int]] = {}
    for place, (ids, _) in enumerate(sequences):
        if len(ids) + 2 <= model.max_length:
            length = padding.padded_length(len(ids) + 2, model.max_length, unit=rows.UNIT)
            by_length.setdefault(length, []).append(place)
    for length, places in sorted(by_length.items()):
        rows.warn_beyond_trained(max(len(sequences[place].ids) for place in places) + 2, model)
        shape: Any = {"size": batch_size, "length": length, "width": rows_kind.width(length)}
        numbered = (
            (place, row)
            for place in places
            for row in rows_kind.of(model.vocabulary, *sequences[place], masking)
        )
        while taken := list(itertools.islice(numbered, batch_size)):
            # A short last batch is filled up, so that no further program is compiled.
            batch = sentence_rows.batch([row for _, row in taken], model.vocabulary, **shape)
            on_devices = sharding.to_devices(batch, model.mesh, batch_size)
            by_token = log_probabilities(part.predict, model.graphdef, model.params, on_devices)
            terms = np.asarray(by_token, np.float64)[: len(taken)].sum(axis=1)
            prediction.check_numbers(terms, where)
            # One by one and in order, in float64.
            np.add.at(sums, [place for place, _ in taken], terms)
    return sums


Predict = Callable[[Any, Any], Float[Array, "batch length"]]


@functools.partial(jax.jit, static_argnames=("predict", "graphdef"))
def log_probabilities(
    predict: Predict, graphdef: Any, params: Any, batch: Any
) -> Float[Array, "batch scored"]:
    """Returns the log-probability of each token that a batch scores, 0 where it scores none."""
    values = predict(parameters.merge(graphdef, params), batch)
    return values * batch["masked_lm_weights"]


def _of_masked(model: Any, batch: Any) -> Float[Array, "batch scored"]:
    logits = model.masked_logits(batch, batch["masked_lm_positions"])
    return -tasks.cross_entropy(logits, batch["masked_lm_ids"])


def _of_next(model: Any, batch: Any) -> Float[Array, "batch scored"]:
    """The position before a token predicts it."""
    logits = model.next_logits(model.encoder(batch, left_to_right=True))
    losses = tasks.cross_entropy(logits, batch["input_ids"][:, 1:])
    before = jnp.maximum(batch["masked_lm_positions"] - 1, 0)
    return -jnp.take_along_axis(losses, before, axis=1)


def _of_original(model: Any, batch: Any) -> Float[Array, "batch scored"]:
    originals = jax.nn.log_sigmoid(-model.replaced_logits(batch))
    return jnp.take_along_axis(originals, batch["masked_lm_positions"], axis=1)


class Part(NamedTuple):
    """A way to read a text: a key of `sentence_rows.ROWS`, and the scores of these rows."""

    rows: str
    predict: Predict


# Head of a model -> the log-probabilities of the scored tokens (`masked_lm_ids` at
# `masked_lm_positions`) of a batch: the one place that knows which logits predict a token.
HEADS: dict[str, Predict] = {
    "mlm_head": _of_masked,
    "lm_head": _of_next,
    "rtd_head": _of_original,
}

# How a hybrid model may read a text; of several parts the log-probabilities of a token are added.
# Source: ltgoslo/gpt-bert, its fused rank.
READINGS: dict[str, tuple[Part, ...]] = {
    "masked": (Part("each_token_masked", _of_masked),),
    "causal": (Part("whole", _of_next),),
    "fused": (Part("each_token_masked", _of_masked), Part("whole", _of_next)),
}


def _parts(task: tasks.ScoresSentences, head: str, reading: str) -> tuple[Part, ...]:
    if isinstance(task, mixed_rows.Hybrid):
        return READINGS[reading or "masked"]
    if reading:
        raise ValueError(
            f"reading is {reading!r}, but the model reads texts in one way: only a hybrid one "
            "(config.pretraining.objective=hybrid) has several"
        )
    return (Part(task.sentence_rows, HEADS[head]),)
