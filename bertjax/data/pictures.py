"""Pixels to patches: crops and flips while training, the same picture otherwise.

Pixels are uint8 [rows, height, width, channels], patches float32 [rows, 1 + patches, values]: the
first position is [CLS] and holds nothing, the others go row by row, their values by row, column and
channel. Source: facebookresearch/mae, models_mae.py, patchify.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

# The sides of a crop, width over height, of a square. Source: torchvision, RandomResizedCrop.
SIDES = (3 / 4, 4 / 3)
ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Each channel less `means` and over `deviations`, of pixels from 0 to 1."""

    patch: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    grid_rows: int = 0  # of patches; 0: a square

    def patches(
        self, pixels: UInt8[np.ndarray, "rows height width channels"]
    ) -> tuple[Float[np.ndarray, "rows positions values"], np.ndarray]:
        """Returns the patches of pictures, and which of their values were observed."""
        rows, height, width, channels = pixels.shape
        size = self.patch
        scaled = pixels.astype(np.float32) / np.float32(255)
        scaled = (scaled - np.array(self.means, np.float32)) / np.array(self.deviations, np.float32)
        cut = scaled.reshape(rows, height // size, size, width // size, size, channels)
        cut = cut.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, size * size * channels)
        values = np.zeros((rows, 1 + cut.shape[1], cut.shape[2]), np.float32)
        values[:, 1:] = cut
        observed = np.ones(values.shape, np.int32)
        observed[:, 0] = 0
        return values, observed

    def pixels(
        self, values: Float[np.ndarray, "rows positions values"], *, channels: int
    ) -> UInt8[np.ndarray, "rows height width channels"]:
        """Returns the pictures of patches; undoes `patches` but for rounding."""
        down, size = self.grid_rows or math.isqrt(values.shape[1] - 1), self.patch
        cut = values[:, 1:].reshape(len(values), down, -1, size, size, channels)
        scaled = cut.transpose(0, 1, 3, 2, 4, 5).reshape(len(values), down * size, -1, channels)
        shades = scaled * np.array(self.deviations, np.float32) + np.array(self.means, np.float32)
        return np.clip(np.rint(shades * 255), 0, 255).astype(np.uint8)


def cropped(
    pixels: UInt8[np.ndarray, "rows height width channels"],
    rng: np.random.Generator,
    *,
    least: float,
    flips: bool,
) -> UInt8[np.ndarray, "rows height width channels"]:
    """Returns a random crop of each picture, of its size again, and every second one mirrored.

    A crop has `least` to all of the area; 1.0: no picture is cropped. Resized with bicubic filters.
    Source: torchvision, RandomResizedCrop, as MAE uses it.
    """
    result = pixels if least >= 1 else np.stack([_crop(it, rng, least) for it in pixels])
    if flips:
        is_mirrored = rng.random(len(result)) < 0.5
        result = np.where(is_mirrored[:, None, None, None], result[:, :, ::-1], result)
    return result


def resized(picture: Image.Image, size: tuple[int, int], *, channels: int) -> np.ndarray:
    """Returns the middle of a picture at a height and a width, uint8 [height, width, channels].

    The picture is resized until it just covers these, and they are cut from whole pixels of the
    result. Source: transformers, `shortest_edge` and `center_crop` of PilBackend; equal but for
    rounding.
    """
    picture = picture.convert("L" if channels == 1 else "RGB")
    height, width = size
    short = _short(picture.size, size)
    left, right = _middle(picture.width, short, width)
    top, bottom = _middle(picture.height, short, height)
    box = (left, top, right, bottom)
    cut = picture.resize((width, height), Image.Resampling.BICUBIC, box)
    return np.asarray(cut, np.uint8).reshape(height, width, channels)


def _short(sides: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Returns the side, of width and height, that is kept whole; before and after."""
    height, width = size
    return min((sides[0], width), (sides[1], height), key=lambda it: it[0] / it[1])


def _middle(side: int, short: tuple[int, int], size: int) -> tuple[float, float]:
    """Returns where the middle pixels of a side begin and end, in pixels of the file."""
    whole = short[1] * side // short[0]
    start = (whole - size) // 2
    return start * side / whole, (start + size) * side / whole


def cut_share(sides: tuple[int, int], size: tuple[int, int]) -> float:
    """Returns the share of a picture, given by width and height, that `resized` cuts off."""
    before, after = _short(sides, size)
    kept = (before / after) ** 2 * size[0] * size[1]
    return max(0.0, 1 - kept / (sides[0] * sides[1]))


def _crop(pixels: np.ndarray, rng: np.random.Generator, least: float) -> np.ndarray:
    height, width, channels = pixels.shape
    for _ in range(ATTEMPTS):
        area = height * width * rng.uniform(least, 1.0)
        ratio = math.exp(rng.uniform(math.log(SIDES[0]), math.log(SIDES[1]))) * width / height
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(rng.integers(0, width - across + 1))
            top = int(rng.integers(0, height - down + 1))
            break
    else:
        left, top, across, down = 0, 0, width, height
    picture = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    box = (left, top, left + across, top + down)
    made = picture.resize((width, height), Image.Resampling.BICUBIC, box)
    return np.asarray(made, np.uint8).reshape(height, width, channels)
