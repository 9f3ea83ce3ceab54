"""Pixels to patches and back; crops and flips."""

import numpy as np
import pytest
from PIL import Image

from bertjax.data import pictures


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)


def test_a_patch_has_its_pixels_by_row_column_and_channel(pixels):
    scaling = pictures.Scaling(4, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    values, observed = scaling.patches(pixels)
    assert values.shape == (5, 5, 48) and not observed[:, 0].any() and observed[:, 1:].all()
    for patch, (down, across) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)], start=1):
        square = pixels[:, down : down + 4, across : across + 4] / 255
        expected = (square - np.array(scaling.means)) / np.array(scaling.deviations)
        np.testing.assert_allclose(values[:, patch], expected.reshape(5, -1), atol=1e-5)
    np.testing.assert_array_equal(scaling.pixels(values, channels=3), pixels)


def test_half_are_mirrored_and_nothing_else_changes(pixels):
    many = np.tile(pixels, (80, 1, 1, 1))
    made = pictures.cropped(many, np.random.default_rng(1), least=1.0, flips=True)
    is_same = (made == many).all(axis=(1, 2, 3))
    is_mirrored = (made == many[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (is_same ^ is_mirrored).all() and 150 < is_mirrored.sum() < 250
    assert pictures.cropped(pixels, np.random.default_rng(1), least=1.0, flips=False) is pixels


def test_a_crop_is_a_part_of_the_picture_at_its_size():
    ramp = np.tile(np.arange(0, 240, 6, dtype=np.uint8)[None, :, None], (40, 1, 1))[None]
    rng = np.random.default_rng(2)
    spans = []
    for _ in range(200):
        made = pictures.cropped(ramp, rng, least=0.2, flips=False)
        assert made.shape == ramp.shape
        spans.append(int(made.max()) - int(made.min()))
    assert min(spans) < 130 and max(spans) > 200  # from a part of the width to all of it


@pytest.mark.parametrize("sides", [(97, 64), (64, 97), (301, 40), (48, 48)])
@pytest.mark.parametrize("size", [32, 45])
def test_the_middle_square_is_cut_from_the_whole_picture_at_its_size(sides, size):
    coarse = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(sides)
    width, height = (int(size * side / min(sides)) for side in sides)
    whole = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), np.int32)
    top, left = (height - size) // 2, (width - size) // 2
    expected = whole[top : top + size, left : left + size]
    made = pictures.resized(picture, size, channels=3)
    np.testing.assert_allclose(made, expected, atol=1 if sides[0] != sides[1] else 0)
