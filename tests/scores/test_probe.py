"""The linear probe equals scikit-learn's logistic regression."""

import numpy as np
import pytest

from bertjax.scores import probe


def make(classes=3, count=90, width=6, noise=1.5, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, classes, count)
    centers = rng.normal(size=(classes, width))
    return centers[numbers] + noise * rng.normal(size=(count, width)), numbers


def test_shares_of_the_classes_are_scikit_learns():
    from sklearn import linear_model

    for classes in (2, 3, 5):
        vectors, numbers = make(classes)
        weights = probe.fit(vectors, numbers, classes=classes)
        logits = vectors @ weights[:-1] + weights[-1]
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        # For two classes theirs has one row of weights: its square counts twice that of two halves.
        strength = 1.0 if classes > 2 else 2.0
        theirs = linear_model.LogisticRegression(C=strength, tol=1e-8, max_iter=5000)
        expected = theirs.fit(vectors, numbers).predict_proba(vectors)
        np.testing.assert_allclose(shares, expected, atol=1e-4)


def test_all_examples_are_scored_by_a_classifier_that_has_not_seen_them():
    vectors, numbers = make(2, count=61, width=80)
    labels = [f"class {number}" for number in numbers]
    # With more numbers than examples any labels are fitted perfectly.
    fitted = probe.fit(vectors, numbers, classes=2)
    assert (probe.predict(fitted, vectors) == numbers).all()
    rng = np.random.default_rng(1)
    found = probe.cross_validated(vectors, rng.permutation(labels).tolist())
    assert found["accuracy"] < 0.75
    vectors, numbers = make(noise=0.05)
    found = probe.cross_validated(vectors, [str(number) for number in numbers])
    assert found == {"accuracy": 1.0, "macro_f1": 1.0}
    with pytest.raises(ValueError, match="classes of a probe is .*; it must be at least two"):
        probe.cross_validated(np.eye(3), ["x", "x", "x"])
