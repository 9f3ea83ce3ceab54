"""A probe of vectors: the scores of a linear classifier on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from bertjax.options import faults
from bertjax.scores import classification

FOLDS = 5
_SEED = 0  # of the folds, so that two models have the same
_STEPS = 200  # at most; some dozens are enough
_TOLERANCE = 1e-4  # largest gradient at the end, as in scikit-learn


def cross_validated(
    vectors: Float[np.ndarray, "examples hidden"], labels: Sequence[str]
) -> dict[str, float]:
    """Returns accuracy and macro F1 of a logistic regression by cross-validation.

    Each of FOLDS folds has the same share of every class; all examples are scored once.

    Raises:
      ValueError: if there are fewer than two classes.
    """
    names, numbers = np.unique(np.asarray(labels), return_inverse=True)
    if len(names) < 2:
        raise faults.wrong("the classes of a probe", names.tolist(), "at least two")
    folds, predictions = _folds(numbers), np.zeros_like(numbers)
    for fold in range(FOLDS):
        is_held_out = folds == fold
        if not is_held_out.any():
            continue
        fitted = fit(vectors[~is_held_out], numbers[~is_held_out], classes=len(names))
        predictions[is_held_out] = predict(fitted, vectors[is_held_out])
    return {
        "accuracy": classification.accuracy(numbers, predictions),
        "macro_f1": classification.macro_f1(numbers, predictions),
    }


def _folds(numbers: Int[np.ndarray, " examples"]) -> Int[np.ndarray, " examples"]:
    """Returns the fold of each example: each class is dealt in turn, in random order."""
    order = np.random.default_rng(_SEED).permutation(len(numbers))
    by_class = order[np.argsort(numbers[order], kind="stable")]
    folds = np.empty(len(numbers), np.int64)
    folds[by_class] = np.arange(len(numbers)) % FOLDS
    return folds


def fit(
    vectors: Float[np.ndarray, "examples hidden"],
    numbers: Int[np.ndarray, " examples"],
    *,
    classes: int,
) -> Float[np.ndarray, "inputs classes"]:
    """Returns the weights of a multinomial logistic regression, the last row its biases.

    It minimizes the sum of the cross-entropies plus half of the squared weights without the biases,
    like scikit-learn's LogisticRegression with C = 1.
    """
    from scipy import optimize  # only here: it takes a second

    inputs = np.pad(vectors.astype(np.float64), ((0, 0), (0, 1)), constant_values=1.0)
    targets = np.eye(classes)[numbers]

    def loss(flat: Float[np.ndarray, " weights"]) -> tuple[float, Float[np.ndarray, " weights"]]:
        weights = flat.reshape(-1, classes)
        logits = inputs @ weights
        logits -= logits.max(axis=1, keepdims=True)
        log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        slopes = inputs.T @ (np.exp(log_shares) - targets)
        slopes[:-1] += weights[:-1]
        value = -(targets * log_shares).sum() + 0.5 * (weights[:-1] ** 2).sum()
        return float(value), slopes.reshape(-1)

    fitted = optimize.minimize(
        loss,
        np.zeros(inputs.shape[1] * classes),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": _TOLERANCE, "ftol": 0.0, "maxiter": _STEPS},
    )
    return fitted.x.reshape(-1, classes)


def predict(
    weights: Float[np.ndarray, "inputs classes"], vectors: Float[np.ndarray, "examples hidden"]
) -> Int[np.ndarray, " examples"]:
    """Returns the number of the likeliest class of each vector."""
    return (vectors.astype(np.float64) @ weights[:-1] + weights[-1]).argmax(axis=1)
