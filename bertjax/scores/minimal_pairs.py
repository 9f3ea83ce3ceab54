"""The share of minimal pairs whose right sentence has the higher score: Warstadt et al. 2020."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

CHANCE = 0.5


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The mean over paradigms, and that of every paradigm and phenomenon that has a name."""

    accuracy: float
    paradigms: Mapping[str, float]
    phenomena: Mapping[str, float]


def accuracy(
    is_right: Sequence[bool], paradigms: Sequence[str], phenomena: Sequence[str]
) -> Accuracy:
    """Returns what pairs come to of which the right sentence `is_right` likelier, or not.

    `paradigms` and `phenomena` are those of each pair, "" where it has none. A phenomenon is the
    mean over its paradigms.
    """
    mean, of_paradigms = mean_shares([float(right) for right in is_right], paradigms)
    phenomenon_of = dict(zip(paradigms, phenomena, strict=True))
    _, of_phenomena = mean_shares(
        list(of_paradigms.values()), [phenomenon_of[name] for name in of_paradigms]
    )
    named = ({k: v for k, v in group.items() if k} for group in (of_paradigms, of_phenomena))
    return Accuracy(mean, *named)


def mean_shares(
    values: Sequence[float], groups: Iterable[str]
) -> tuple[float, Mapping[str, float]]:
    """Returns the mean over all groups, and that of each group, in the order of their names.

    Every group counts the same, however many values it has. A value is 1 for a pair whose right
    sentence scores higher, else 0; or the share of such pairs in a smaller group.
    """
    of_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        of_group.setdefault(group, []).append(float(value))
    means = {name: sum(of_group[name]) / len(of_group[name]) for name in sorted(of_group)}
    return sum(means.values()) / len(means), means
