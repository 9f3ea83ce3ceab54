"""Batches as a function of (seed, step): deterministic tf.data streams over a record set.

V virtual streams share the shards: stream v owns shards v, v+V, .... In each of its epochs a stream
visits its shards in a new order and shuffles inside each shard, window by window. A global batch
is B/V records of every stream, stream after stream; a host reads the streams whose rows it needs.
V depends on the data and the batch size alone, so hosts may come and go.

The order is numpy's, keyed by (seed, epoch, stream, shard); tf.data only reads. A step is therefore
found by arithmetic on the manifest's counts, and tf.random.set_seed changes nothing.

Where batches are cut to the shortest of several lengths, rows of about the same length share a
batch: the rows of GROUPED steps are dealt anew, also as a function of (seed, step).

Here belong order, batching and the errors of damaged files; the format belongs to `records`, what
is drawn on top of it to `masking`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.data import mixtures, record_files, records

Batch = dict[str, np.ndarray]
DrawMasks = Callable[[Batch, np.random.Generator], Batch]

# First words of the random keys, so that no two uses of a seed share their numbers.
_SHARD_ORDER, _RECORD_ORDER, _TRAINING_MASKS, _EVALUATION_MASKS, _GROUP_ORDER = range(5)

# Steps whose rows are dealt anew by length. More leave less padding, and take as much more memory
# and, when a run resumes, as many more batches to read.
GROUPED = 16

_PREFETCHED_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Visit:
    """One reading of one shard by its stream, from the `skip`-th record of its order on."""

    epoch: int
    shard: int
    skip: int


class _Visited(collections.deque[int]):
    """The last shards that streams have opened, and the number of all of them."""

    visits = 0

    def append(self, shard: int) -> None:
        super().append(shard)
        self.visits += 1


def num_streams(global_batch_size: int, num_shards: int, max_streams: int = 32) -> int:
    """Returns V: the largest number up to `max_streams` that divides both batch and shards."""
    common = math.gcd(global_batch_size, num_shards)
    return max(divisor for divisor in range(1, max_streams + 1) if common % divisor == 0)


def stream_visits(
    counts: Int[np.ndarray, " shards"], *, stream: int, streams: int, seed: int, start: int
) -> Iterator[Visit]:
    """Yields, without end, the shards that a stream reads once `start` of its records are used."""
    owned = np.arange(stream, len(counts), streams)
    epoch, offset = divmod(start, int(counts[owned].sum()))
    while True:
        order = np.random.default_rng([seed, _SHARD_ORDER, epoch, stream]).permutation(owned)
        for shard in order.tolist():
            if offset < counts[shard]:
                yield Visit(epoch, shard, offset)
            offset = max(0, offset - int(counts[shard]))
        epoch += 1


def record_order(
    count: int, *, window: int, seed: int, epoch: int, shard: int
) -> Int[np.ndarray, " count"]:
    """Returns the order in which a visit delivers its shard: a permutation inside each window."""
    rng = np.random.default_rng([seed, _RECORD_ORDER, epoch, shard])
    return np.concatenate(
        [start + rng.permutation(min(window, count - start)) for start in range(0, count, window)]
    )


@dataclasses.dataclass(frozen=True)
class Order:
    """Which records make up a batch, and in which order; the same at every start of a run.

    `shuffle_buffer_size` (records) bounds the memory of each of at most `max_streams` streams. With
    a batch ramp, `ramp_from` (the size of the first batch, of which all are multiples) sets the
    number of streams.

    With `buckets`, lengths from short to long that end with the length of the records, a batch is
    cut to the shortest one that its longest row fits, and rows of similar lengths share a batch.
    Every host then reads the rows of all hosts, to know the longest.

    With `shares`, one for each language of the records in their order, the language of every row is
    drawn by them; without, records are read as they lie in the shards.
    """

    global_batch_size: int
    seed: int
    max_streams: int = 32
    shuffle_buffer_size: int = 4096
    ramp_from: int = 0
    buckets: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


def train_batches(
    record_set: records.RecordSet,
    order: Order,
    *,
    start_step: int = 0,
    rows_before: int | None = None,
    rows: range | None = None,
    draw_masks: DrawMasks | None = None,
    mask_rate: Callable[[int], float] | None = None,
) -> Iterator[Batch]:
    """Returns an endless iterator of the batches of `start_step`, `start_step` + 1, ....

    Besides the features of the records a batch has `example_weights` (float32, ones) and
    `record_positions` (int64 [batch, 2]: shard, index inside the shard). `rows` are the rows of
    the global batch that this host needs; None means all. `rows_before` is the number of rows in
    all batches before `start_step`; None means that they had the size of this one.

    `draw_masks` is called with each stream's rows and a generator keyed by (seed, step, stream);
    the features that it returns replace those of the same name. A `mask_rate` gives the rate of
    each step, which `draw_masks` takes as `masked_lm_prob`.
    """
    if start_step < 0 or order.shuffle_buffer_size < 1:
        raise ValueError(
            f"start_step is {start_step} and shuffle_buffer_size is {order.shuffle_buffer_size}; "
            "they must be at least 0 and 1"
        )
    global_batch_size = order.global_batch_size
    rows = range(global_batch_size) if rows is None else rows
    _check_masks(record_set, draw_masks)
    from_shards = _from_shards(record_set, order)
    shards = math.gcd(*map(len, from_shards))
    streams = num_streams(order.ramp_from or global_batch_size, shards, order.max_streams)
    rows_before = start_step * global_batch_size if rows_before is None else rows_before
    block = global_batch_size // streams
    _check_rows(rows, global_batch_size, block, streams)
    for own in from_shards:
        _check_streams(_counts(record_set)[own], streams)
    batches = _read_batches(record_set, order, streams, start_step, rows_before, rows)
    if draw_masks is None:
        return map(_without_words, batches)
    own_streams = range(rows.start // block, rows.stop // block)

    def masked(batch: Batch, step: int) -> Batch:
        draw: Callable[..., Batch] = draw_masks
        if mask_rate is not None:
            draw = functools.partial(draw, masked_lm_prob=mask_rate(step))
        keys = [(order.seed, _TRAINING_MASKS, step, stream) for stream in own_streams]
        return _with_masks(batch, keys, draw)

    return _one_ahead(map(masked, batches, itertools.count(start_step)))


def _read_batches(
    record_set: records.RecordSet,
    order: Order,
    streams: int,
    start_step: int,
    rows_before: int,
    rows: range,
) -> Iterator[Batch]:
    """Returns the batches of `start_step` and all later ones, without drawn masks."""
    global_batch_size, seed, buckets = order.global_batch_size, order.seed, order.buckets
    block = global_batch_size // streams
    read_rows = range(global_batch_size) if buckets else rows
    read_streams = range(read_rows.start // block, read_rows.stop // block)
    first_step = start_step - start_step % GROUPED if buckets else start_step
    # The last few visits of every stream: where a read error must have come from.
    visited = _Visited(maxlen=4 * len(read_streams))
    first_row = (rows_before - (start_step - first_step) * global_batch_size) // streams
    visits = functools.partial(_shard_visits, record_set, visited, streams=streams)
    stream_rows = (
        _mixed_rows(record_set, order, visits, streams, first_row)
        if order.shares
        else _rows_of_shards(
            record_set,
            functools.partial(visits, seed=seed, window=order.shuffle_buffer_size),
            lambda _: first_row,
            order.shuffle_buffer_size,
        )
    )
    dataset = _stream_dataset(record_set, stream_rows, read_streams, block)
    batches = _numpy_batches(record_set, dataset, visited)
    if not buckets:
        return batches
    dealt = _dealt_by_length(batches, first_step, streams, seed)
    dealt = itertools.islice(dealt, start_step - first_step, None)
    by_position = record_set.manifest.position_features
    return (_cut_to_bucket(batch, by_position, buckets, rows) for batch in dealt)


def evaluation_batches(
    record_set: records.RecordSet,
    *,
    batch_size: int,
    rows: range | None = None,
    draw_masks: DrawMasks | None = None,
    seed: int = 0,
) -> Iterator[Batch]:
    """Returns an iterator over all examples, each once, in file order.

    Every host gets the same number of batches, `rows` of each. The last batch is filled with
    copies of the first example whose `example_weights` and weights of predictions are 0 and whose
    `record_positions` are -1. Masks of a record are drawn with a generator keyed by (seed, shard,
    index inside the shard), so they are the same whatever the batch size and the hosts.
    """
    rows = range(batch_size) if rows is None else rows
    _check_masks(record_set, draw_masks)
    _check_rows(rows, batch_size, 1, batch_size)
    record_set.check_unchanged()
    dataset = _evaluation_dataset(record_set, batch_size, rows)
    every_shard = _Visited(range(len(record_set.manifest.shards)))
    batches = _numpy_batches(record_set, dataset, every_shard)
    if draw_masks is None:
        return map(_without_words, batches)
    return _one_ahead(_masked_for_evaluation(batch, seed, draw_masks) for batch in batches)


def _counts(record_set: records.RecordSet) -> Int[np.ndarray, " shards"]:
    return np.array([shard.examples for shard in record_set.manifest.shards], np.int64)


def _check_masks(record_set: records.RecordSet, draw_masks: DrawMasks | None) -> None:
    if draw_masks is not None and record_set.manifest.has_static_masks:
        raise ValueError(
            f"records in {record_set.directory} already hold masked tokens "
            f"(max_predictions_per_seq {record_set.manifest.max_predictions_per_seq}), so masks "
            "cannot be drawn for them: train with the stored masks or rebuild without masks"
        )


def _check_rows(rows: range, batch_size: int, block: int, streams: int) -> None:
    whole = rows.step == 1 and rows.start % block == rows.stop % block == 0
    if not whole or not 0 <= rows.start < rows.stop <= batch_size:
        raise ValueError(
            f"this host's rows are {rows} of a batch of {batch_size}; they must be a non-empty "
            f"range within it that starts and stops at a multiple of {block} (the batch divided by "
            f"{streams} streams): use a number of hosts that divides {streams}, or choose "
            "batch size and number of shards with a larger common divisor"
        )


def _check_streams(counts: Int[np.ndarray, " shards"], streams: int) -> None:
    for stream in range(streams):
        if not counts[stream::streams].any():
            raise ValueError(
                f"stream {stream} of {streams} has no examples: its shards {stream}, "
                f"{stream + streams}, ... are empty; rebuild the records with fewer shards"
            )


def _from_shards(record_set: records.RecordSet, order: Order) -> list[list[int]]:
    """Returns the places of the shards of each language that is not in memory, or of all shards."""
    manifest = record_set.manifest
    if not order.shares:
        return [list(range(len(manifest.shards)))]
    by_language = zip(map(manifest.shards_of, manifest.languages), order.shares, strict=True)
    return [own for own, share in by_language if share and not _fits_memory(manifest, own)]


def _fits_memory(manifest: records.Manifest, shards: Sequence[int]) -> bool:
    return sum(manifest.shards[place].bytes for place in shards) < mixtures.IN_MEMORY_BYTES


def _shard_visits(
    record_set: records.RecordSet,
    visited: _Visited,
    stream: int,
    *,
    streams: int,
    seed: int,
    start: int,
    window: int,
    shards: Sequence[int] | None = None,
) -> Iterator[tuple[str, int, np.ndarray, int]]:
    """Yields path, shard, record order and records to skip of each visit, and notes the shard.

    `shards` are the places of those that the streams share, by default all.
    """
    counts, paths = _counts(record_set), record_set.shard_paths
    places = np.arange(len(counts)) if shards is None else np.asarray(shards)
    whole: set[int] = set()  # shards whose frames were checked
    own = counts[places]
    for visit in stream_visits(own, stream=stream, streams=streams, seed=seed, start=start):
        shard = int(places[visit.shard])
        visited.append(shard)
        if shard not in whole:
            record_files.check_frames(paths[shard])
            whole.add(shard)
        order = record_order(
            int(own[visit.shard]), window=window, seed=seed, epoch=visit.epoch, shard=visit.shard
        )
        yield paths[shard], shard, order, visit.skip


# Returns the tf.data.Dataset of the rows of a stream, record and position, in parts of any size.
StreamRows = Callable[[Any], Any]


def _rows_of_shards(
    record_set: records.RecordSet,
    visits: Callable[..., Iterator[tuple[str, int, np.ndarray, int]]],
    start: Callable[[int], int],
    window: int,
) -> StreamRows:
    """Returns what reads a stream's shards, from record `start(stream)` of its order on."""
    tf = records.import_tensorflow()
    counts = tf.constant(_counts(record_set), tf.int64)
    signature = (
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([], tf.int64),
    )

    def of_stream(stream: np.integer) -> Iterator[tuple[str, int, np.ndarray, int]]:
        return visits(int(stream), start=start(int(stream)))

    @_as_written
    def read_shard(path, shard, order, skip):
        serialized = tf.data.TFRecordDataset(path)
        serialized = serialized.apply(tf.data.experimental.assert_cardinality(counts[shard]))
        return _in_order(serialized, shard, order, skip, window)

    @_as_written
    def read_stream(stream):
        dataset = tf.data.Dataset.from_generator(
            of_stream, args=(stream,), output_signature=signature
        )
        return dataset.flat_map(read_shard)

    return read_stream


def _mixed_rows(
    record_set: records.RecordSet,
    order: Order,
    visits: Callable[..., Iterator[tuple[str, int, np.ndarray, int]]],
    streams: int,
    first_row: int,
) -> StreamRows:
    """Returns what reads a stream's rows in the languages that are drawn for them."""
    tf, manifest = records.import_tensorflow(), record_set.manifest
    shards = [manifest.shards_of(language) for language in manifest.languages]
    in_memory = {
        place: _read_whole(record_set, own)
        for place, own in enumerate(shards)
        if order.shares[place] and _fits_memory(manifest, own)
    }
    mixture = mixtures.Mixture(order.shares, order.seed, streams, first_row, in_memory)
    # All languages together hold as many records as one would.
    window = max(1, order.shuffle_buffer_size // max(1, len(mixture.from_shards)))
    before = functools.cache(mixture.before)
    parts = [
        _rows_of_shards(
            record_set,
            functools.partial(
                visits, seed=mixture.seed_of(place), window=window, shards=shards[place]
            ),
            lambda stream, place=place: int(before(stream)[place]),
            window,
        )
        for place in mixture.from_shards
    ]
    of_rows = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 2], tf.int64))

    @_as_written
    def in_memory_rows(stream):
        return tf.data.Dataset.from_generator(
            lambda it: mixture.rows(int(it)), args=(stream,), output_signature=of_rows
        )

    @_as_written
    def read_stream(stream):
        choices = tf.data.Dataset.from_generator(
            lambda it: mixture.choices(int(it)),
            args=(stream,),
            output_signature=tf.TensorSpec([None], tf.int64),
        )
        rows = [part(stream).unbatch() for part in (*parts, in_memory_rows)]
        return tf.data.Dataset.choose_from_datasets(rows, choices.unbatch(), False).batch(1)

    return read_stream


def _read_whole(record_set: records.RecordSet, shards: Sequence[int]) -> mixtures.Examples:
    """Returns all examples of some shards; ValueError, naming the shard, if one is damaged."""
    tf, of_all = records.import_tensorflow(), record_set.shard_paths
    paths, counts = [of_all[place] for place in shards], _counts(record_set)[list(shards)]
    for path in paths:
        record_files.check_frames(path)
    parts = tf.data.TFRecordDataset(paths).batch(1024)
    try:
        read = [record for part in parts.as_numpy_iterator() for record in part]
    except tf.errors.OpError as error:
        if (fault := _first_fault(record_set, shards)) is None:
            raise
        raise ValueError(f"{fault}; copy it again or rebuild the records") from error
    if len(read) != counts.sum():
        fault = _first_fault(record_set, shards)
        raise ValueError(f"{fault}; copy it again or rebuild the records")
    record_set.check_unchanged()
    places = np.repeat(shards, counts)
    numbers = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    records_read = np.empty(len(read), object)
    records_read[:] = read
    return mixtures.Examples(records_read, np.stack([places, numbers], axis=1))


def _stream_dataset(
    record_set: records.RecordSet, stream_rows: StreamRows, own_streams: range, block: int
) -> Any:
    """Returns the tf.data.Dataset of this host's rows, `block` records of each stream in turn."""
    tf = records.import_tensorflow()

    @_as_written
    def read_stream(stream):
        return stream_rows(stream).rebatch(block, drop_remainder=True)

    @_as_written
    def parse(serialized, positions):
        batch = records.parse_batch(tf.reshape(serialized, [-1]), record_set.manifest)
        batch["record_positions"] = tf.reshape(positions, [-1, 2])
        batch["example_weights"] = tf.ones(tf.size(serialized), tf.float32)
        return batch

    count = len(own_streams)
    dataset = tf.data.Dataset.range(own_streams.start, own_streams.stop).interleave(
        read_stream, cycle_length=count, num_parallel_calls=count, deterministic=True
    )
    dataset = dataset.batch(count, drop_remainder=True)
    return _read_ahead(dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def _as_written(function: Callable[..., Any]) -> Any:
    """Returns a function that tf.data traces as it is.

    TensorFlow converts the others into new Python files in /tmp, which a killed process leaves.
    """
    return records.import_tensorflow().autograph.experimental.do_not_convert(function)


def _in_order(serialized: Any, shard: Any, order: Any, skip: Any, window: int) -> Any:
    """Returns windows of (records, positions) of one shard in `order`, the first `skip` left out.

    Whole windows are skipped unread by the parser; the rest is cut from the first window read.
    """
    tf = records.import_tensorflow()
    first = skip // window * window
    orders = tf.data.Dataset.from_tensor_slices(order)

    @_as_written
    def shuffle(number, serialized, order):
        order = order[tf.where(number == 0, skip - first, 0) :]
        chosen = tf.gather(serialized, order - first - number * window)
        return chosen, tf.stack([tf.fill(tf.shape(order), shard), order], axis=1)

    windows = tf.data.Dataset.zip(
        tf.data.Dataset.counter(),
        serialized.skip(first).batch(window),
        orders.skip(first).batch(window),
    )
    return windows.map(shuffle)


def _evaluation_dataset(record_set: records.RecordSet, batch_size: int, rows: range) -> Any:
    """Returns the tf.data.Dataset of `rows` of every batch, the last one filled up."""
    tf = records.import_tensorflow()
    manifest = record_set.manifest
    counts = tf.constant(_counts(record_set), tf.int64)

    @_as_written
    def read_shard(shard, path):
        serialized = tf.data.TFRecordDataset(path)
        serialized = serialized.apply(tf.data.experimental.assert_cardinality(counts[shard]))
        return serialized.enumerate().map(
            _as_written(lambda place, record: (record, tf.stack([shard, place])))
        )

    @_as_written
    def parse(serialized, positions):
        serialized = serialized[rows.start : rows.stop]
        batch = records.parse_batch(serialized, manifest)
        batch["record_positions"] = positions[rows.start : rows.stop]
        weights = tf.cast(batch["record_positions"][:, 0] >= 0, tf.float32)
        batch["example_weights"] = weights
        for name in batch.keys() & set(records.WEIGHT_FEATURES):
            batch[name] *= weights[:, None]
        return batch

    for path in record_set.shard_paths:
        record_files.check_frames(path)
    examples = tf.data.Dataset.from_tensor_slices(record_set.shard_paths).enumerate()
    examples = examples.flat_map(read_shard)
    nowhere = tf.constant([-1, -1], tf.int64)
    padding = examples.take(1).map(_as_written(lambda record, _: (record, nowhere)))
    padding = padding.repeat(-manifest.num_examples % batch_size)
    dataset = examples.concatenate(padding).batch(batch_size, drop_remainder=True)
    return _read_ahead(dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def _read_ahead(dataset: Any) -> Any:
    """Returns the dataset with batches read ahead, and without tf.data's autotuning.

    The tuner wakes after 10, 20, 40 and then every 60 seconds. One closed iterator in seven slept
    until then, and a run that had saved ended late (TensorFlow 2.21).
    """
    options = records.import_tensorflow().data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)


def _numpy_batches(
    record_set: records.RecordSet, dataset: Any, visited: _Visited
) -> Iterator[Batch]:
    """Yields the dataset's batches; a read error becomes one that names the damaged shard.

    Whether the records were replaced is looked up after new shards were opened. An error of the
    function that opens them would be logged with all of TensorFlow's calls.
    """
    # Looked up now: an iterator that is closed at exit finds TensorFlow's modules gone.
    read_error = records.import_tensorflow().errors.OpError
    checked = 0
    try:
        for batch in dataset.as_numpy_iterator():
            if checked < visited.visits:
                checked = visited.visits
                record_set.check_unchanged()
            _check_numbers(record_set, batch)
            yield batch
        record_set.check_unchanged()
    except read_error as error:
        record_set.check_unchanged()
        fault = _first_fault(record_set, visited)
        if fault is None:
            raise
        raise ValueError(f"{fault}; copy it again or rebuild the records") from error


def _check_numbers(record_set: records.RecordSet, batch: Batch) -> None:
    """Raises ValueError that names the record whose numbers do not fit vocabulary or length."""
    misfit = records.first_misfit(batch, record_set.manifest)
    if misfit is None:
        return
    record_set.check_unchanged()
    row, fault = misfit
    shard, index = batch["record_positions"][row].tolist()
    raise ValueError(
        f"record {index} (from 0) of shard {record_set.shard_paths[shard]} does not fit: {fault}. "
        "It was made with another vocabulary or is damaged: build the records again, or adopt them "
        "with the vocabulary that they were made with (`python -m data_pipelines.inspect_records`)"
    )


def _dealt_by_length(
    batches: Iterator[Batch], first_step: int, streams: int, seed: int
) -> Iterator[Batch]:
    """Yields the rows of GROUPED batches at a time as batches of rows of similar lengths.

    Each stream's rows stay in that stream, sorted by length; the resulting batches are in random
    order. `first_step` is the first of a group.
    """
    for group in itertools.count(first_step // GROUPED):
        parts = list(itertools.islice(batches, GROUPED))
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        lengths = records.row_lengths(rows).reshape(GROUPED, streams, -1)
        numbers = np.arange(lengths.size).reshape(lengths.shape)
        # From [step, stream, row] to all rows of each stream, sorted, and back.
        by_stream = [each.swapaxes(0, 1).reshape(streams, -1) for each in (numbers, lengths)]
        order = np.argsort(by_stream[1], axis=1, kind="stable")
        sorted_numbers = np.take_along_axis(by_stream[0], order, axis=1)
        dealt = sorted_numbers.reshape(streams, GROUPED, -1).swapaxes(0, 1).reshape(GROUPED, -1)
        rng = np.random.default_rng([seed, _GROUP_ORDER, group])
        for number in rng.permutation(GROUPED).tolist():
            yield {name: values[dealt[number]] for name, values in rows.items()}


def _cut_to_bucket(
    batch: Batch, by_position: Sequence[str], buckets: tuple[int, ...], rows: range
) -> Batch:
    """Returns `rows` of a global batch, without the positions that no row of the batch fills.

    `by_position` are the features that have values for every position.
    """
    longest = int(records.row_lengths(batch).max())
    length = next(bucket for bucket in buckets if bucket >= longest)
    local = {name: values[rows.start : rows.stop] for name, values in batch.items()}
    return local | {name: local[name][:, :length] for name in by_position}


def _first_fault(record_set: records.RecordSet, visited: Sequence[int]) -> str | None:
    """Returns the fault of the first damaged shard among `visited`, by reading them again."""
    tf = records.import_tensorflow()
    for shard in dict.fromkeys(visited):
        path, count = record_set.shard_paths[shard], 0
        expected = record_set.manifest.shards[shard].examples
        try:
            for serialized in record_files.serialized(path).batch(256):
                records.parse_batch(serialized, record_set.manifest)
                count += len(serialized)
        except ValueError as error:
            return str(error)
        except tf.errors.OpError as error:
            # TensorFlow writes the place in its graph around the reason.
            reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*?\]", "", error.message.splitlines()[0])
            return f"shard {path} cannot be read ({reason})"
        if count != expected:
            return f"shard {path} holds {count} examples, the manifest says {expected}"
    return None


def _with_masks(batch: Batch, keys: Sequence[tuple[int, ...]], draw_masks: DrawMasks) -> Batch:
    """Returns the batch with masks drawn for one run of rows after the other, by their keys."""
    size = len(batch["record_positions"]) // len(keys)
    drawn = [
        draw_masks(
            {name: values[place * size :][:size] for name, values in batch.items()},
            np.random.default_rng(key),
        )
        for place, key in enumerate(keys)
    ]
    masks = {name: np.concatenate([part[name] for part in drawn]) for name in drawn[0]}
    unread = (*records.READ_BY_DRAWS, records.PIXELS_FEATURE)
    return {name: values for name, values in batch.items() if name not in unread} | masks


def _without_words(batch: Batch) -> Batch:
    """Returns the batch without what only the choice of masks needs."""
    return {name: values for name, values in batch.items() if name not in records.READ_BY_DRAWS}


def _masked_for_evaluation(batch: Batch, seed: int, draw_masks: DrawMasks) -> Batch:
    """Returns the batch with masks drawn row by row, padding rows left out of the loss."""
    # Padding rows, at -1, are copies of the first record; their masks have no weight.
    places = np.maximum(batch["record_positions"], 0).tolist()
    keys = [(seed, _EVALUATION_MASKS, shard, index) for shard, index in places]
    masked = _with_masks(batch, keys, draw_masks)
    for name in masked.keys() & set(records.WEIGHT_FEATURES):
        masked[name] = masked[name] * batch["example_weights"][:, None]
    return masked


def _one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yields `batches`; a thread makes the next one while the last is used."""
    with concurrent.futures.ThreadPoolExecutor(1, "bertjax-batches") as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch
