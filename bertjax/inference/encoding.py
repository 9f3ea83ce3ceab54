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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.cli import command_line, programs
from bertjax.data import padding
from bertjax.devices import sharding
from bertjax.inference import rows, saved_model
from bertjax.models import parameters, sentence_encoder, sentence_vectors
from bertjax.models import pooling as poolings
from bertjax.options import faults
from bertjax.tasks import prediction
from bertjax.tokenization import unknown_tokens

# `last4` concatenates the last four layers: the best feature-based choice of Devlin et al. 2019,
# table 7, which also has `second_to_last` and `sum4`. `all` begins with the embeddings.
LAYERS: dict[str, Callable[[Sequence[Array]], Array]] = {
    "last": lambda states: states[-1],
    "second_to_last": lambda states: states[-2],
    "last4": lambda states: jnp.concatenate(states[-4:], axis=-1),
    "sum4": lambda states: sum(states[-3:], states[-4]),
    "embeddings": lambda states: states[0],
    "all": lambda states: jnp.concatenate(states, axis=-1),
}
LAYERS_NEEDED = {"last": 1, "second_to_last": 2, "last4": 4, "sum4": 4, "embeddings": 0, "all": 0}

# Batches that are given to the devices before the first one's vectors are fetched.
AHEAD = 2
# Tokens of a batch on a CPU: the scores of attention stay in its caches. A token of 32 texts of 256
# took 1.9 times that of 8 such texts (6 layers of 384, one core, 2026-11-23).
CPU_BATCH_TOKENS = 2048
# Texts that are sorted and tokenized together where all of them are at hand.
BLOCK_SIZE = 8192


@dataclasses.dataclass(frozen=True)
class Options:
    """How texts become vectors: all that a vector depends on besides the text and the model.

    pooling: one of `models.pooling.POOLINGS`, or "none" for a vector of each token
    prompt: stands before each text
    dims: number of first numbers of a vector that are kept, before it is normalized; 0 keeps all
    truncate_dim: the same afterwards
    max_length: most tokens of a text with [CLS] and [SEP]
    truncate: longer texts are cut; without it they are an error
    """

    layers: str
    pooling: str
    normalize: bool
    prompt: str
    dims: int
    max_length: int
    truncate: bool
    truncate_dim: int = 0


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of texts without [CLS] and [SEP], one text after the other; `num_cut` were cut.

    `first` is the number of the first text, for messages.
    """

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " texts"]
    num_cut: int
    first: int = 1

    def count_unknown(self, counted: unknown_tokens.UnknownTokens) -> None:
        """Counts the [UNK] of each text."""
        for place, ids in enumerate(np.split(self.ids, self.starts[1:])):
            counted.add(ids, f"text {self.first + place}")

    @functools.cached_property
    def starts(self) -> Int[np.ndarray, " texts"]:
        """The place in `ids` at which each text starts."""
        return np.cumsum(self.lengths) - self.lengths


def options_for(model: saved_model.TrainedModel, **options: Any) -> Options:
    """Returns `options`, which are fields of `cli.programs.Vectors`; None is the model's own.

    Dense layers behind the pooling read the last layer; vectors of other layers are without them.

    Raises:
      ValueError: for an unknown name, or `dims` without a vector of a text.
    """
    trained = model.sentence or sentence_vectors.SentenceVectors()
    asked: programs.Vectors = command_line.made(programs.Vectors, **options)
    pooling = trained.pooling if asked.pooling is None else asked.pooling
    dims, normalize = asked.dims, asked.normalize
    if pooling == "none" and dims:
        raise faults.unread("dims", dims, "pooling 'none' gives no vectors of texts", 0)
    has_vectors = pooling != "none"
    # As in sentence-transformers: its module normalizes before this cut, its option after it.
    truncate_dim = trained.truncate_dim if dims is None and has_vectors else 0
    if normalize is not None:
        dims, truncate_dim = dims or truncate_dim, 0
    normalize = trained.normalize if normalize is None else normalize
    return Options(
        layers=asked.layers,
        pooling=pooling,
        normalize=normalize and has_vectors,
        prompt=trained.prompt("document") if asked.prompt is None else asked.prompt,
        dims=dims or 0,
        truncate_dim=truncate_dim,
        max_length=min(trained.max_seq_length or model.max_length, model.max_length),
        truncate=bool(asked.truncate),
    )


def encode_blocks(
    model: saved_model.TrainedModel,
    blocks: Iterable[Tokens],
    options: Options,
    *,
    batch_size: int = 32,
    first: int = 1,
) -> Iterator[tuple[Float[np.ndarray, "texts size"], Tokens]]:
    """Yields the vectors of each block of texts, and its tokens; errors count texts from `first`.

    Raises:
      ValueError: as `vectors`.
    """
    for tokens in blocks:
        yield vectors(model, tokens, options, batch_size=batch_size, first=first), tokens
        first += len(tokens.lengths)


def tokenize_blocks(
    model: saved_model.TrainedModel,
    blocks: Iterable[Sequence[str]],
    options: Options,
    *,
    first: int = 1,
) -> Iterator[Tokens]:
    """Yields the tokens of each block; a thread tokenizes the next block meanwhile.

    Raises:
      ValueError: as `tokenize`.
    """
    with concurrent.futures.ThreadPoolExecutor(1, "tokenizer") as thread:
        under_way: collections.deque[concurrent.futures.Future[Tokens]] = collections.deque()
        for texts in blocks:
            under_way.append(thread.submit(tokenize, model, texts, options, first=first))
            first += len(texts)
            if len(under_way) > 1:
                yield under_way.popleft().result()
        for tokens in under_way:
            yield tokens.result()


def tokenize(
    model: saved_model.TrainedModel, texts: Sequence[str], options: Options, *, first: int = 1
) -> Tokens:
    """Returns the tokens of texts with the prompt before each, cut with `options.truncate`.

    Raises:
      ValueError: naming the first text that is too long, counted from `first`.
    """
    if options.prompt:
        texts = [options.prompt + text for text in texts]
    ids, lengths = model.vocabulary.encode_flat(texts)
    most = options.max_length - 2
    is_long = lengths > most
    if not is_long.any():
        return Tokens(ids, lengths, 0, first)
    if not options.truncate:
        place = int(np.flatnonzero(is_long)[0])
        raise ValueError(
            f"text {first + place} has {lengths[place] + 2} tokens with [CLS] and [SEP]; the model "
            f"reads at most {options.max_length}: shorten it or split it, or cut it with --truncate"
        )
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = ids[np.arange(len(ids)) - starts < most]
    return Tokens(ids, np.minimum(lengths, most), int(is_long.sum()), first)


def vectors(
    model: saved_model.TrainedModel,
    tokens: Tokens,
    options: Options,
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
    under_way: collections.deque[Array] = collections.deque()
    parts: list[np.ndarray] = []
    start = 0
    while start < count:
        longest = int(tokens.lengths[order[start]]) + 2
        length = padding.padded_length(longest, options.max_length)
        size = _num_rows(model, _fitting(model, batch_size, length), count)
        batch = _batch(model, tokens, order[start : start + size], size, options)
        under_way.append(_run(model, batch, options))
        start += size
        if len(under_way) > AHEAD:
            parts.append(np.asarray(under_way.popleft(), np.float32))
    parts += [np.asarray(part, np.float32) for part in under_way]
    # Rows that fill up the last batch are left out.
    in_order = np.empty((count, parts[0].shape[1]), np.float32)
    in_order[order] = np.concatenate(parts)[:count]
    prediction.check_numbers(in_order, f"texts {first} to {first + count - 1}")
    return in_order


def token_features(
    model: saved_model.TrainedModel, tokens: Tokens, options: Options, *, batch_size: int = 32
) -> Iterator[Float[np.ndarray, "tokens size"]]:
    """Yields the features of the tokens of each batch, with [CLS] and [SEP], in their order.

    Raises:
      ValueError: as `vectors`.
    """
    count = len(tokens.lengths)
    size = _num_rows(model, batch_size, count)
    for start in range(0, count, size):
        places = np.arange(start, min(start + size, count))
        batch = _batch(model, tokens, places, size, options)
        features = np.asarray(_run(model, batch, options), np.float32)[: len(places)]
        prediction.check_numbers(features, f"texts {start + 1} to {start + len(places)}")
        yield features[batch["input_mask"][: len(places)] != 0]


def value_vectors(
    model: saved_model.TrainedModel,
    values: Float[np.ndarray, "rows length width"],
    options: Options,
    *,
    batch_size: int = 32,
) -> Float[np.ndarray, "rows size"]:
    """Returns the vectors of rows of values, nan where nothing was observed, in their order.

    Raises:
      ValueError: if the model reads no such rows, or a number is not finite.
    """
    sizes = model.sizes
    if sizes is None or not sizes.reads_values:
        raise ValueError("the model reads texts, not values: give it texts")
    width, longest = sizes.value_width or 1, len(sizes.columns) or model.max_length
    if values.ndim != 3 or values.shape[2] != width or not 1 <= values.shape[1] <= longest:
        raise ValueError(
            f"values have the shape {values.shape}; the model reads [rows, up to {longest} "
            f"positions, {width}]"
        )
    if options.pooling == "none":
        raise ValueError("pooling is 'none', which is for texts: choose the mean or another")
    size = _num_rows(model, batch_size, len(values))
    found = []
    for start in range(0, len(values), size):
        rows_of = np.resize(values[start : start + size], (size, *values.shape[1:]))
        seen = ~np.isnan(rows_of)
        batch = {
            "values": np.where(seen, rows_of, 0).astype(np.float32),
            "observed": seen.astype(np.int32),
            "input_mask": np.ones(rows_of.shape[:2], np.int32),
        }
        found.append(np.asarray(_run(model, batch, options), np.float32))
    vectors_of_all = np.concatenate(found)[: len(values)]
    prediction.check_numbers(vectors_of_all, f"rows 1 to {len(values)}")
    return vectors_of_all


def _run(model: saved_model.TrainedModel, batch: dict[str, np.ndarray], options: Options) -> Array:
    """Returns the features of a batch while devices still compute them."""
    names = ("layers", "pooling", "dims", "normalize", "truncate_dim")
    chosen = {name: getattr(options, name) for name in names}
    on_devices = sharding.to_devices(batch, model.mesh, len(batch["input_mask"]))
    return _features(model.params, on_devices, graphdef=model.graphdef, **chosen)


def _fitting(model: saved_model.TrainedModel, batch_size: int, length: int) -> int:
    """Returns the number of texts of a length in a batch: on a CPU as many as its caches hold.

    `batch_size` is the maximum. Accelerators need large batches, and take all of it.
    """
    if model.mesh.devices.flat[0].platform != "cpu":
        return batch_size
    return max(min(batch_size, CPU_BATCH_TOKENS // length), 1)


def _num_rows(model: saved_model.TrainedModel, batch_size: int, count: int) -> int:
    """Returns the rows of a batch: a multiple of the devices, and no more than `count` need."""
    unit = model.mesh.size
    batch_size, most = (-(-size // unit) * unit for size in (batch_size, count))
    return max(min(batch_size, most), 1)


def _batch(
    model: saved_model.TrainedModel,
    tokens: Tokens,
    places: np.ndarray,
    num_rows: int,
    options: Options,
) -> dict[str, np.ndarray]:
    """Returns the rows of the texts at `places`, filled up with empty texts to `num_rows`."""
    spans = zip(tokens.starts[places], tokens.lengths[places], strict=True)
    sequences = [tokens.ids[start : start + length] for start, length in spans]
    longest = max(map(len, sequences)) + 2
    rows.warn_beyond_trained(longest, model)
    return padding.cls_rows(
        # A row of padding alone has no mean: 0 / 0.
        sequences + [tokens.ids[:0]] * (num_rows - len(sequences)),
        model.vocabulary,
        length=padding.padded_length(longest, options.max_length),
    )


@functools.partial(
    jax.jit,
    static_argnames=("graphdef", "layers", "pooling", "dims", "normalize", "truncate_dim"),
)
def _features(
    params: Any,
    batch: Any,
    *,
    graphdef: Any,
    layers: str,
    pooling: str,
    dims: int,
    normalize: bool,
    truncate_dim: int,
) -> Array:
    """Returns the vectors of a batch, [batch, size], or of its tokens, [batch, length, size]."""
    model = parameters.merge(graphdef, params)
    states = model.encoder.hidden_states(batch)
    if len(states) - 1 < LAYERS_NEEDED[layers]:
        raise ValueError(
            f"--layers={layers} needs {LAYERS_NEEDED[layers]} layers; the model has "
            f"{len(states) - 1}: choose another of {', '.join(LAYERS)}"
        )
    hidden = LAYERS[layers](states).astype(jnp.float32)
    if pooling == "none":
        return hidden
    pooled = poolings.pool(hidden, batch["input_mask"], pooling)
    if layers == "last":
        pooled = sentence_encoder.projected(pooled, getattr(model, "projections", None))
    if dims > pooled.shape[-1]:
        raise ValueError(
            f"--dims={dims} is more than the {pooled.shape[-1]} numbers of the vectors; give fewer"
        )
    vectors = sentence_vectors.shortened(pooled, dims=dims, normalize=normalize)
    return vectors[:, : truncate_dim or None]
