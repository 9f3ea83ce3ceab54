import json

import numpy as np
import pytest

from data_pipelines.reports import distinct


def random_hashes(number, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, number, dtype=np.uint64)


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(distinct, "MAX_HASHES", 1000)


def test_many_values_are_estimated_from_a_bounded_sample(small_sample):
    hashes = random_hashes(50_000)
    sketch = distinct.Distinct.of(hashes)
    assert len(sketch.hashes) <= 1000
    assert sketch.count() == pytest.approx(50_000, rel=0.15)
    often = np.concatenate([hashes, np.repeat(hashes[:3], 10_000)])
    assert distinct.Distinct.of(often).count() == sketch.count()
    read = distinct.Distinct.from_json(json.loads(json.dumps(sketch.to_json())))
    assert read.halvings == sketch.halvings
    np.testing.assert_array_equal(read.hashes, sketch.hashes)


def test_the_order_of_merging_does_not_matter(small_sample):
    parts = [distinct.Distinct.of(random_hashes(size, size)) for size in (5, 300, 4000, 900, 0)]
    whole = distinct.Distinct.of(
        np.concatenate([random_hashes(size, size) for size in (5, 300, 4000, 900, 0)])
    )
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        merged = distinct.Distinct()
        for index in order:
            merged = merged.merged(parts[index])
        assert merged.halvings == whole.halvings > 0
        np.testing.assert_array_equal(merged.hashes, whole.hashes)


def test_texts_have_equal_hashes_when_they_are_equal():
    # The last are halves of a surrogate pair, which JSON can hold and UTF-8 cannot.
    first, again, other, *halves = distinct.hashes_of(
        ["some text", "some text", "ome text", "\ud800", "\ud801"]
    )
    assert first == again and len({first, other, *halves}) == 4


def test_the_most_repeated_lines_are_named_and_their_number_is_bounded(monkeypatch):
    lines = ["a" * 100] * 3 + ["once"] + ["b", "c"] * 2
    found = distinct.repeated_lines(lines, distinct.hashes_of(lines))
    assert found == {"a" * distinct.REPEATED_CHARACTERS: 3, "b": 2, "c": 2}
    monkeypatch.setattr(distinct, "REPEATED_KEPT", 2)
    merged = distinct.merged_lines({"a": 2, "b": 5}, {"a": 2, "c": 9})
    assert merged == {"c": 9, "b": 5}
