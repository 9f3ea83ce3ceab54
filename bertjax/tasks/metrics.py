"""Sums that become numbers: `Mean`, and nothing that depends on a model or a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
    """A weighted mean kept as its two sums, so that means over parts add up exactly.

    `total` is the sum of weight x value and `weight` the sum of weights; scalars of any array type.
    """

    total: Any
    weight: Any

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)

    def value(self) -> float:
        """Returns the mean as a Python float; nan where nothing was counted."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else float("nan")


def merge(left: Mapping[str, Mean], right: Mapping[str, Mean]) -> dict[str, Mean]:
    """Returns the name-by-name sum; a name on one side only is kept as it is."""
    merged = dict(left)
    for name, mean in right.items():
        merged[name] = merged[name] + mean if name in merged else mean
    return merged


def values(means: Mapping[str, Mean]) -> dict[str, float]:
    """Returns each mean as a float."""
    return {name: mean.value() for name, mean in means.items()}
