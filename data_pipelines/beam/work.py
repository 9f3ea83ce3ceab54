"""The three steps of the fast build as Apache Beam transforms, and what their workers do.

The steps are tokens of every block, examples of every block, shards. A step is one chain of
transforms that ends in one file of results, which the program reads before the next step. All other
data between steps lie in files that all machines reach. No transform has a second output or a side
input, since not every runner supports them: Beam's for Dask computes the last transform alone.

Inside a step only numbers and bytes pass between workers: blocks ask other blocks for the places of
random segments, and shards get the tokens of their segments. A worker holds a block or a shard,
never more. An engine may run any part twice, even at the same time: a part always writes the same
files, each whole or not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam
import numpy as np
from etils import epath

from bertjax.data import record_files
from bertjax.files import atomic
from data_pipelines.building import blocks, builders, shards
from data_pipelines.documents import sources
from data_pipelines.objectives import base, examples, pairing

# The results of the steps, in the scratch directory.
TOKENS_FILE, PAIRS_FILE, RECORDS_FILE = "tokens.json", "pairs.json", "records.json"

# From the block that asks to the one that is asked for random segments, and back. `document` counts
# from the beginning of the block that is asked; `begin` is a token of the corpus.
REQUEST = np.dtype(
    [("example", "<u4"), ("document", "<u4"), ("place", "<f8"), ("num_tokens", "<i8")]
)
ANSWER = np.dtype([("example", "<u4"), ("begin", "<i8"), ("length", "<i8")])
# A segment on its way to its shard; `begin` counts from the beginning of the block that holds it,
# `place` is that of its example before the shard is shuffled.
SEGMENT = np.dtype(
    [
        ("shard", "<u4"),
        ("place", "<i8"),
        ("is_second", "?"),
        ("label", "u1"),
        ("begin", "<i8"),
        ("length", "<u4"),
    ]
)

# Each range of blocks is part of the description of the pipeline, which may not be large.
RANGES = 1000

# Segments of other blocks arrive one by one and are sent together from this number of tokens on.
PIECE_TOKENS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Job(shards.Recipe):
    """The description of the work for every worker; all of them reach `scratch` and `directory`.

    `layout_file` is the path of the layout, once the blocks are made: the layout itself may be too
    large for the job.
    """

    reading: sources.Reading
    tokenization: blocks.Tokenization
    scratch: str
    directory: str
    layout_file: str = ""

    def path(self, name: str) -> epath.Path:
        """Returns the path of an intermediate file."""
        return epath.Path(self.scratch) / name

    @property
    def layout(self) -> Layout:
        """Where the blocks lie, read once in each process."""
        return _layout(self.layout_file)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the blocks begin, in their order in the corpus, and where the last one ends.

    `names` are their token files. `examples` is empty until the examples are drawn.
    """

    names: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray
    examples: np.ndarray

    @property
    def num_blocks(self) -> int:
        return len(self.names)

    def saved(self, job: Job) -> Job:
        """Writes the layout for the workers and returns the job that knows where it is."""
        content = _bytes(vars(self))
        # A name of its content's own: a worker that lives on remembers the layouts of other steps.
        path = job.path(f"layout-{hashlib.sha256(content).hexdigest()}.npz")
        atomic.write(path, content)
        return dataclasses.replace(job, layout_file=str(path))


@dataclasses.dataclass(frozen=True)
class Dealing:
    """The number of shards; for a sample, the `places` in shard 0 to take."""

    num_shards: int
    places: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class StepResults:
    """The results of the parts of a step: the facts of each, and the counts of all of them.

    The facts of a part begin with their sort key; `logs` are those of reading a group. `tally` is
    one of `statistics`, of the same class in all parts, or None.
    """

    facts: list[Any] = dataclasses.field(default_factory=list)
    logs: list[Any] = dataclasses.field(default_factory=list)
    tally: Any = None

    @classmethod
    def merged(cls, parts: Iterable[StepResults]) -> StepResults:
        """Returns what all parts have found."""
        facts, logs, tally = [], [], None
        for part in parts:
            facts += part.facts
            logs += part.logs
            if part.tally is not None:
                tally = part.tally if tally is None else tally.merged(part.tally)
        return cls(facts, logs, tally)

    def save(self, job: Job, name: str) -> None:
        """Writes what `load_found` reads."""
        tally = self.tally and self.tally.to_json()
        content = {"facts": sorted(self.facts), "logs": sorted(self.logs), "tally": tally}
        atomic.write(job.path(name), json.dumps(content))


def load_found(job: Job, name: str) -> dict[str, Any]:
    """Returns what a step has left in a file: sorted facts and logs, and the tally as JSON."""
    return json.loads(job.path(name).read_text())


def tokenize(
    pipeline: apache_beam.Pipeline, groups: Sequence[tuple[sources.Unit, ...]], job: Job
) -> None:
    """Adds the first step: the tokens of all blocks, with their counts, and what reading found."""
    tokenized = (
        pipeline
        | "groups" >> apache_beam.Create(list(enumerate(groups)))
        | "spread groups" >> apache_beam.Reshuffle()
        | "read" >> apache_beam.FlatMap(read_group, job)
        | "spread blocks" >> apache_beam.Reshuffle()
        | "tokenize" >> apache_beam.Map(tokenize_block, job)
    )
    _keep(tokenized, job, TOKENS_FILE)


def pair(pipeline: apache_beam.Pipeline, job: Job) -> None:
    """Adds the second step: the examples of all blocks, as places in the corpus."""
    requests = _block_indices(pipeline, job) | "draft" >> apache_beam.FlatMap(draft_block, job)
    answers = (
        _keyed(requests, "requests", tuple[int, tuple[int, bytes]])
        | "gather requests" >> apache_beam.GroupByKey()
        | "answer" >> apache_beam.FlatMap(answer_requests, job)
    )
    paired = (
        _keyed(answers, "answers", tuple[int, bytes])
        | "gather answers" >> apache_beam.GroupByKey()
        | "finish" >> apache_beam.Map(finish_block, job)
    )
    _keep(paired, job, PAIRS_FILE)


def write(pipeline: apache_beam.Pipeline, job: Job, dealing: Dealing) -> None:
    """Adds the third step: the shards of `dealing`, or the figures of a sample."""
    segments = _block_indices(pipeline, job) | "deal" >> apache_beam.FlatMap(
        deal_block, job, dealing
    )
    pieces = (
        _keyed(segments, "segments", tuple[int, bytes])
        | "gather segments" >> apache_beam.GroupByKey()
        | "tokens of segments" >> apache_beam.FlatMap(segment_pieces, job)
    )
    written = (
        _keyed(pieces, "pieces", tuple[int, tuple[bytes, bytes]])
        | "gather shards" >> apache_beam.GroupByKey()
        | "write" >> apache_beam.Map(write_shard, job, dealing)
    )
    _keep(written, job, RECORDS_FILE)


def _block_indices(pipeline: apache_beam.Pipeline, job: Job) -> Any:
    num_blocks = job.layout.num_blocks
    size = -(-num_blocks // RANGES)
    ranges = [range(begin, min(begin + size, num_blocks)) for begin in range(0, num_blocks, size)]
    return (
        pipeline
        | "ranges" >> apache_beam.Create(ranges)
        | "blocks" >> apache_beam.FlatMap(_same)
        | "spread blocks" >> apache_beam.Reshuffle()
    )


def _keep(results: Any, job: Job, name: str) -> None:
    """Adds the end of a step: everything found in one file."""
    _ = (
        # Not without a key: Beam's own key for that is None, whose hash differs between processes.
        _keyed(results | "one key" >> apache_beam.Map(_at_zero), "found", tuple[int, StepResults])
        | "merge" >> apache_beam.CombinePerKey(StepResults.merged)
        | "save" >> apache_beam.Map(_save_results, job, name)
    )


def _at_zero(result: StepResults) -> tuple[int, StepResults]:
    return 0, result


def _save_results(keyed: tuple[int, StepResults], job: Job, name: str) -> None:
    _, result = keyed
    result.save(job, name)


def _keyed(collection: Any, name: str, kind: Any) -> Any:
    """Returns the collection with its type declared: keys are only grouped as what they are."""
    return collection | f"{name} by key" >> apache_beam.Map(_same).with_output_types(kind)


def _same(element: Any) -> Any:
    return element


def read_group(
    numbered: tuple[int, tuple[sources.Unit, ...]], job: Job
) -> Iterator[tuple[tuple[int, int], list[sources.Document] | sources.Log]]:
    """Yields the blocks of one group, and at last the log of reading it."""
    group, units = numbered
    log = sources.Log()
    number = 0
    for number, block in enumerate(blocks.group_blocks(units, job.reading, log), start=1):
        yield (group, number - 1), block
    yield (group, number), log


def tokenize_block(
    keyed: tuple[tuple[int, int], list[sources.Document] | sources.Log], job: Job
) -> StepResults:
    """Writes the tokens of a block and returns what was found; a log is passed on."""
    (group, number), text = keyed
    if isinstance(text, sources.Log):
        return StepResults(logs=[(group, dataclasses.asdict(text))])
    block = blocks.tokenize(text, job.tokenization)
    name = f"tokens-{group:06d}-{number:06d}.npz"
    _save(job.path(name), dataclasses.asdict(block.corpus))
    facts = (group, number, name, block.corpus.num_documents, len(block.corpus.tokens))
    return StepResults([(*facts, dataclasses.asdict(block.log))], tally=block.tally)


def draft_block(index: int, job: Job) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Writes the drafts of a block and yields its requests to each block.

    To itself too, and if it has none: each block is to be finished.
    """
    layout = job.layout
    first, num_documents = int(layout.documents[index]), int(layout.documents[-1])
    drafts = pairing.draft(base.Block(_corpus(index, job), index, first, num_documents), job.pairs)
    fields = dataclasses.asdict(drafts)
    _save(_drafts_path(index, job), fields.pop("requests") | fields)
    pending = drafts.requests
    source_blocks = np.searchsorted(layout.documents, pending.document, side="right") - 1
    requests = np.zeros(len(source_blocks), REQUEST)
    requests["example"], requests["place"] = pending.example, pending.place
    requests["document"] = pending.document - layout.documents[source_blocks]
    requests["num_tokens"] = pending.num_tokens
    yield index, (index, b"")
    for block, part in _by(source_blocks, requests):
        yield block, (index, part.tobytes())


def answer_requests(
    keyed: tuple[int, Iterable[tuple[int, bytes]]], job: Job
) -> Iterator[tuple[int, bytes]]:
    """Yields the segments of one block that are asked for, to each block that asks."""
    index, messages = keyed
    corpus = _corpus(index, job)
    for asking, message in messages:
        request = np.frombuffer(message, REQUEST)
        begin, length = base.random_segments(
            corpus,
            base.Requests(
                example=request["example"],
                document=request["document"].astype(np.int64),
                place=request["place"],
                num_tokens=request["num_tokens"],
            ),
        )
        answer = np.zeros(len(request), ANSWER)
        answer["example"], answer["length"] = request["example"], length
        answer["begin"] = begin + job.layout.tokens[index]
        yield asking, answer.tobytes()


def finish_block(answered: tuple[int, Iterable[bytes]], job: Job) -> StepResults:
    """Writes the finished examples of a block and returns its index and `shards.PairCounts`."""
    index, messages = answered
    drafts = _load_drafts(_drafts_path(index, job))
    answers = np.frombuffer(b"".join(messages), ANSWER)
    # The answers come from many blocks, in any order; drafts ask in the order of examples.
    answers = answers[np.argsort(answers["example"])]
    spans = shards.finished(
        drafts,
        answers["begin"],
        answers["length"],
        job.pairs,
        index=index,
        first_token=int(job.layout.tokens[index]),
    )
    _save(_pairs_path(index, job), {"spans": spans})
    counts = shards.PairCounts.of(drafts, spans, int(job.layout.tokens[-1]))
    return StepResults([(index, *dataclasses.astuple(counts))])


def deal_block(index: int, job: Job, dealing: Dealing) -> Iterator[tuple[int, bytes]]:
    """Yields the segments of a block's examples, to each block that holds some of them."""
    layout = job.layout
    spans = _load(_pairs_path(index, job))["spans"]
    shard, place = places(layout, index, dealing.num_shards)
    if dealing.places is not None:
        sampled = (shard == 0) & np.isin(place, dealing.places)
        spans, shard, place = spans[sampled], shard[sampled], place[sampled]
    segments = np.zeros((2, len(spans)), SEGMENT)
    segments["shard"], segments["place"], segments["label"] = shard, place, spans["label"]
    for row, letter in enumerate("ab"):
        segments["is_second"][row] = letter == "b"
        segments["begin"][row] = spans[f"begin_{letter}"]
        segments["length"][row] = spans[f"length_{letter}"]
    segments = segments[segments["length"] > 0]
    holder = np.searchsorted(layout.tokens, segments["begin"], side="right") - 1
    segments["begin"] -= layout.tokens[holder]
    for block, part in _by(holder, segments):
        yield block, part.tobytes()


def places(layout: Layout, index: int, num_shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns shard and place in it (before it is shuffled) of every example of a block.

    The same as `shards.shares` for one block and all shards.
    """
    before, after = layout.examples[index : index + 2].tolist()
    every = np.arange(num_shards)
    begin, end = shards.share(before, after - before, every, num_shards)
    in_turn = np.argsort(begin, kind="stable")
    shard = np.repeat(every[in_turn], (end - begin)[in_turn])
    return shard, np.arange(after - before) - begin[shard] + shard_size(before, shard, num_shards)


def shard_size(num_examples: int, shard: Any, num_shards: int) -> Any:
    """Returns the number of examples of a shard when `num_examples` are dealt in turn."""
    return num_examples // num_shards + (shard < num_examples % num_shards)


def segment_pieces(
    keyed: tuple[int, Iterable[bytes]], job: Job
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yields segments of a block with their tokens, to each shard."""
    index, messages = keyed
    tokens = _corpus(index, job).tokens
    waiting: list[np.ndarray] = []
    size = 0
    for message in messages:
        waiting.append(np.frombuffer(message, SEGMENT))
        size += int(waiting[-1]["length"].sum(dtype=np.int64))
        if size >= PIECE_TOKENS:
            yield from _with_tokens(np.concatenate(waiting), tokens)
            waiting, size = [], 0
    if waiting:
        yield from _with_tokens(np.concatenate(waiting), tokens)


def _with_tokens(
    segments: np.ndarray, tokens: np.ndarray
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    for shard, part in _by(segments["shard"], segments):
        lengths = part["length"].astype(np.int64)
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1]) + np.repeat(part["begin"] - (ends - lengths), lengths)
        yield shard, (part.tobytes(), tokens[positions].tobytes())


def write_shard(
    keyed: tuple[int, Iterable[tuple[bytes, bytes]]], job: Job, dealing: Dealing
) -> StepResults:
    """Writes one shard and returns its manifest entry, or the size of sampled records; counts."""
    shard, pieces = keyed
    tally = job.new_tally()
    tokens, places, spans = _gathered(pieces, job.token_dtype)
    size = shard_size(int(job.layout.examples[-1]), shard, dealing.num_shards)
    order = shards.order(job.pairs, shard, size)[: len(places)]
    batches = shards.row_batches(job, shard, tokens, spans[np.searchsorted(places, order)])
    if dealing.places is not None:
        return StepResults([(builders.sample(batches, tally),)], tally=tally)
    path = epath.Path(job.directory) / record_files.shard_name(shard, dealing.num_shards)
    facts = dataclasses.astuple(shards.write_batches(path, batches, tally))
    return StepResults([facts], tally=tally)


def _gathered(
    pieces: Iterable[tuple[bytes, bytes]], token_dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, examples.Spans]:
    """Returns all tokens of a shard, the places of its examples, ascending, and their spans."""
    headers, contents = zip(*pieces, strict=True)
    segments = np.frombuffer(b"".join(headers), SEGMENT)
    tokens = np.frombuffer(b"".join(contents), token_dtype)
    begin = np.cumsum(segments["length"], dtype=np.int64) - segments["length"]
    places, row = np.unique(segments["place"], return_inverse=True)
    spans = np.zeros(len(places), examples.SPAN)
    for letter, chosen in (("a", ~segments["is_second"]), ("b", segments["is_second"])):
        spans[f"begin_{letter}"][row[chosen]] = begin[chosen]
        spans[f"length_{letter}"][row[chosen]] = segments["length"][chosen]
    spans["label"][row] = segments["label"]
    return tokens, places, spans


def _by(keys: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields every key with its values."""
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(values[order], starts[1:]), strict=False)


@functools.lru_cache(maxsize=1)
def _layout(path: str) -> Layout:
    return Layout(**_load(epath.Path(path)))


def _corpus(index: int, job: Job) -> examples.Corpus:
    return examples.Corpus(**_load(job.path(str(job.layout.names[index]))))


def _pairs_path(index: int, job: Job) -> epath.Path:
    return job.path(f"pairs-{index:06d}.npz")


def _drafts_path(index: int, job: Job) -> epath.Path:
    return job.path(f"drafts-{index:06d}.npz")


def _load_drafts(path: epath.Path) -> base.Drafts:
    fields = _load(path)
    requests = {field.name: fields.pop(field.name) for field in dataclasses.fields(base.Requests)}
    spans = fields.pop("spans")
    counts = {name: int(count) for name, count in fields.items()}
    return base.Drafts(spans, base.Requests(**requests), **counts)


def _save(path: epath.Path, arrays: Mapping[str, Any]) -> None:
    atomic.write(path, _bytes(arrays))


def _bytes(arrays: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _load(path: epath.Path) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
        return dict(arrays)
