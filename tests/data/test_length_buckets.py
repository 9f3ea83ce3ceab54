"""Batches cut to the shortest length that fits: the same examples, with less padding."""

import itertools

import numpy as np
import pytest

from bertjax.data import masking, records, streams
from tests.data import test_streams

LENGTH, BUCKETS = 32, (8, 16, 32)
COUNTS = (7, 5, 9, 6, 8, 5, 4, 11)


def write(directory):
    """Records of which two thirds are short; the tokens say where they stand."""
    rng = np.random.default_rng(0)

    def example(shard, place):
        made = test_streams.example(shard, place, length=LENGTH)
        length = int(rng.choice([5, 7, 12, 30], p=[0.4, 0.2, 0.2, 0.2]))
        made["input_mask"] = (np.arange(LENGTH) < length).astype(np.int64)
        made["input_ids"] = made["input_ids"] * made["input_mask"]
        return made

    shards = tuple(
        records.write_shard(
            directory / f"shard-{shard}.tfrecord",
            test_streams.encoded(example(shard, place) for place in range(count)),
        )
        for shard, count in enumerate(COUNTS)
    )
    records.Manifest(
        tokenizer={"sha256": "", "vocab_size": 1000},
        max_seq_length=LENGTH,
        max_predictions_per_seq=0,
        masked_lm_prob=0.15,
        pair_objective="none",
        shards=shards,
        seed=0,
        arguments={},
        statistics={},
    ).save(directory)
    return records.open(directory)


@pytest.fixture(scope="module")
def record_set(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records"))


def draw_masks(batch, rng):
    return masking.mask_tokens(
        batch["input_ids"],
        batch["input_mask"],
        options=masking.MaskingOptions(0.3, 4),
        vocab_size=400,
        mask_id=4,
        special_ids=(0, 1, 2, 3, 4),
        rng=rng,
    )


def read(record_set, steps, **options):
    defaults = {"global_batch_size": 8, "seed": 1, "max_streams": 4, "draw_masks": draw_masks}
    batches = test_streams.train_batches(record_set, **defaults | options)
    return list(itertools.islice(batches, steps))


@pytest.fixture(scope="module")
def bucketed(record_set):
    return read(record_set, 2 * streams.GROUPED, buckets=BUCKETS)


def places(batches):
    return sorted(tuple(place) for it in batches for place in it["record_positions"].tolist())


def test_a_group_of_steps_has_its_examples_with_less_padding(record_set, bucketed):
    plain = read(record_set, 2 * streams.GROUPED)
    for start in (0, streams.GROUPED):
        group = slice(start, start + streams.GROUPED)
        assert places(bucketed[group]) == places(plain[group])
    longest = [int(it["input_mask"].sum(axis=1).max()) for it in bucketed]
    lengths = [it["input_ids"].shape[1] for it in bucketed]
    assert lengths == [min(b for b in BUCKETS if b >= most) for most in longest]
    assert all(
        it["segment_ids"].shape == it["input_mask"].shape == (8, n)
        for it, n in zip(bucketed, lengths, strict=True)
    )
    assert sum(lengths) < 0.65 * LENGTH * len(lengths)
    assert lengths[:16] != sorted(lengths[:16]) and lengths[:16] != lengths[16:]
    rows = {
        tuple(p): ids
        for it in plain
        for p, ids in zip(it["record_positions"].tolist(), it["input_mask"], strict=True)
    }
    for batch in bucketed:
        for place, mask in zip(
            batch["record_positions"].tolist(), batch["input_mask"], strict=True
        ):
            assert mask.sum() == rows[tuple(place)].sum()


def test_any_start_and_any_hosts_have_the_same_batches(record_set, bucketed):
    start = streams.GROUPED - 2
    parts = [
        read(record_set, 4, buckets=BUCKETS, start_step=start, rows=rows)
        for rows in (range(2), range(2, 8))
    ]
    for step in range(4):
        wanted = bucketed[start + step]
        for name in wanted:
            joined = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(joined, wanted[name], err_msg=name)
