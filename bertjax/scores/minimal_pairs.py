"""The share of minimal pairs whose right sentence has the higher score: Warstadt et al. 2020."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

CHANCE = 0.5


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
    found = {name: sum(of_group[name]) / len(of_group[name]) for name in sorted(of_group)}
    return sum(found.values()) / len(found), found
