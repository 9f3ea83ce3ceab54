"""Batches cut to the shortest length that fits: the same examples, with less padding."""

import functools

import numpy as np
import pytest

from bertjax.data import streams
from tests.data import test_streams

LENGTH, BUCKETS = 32, (8, 16, 32)


def short_or_long(rng):
    """Makes examples of which two thirds are short; the tokens say where they stand."""

    def example(shard, place, predictions, length):
        made = test_streams.example(shard, place, predictions, length)
        real = int(rng.choice([5, 7, 12, 30], p=[0.4, 0.2, 0.2, 0.2]))
        made["input_mask"] = (np.arange(length) < real).astype(np.int64)
        made["input_ids"] = made["input_ids"] * made["input_mask"]
        return made

    return example


@pytest.fixture(scope="module")
def record_set(tmp_path_factory):
    example = short_or_long(np.random.default_rng(0))
    return test_streams.write(tmp_path_factory.mktemp("records"), length=LENGTH, example=example)


read = functools.partial(test_streams.read, draw_masks=test_streams.draw_masks)


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
    assert all(it["segment_ids"].shape == it["input_ids"].shape for it in bucketed)
    assert sum(lengths) < 0.65 * LENGTH * len(lengths)
    assert lengths[:16] != sorted(lengths[:16]) and lengths[:16] != lengths[16:]

    def sizes(batches):
        return {
            tuple(place): mask.sum()
            for it in batches
            for place, mask in zip(it["record_positions"].tolist(), it["input_mask"], strict=True)
        }

    assert sizes(bucketed) == sizes(plain)


def test_any_start_and_any_hosts_have_the_same_batches(record_set, bucketed):
    start = streams.GROUPED - 2
    parts = [
        read(record_set, 4, buckets=BUCKETS, start_step=start, rows=rows)
        for rows in (range(2), range(2, 8))
    ]
    test_streams.assert_same_batches(test_streams.join_hosts(parts), bucketed[start : start + 4])
