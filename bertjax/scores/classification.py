"""Scores of one prediction per example: classes and numbers, as in GLUE.

All take the true labels first, as lists or arrays of equal length, and return a fraction; they
raise a ValueError without examples, or without one prediction for each label. They equal the
functions of scikit-learn and scipy, which GLUE's public toolkits use (the server's code is not
public). Undefined F1 and Matthews scores are 0 as in scikit-learn, so that a model with constant
predictions ranks last; undefined correlations are nan as in scipy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped
from numpy.typing import ArrayLike

from bertjax.options import faults


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the share of predictions that equal their label."""
    labels, predictions = _pair(labels, predictions)
    return float(np.mean(labels == predictions))


def f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the harmonic mean of precision and recall of class 1; the other class is 0.

    It is 0 if class 1 is neither a label nor predicted.

    Raises:
      ValueError: if a class is neither 0 nor 1.
    """
    labels, predictions = _pair(labels, predictions)
    unknown = np.setdiff1d(np.concatenate([labels, predictions]), [0, 1])
    if len(unknown):
        instead = "for more classes take macro_f1 or micro_f1"
        raise faults.wrong("a class of f1", unknown[0].item(), "0 or 1", instead)
    of_label, of_prediction = labels == 1, predictions == 1
    correct = int(np.sum(of_label & of_prediction))
    return _f1(correct, int(np.sum(of_label)), int(np.sum(of_prediction)))


def roc_auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Returns the share of pairs of class 1 and class 0 in which class 1 has the higher score.

    Equal scores count half. It is nan if a class does not occur.
    """
    labels, scores = _pair(labels, scores)
    is_one = labels == 1
    ones, zeros = int(is_one.sum()), int((~is_one).sum())
    if not ones or not zeros:
        return float("nan")
    from scipy import stats

    ranks = stats.rankdata(scores)
    return float((ranks[is_one].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def macro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the mean F1 of the classes that occur as a label or as a prediction."""
    confusion = _confusion(labels, predictions)
    counts = zip(np.diag(confusion), confusion.sum(1), confusion.sum(0), strict=True)
    return float(np.mean([_f1(*(int(count) for count in of_class)) for of_class in counts]))


def matthews_corrcoef(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the correlation of predicted and true classes, between -1 and 1.

    It is 0 if all labels or all predictions are the same class.

    Source: Matthews (1975); for more than two classes Gorodkin (2004), "Comparing two K-category
    assignments by a K-category correlation coefficient", equation 8.
    """
    confusion = _confusion(labels, predictions)
    of_labels, of_predictions, total = confusion.sum(1), confusion.sum(0), confusion.sum()
    covariance = np.trace(confusion) * total - of_labels @ of_predictions
    label_variance = total**2 - of_labels @ of_labels
    prediction_variance = total**2 - of_predictions @ of_predictions
    if not label_variance or not prediction_variance:
        return 0.0
    # The product of the two would pass 2^63.
    return float(covariance / np.sqrt(label_variance) / np.sqrt(prediction_variance))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the linear correlation of predicted and true numbers, between -1 and 1.

    It is nan if all labels or all predictions are equal, or one is not finite.

    Raises:
      ValueError: if there are fewer than two examples.
    """
    # Imported where it is used: scipy.stats takes a second.
    from scipy import stats

    return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the linear correlation of the ranks; equal numbers share the mean of their ranks.

    It is nan if all labels or all predictions are equal, or one is nan.
    """
    from scipy import stats

    return _correlation(stats.spearmanr, labels, predictions)


def multi_label_micro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the F1 of all decisions together, 0 if nothing is labelled or predicted.

    `labels` and `predictions` are [examples, classes], 1 if an example has the label.

    Raises:
      ValueError: as `multi_label_macro_f1`.
    """
    counts = _label_counts(labels, predictions)
    return _f1(*(int(count) for count in counts.sum(axis=0)))


def multi_label_macro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the mean F1 over labels; a label without examples and predictions has 0.

    Raises:
      ValueError: if there are no examples or labels, not one prediction for each label, or numbers
        other than 0 and 1.
    """
    counts = _label_counts(labels, predictions)
    return float(np.mean([_f1(*(int(count) for count in of_label)) for of_label in counts]))


# For tasks with any number of labels for an example.
MULTI_LABEL_SCORES: dict[str, Callable[[ArrayLike, ArrayLike], float]] = {
    "macro_f1": multi_label_macro_f1,
    "micro_f1": multi_label_micro_f1,
}

# The names are from GLUE's tables; macro and micro F1 are for other tasks.
SCORES: dict[str, Callable[[ArrayLike, ArrayLike], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews_correlation": matthews_corrcoef,
    # With one label per example a wrong prediction is a false positive and a false negative.
    "micro_f1": accuracy,
    "pearson": pearson,
    "spearman": spearman,
}


def _pair(
    labels: ArrayLike, predictions: ArrayLike
) -> tuple[Shaped[np.ndarray, " examples"], Shaped[np.ndarray, " examples"]]:
    """Returns both as arrays after checking their shapes."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(
            f"labels have shape {labels.shape} and predictions {predictions.shape}; both must be "
            "[examples], one prediction per label"
        )
    if not len(labels):
        raise ValueError("there are no examples to score")
    return labels, predictions


def _label_counts(labels: ArrayLike, predictions: ArrayLike) -> Int[np.ndarray, "classes 3"]:
    """Returns for each label the numbers of correct predictions, of examples, of predictions."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 2 or labels.shape != predictions.shape or not labels.size:
        raise ValueError(
            f"labels have shape {labels.shape} and predictions {predictions.shape}; both must be "
            "[examples, classes], and not empty"
        )
    if unknown := sorted({*np.unique(labels).tolist(), *np.unique(predictions).tolist()} - {0, 1}):
        raise faults.wrong("a label or prediction", unknown[0], "0 or 1")
    is_there, is_given = labels == 1, predictions == 1
    counts = (is_there & is_given, is_there, is_given)
    return np.stack([count.sum(axis=0) for count in counts], axis=1)


def _correlation(function: Callable[..., Any], labels: ArrayLike, predictions: ArrayLike) -> float:
    labels, predictions = _pair(labels, predictions)
    if len(labels) < 2:
        raise faults.wrong("the number of examples", 1, "at least 2 for a correlation")
    with warnings.catch_warnings(action="ignore"):  # nan says the same
        result = function(labels.astype(np.float64), predictions.astype(np.float64))
    return float(result.statistic)


def _f1(correct: int, labelled: int, predicted: int) -> float:
    """Returns 2 P R / (P + R), 0 for a class without labels and predictions."""
    return 2 * correct / (labelled + predicted) if labelled + predicted else 0.0


def _confusion(labels: ArrayLike, predictions: ArrayLike) -> Int[np.ndarray, "classes classes"]:
    """Returns the number of examples by true class (row) and predicted class (column)."""
    labels, predictions = _pair(labels, predictions)
    classes, positions = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    rows, columns = np.split(positions, 2)
    cells = np.bincount(rows * len(classes) + columns, minlength=len(classes) ** 2)
    return cells.reshape(len(classes), len(classes))
