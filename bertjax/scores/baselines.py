"""The baselines of scores: what a model that learnt nothing reaches.

They are computed where the scores are. Log, curves, `evaluate`, `compare` and the warnings of a run
take from here what a score is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# Score -> its baselines, of which the best is compared. Both may end in "/" and a channel.
BASELINES: dict[str, tuple[str, ...]] = {
    "mlm_loss": ("unigram_loss",),
    "lm_loss": ("unigram_loss",),
    "mlm_accuracy": ("most_frequent_token_accuracy",),
    "lm_accuracy": ("most_frequent_token_accuracy",),
    "discriminator_loss": ("share_loss",),
    "replaced_loss": ("always_no_loss",),
    "replaced_accuracy": ("always_no_accuracy",),
    "value_loss": ("mean_loss", "last_value_loss", "interpolation_loss"),
    "value_mae": ("mean_mae", "last_value_mae", "interpolation_mae"),
    "category_loss": ("frequencies_loss",),
    "category_accuracy": ("most_frequent_accuracy",),
    "accuracy": ("majority_accuracy", "chance"),
    "loss": ("constant_loss",),
    "roc_auc": ("chance_roc_auc",),
    "macro_f1": ("majority_macro_f1",),
    "exact": ("majority_exact",),
    "f1": ("majority_f1",),
    "mse": ("naive_mse",),
    "rmse": ("mean_rmse",),
    "mae": ("naive_mae", "mean_mae"),
    "mae_in_units": ("naive_mae_in_units",),
}
OF_TEXTS = ("exact_match", "bleu", "chrf", "rouge1", "rouge2", "rougeL")
RULES = ("most_frequent", "first_words", "source")  # that make a text without a model
BASELINES |= {name: tuple(f"{rule}_{name}" for rule in RULES) for name in OF_TEXTS}
NAMES = tuple(dict.fromkeys(name for names in BASELINES.values() for name in names))
# A score that is there where all predictions are one class: its number among the labels, or -1.
ONLY_CLASS = "only_class"
LOWER_IS_BETTER = ("loss", "mse", "rmse", "mae", "in_units")
# Below this share of its baseline a loss has learnt something; others are compared as they are.
LEARNT = {"discriminator_loss": 0.97}


def best(scores: Mapping[str, Any]) -> dict[str, str]:
    """Returns the name of the best baseline of each score that has one."""
    found = {}
    for name in scores:
        metric, slash, channel = name.partition("/")
        names = [f"{it}{slash}{channel}" for it in BASELINES.get(metric, ())]
        if known := [it for it in names if math.isfinite(scores.get(it, math.nan))]:
            choose = min if _is_lower_better(name) else max
            found[name] = choose(known, key=lambda it: scores[it])
    return found


def not_better(scores: Mapping[str, Any]) -> dict[str, str]:
    """Returns a sentence for each score, by its name, that shows that nothing was learnt.

    These are losses that are no better than a baseline; where no loss has one, all other scores, if
    none of them is better than its baseline.
    """
    compared = best(scores)
    losses = {name: it for name, it in compared.items() if name.endswith("_loss")}
    judged = losses or compared
    worse = {name: it for name, it in judged.items() if not _is_better(name, scores, it)}
    if not losses and len(worse) < len(judged):
        return {}
    return {
        name: f"{name} is {scores[name]:.4f}, no better than {baseline}, {scores[baseline]:.4f}"
        for name, baseline in worse.items()
    }


def _is_better(name: str, scores: Mapping[str, Any], baseline: str) -> bool:
    value, level = float(scores[name]), LEARNT.get(name, 1.0) * float(scores[baseline])
    if _is_lower_better(name):
        return value < level
    return value > level or value == level == 1.0  # nothing is better


def _is_lower_better(name: str) -> bool:
    return name.partition("/")[0].endswith(LOWER_IS_BETTER)


def entropy(counts: np.ndarray) -> float:
    """Returns the loss (nats) of predicting the shares of all classes for everything."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def share_entropy(share: float) -> float:
    """Returns the loss (nats) of predicting the share of a class for everything."""
    return -share * math.log(share) - (1 - share) * math.log(1 - share)
