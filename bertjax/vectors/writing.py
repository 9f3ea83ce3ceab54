"""Texts to a directory of vectors, in constant memory, going on from where a run stopped."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import logging
from etils import epath

from bertjax import inference
from bertjax.data import atomic, text_lines
from bertjax.vectors import codes, encoding, search, store

RECALL_AT = 10
# Texts by which the ranges of int8 are found, at most.
RANGES_SAMPLE = 10_000
LOG_INTERVAL_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Options:
    """How vectors are written.

    `code` is a key of `codes.CODES`, `format` of `store.FORMATS`. `recall_sample` texts, of the
    first shard, are the queries by which the recall that the code loses is measured; 0: none.
    `ranges_from` are lines by which the ranges of a code are found; without them it is the first
    shard. With `store_texts` the texts are written beside the vectors.
    """

    format: str = "npy"
    shard_size: int = 65_536
    code: str = "float32"
    recall_sample: int = 0
    ranges_from: Iterable[text_lines.Line] | None = None
    store_texts: bool = True
    batch_size: int = 32

    def __post_init__(self):
        if self.code not in codes.CODES or self.format not in store.FORMATS:
            raise ValueError(
                f"code is {self.code!r}, known are {', '.join(codes.CODES)}; "
                f"format is {self.format!r}, known are {', '.join(store.FORMATS)}"
            )
        if self.recall_sample and self.code == "float32":
            raise ValueError(
                f"--recall_sample={self.recall_sample} measures what --quantize loses, and float32 "
                "loses nothing: give --quantize, or leave it out"
            )
        if self.ranges_from is not None and not codes.CODES[self.code].has_ranges:
            raise ValueError(
                f"--quantize_sample finds the ranges of int8; {self.code} has none: leave it out"
            )


def write(
    model: inference.TrainedModel,
    lines: Iterable[text_lines.Line],
    directory: epath.PathLike,
    chosen: encoding.Choices,
    options: Options,
    *,
    inputs: Mapping[str, Any],
    total: int | None = None,
) -> store.Manifest:
    """Writes the vectors of lines into a directory, or goes on behind its last whole shard.

    `inputs` say which lines these are; they and all choices must be those of the first run. `total`
    is how many lines there are, where that is known: it is shown, and nothing else.

    Raises:
      ownership.WorkdirInUseError, ValueError: as `store.Writer` and `encoding.encode`.
    """
    if chosen.pooling == "none":
        raise ValueError("pooling is 'none'; a directory of vectors has one for each text")
    identity = _identity(model, chosen, options, inputs)
    with store.Writer(directory, identity) as writer:
        writer.update(model=model_of(model))
        lines = iter(lines)
        _skip_done(writer, lines)
        if writer.manifest.is_complete:
            _check_end(lines, directory, writer.manifest.num_rows)
            logging.info("%s holds all %d vectors already", directory, writer.manifest.num_rows)
        else:
            recall = _Recall(writer, epath.Path(directory), options)
            with _Progress(writer.manifest.num_rows, total) as progress:
                _write_shards(model, writer, lines, chosen, options, recall, progress)
            if not writer.manifest.shards:
                raise ValueError("there are no texts; give at least one")
            recall.measure(directory)
            writer.update(is_complete=True)
            recall.forget()
        return writer.manifest


def model_of(model: inference.TrainedModel) -> dict[str, Any]:
    """Returns where a model was read, for people."""
    return {"path": model.source, "step": model.step}


def similarity_of(model: inference.TrainedModel) -> str:
    """Returns how the model's vectors are compared."""
    return model.sentence.similarity if model.sentence else "cosine"


def _identity(
    model: inference.TrainedModel,
    chosen: encoding.Choices,
    options: Options,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "model_sha256": model.sha256(),
        "vocabulary_sha256": model.vocabulary.describe()["sha256"],
        "choices": dataclasses.asdict(chosen),
        "size": encoding.size(model, chosen),
        "similarity": similarity_of(model),
        "inputs": inputs,
        "code": options.code,
        "format": options.format,
        "shard_size": options.shard_size,
        "recall_sample": options.recall_sample,
        "store_texts": options.store_texts,
    }


def _skip_done(writer: store.Writer, lines: Iterator[text_lines.Line]) -> None:
    """Reads past the lines of whole shards."""
    for shard in writer.manifest.shards:
        writer.skip(list(itertools.islice(lines, shard.rows)))
    writer.check_skipped()
    if writer.manifest.num_rows and not writer.manifest.is_complete:
        logging.info("Going on behind the first %d texts", writer.manifest.num_rows)


def _check_end(lines: Iterator[text_lines.Line], directory: epath.PathLike, count: int) -> None:
    """Raises a ValueError if there are more lines than a complete directory has vectors."""
    if next(lines, None) is not None:
        raise ValueError(
            f"{directory} is complete with {count} vectors, and the input has more texts: give "
            "another --output"
        )


def _write_shards(
    model: inference.TrainedModel,
    writer: store.Writer,
    lines: Iterator[text_lines.Line],
    chosen: encoding.Choices,
    options: Options,
    recall: _Recall,
    progress: _Progress,
) -> None:
    code = codes.CODES[options.code]
    first = writer.manifest.num_rows
    for shard, vectors, num_cut in _shards(model, lines, chosen, options, first, progress):
        if code.has_ranges and writer.manifest.ranges is None:
            sample = _sample(model, chosen, options)
            writer.update(ranges=codes.ranges(vectors if sample is None else sample).tolist())
        limits = np.asarray(writer.manifest.ranges or 0, np.float32)
        recall.add(vectors)
        kept = shard if options.store_texts else _without_texts(shard)
        rows = store.Rows(code.store(vectors, limits), kept)
        writer.add(rows, shard, {"texts_cut": num_cut})
        recall.forget_older()


def _shards(
    model: inference.TrainedModel,
    lines: Iterator[text_lines.Line],
    chosen: encoding.Choices,
    options: Options,
    first: int,
    progress: _Progress,
) -> Iterator[tuple[list[text_lines.Line], np.ndarray, int]]:
    """Yields the lines of each shard, their vectors, and how many were cut."""
    read: collections.deque[text_lines.Line] = collections.deque()

    def blocks() -> Iterator[list[str]]:
        for size in itertools.cycle(_block_sizes(options.shard_size)):
            block = list(itertools.islice(lines, size))
            if not block:
                return
            read.extend(block)
            yield [line.text for line in block]

    parts, count, num_cut = [], 0, 0
    computed = encoding.encode_blocks(
        model, blocks(), chosen, batch_size=options.batch_size, first=first + 1
    )
    for vectors, tokens in computed:
        parts.append(vectors)
        count, num_cut = count + len(vectors), num_cut + tokens.num_cut
        progress.add(len(vectors))
        if count == options.shard_size:
            yield [read.popleft() for _ in range(count)], np.concatenate(parts), num_cut
            parts, count, num_cut = [], 0, 0
    if count:
        yield [read.popleft() for _ in range(count)], np.concatenate(parts), num_cut


def _block_sizes(shard_size: int) -> list[int]:
    """Returns the sizes of the blocks of a shard: a block is of one shard."""
    whole, rest = divmod(shard_size, encoding.BLOCK_SIZE)
    return [encoding.BLOCK_SIZE] * whole + [rest] * bool(rest)


def _sample(
    model: inference.TrainedModel, chosen: encoding.Choices, options: Options
) -> np.ndarray | None:
    """Returns vectors of the lines that ranges are found by, None if there are none."""
    if options.ranges_from is None:
        return None
    texts = [line.text for line in itertools.islice(options.ranges_from, RANGES_SAMPLE)]
    return encoding.encode(model, texts, chosen, batch_size=options.batch_size)[0]


def _without_texts(lines: Sequence[text_lines.Line]) -> list[text_lines.Line]:
    return [dataclasses.replace(line, text="") for line in lines]


class _Recall:
    """Measures the share of the exact nearest that are found among quantized vectors.

    Some texts of the first shard are the queries; a query does not count as found by itself. The
    exact nearest so far are kept beside the shards, so that a run that goes on has them.
    """

    def __init__(self, writer: store.Writer, directory: epath.Path, options: Options):
        self._writer, self._directory, self._options = writer, directory, options
        self._queries = np.zeros((0, 0), np.float32)
        self._own = np.zeros(0, np.int64)
        self._nearest: search.Nearest | None = None
        if options.recall_sample and writer.manifest.shards:
            self._read()

    def add(self, vectors: np.ndarray) -> None:
        """Looks at the float32 vectors of the next shard."""
        if not self._options.recall_sample:
            return
        if self._nearest is None:
            count = min(self._options.recall_sample, len(vectors))
            self._own = np.linspace(0, len(vectors) - 1, count).astype(np.int64)
            self._begin(vectors[self._own])
        assert self._nearest is not None
        self._nearest.add(self._writer.manifest.num_rows, vectors)
        with atomic.writing(self._path(len(self._writer.manifest.shards) + 1)) as file:
            np.savez(
                file,
                queries=self._queries,
                own=self._own,
                scores=self._nearest.scores,
                places=self._nearest.places,
            )

    def forget_older(self) -> None:
        """Removes what was kept for a run that would have gone on before the last shard."""
        if self._options.recall_sample:
            self._path(len(self._writer.manifest.shards) - 1).unlink(missing_ok=True)

    def measure(self, directory: epath.PathLike) -> None:
        """Searches the quantized vectors, and notes the recall in the manifest and the log."""
        if self._nearest is None:
            return
        top_k = min(RECALL_AT, self._writer.manifest.num_rows - 1)
        if top_k < 1:
            raise ValueError("--recall_sample needs two texts at least; give more of them")
        stored = store.Store(directory)
        similarity = stored.manifest.identity["similarity"]
        _, places = search.search(stored, self._queries, top_k=RECALL_AT + 1, similarity=similarity)
        exact = search.without_self(self._nearest.places, self._own, top_k)
        found = search.without_self(places, self._own, top_k)
        share = search.recall(exact, found)
        told = {"queries": len(self._own), "at": top_k, "recall": share, "lost": 1 - share}
        self._writer.update(recall=told)

    def forget(self) -> None:
        """Removes what was kept: all is measured."""
        self._path(len(self._writer.manifest.shards)).unlink(missing_ok=True)

    def _begin(self, queries: np.ndarray) -> None:
        similarity = self._writer.manifest.identity["similarity"]
        self._queries = queries
        self._nearest = search.Nearest(queries, RECALL_AT + 1, similarity=similarity)

    def _read(self) -> None:
        path = self._path(len(self._writer.manifest.shards))
        with path.open("rb") as file, np.load(file) as kept:
            self._own = kept["own"]
            self._begin(kept["queries"])
            assert self._nearest is not None
            self._nearest.scores, self._nearest.places = kept["scores"], kept["places"]

    def _path(self, shards: int) -> epath.Path:
        return self._directory / f"recall-{shards:05d}.npz"


class _Progress:
    """A bar of texts and texts a second on a terminal, a line in the log now and then elsewhere.

    `done` texts were encoded before; `total` is how many there are in all, if that is known.
    """

    def __init__(self, done: int, total: int | None):
        self._bar = tqdm.tqdm(
            desc="encoding",
            initial=done,
            total=total,
            unit="sentences",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        self._done, self._total = done, total
        self._count, self._start = 0, time.monotonic()
        self._shown = self._start

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._count:
            self._log()

    def add(self, count: int) -> None:
        """Counts texts that were encoded."""
        self._count += count
        self._bar.update(count)
        if self._bar.disable and time.monotonic() - self._shown > LOG_INTERVAL_SECONDS:
            self._shown = time.monotonic()
            self._log()

    def _log(self) -> None:
        rate = self._count / max(time.monotonic() - self._start, 1e-9)
        done = self._done + self._count
        if self._total is None:
            logging.info("Encoded %d texts, %.0f sentences/s", done, rate)
            return
        left = tqdm.tqdm.format_interval((self._total - done) / rate)
        logging.info(
            "Encoded %d of %d texts, %.0f sentences/s, %s left", done, self._total, rate, left
        )
