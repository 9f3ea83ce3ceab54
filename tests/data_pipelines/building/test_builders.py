import hypothesis
from hypothesis import strategies

from data_pipelines.building import builders


def test_few_examples_make_few_shards():
    found = [builders.default_num_shards(number) for number in (1, 2, 5, 31, 32, 10**6)]
    assert found == [1, 2, 4, 16, 32, 32]


@hypothesis.settings(deadline=None, derandomize=True, max_examples=50)
@hypothesis.given(strategies.integers(32, 10**11), strategies.integers(10, 10_000))
def test_shards_are_a_multiple_of_32_and_of_bounded_size(num_examples, example_bytes):
    size = builders.default_num_shards(num_examples, example_bytes)
    assert size % 32 == 0
    # Not above the bound, and not far below it where there are more than 32.
    assert num_examples * example_bytes / size <= builders.SHARD_BYTES
    assert size == 32 or num_examples * example_bytes / (size - 32) > builders.SHARD_BYTES
