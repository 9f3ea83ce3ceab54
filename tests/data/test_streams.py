import dataclasses
import itertools
import json
import os
import pathlib
import tempfile

import numpy as np
import pytest

from bertjax.data import encoding, masking, record_files, records, streams
from bertjax.files import atomic
from tests import small_records

LENGTH = 8
BATCH_SIZE = 8
STREAMS = 4
BLOCK = BATCH_SIZE // STREAMS
# The sizes are unequal and share no divisor; stream v owns shards v and v + 4.
COUNTS = (7, 5, 9, 6, 8, 5, 4, 11)
STREAM_SIZES = tuple(COUNTS[v] + COUNTS[v + STREAMS] for v in range(STREAMS))
# Smaller than the shards, so that shuffling inside of them goes by windows.
WINDOW = 3
MASK_ID = 4


def example(shard, place, predictions=0, length=LENGTH):
    """An example that says by its tokens where it stands."""
    tokens = [2, 100 + shard, 200 + place, *range(300, 300 + length - 4), 3]
    features = {
        "input_ids": np.array(tokens),
        "input_mask": np.ones(length, np.int64),
        "segment_ids": np.zeros(length, np.int64),
    }
    if predictions:
        features["masked_lm_positions"] = np.arange(1, predictions + 1)
        features["masked_lm_ids"] = np.arange(predictions)
        features["masked_lm_weights"] = np.ones(predictions, np.float32)
    return features


def encoded(examples):
    """All of them in one call: its checks of shapes are slow."""
    examples = list(examples)
    names = examples[0] if examples else ()
    columns = {name: np.stack([one[name] for one in examples]) for name in names}
    return encoding.encode_batch(columns) if columns else []


def write(directory, *, counts=COUNTS, predictions=0, length=LENGTH, example=example):
    directory.mkdir(exist_ok=True)
    shards = tuple(
        record_files.write_shard(
            directory / f"shard-{shard}.tfrecord",
            encoded(example(shard, place, predictions, length) for place in range(count)),
        )
        for shard, count in enumerate(counts)
    )
    sizes = {"max_seq_length": length, "max_predictions_per_seq": predictions}
    small_records.manifest(**sizes, shards=shards).save(directory)
    return records.open(directory)


@pytest.fixture(scope="module")
def record_set(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records"))


@pytest.fixture
def fresh(tmp_path):
    """Records of one test, to be damaged."""
    return write(tmp_path / "records")


def read(record_set, steps, **options):
    defaults = {
        "global_batch_size": BATCH_SIZE,
        "seed": 1,
        "max_streams": STREAMS,
        "shuffle_buffer_size": WINDOW,
    }
    return list(itertools.islice(train_batches(record_set, **defaults | options), steps))


def train_batches(record_set, **options):
    """The batches by the fields of an order and the other options together."""
    fields = {field.name for field in dataclasses.fields(streams.Order)} & options.keys()
    order = streams.Order(**{name: options.pop(name) for name in fields})
    return streams.train_batches(record_set, order, **options)


def positions(batches):
    return np.stack([batch["record_positions"] for batch in batches])


def assert_same_batches(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
            assert one[name].dtype == other[name].dtype


def join_hosts(parts):
    """The global batches from the batches of each host."""
    return [
        {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
        for batch in zip(*parts, strict=True)
    ]


def host_rows(hosts):
    size = BATCH_SIZE // hosts
    return [range(host * size, (host + 1) * size) for host in range(hosts)]


def draw_masks(batch, rng):
    return masking.mask_tokens(
        batch["input_ids"],
        batch["input_mask"],
        options=masking.MaskingOptions(masked_lm_prob=0.4, max_predictions_per_seq=3),
        vocab_size=400,
        mask_id=MASK_ID,
        special_ids=(0, 1, 2, 3, MASK_ID),
        rng=rng,
    )


@pytest.fixture(scope="module")
def whole(record_set):
    """The first 24 batches, with masks.

    Streams of 10 to 17 records, 2 a step: an epoch takes 5 to 9 steps, a shard 2 to 6.
    """
    records.import_tensorflow().random.set_seed(7)
    return read(record_set, 24, draw_masks=draw_masks)


def test_streams_are_the_largest_common_divisor_within_the_limit():
    assert streams.num_streams(256, 64) == 32
    assert streams.num_streams(256, 64, max_streams=64) == 64
    assert streams.num_streams(12, 18) == 6
    assert streams.num_streams(12, 18, max_streams=5) == 3
    assert streams.num_streams(7, 4) == 1


def test_a_batch_is_a_function_of_seed_and_step_and_not_of_tensorflows_seed(record_set, whole):
    once = whole[:12]
    records.import_tensorflow().random.set_seed(8)
    assert_same_batches(read(record_set, 12, draw_masks=draw_masks), once)
    other = read(record_set, 12, seed=2, draw_masks=draw_masks)
    assert (positions(once) != positions(other)).any(axis=(1, 2)).all()
    # Masks differ between steps, streams and seeds.
    masks, others = (
        np.stack([batch["masked_lm_positions"] for batch in batches]) for batches in (once, other)
    )
    assert masks.shape == (12, BATCH_SIZE, 3)
    assert (masks[0] != masks[1]).any() and (masks != others).any()
    assert (masks[:, :BLOCK] != masks[:, BLOCK : 2 * BLOCK]).any()


def test_any_start_step_continues_bit_for_bit(record_set, whole):
    for step in (7, 21):
        resumed = read(record_set, 3, start_step=step, draw_masks=draw_masks)
        assert_same_batches(resumed, whole[step : step + 3])


def test_a_far_step_follows_the_arithmetic_of_epochs(record_set):
    step = 10 * 13 * 15 * 17  # A multiple of each stream's steps in an epoch, and past many.
    found = positions(read(record_set, 1, start_step=step))[0].reshape(STREAMS, BLOCK, 2)
    for stream, size in enumerate(STREAM_SIZES):
        epoch, offset = divmod(step * BLOCK, size)
        assert offset == 0
        visit = next(
            streams.stream_visits(
                np.array(COUNTS), stream=stream, streams=STREAMS, seed=1, start=epoch * size
            )
        )
        assert visit.epoch == epoch and visit.skip == 0
        assert (found[stream, :, 0] == visit.shard).all()


def test_any_number_of_hosts_reads_the_same_batches(record_set, whole):
    options = {"start_step": 3, "draw_masks": draw_masks}
    parts = [read(record_set, 10, rows=rows, **options) for rows in (range(2), range(2, 8))]
    assert_same_batches(join_hosts(parts), whole[3:13])


def test_each_epoch_of_a_stream_sees_each_of_its_examples_once(record_set):
    steps = 3 * max(STREAM_SIZES) // BLOCK + 1
    batches = read(record_set, steps)
    for batch in batches:
        tokens, places = batch["input_ids"], batch["record_positions"]
        np.testing.assert_array_equal(tokens[:, 1:3], places + [100, 200])
        np.testing.assert_array_equal(batch["example_weights"], np.ones(BATCH_SIZE, np.float32))
    found = positions(batches).reshape(steps, STREAMS, BLOCK, 2)
    for stream, size in enumerate(STREAM_SIZES):
        seen = [tuple(place) for place in found[:, stream].reshape(-1, 2).tolist()]
        owned = {(s, i) for s in (stream, stream + STREAMS) for i in range(COUNTS[s])}
        epochs = [seen[epoch * size : (epoch + 1) * size] for epoch in range(3)]
        assert all(len(epoch) == size and set(epoch) == owned for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_orders_of_shards_and_of_records_depend_on_seed_epoch_and_stream():
    def shards(*, stream=0, seed=1, epoch=0):
        visits = streams.stream_visits(
            np.ones(64, int), stream=stream, streams=2, seed=seed, start=32 * epoch
        )
        return [visit.shard // 2 for visit in itertools.islice(visits, 32)]

    def places(*, seed=1, epoch=0, shard=0):
        return streams.record_order(32, window=32, seed=seed, epoch=epoch, shard=shard).tolist()

    for orders in (
        [shards(), shards(stream=1), shards(seed=2), shards(epoch=1)],
        [places(), places(shard=1), places(seed=2), places(epoch=1)],
    ):
        assert all(sorted(order) == list(range(32)) for order in orders)
        assert len(set(map(tuple, orders))) == 4


def test_a_buffer_as_large_as_the_shard_shuffles_all_of_it():
    options = {"seed": 0, "epoch": 0, "shard": 0}
    windowed = streams.record_order(100, window=10, **options)
    assert (windowed // 10 == np.arange(100) // 10).all()
    whole = streams.record_order(100, window=100, **options)
    assert sorted(whole) == sorted(windowed) == list(range(100))
    assert np.abs(whole - np.arange(100)).max() > 50


def test_resume_reads_one_shard_per_stream_before_it_delivers(fresh):
    start_step = 13
    [expected] = read(fresh, 1, start_step=start_step)
    needed = set(expected["record_positions"][:, 0].tolist())
    assert len(needed) == STREAMS
    for shard in set(range(len(COUNTS))) - needed:
        pathlib.Path(fresh.shard_paths[shard]).unlink()
    assert_same_batches(read(fresh, 1, start_step=start_step), [expected])


def test_nothing_tunes_a_dataset_while_it_runs(record_set, monkeypatch):
    # A tuner sleeps for up to a minute, and an iterator that is closed may wait for it.
    made, of_batches = [], streams._numpy_batches

    def recorded(records_of, dataset, visited):
        made.append(dataset)
        return of_batches(records_of, dataset, visited)

    monkeypatch.setattr(streams, "_numpy_batches", recorded)
    next(streams.train_batches(record_set, streams.Order(BATCH_SIZE, seed=0)))
    next(streams.evaluation_batches(record_set, batch_size=BATCH_SIZE))
    assert [dataset.options().autotune.enabled for dataset in made] == [False, False]


@pytest.mark.slow
def test_batches_that_grow_read_on_where_smaller_ones_stopped_at_the_mask_rate_of_the_step(
    record_set,
):
    def draw(batch, rng, masked_lm_prob):
        return {"told": np.full(len(batch["input_ids"]), masked_lm_prob) + rng.random() / 1e6}

    def rate(step):
        return 0.3 - step / 100

    # 8, 8, 8, 16, 16, 16 rows: as many as nine times 8.
    masks = {"draw_masks": draw, "mask_rate": rate}
    larger = {"global_batch_size": 16, "ramp_from": 8, **masks}
    whole = read(record_set, 3, ramp_from=8, **masks)
    whole += read(record_set, 3, start_step=3, rows_before=24, **larger)

    def by_stream(batches):
        blocks = [np.split(batch["record_positions"], STREAMS) for batch in batches]
        return [np.concatenate([block[stream] for block in blocks]) for stream in range(STREAMS)]

    np.testing.assert_array_equal(by_stream(whole), by_stream(read(record_set, 9)))
    for step, batch in enumerate(whole):
        np.testing.assert_allclose(batch["told"], rate(step), atol=1e-6)
    halves = [
        read(record_set, 2, start_step=4, rows_before=40, rows=rows, **larger)
        for rows in (range(8), range(8, 16))
    ]
    assert_same_batches(join_hosts(halves), whole[4:])


def test_masks_are_not_drawn_over_stored_ones(tmp_path):
    masked = write(tmp_path / "masked", counts=(2, 2), predictions=2)
    with pytest.raises(ValueError, match="already hold masked tokens"):
        read(masked, 1, draw_masks=draw_masks)
    with pytest.raises(ValueError, match="already hold masked tokens"):
        streams.evaluation_batches(masked, batch_size=4, draw_masks=draw_masks)


def test_tensorflow_writes_no_python_files(record_set, tmp_path, monkeypatch):
    """It converts functions by a temporary module for each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda *a, **k: made.append((a, k)))
    next(streams.train_batches(record_set, streams.Order(BATCH_SIZE, seed=0)))
    next(streams.evaluation_batches(record_set, batch_size=BATCH_SIZE))
    assert not made and not list(tmp_path.iterdir())


def test_evaluation_sees_each_example_once_in_file_order(record_set):
    batches = list(streams.evaluation_batches(record_set, batch_size=BATCH_SIZE))
    assert len(batches) == -(-sum(COUNTS) // BATCH_SIZE)
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    seen = np.concatenate([batch["record_positions"] for batch in batches])
    expected = [(shard, place) for shard, count in enumerate(COUNTS) for place in range(count)]
    assert [tuple(place) for place in seen[weights == 1].tolist()] == expected
    assert (seen[weights == 0] == -1).all()
    assert len(seen) % BATCH_SIZE == 0


def test_evaluation_on_any_number_of_hosts_is_the_same(tmp_path):
    # 9 examples: with 4 hosts only the first has a real row in the second batch.
    small = write(tmp_path / "small", counts=(4, 5))
    options = {"batch_size": 8, "draw_masks": draw_masks}
    whole = list(streams.evaluation_batches(small, **options))
    parts = [list(streams.evaluation_batches(small, rows=it, **options)) for it in host_rows(4)]
    assert [len(part) for part in parts] == [2] * 4
    assert_same_batches(join_hosts(parts), whole)


def test_only_the_rows_that_fill_the_last_batch_of_an_evaluation_weigh_nothing(tmp_path):
    for predictions, draw in ((2, None), (0, draw_masks)):
        small = write(tmp_path / f"{predictions}", counts=(3,), predictions=predictions)
        [batch] = streams.evaluation_batches(small, batch_size=8, draw_masks=draw)
        np.testing.assert_array_equal(batch["example_weights"], [1, 1, 1, 0, 0, 0, 0, 0])
        assert (batch["masked_lm_weights"][:3].sum(axis=1) > 0).all()
        assert not batch["masked_lm_weights"][3:].any()
        [batch] = streams.evaluation_batches(small, batch_size=3, draw_masks=draw)
        assert batch["example_weights"].all()


def test_masks_of_an_evaluation_do_not_depend_on_the_batch_size(record_set):
    def by_place(batch_size):
        found = {}
        for batch in streams.evaluation_batches(
            record_set, batch_size=batch_size, draw_masks=draw_masks
        ):
            for row, place in enumerate(map(tuple, batch["record_positions"].tolist())):
                if place[0] >= 0:
                    found[place] = {name: values[row].tolist() for name, values in batch.items()}
        return found

    expected = by_place(8)
    assert len(expected) == sum(COUNTS)
    assert by_place(5) == by_place(64) == expected
    # Each record has masks of its own, though all are 8 tokens long.
    assert len({tuple(one["masked_lm_positions"]) for one in expected.values()}) > 4


def flip_middle_byte(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def one_longer():
    longer = [example(5, place, length=LENGTH + 1) for place in range(COUNTS[5])]
    return b"".join(map(encoding.frame, encoded(longer)))


def read_both_ways(record_set, message):
    """Reads for training and for an evaluation, which both must fail with the message."""
    with pytest.raises(ValueError, match=message):
        read(record_set, 20)
    with pytest.raises(ValueError, match=message):
        list(streams.evaluation_batches(record_set, batch_size=3))


def test_a_damaged_shard_is_named(fresh):
    path = pathlib.Path(fresh.shard_paths[5])
    content = path.read_bytes()
    path.write_bytes(flip_middle_byte(content))
    read_both_ways(fresh, path.name + " cannot be read .*copy it again")
    path.write_bytes(content[: -len(content) // COUNTS[5]])
    read_both_ways(fresh, path.name + " holds 4 examples, .* says 5")
    for damaged, message in (
        (content + content[: len(content) // COUNTS[5]], " holds 6 examples, the manifest says 5"),
        (one_longer(), r" cannot be read \(Name.*size: 9.*\[8\]\);"),
        (None, " cannot be read"),
    ):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(ValueError, match=path.name + message):
            list(streams.evaluation_batches(fresh, batch_size=3))


def test_records_that_are_replaced_while_they_are_read_stop_what_reads_them(fresh, tmp_path):
    """Their shards have the same names and sizes, and the seed of the shuffle is another."""
    training = train_batches(fresh, global_batch_size=BATCH_SIZE, seed=1)
    evaluation = streams.evaluation_batches(fresh, batch_size=sum(COUNTS))
    next(training)
    other = write(tmp_path / "other", example=lambda shard, place, *_: example(place, shard))
    dataclasses.replace(other.manifest, seed=99).save(other.directory)
    fresh.directory.rename(tmp_path / "old")
    other.directory.rename(fresh.directory)
    message = "records are not those that the run began with"
    for batches in (training, evaluation):
        with pytest.raises(ValueError, match=message):
            list(itertools.islice(batches, 100))
    with pytest.raises(ValueError, match=message):
        streams.evaluation_batches(fresh, batch_size=3)


def test_a_copy_of_records_and_another_layout_of_their_manifest_are_the_same_records(fresh):
    order = {"seed": 1, "max_streams": STREAMS, "shuffle_buffer_size": WINDOW}
    training = train_batches(fresh, global_batch_size=BATCH_SIZE, **order)
    expected = read(fresh, 40)
    before = list(itertools.islice(training, 2))
    path = fresh.directory / records.MANIFEST_FILE
    changed = json.loads(path.read_text()) | {"arguments": {"output": "b"}}
    atomic.write(path, json.dumps(changed))
    for shard in fresh.shard_paths:
        os.utime(shard, (0, 0))
    assert_same_batches(before + list(itertools.islice(training, 38)), expected)


def test_a_number_that_no_table_holds_is_named_with_its_record(tmp_path):
    made = write(tmp_path / "records", counts=(4, 4), predictions=2)
    path = made.directory / "shard-1.tfrecord"
    rows = [example(1, place, predictions=2) for place in range(4)]
    rows[2]["masked_lm_positions"] = np.array([1, 8])
    changed = record_files.write_shard(path, encoded(rows))
    shards = (made.manifest.shards[0], dataclasses.replace(changed, file=path.name))
    made = dataclasses.replace(made, manifest=dataclasses.replace(made.manifest, shards=shards))
    made.manifest.save(made.directory)
    fault = "masked_lm_positions holds 8, but it has 8 places"
    read_both_ways(made, rf"record 2 \(from 0\) of shard .*shard-1.*{fault}")


def test_rows_that_cut_a_stream_and_streams_without_examples_are_refused(record_set, tmp_path):
    for rows in (range(3), range(1, 4), range(0, 8, 2), range(4, 12), range(0)):
        with pytest.raises(ValueError, match="multiple of 2"):
            read(record_set, 1, rows=rows)
    with pytest.raises(ValueError, match="stream 1 of 2 has no examples"):
        read(write(tmp_path / "uneven", counts=(3, 0)), 1)
