"""Claims about larger models that begin as smaller ones repeated."""

import numpy as np
import pytest

from bertjax.training import tiling


def released(values, size):
    """One axis as ModernBERT's initialization.py writes it out, from the middle to both sides."""
    old = len(values)
    offset = (size - old) // 2
    result = np.zeros(size, values.dtype)
    result[offset : offset + old] = values
    for i in range(offset):
        result[offset - 1 - i] = values[old - 1 - i % old]
    for i in range(offset + old, size):
        result[i] = values[(i - offset) % old]
    return result


@pytest.mark.parametrize(("old", "new"), [(3, 3), (3, 4), (3, 5), (4, 13), (1, 6), (768, 1024)])
def test_values_repeat_from_the_middle_as_released(old, new):
    values = np.arange(old)
    np.testing.assert_array_equal(values[tiling.indices(old, new)], released(values, new))


def test_heads_repeat_whole():
    found = tiling.indices(4, 10, unit=2)  # heads 0 and 1, of two each
    np.testing.assert_array_equal(found, [2, 3, 0, 1, 2, 3, 0, 1, 2, 3])


def test_layers_are_spread_evenly_over_the_depth():
    assert tiling.layers(22, 28) == [round(number * 22 / 28) for number in range(28)]
    assert tiling.layers(2, 2) == [0, 1]
    assert tiling.layers(1, 3) == [0, 0, 0]  # the last would be the second of one
