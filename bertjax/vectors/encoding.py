"""Texts to vectors as fast as the devices go: sorted by length, in few shapes, read ahead.

Texts come in blocks. Inside a block they are sorted by length, so that a batch holds little
padding, and batches are padded to few lengths, so that few programs are compiled. While the devices
compute a block, a thread tokenizes the next one. Vectors come back in the order of the texts.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import inference
from bertjax.devices import sharding
from bertjax.models import parameters, sentence_vectors
from bertjax.models import pooling as poolings

# `last4` concatenates the last four layers: the best feature-based choice of Devlin et al. 2019,
# table 7, beside `second_to_last` and `sum4`.
LAYERS: dict[str, Callable[[Sequence[Array]], Array]] = {
    "last": lambda states: states[-1],
    "second_to_last": lambda states: states[-2],
    "last4": lambda states: jnp.concatenate(states[-4:], axis=-1),
    "sum4": lambda states: sum(states[-3:], states[-4]),
    "embeddings": lambda states: states[0],
}
LAYERS_NEEDED = {"last": 1, "second_to_last": 2, "last4": 4, "sum4": 4, "embeddings": 0}
POOLINGS = (*poolings.POOLINGS, "none")

# Batches that are given to the devices before the first one's vectors are fetched.
AHEAD = 2
# Tokens of a batch on a CPU: the scores of attention stay in its caches. A token of 32 texts of 256
# took 1.9 times that of 8 such texts (6 layers of 384, one core, 2026-11-23).
CPU_BATCH_TOKENS = 2048
# Texts that are sorted and tokenized together where all of them are at hand.
BLOCK_SIZE = 8192


@dataclasses.dataclass(frozen=True)
class Choices:
    """What is computed of texts: everything that the numbers of a vector depend on but the model.

    `pooling` is one of POOLINGS; "none": no vector of a text, but one of each token. `dims` are the
    first numbers that are kept, 0: all. Texts of more than `max_length` tokens, [CLS] and [SEP]
    among them, are cut with `truncate` and are an error without.
    """

    layers: str
    pooling: str
    normalize: bool
    prompt: str
    dims: int
    max_length: int
    truncate: bool


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of texts without [CLS] and [SEP], one text after the other; `num_cut` were cut."""

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " texts"]
    num_cut: int


def choices(
    model: inference.TrainedModel,
    *,
    layers: str = "last",
    pooling: str | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    dims: int = 0,
    truncate: bool = False,
    of: str = "document",
) -> Choices:
    """Returns the choices, with the model's own, if it was trained for embeddings, for each None.

    `of` is what is encoded, a "document" or a "query", each with a prompt of its own.

    Raises:
      ValueError: for an unknown name, or more dimensions than the vectors have.
    """
    own = model.sentence or sentence_vectors.SentenceVectors()
    pooling = own.pooling if pooling is None else pooling
    if layers not in LAYERS or pooling not in POOLINGS:
        raise ValueError(
            f"layers is {layers!r}, known are {', '.join(LAYERS)}; "
            f"pooling is {pooling!r}, known are {', '.join(POOLINGS)}"
        )
    normalize = own.normalize if normalize is None else normalize
    if pooling == "none" and (dims or normalize):
        if dims:
            raise ValueError(f"dims is {dims} and shortens vectors of texts; pooling none has none")
        normalize = False
    return Choices(
        layers=layers,
        pooling=pooling,
        normalize=normalize,
        prompt=own.prompt(of) if prompt is None else prompt,
        dims=dims,
        max_length=min(own.max_seq_length or model.max_length, model.max_length),
        truncate=truncate,
    )


def encode(
    model: inference.TrainedModel,
    texts: Sequence[str],
    chosen: Choices,
    *,
    batch_size: int = 32,
) -> tuple[Float[np.ndarray, "texts size"], Int[np.ndarray, " texts"]]:
    """Returns the vectors of texts, in their order, and their lengths with [CLS] and [SEP].

    Raises:
      ValueError: for no texts, one that is too long, or a model whose numbers are not finite.
    """
    blocks = (texts[start : start + BLOCK_SIZE] for start in range(0, len(texts), BLOCK_SIZE))
    parts = list(encode_blocks(model, blocks, chosen, batch_size=batch_size))
    if not parts:
        raise ValueError("there are no texts; give at least one")
    found = np.concatenate([found for found, _ in parts])
    lengths = np.concatenate([tokens.lengths + 2 for _, tokens in parts])
    return found, lengths.astype(np.int64)


def encode_blocks(
    model: inference.TrainedModel,
    blocks: Iterable[Sequence[str]],
    chosen: Choices,
    *,
    batch_size: int = 32,
    first: int = 1,
) -> Iterator[tuple[Float[np.ndarray, "texts size"], Tokens]]:
    """Yields the vectors of each block of texts, and its tokens; errors count texts from `first`.

    Raises:
      ValueError: as `encode`.
    """
    last = first
    with concurrent.futures.ThreadPoolExecutor(1, "tokenizer") as thread:
        waiting: collections.deque[concurrent.futures.Future[Tokens]] = collections.deque()
        for texts in itertools.chain((block for block in blocks if len(block)), [None]):
            if texts is not None:
                waiting.append(thread.submit(tokenize, model, texts, chosen, first=last))
                last += len(texts)
            if waiting and (texts is None or len(waiting) > 1):
                tokens = waiting.popleft().result()
                yield vectors(model, tokens, chosen, batch_size=batch_size, first=first), tokens
                first += len(tokens.lengths)


def tokenize(
    model: inference.TrainedModel, texts: Sequence[str], chosen: Choices, *, first: int = 1
) -> Tokens:
    """Returns the tokens of texts with the prompt before each, cut where that is chosen.

    Raises:
      ValueError: naming the first text that is too long, counted from `first`.
    """
    if chosen.prompt:
        texts = [chosen.prompt + text for text in texts]
    ids, lengths = model.vocabulary.encode_flat(texts)
    most = chosen.max_length - 2
    is_long = lengths > most
    if not is_long.any():
        return Tokens(ids, lengths, 0)
    if not chosen.truncate:
        place = int(np.flatnonzero(is_long)[0])
        raise ValueError(
            f"text {first + place} has {lengths[place] + 2} tokens with [CLS] and [SEP]; the model "
            f"reads at most {chosen.max_length}: shorten it or split it, or cut it with --truncate"
        )
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = np.arange(len(ids)) - starts < most
    return Tokens(ids[kept], np.minimum(lengths, most), int(is_long.sum()))


def padded_length(length: int, most: int) -> int:
    """Returns how long a batch becomes: a multiple of an eighth of the next power of two, or of 8.

    So there are at most four programs for each doubling of the length, and little padding.
    """
    unit = max(8, 1 << max((length - 1).bit_length() - 3, 0))
    return min(-(-length // unit) * unit, most)


def vectors(
    model: inference.TrainedModel,
    tokens: Tokens,
    chosen: Choices,
    *,
    batch_size: int = 32,
    first: int = 1,
) -> Float[np.ndarray, "texts size"]:
    """Returns the vectors of a block of texts, computed from the longest to the shortest.

    Raises:
      ValueError: if a number is not finite, naming the texts, counted from `first`.
    """
    count = len(tokens.lengths)
    order = np.argsort(-tokens.lengths, kind="stable")
    starts = np.cumsum(tokens.lengths) - tokens.lengths
    under_way: collections.deque[tuple[np.ndarray, Array]] = collections.deque()
    found: list[tuple[np.ndarray, np.ndarray]] = []
    start = 0
    while start < count:
        length = padded_length(int(tokens.lengths[order[start]]) + 2, chosen.max_length)
        rows = rows_of(model, _fitting(model, batch_size, length), count)
        places = order[start : start + rows]
        start += rows
        batch = _batch(model, tokens, starts, places, rows, chosen)
        under_way.append((places, run(model, batch, chosen)))
        if len(under_way) > AHEAD:
            found.append(_fetched(*under_way.popleft()))
    found += [_fetched(*each) for each in under_way]
    together = np.empty((count, found[0][1].shape[1]), np.float32)
    for places, part in found:
        together[places] = part
    inference.check_numbers(together, f"texts {first} to {first + count - 1}")
    return together


def _fetched(places: np.ndarray, computed: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns places and their vectors without those of the rows that fill up a batch."""
    return places, np.asarray(computed, np.float32)[: len(places)]


def in_blocks(
    model: inference.TrainedModel,
    blocks: Iterable[Tokens],
    chosen: Choices,
    *,
    batch_size: int = 32,
) -> Iterator[Float[np.ndarray, "texts size"]]:
    """Yields the vectors of blocks whose tokens are known; errors as `vectors`."""
    first = 1
    for tokens in blocks:
        yield vectors(model, tokens, chosen, batch_size=batch_size, first=first)
        first += len(tokens.lengths)


def token_features(
    model: inference.TrainedModel,
    blocks: Iterable[Tokens],
    chosen: Choices,
    *,
    rows: int,
) -> Iterator[tuple[Float[np.ndarray, "B L D"], Int[np.ndarray, "B L"], Int[np.ndarray, "B L"]]]:
    """Yields features of the tokens of each batch, its mask and its ids, in the order of the texts.

    A batch has `rows` (see `rows_of`), blocks a multiple of it.

    Raises:
      ValueError: as `vectors`.
    """
    first = 1
    for tokens in blocks:
        count = len(tokens.lengths)
        starts = np.cumsum(tokens.lengths) - tokens.lengths
        for start in range(0, count, rows):
            places = np.arange(start, min(start + rows, count))
            batch = _batch(model, tokens, starts, places, rows, chosen)
            _, found = _fetched(places, run(model, batch, chosen))
            last = first + len(places) - 1
            inference.check_numbers(found, f"texts {first} to {last}")
            first = last + 1
            yield found, batch["input_mask"][: len(places)], batch["input_ids"][: len(places)]


def size(model: inference.TrainedModel, chosen: Choices) -> int:
    """Returns how many numbers the vectors have; nothing is computed.

    Raises:
      ValueError: as `features`.
    """
    row = jax.ShapeDtypeStruct((1, 8), np.int32)
    batch = {name: row for name in ("input_ids", "input_mask", "segment_ids")}
    compute = functools.partial(
        features,
        graphdef=model.graphdef,
        layers=chosen.layers,
        pooled=chosen.pooling,
        dims=chosen.dims,
        normalize=chosen.normalize,
    )
    return jax.eval_shape(compute, model.params, batch).shape[-1]


def run(model: inference.TrainedModel, batch: dict[str, np.ndarray], chosen: Choices) -> Array:
    """Returns what is computed of a batch, before it is there: the host goes on meanwhile."""
    placed = sharding.to_devices(batch, model.mesh, len(batch["input_ids"]))
    return features(
        model.params,
        placed,
        graphdef=model.graphdef,
        layers=chosen.layers,
        pooled=chosen.pooling,
        dims=chosen.dims,
        normalize=chosen.normalize,
    )


def _fitting(model: inference.TrainedModel, batch_size: int, length: int) -> int:
    """Returns how many texts of a length are taken together: on a CPU as many as its caches hold.

    `batch_size` is the most. Accelerators need large batches, and take all of it.
    """
    if model.mesh.devices.flat[0].platform != "cpu":
        return batch_size
    return max(min(batch_size, CPU_BATCH_TOKENS // length), 1)


def rows_of(model: inference.TrainedModel, batch_size: int, count: int) -> int:
    """Returns the rows of a batch: a multiple of the devices, and no more than `count` need."""
    unit = model.mesh.size
    batch_size, most = (-(-size // unit) * unit for size in (batch_size, count))
    return max(min(batch_size, most), 1)


def _batch(
    model: inference.TrainedModel,
    tokens: Tokens,
    starts: np.ndarray,
    places: np.ndarray,
    rows: int,
    chosen: Choices,
) -> dict[str, np.ndarray]:
    """Returns [CLS] tokens [SEP] of the texts at `places`, filled up with empty texts to `rows`."""
    lengths = np.zeros(rows, np.int64)
    lengths[: len(places)] = tokens.lengths[places]
    longest = int(lengths.max()) + 2
    inference.warn_beyond_trained(longest, model)
    length = padded_length(longest, chosen.max_length)
    vocabulary = model.vocabulary
    input_ids = np.full((rows, length), vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    for row, place in enumerate(places):
        start, size = starts[place], lengths[row]
        input_ids[row, 1 : 1 + size] = tokens.ids[start : start + size]
    input_ids[np.arange(rows), lengths + 1] = vocabulary.sep_id
    input_mask = (np.arange(length) < lengths[:, None] + 2).astype(np.int32)
    segment_ids = np.zeros_like(input_ids)
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}


@functools.partial(jax.jit, static_argnames=("graphdef", "layers", "pooled", "dims", "normalize"))
def features(
    params: Any,
    batch: Any,
    *,
    graphdef: Any,
    layers: str,
    pooled: str,
    dims: int = 0,
    normalize: bool = False,
) -> Array:
    """Returns the vectors of a batch, [batch, size], or of its tokens, [batch, length, size].

    Raises:
      ValueError: for a model with too few layers, or vectors that are shorter than `dims`.
    """
    encoder = parameters.merge(graphdef, params).encoder
    states = encoder.hidden_states(batch)
    if len(states) - 1 < LAYERS_NEEDED[layers]:
        raise ValueError(
            f"--layers={layers} needs {LAYERS_NEEDED[layers]} layers; the model has "
            f"{len(states) - 1}: choose another of {', '.join(LAYERS)}"
        )
    hidden = LAYERS[layers](states).astype(jnp.float32)
    if pooled == "none":
        return hidden
    if dims > hidden.shape[-1]:
        raise ValueError(
            f"--dims={dims} is more than the {hidden.shape[-1]} numbers of the vectors; give fewer"
        )
    pooled_hidden = poolings.pool(hidden, batch["input_mask"], pooled)
    return sentence_vectors.shortened(pooled_hidden, dims=dims, normalize=normalize)
