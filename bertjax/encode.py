"""Features of a checkpoint's encoder for other programs, one text per line of standard input.

python -m bertjax.encode --checkpoint=DIR --layers=last4 --pooling=mean < lines.txt > features.npz
"""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jaxtyping import Array

from bertjax import command_line, inference, whole_numbers
from bertjax.devices import sharding
from bertjax.models import parameters

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
POOLINGS = ("cls", "mean", "none")

# What is in memory at a time: texts that are tokenized, and numbers that are copied.
TEXTS_READ, NUMBERS_READ = 1024, 2**20


def encode(
    model: inference.TrainedModel,
    texts: Sequence[str],
    *,
    layers: str = "last",
    pooling: str = "mean",
    batch_size: int = 32,
) -> dict[str, np.ndarray]:
    """Returns float32 `features` of the texts, and `lengths` in tokens with [CLS] and [SEP].

    With pooling "cls" or "mean" (over all real tokens) features are [texts, size]. With "none" they
    are [tokens of all texts, size], text i starting at row `offsets`[i], and `input_ids` names the
    tokens.

    Raises:
      ValueError: for an unknown option, a model with too few layers, or a text that is too long.
    """
    _check_options(layers, pooling)
    batch_size = _whole(model, batch_size, len(texts))
    tokens = (
        model.vocabulary.encode_batch(texts[start : start + batch_size])
        for start in range(0, len(texts), batch_size)
    )
    parts = list(_in_batches(model, tokens, batch_size, layers, pooling))
    lengths = np.concatenate([np.zeros(0, np.int32), *(mask.sum(axis=1) for _, mask, _ in parts)])
    if pooling != "none":
        features = np.concatenate([features for features, _, _ in parts])
        return {"features": features, "lengths": lengths}
    return {
        "features": np.concatenate([f[mask != 0] for f, mask, _ in parts]),
        "input_ids": np.concatenate([ids[mask != 0] for _, mask, ids in parts]),
        "lengths": lengths,
        "offsets": np.cumsum(lengths) - lengths,
    }


def write(
    model: inference.TrainedModel,
    texts: Iterable[str],
    file: BinaryIO,
    *,
    layers: str = "last",
    pooling: str = "mean",
    batch_size: int = 32,
) -> None:
    """Writes what `encode` returns as an .npz archive, in memory that does not grow with the texts.

    All texts are tokenized before anything is written, and their ids are kept in a temporary file.

    Raises:
      ValueError: as `encode`, or if there are no texts.
    """
    _check_options(layers, pooling)
    with tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as lengths:
        spool = _Spool(model, ids, lengths)
        spool.add(texts)
        batch_size = _whole(model, batch_size, spool.count)
        parts = _in_batches(model, spool.batches(batch_size), batch_size, layers, pooling)
        rows = (
            features if pooling != "none" else features[mask != 0] for features, mask, _ in parts
        )
        counts = {"features": spool.count if pooling != "none" else spool.num_tokens}
        members: dict[str, Iterator[np.ndarray]] = {"features": rows}
        if pooling == "none":
            members["input_ids"], counts["input_ids"] = spool.input_ids(), spool.num_tokens
        members["lengths"], counts["lengths"] = spool.lengths(), spool.count
        if pooling == "none":
            members["offsets"], counts["offsets"] = spool.offsets(), spool.count
        # As numpy.savez writes it, which wants whole arrays.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, arrays in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_array(member, arrays, counts[name])


class _Spool:
    """The tokens of texts in files, with [CLS] and [SEP], and how many each text has."""

    def __init__(self, model: inference.TrainedModel, ids: IO[bytes], lengths: IO[bytes]):
        self._model, self._ids, self._lengths = model, ids, lengths
        self.count = self.num_tokens = 0

    def add(self, texts: Iterable[str]) -> None:
        """Tokenizes texts and keeps their tokens."""
        vocabulary, texts = self._model.vocabulary, iter(texts)
        while chunk := list(itertools.islice(texts, TEXTS_READ)):
            ids, lengths = vocabulary.encode_flat(chunk)
            for place in np.flatnonzero(lengths + 2 > self._model.max_length)[:1]:
                raise ValueError(
                    f"text {self.count + place + 1} has {lengths[place] + 2} tokens with [CLS] and "
                    f"[SEP]; the model reads at most {self._model.max_length}: shorten it or split "
                    "it"
                )
            ends = np.cumsum(lengths)
            specials = np.stack([ends - lengths, ends], axis=1).reshape(-1)
            values = [vocabulary.cls_id, vocabulary.sep_id] * len(chunk)
            self._ids.write(np.insert(ids, specials, values).astype(np.int32).tobytes())
            self._lengths.write((lengths + 2).astype(np.int64).tobytes())
            self.count, self.num_tokens = self.count + len(chunk), self.num_tokens + _total(lengths)
        if not self.count:
            raise ValueError("there are no texts; give at least one")

    def batches(self, batch_size: int) -> Iterator[list[list[int]]]:
        """Yields the tokens of `batch_size` texts at a time, without [CLS] and [SEP]."""
        self._ids.seek(0)
        for lengths in _numbers(self._lengths, np.dtype(np.int64), batch_size):
            size = int(lengths.sum())
            ids = np.frombuffer(self._ids.read(size * 4), np.int32)
            parts = np.split(ids, np.cumsum(lengths)[:-1])
            yield [part[1:-1].tolist() for part in parts]

    def input_ids(self) -> Iterator[np.ndarray]:
        """Yields the ids of all texts, with [CLS] and [SEP]."""
        return _numbers(self._ids, np.dtype(np.int32), NUMBERS_READ)

    def lengths(self) -> Iterator[np.ndarray]:
        """Yields how many tokens the texts have."""
        return _numbers(self._lengths, np.dtype(np.int64), NUMBERS_READ)

    def offsets(self) -> Iterator[np.ndarray]:
        """Yields where in the tokens of all texts each begins."""
        before = 0
        for lengths in self.lengths():
            yield before + np.cumsum(lengths) - lengths
            before += int(lengths.sum())


def _total(lengths: np.ndarray) -> int:
    return int((lengths + 2).sum())


def _numbers(file: IO[bytes], dtype: np.dtype, count: int) -> Iterator[np.ndarray]:
    """Yields the numbers of a file, `count` at a time; another reader may move it meanwhile."""
    place = 0
    while True:
        file.seek(place)
        read = file.read(count * dtype.itemsize)
        if not read:
            return
        place += len(read)
        yield np.frombuffer(read, dtype)


def _write_array(member: IO[bytes], arrays: Iterator[np.ndarray], count: int) -> None:
    """Writes arrays, one below the other, as one .npy of `count` rows."""
    first = next(arrays)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (count, *first.shape[1:])}
    np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
    for array in itertools.chain([first], arrays):
        member.write(np.ascontiguousarray(array).tobytes())


def _check_options(layers: str, pooling: str) -> None:
    if layers not in LAYERS or pooling not in POOLINGS:
        raise ValueError(
            f"layers is {layers!r}, known are {', '.join(LAYERS)}; "
            f"pooling is {pooling!r}, known are {', '.join(POOLINGS)}"
        )


def _whole(model: inference.TrainedModel, batch_size: int, count: int) -> int:
    """Returns the rows of a batch: a multiple of the devices, and no more than `count` need."""
    unit = model.mesh.size
    batch_size, most = (-(-size // unit) * unit for size in (batch_size, count))
    return max(min(batch_size, most), 1)


def _in_batches(
    model: inference.TrainedModel,
    tokens: Iterable[list[list[int]]],
    batch_size: int,
    layers: str,
    pooling: str,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields the features, mask and ids of each batch of texts."""
    run = functools.partial(
        _features, model.params, graphdef=model.graphdef, layers=layers, pooling=pooling
    )
    start = 0
    for chosen in tokens:
        # A short last batch is filled up, so that it needs no program of its own.
        filler = [[]] * (batch_size - len(chosen))
        batch = inference.single_segment_batch([*chosen, *filler], model)
        features = np.asarray(
            run(sharding.to_devices(batch, model.mesh, len(batch["input_ids"]))), np.float32
        )
        count = len(chosen)
        inference.check_numbers(features[:count], f"texts {start + 1} to {start + count}")
        yield features[:count], batch["input_mask"][:count], batch["input_ids"][:count]
        start += count


@functools.partial(jax.jit, static_argnames=("graphdef", "layers", "pooling"))
def _features(params: Any, batch: Any, *, graphdef: Any, layers: str, pooling: str) -> Array:
    encoder = parameters.merge(graphdef, params).encoder
    states = encoder.hidden_states(batch)
    if len(states) - 1 < LAYERS_NEEDED[layers]:
        raise ValueError(
            f"--layers={layers} needs {LAYERS_NEEDED[layers]} layers; the model has "
            f"{len(states) - 1}: choose another of {', '.join(LAYERS)}"
        )
    features = LAYERS[layers](states).astype(jnp.float32)
    if pooling == "cls":
        return features[:, 0]
    if pooling == "mean":
        mask = batch["input_mask"][:, :, None].astype(jnp.float32)
        return (features * mask).sum(axis=1) / mask.sum(axis=1)
    return features


def _define_flags() -> None:
    inference.define_flags("Workdir of a training run.")
    flags.DEFINE_enum("layers", "last", list(LAYERS), "Which layers' hidden states.")
    flags.DEFINE_enum(
        "pooling", "mean", POOLINGS, "How tokens become one vector; none: all tokens."
    )
    whole_numbers.DEFINE_integer("batch_size", 32, "Texts at a time.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Reads texts from standard input and writes an .npz archive to standard output."""
    del argv
    options = flags.FLAGS
    # An empty line keeps its row: [CLS] [SEP]. str.splitlines would also break a line at U+2028.
    texts = (line.removesuffix("\n") for line in sys.stdin)
    write(
        inference.load(options.checkpoint, step=options.step),
        texts,
        sys.stdout.buffer,
        layers=options.layers,
        pooling=options.pooling,
        batch_size=options.batch_size,
    )


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
