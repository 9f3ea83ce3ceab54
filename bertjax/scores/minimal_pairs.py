"""The share of texts that are likelier than their wrong counterparts: Warstadt et al. 2020."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The mean accuracy over all groups, and the accuracy of every named paradigm and phenomenon.

    `ties` is the number of comparisons in which the right text shares the highest score. `chance`
    is the accuracy of random scores.
    """

    accuracy: float
    ties: int
    chance: float
    paradigms: Mapping[str, float]
    phenomena: Mapping[str, float]


def accuracy(
    scores: Sequence[Sequence[float]],
    paradigms: Sequence[str],
    phenomena: Sequence[str],
    groups: str = "paradigms",
) -> Accuracy:
    """Returns the accuracy of comparisons, each with the scores of its texts, the right one first.

    A comparison is right if no text scores higher than the first: ties are right, as in BabyLM's
    scorer. `paradigms` and `phenomena` have one name for each comparison, or "". The accuracy of a
    phenomenon is the mean over its paradigms, and the whole one the mean over all `groups`, which
    are "paradigms" or "phenomena".
    Source: babylm-org/babylm-eval, strict/evaluation_pipeline/sentence_zero_shot, run.py and
    compute_results.py.
    """
    phenomenon_of = dict(zip(paradigms, phenomena, strict=True))

    def means(values: Sequence[float]) -> dict[str, tuple[float, Mapping[str, float]]]:
        mean, shares = mean_shares(values, paradigms)
        by_phenomenon = mean_shares(list(shares.values()), [phenomenon_of[it] for it in shares])
        return {"paradigms": (mean, shares), "phenomena": by_phenomenon}

    found = means([float(first >= max(others)) for first, *others in scores])
    named = ({k: v for k, v in shares.items() if k} for _, shares in found.values())
    ties = sum(first == max(others) for first, *others in scores)
    chance, _ = means([1 / len(of_texts) for of_texts in scores])[groups]
    return Accuracy(found[groups][0], ties, chance, *named)


def mean_shares(
    values: Sequence[float], groups: Iterable[str]
) -> tuple[float, Mapping[str, float]]:
    """Returns the mean over all groups, and each group's mean, in the order of their names.

    Groups of any size have the same weight. A value is 1 for a right comparison, else 0; or the
    share of right comparisons in a smaller group.
    """
    of_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        of_group.setdefault(group, []).append(float(value))
    means = {name: sum(of_group[name]) / len(of_group[name]) for name in sorted(of_group)}
    return sum(means.values()) / len(means), means
