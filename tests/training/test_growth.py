"""Parameters that are repeated, against the loop of the released code."""

import numpy as np

from bertjax.training import growth


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


def test_values_repeat_from_the_middle_as_released_and_heads_whole():
    for old, new in [(3, 3), (3, 4), (3, 5), (4, 13), (1, 6), (768, 1024)]:
        values = np.arange(old)
        np.testing.assert_array_equal(values[growth.tiled_places(old, new)], released(values, new))
    heads = growth.tiled_places(4, 10, unit=2)  # 0 and 1, of two each
    np.testing.assert_array_equal(heads, [2, 3, 0, 1, 2, 3, 0, 1, 2, 3])


def test_layers_are_spread_evenly_over_the_depth():
    assert growth.repeated_layers(22, 28) == [round(number * 22 / 28) for number in range(28)]
    assert growth.repeated_layers(2, 2) == [0, 1]
    assert growth.repeated_layers(1, 3) == [0, 0, 0]  # the last would be the second of one


def test_heads_that_share_keys_grow_with_their_keys():
    size, shared, path = 2, 3, "encoder.layers.0.attention"
    heads, keys = np.arange(6), np.arange(2)
    params = {
        f"{path}.query.kernel": np.repeat(heads, size)[None],
        f"{path}.key.kernel": np.repeat(keys, size)[None],
        f"{path}.output.kernel": np.repeat(heads, size)[:, None],
    }
    shapes = {
        f"{path}.query.kernel": (1, 15 * size),
        f"{path}.key.kernel": (1, 5 * size),
        f"{path}.output.kernel": (15 * size, 1),
    }
    options = {"path": "encoder", "depths": (1, 1), "head_size": size, "rows": ()}
    grown = growth.tiled(params, shapes, shared=shared, **options)
    of_query, of_keys, of_output = (grown[name].reshape(-1, size) for name in shapes)
    assert (of_query == of_query[:, :1]).all() and (of_keys == of_keys[:, :1]).all()
    np.testing.assert_array_equal(of_output, of_query)
    np.testing.assert_array_equal(of_query[:, 0] // shared, np.repeat(of_keys[:, 0], shared))
    assert {*of_query[:, 0]} == {*heads}
