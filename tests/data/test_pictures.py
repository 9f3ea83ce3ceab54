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
    strips = np.concatenate([pixels, pixels[::-1], pixels], axis=2)[:, :4]
    scaling = pictures.Scaling(2, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), grid_rows=2)
    values, _ = scaling.patches(strips)
    np.testing.assert_array_equal(scaling.pixels(values, channels=3), strips)


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


def test_a_crop_of_a_strip_keeps_its_shape_nearly():
    """Lines that are as far apart across and down stay so, within 4 / 3."""
    down, across = np.mgrid[:64, :512]
    strip = np.stack([down * 4, across // 2, across * 0], axis=-1).astype(np.uint8)[None]
    rng, heights = np.random.default_rng(2), []
    for _ in range(50):
        made = pictures.cropped(strip, rng, least=0.2, flips=False)[0].astype(int)
        rows, columns = np.ptp(made[..., 0]) / 4, np.ptp(made[..., 1]) * 2
        assert 0.7 < columns / rows / 8 < 1.45
        heights.append(rows)
    assert min(heights) < 40


@pytest.mark.parametrize(
    ("sides", "size", "whole"),
    [
        ((97, 64), (32, 128), (128, 84)), ((640, 100), (8, 32), (51, 8)),
        ((40, 10), (8, 32), (32, 8)), ((30, 45), (30, 20), (20, 30)),
    ],
)  # fmt: skip
def test_the_middle_is_cut_to_a_shape(sides, size, whole):
    coarse = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(sides)
    expected = np.asarray(picture.resize(whole, Image.Resampling.BICUBIC), np.int32)
    top, left = (whole[1] - size[0]) // 2, (whole[0] - size[1]) // 2
    expected = expected[top : top + size[0], left : left + size[1]]
    np.testing.assert_allclose(pictures.resized(picture, size, channels=3), expected, atol=2)
    share = 1 - size[0] * size[1] / (whole[0] * whole[1])
    assert pictures.cut_share(sides, size) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("sides", [(97, 64), (64, 97), (301, 40), (48, 48)])
@pytest.mark.parametrize("size", [32, 45])
def test_the_middle_square_is_cut_from_the_whole_picture_at_its_size(sides, size):
    coarse = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(sides)
    width, height = (int(size * side / min(sides)) for side in sides)
    whole = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), np.int32)
    top, left = (height - size) // 2, (width - size) // 2
    expected = whole[top : top + size, left : left + size]
    made = pictures.resized(picture, (size, size), channels=3)
    np.testing.assert_allclose(made, expected, atol=1 if sides[0] != sides[1] else 0)
