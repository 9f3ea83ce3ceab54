"""Messages of a build about all of its pictures, such as the shares that are cut off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging

from bertjax.data import pictures
from data_pipelines.values import picture_files

LEAST_SPREAD = 1 / 8
LEAST_CUT = 5e-4


@dataclasses.dataclass
class Survey:
    """Counts of pictures and extremes, the `most` of a name with the picture that has it."""

    rules: picture_files.Rules
    size: tuple[int, int]
    count: int = 0
    animated: int = 0
    wide: int = 0
    cut: float = 0.0
    most_frames: tuple[int, str] = (1, "")
    most_cut: tuple[float, str] = (0.0, "")
    shades: tuple[int, int] = (255, 0)
    values: tuple[float, float] = (np.inf, -np.inf)

    def add(self, name: str, picture: picture_files.Picture) -> None:
        """Counts a picture."""
        cut = pictures.cut_share(picture.image.size, self.size)
        self.count += 1
        self.cut += cut
        self.most_cut = max((cut, name), self.most_cut)
        self.animated += picture.frames > 1
        self.most_frames = max((picture.frames, name), self.most_frames)
        if picture.extremes:
            self.wide += 1
            self.values = _spread(self.values, picture.extremes)
        else:
            self.shades = _spread(self.shades, np.ravel(picture.image.getextrema()))

    @property
    def pixel_range(self) -> dict[str, Any]:
        """The statistics of pictures of more than 8 bits."""
        used = self.rules.pixel_range or picture_files.OF_16_BITS
        return {"pixel_range": [*used]} if self.wide else {}

    def report(self) -> None:
        """Logs pixels that are cut off or clipped, frames that are left out, and dark pictures."""
        share, name = self.most_cut
        if share > LEAST_CUT:
            logging.info(
                "The sides of pictures are cut off: %.1f%% of a picture on average, at most %.1f%% "
                "of %s", 100 * self.cut / self.count, 100 * share, name,
            )  # fmt: skip
        for line in self._warnings():
            logging.warning(line)

    def _warnings(self) -> Iterator[str]:
        if self.animated:
            frames, name = self.most_frames
            yield (
                f"{self.animated:,} of {self.count:,} pictures have several frames, at most "
                f"{frames:,}, in {name}: the first frame of each is read"
            )
        low, high = self.values
        bounds = self.rules.pixel_range
        if bounds and self.wide < self.count:
            yield (
                f"{self.count - self.wide:,} of {self.count:,} pictures have 8 bits, or colours of "
                "16 bits, of which 8 are read: --pixel_range does not count for them"
            )
        if bounds and (low < bounds[0] or high > bounds[1]):
            yield (
                f"Pixels are from {low:.9g} to {high:.9g}, beyond --pixel_range: those beyond are "
                "black or white"
            )
        black, white = bounds or picture_files.OF_16_BITS
        if self.wide and high - low < LEAST_SPREAD * (white - black):
            yield (
                f"Less than an eighth of the range from {black:g} to {white:g} is used: the pixels "
                f"of more than 8 bits are from {low:.9g} to {high:.9g}; give --pixel_range"
            )
        darkest, brightest = self.shades
        if self.wide < self.count and brightest - darkest < LEAST_SPREAD * 255:
            yield (
                "Less than an eighth of the range is used: the pixels of 8 bits are from "
                f"{darkest} to {brightest} of 255"
            )


def _spread(extremes: tuple[Any, Any], more: Any) -> tuple[Any, Any]:
    return min(extremes[0], min(more)), max(extremes[1], max(more))
