import dataclasses
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from data_pipelines.building import shards


@pytest.fixture(scope="module")
def work():
    """The module, which imports Beam."""
    from data_pipelines.beam import work

    return work


@hypothesis.settings(deadline=None, derandomize=True, max_examples=50)
@hypothesis.given(
    strategies.lists(strategies.integers(0, 30), min_size=1, max_size=8), strategies.integers(1, 12)
)
def test_each_block_deals_its_share_to_every_shard(work, counts, num_shards):
    counts = np.array(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    layout = work.Layout(np.array(["name"] * len(counts)), starts, starts, starts)
    dealt = [work.places(layout, index, num_shards) for index in range(len(counts))]
    for shard in range(num_shards):
        begin, end = shards.shares(counts, shard, num_shards)
        found = [np.flatnonzero(shard_of == shard) for shard_of, _ in dealt]
        assert [part.tolist() for part in found] == [
            list(range(first, last)) for first, last in zip(begin, end, strict=True)
        ]
        places = np.concatenate([place[shard_of == shard] for shard_of, place in dealt])
        size = work.shard_size(int(starts[-1]), shard, num_shards)
        assert places.tolist() == list(range(size))


def test_a_worker_that_lives_on_reads_the_layout_of_each_step(work, tmp_path):
    nothing: Any = None
    job = work.Job(nothing, nothing, nothing, nothing, nothing, str(tmp_path), str(tmp_path))
    starts = np.array([0, 2, 5])
    layout = work.Layout(np.array(["a", "b"]), starts, starts, np.zeros(0, np.int64))
    first = layout.saved(job)
    assert first.layout.examples.size == 0
    second = dataclasses.replace(layout, examples=starts).saved(first)
    assert second.layout.examples.tolist() == [0, 2, 5]
    assert first.layout.examples.size == 0
