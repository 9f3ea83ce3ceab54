import random

import hypothesis
from hypothesis import strategies

from data_pipelines.exact import draws


@hypothesis.settings(deadline=None, derandomize=True, max_examples=100)
@hypothesis.given(
    strategies.integers(1, 1100), strategies.integers(0, 1100), strategies.integers(0, 2**32)
)
@hypothesis.example(64, 64, 0)
@hypothesis.example(1025, 1, 0)
def test_shuffles_and_draws_are_those_of_python(size, front, seed):
    front = min(front, size)
    ours, theirs = random.Random(seed), random.Random(seed)
    items, expected = list(range(size)), list(range(size))
    draws.shuffle(ours, items, front)
    theirs.shuffle(expected)
    assert items[:front] == expected[:front]
    assert draws.below(ours, size) == theirs.randrange(size)
    assert ours.getstate() == theirs.getstate()
