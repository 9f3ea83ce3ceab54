"""How likely a pretrained model holds a text to be: its pseudo-log-likelihood.

Every token is masked once, and the log-probabilities of the true ones are added: Salazar et al.
2020, "Masked Language Model Scoring", section 2. Where a word has several pieces, those that stay
visible give away the masked one, so long words look too likely. `word_to_right` masks the pieces
of the same word that stand right of the token as well: Kauf and Ivanova 2023, "A Better Way to Do
Masked Language Model Scoring", section 2.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax import inference
from bertjax.devices import sharding
from bertjax.models import parameters

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


def _next_places(continues: Bool[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    return np.arange(1, len(continues) + 1)


def _word_ends(continues: Bool[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    starts = ~continues
    starts[:1] = True
    ends = np.append(np.flatnonzero(starts)[1:], len(continues))
    return ends[np.cumsum(starts) - 1]


# Name -> for each token, the place where what is masked with it ends, of which tokens continue the
# word before them.
MASKINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "token": _next_places,
    "word_to_right": _word_ends,
}


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
      ValueError: for an unknown `masking`, a model that fills no masks, or outputs that are no
        numbers.
    """
    if masking not in MASKINGS:
        raise ValueError(f"masking is {masking!r}; known are {', '.join(MASKINGS)}")
    if not model.fills_masks:
        raise ValueError(
            "the model has no masked-token head (mlm_head), so it gives texts no likelihood; "
            "`python -m bertjax.encode` gives the features of its encoder"
        )
    batch_size = -(-batch_size // model.mesh.size) * model.mesh.size
    texts, first = iter(texts), 1
    while chunk := list(itertools.islice(texts, TEXTS_READ)):
        sequences = model.vocabulary.encode_batch(chunk)
        sums = _sums(model, sequences, MASKINGS[masking], batch_size, first)
        for ids, total in zip(sequences, sums, strict=True):
            if len(ids) + 2 > model.max_length:
                fault = f"it has {len(ids) + 2} tokens with [CLS] and [SEP]; the model reads at "
                yield NoScore(fault + f"most {model.max_length}: shorten it or split it")
            else:
                yield Score(float(total), len(ids))
        first += len(chunk)


def _sums(
    model: inference.TrainedModel,
    sequences: Sequence[Sequence[int]],
    masked_until: Callable[[np.ndarray], np.ndarray],
    batch_size: int,
    first: int,
) -> Float[np.ndarray, " texts"]:
    """Returns the sum of log-probabilities of each text, 0 for one that is too long."""
    sums = np.zeros(len(sequences))
    where = f"the texts from {first} to {first + len(sequences) - 1}"
    by_width: dict[int, list[int]] = {}
    for place, ids in enumerate(sequences):
        if len(ids) + 2 <= model.max_length:
            by_width.setdefault(inference.padded_length(len(ids) + 2, model), []).append(place)
    for _, places in sorted(by_width.items()):
        rows = (
            (place, *row)
            for place in places
            for row in _rows(model, sequences[place], masked_until)
        )
        while batch := list(itertools.islice(rows, batch_size)):
            found = _log_probabilities(model, batch, batch_size)
            inference.check_numbers(found, where)
            # One by one and in order, in float64.
            np.add.at(sums, [place for place, *_ in batch], found)
    return sums


def _rows(
    model: inference.TrainedModel,
    ids: Sequence[int],
    masked_until: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple[list[int], int, int]]:
    """Yields the tokens with each of them masked in turn, its place, and its id."""
    tokens = np.asarray(ids, np.int32)
    ends = masked_until(model.vocabulary.continues_word[tokens])
    for place, (token, end) in enumerate(zip(tokens, ends, strict=True)):
        masked = tokens.copy()
        masked[place:end] = model.vocabulary.mask_id
        yield masked.tolist(), place, int(token)


def _log_probabilities(
    model: inference.TrainedModel, rows: Sequence[tuple[int, list[int], int, int]], size: int
) -> Float[np.ndarray, " rows"]:
    """Returns the log-probability of the true token of each row; all rows are equally wide."""
    # A short last batch is filled up, so that it needs no program of its own.
    filled = [*rows, *[rows[0]] * (size - len(rows))]
    batch = inference.single_segment_batch([tokens for _, tokens, _, _ in filled], model)
    batch["masked_lm_positions"] = np.array([[place + 1] for *_, place, _ in filled], np.int32)
    batch["masked_lm_ids"] = np.array([[token] for *_, token in filled], np.int32)
    found = _of_masked(
        model.params, sharding.to_devices(batch, model.mesh, size), graphdef=model.graphdef
    )
    return np.asarray(found, np.float64)[: len(rows)]


@functools.partial(jax.jit, static_argnames=("graphdef",))
def _of_masked(params: Any, batch: Any, *, graphdef: Any) -> Array:
    module = parameters.merge(graphdef, params)
    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    logits = module.mlm_logits(module.encoder(inputs), batch["masked_lm_positions"])[:, 0]
    true = jnp.take_along_axis(logits, batch["masked_lm_ids"], axis=1)[:, 0]
    return true - jax.nn.logsumexp(logits, axis=-1)
