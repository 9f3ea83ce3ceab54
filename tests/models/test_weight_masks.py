"""Claims about which of attention's weights dropout keeps: as many as asked, one like any other."""

import jax
import numpy as np
import pytest

from bertjax.models import layers, weight_masks

KEY = jax.random.key(0)
SHAPE = (2, 3, 256, 384)


@pytest.fixture(scope="module", params=[0.1, 0.5])
def rate(request):
    return request.param


@pytest.fixture(scope="module")
def mask(rate):
    return np.asarray(weight_masks.kept(layers.mask_seeds(KEY, SHAPE[:2]), SHAPE, rate))


def test_as_many_are_kept_as_the_rate_says(mask, rate):
    keep = 1 - rate
    deviation = np.sqrt(keep * rate / mask.size)
    assert abs(mask.mean() - keep) < 4 * deviation
    for axis in range(4):  # in every plane, row and column
        others = tuple(it for it in range(4) if it != axis)
        of_each = np.sqrt(keep * rate / (mask.size / SHAPE[axis]))
        assert np.abs(mask.mean(axis=others) - keep).max() < 5 * of_each


def test_the_keys_that_share_a_hash_and_all_neighbours_are_kept_independently(mask, rate):
    kept = mask.astype(np.float64) - (1 - rate)
    variance = rate * (1 - rate)
    for distance in (1, 2, 4, weight_masks.PAIRED, 16, 128):
        for axis in (2, 3):
            first = np.take(kept, range(SHAPE[axis] - distance), axis)
            second = np.take(kept, range(distance, SHAPE[axis]), axis)
            assert abs((first * second).mean() / variance) < 4 / np.sqrt(first.size)
    pairs = kept.reshape(*SHAPE[:3], -1, 2, weight_masks.PAIRED)
    product = (pairs[..., 0, :] * pairs[..., 1, :]).mean() / variance
    assert abs(product) < 4 / np.sqrt(kept.size / 2)
    heads = (kept[:, 0] * kept[:, 1]).mean() / variance
    assert abs(heads) < 4 / np.sqrt(kept[:, 0].size)


@pytest.mark.parametrize("first", [(0, 0), (64, 128), (208, 3)])
def test_a_block_is_a_part_of_the_mask_transposed(mask, rate, first):
    seeds = layers.mask_seeds(KEY, SHAPE[:2])
    block = weight_masks.kept_block(
        (seeds[0][1, 2], seeds[1][1, 2]), first, (64, 128), SHAPE[3], rate
    )
    (key, query) = first
    np.testing.assert_array_equal(block, mask[1, 2, query : query + 128, key : key + 64].T)


@pytest.mark.parametrize("num_keys", [7, 9, 100])
def test_any_number_of_keys_has_a_mask(num_keys):
    shape = (4, 8, num_keys, num_keys)
    mask = np.asarray(weight_masks.kept(layers.mask_seeds(KEY, shape[:2]), shape, 0.1))
    assert abs(mask.mean() - 0.9) < 5 * np.sqrt(0.09 / mask.size)


def test_a_rate_below_the_resolution_drops_nothing():
    shape = (4, 8, 100, 100)
    assert np.all(weight_masks.kept(layers.mask_seeds(KEY, shape[:2]), shape, 1e-7))
