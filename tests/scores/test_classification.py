"""Scores of classes and numbers equal those of scikit-learn and scipy."""

import numpy as np
import pytest

from bertjax.scores import classification

NAN = float("nan")


def classes(seed, count):
    """Returns labels and predictions of 1 to 40 examples that agree more often than not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, count, rng.integers(1, 41))
    other = rng.integers(0, count, len(labels))
    return labels, np.where(rng.random(len(labels)) < 0.5, labels, other)


def test_scores_of_several_labels_are_those_of_scikit_learn():
    import sklearn.metrics

    for seed in range(12):
        rng = np.random.default_rng(seed)
        shape = (rng.integers(1, 20), rng.integers(1, 6))
        labels, predictions = (rng.random(shape) < share for share in rng.random(2))
        only = {} if shape[1] > 1 else {"labels": [1]}
        for average in ("micro", "macro"):
            expected = sklearn.metrics.f1_score(
                *(labels.astype(int), predictions.astype(int)),
                **{"average": average, "zero_division": 0, **only},
            )
            score = classification.MULTI_LABEL_SCORES[f"{average}_f1"](labels, predictions)
            assert score == pytest.approx(expected), (seed, average)


def test_what_is_no_labels_is_not_scored():
    for labels, predictions, message in (
        (np.ones(3), np.ones(3), r"must be .examples, classes."),
        (np.ones((2, 3)), np.ones((3, 2)), "have shape"),
        (np.ones((0, 3)), np.ones((0, 3)), "not empty"),
        (np.ones((2, 3)), np.full((2, 3), 0.5), "is 0.5; it must be 0 or 1"),
    ):
        for score in classification.MULTI_LABEL_SCORES.values():
            with pytest.raises(ValueError, match=message):
                score(labels, predictions)


# scikit-learn warns where the only class of all makes its confusion matrix a single number.
@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_scores_of_classes_are_those_of_scikit_learn():
    import sklearn.metrics

    pairs = [classes(seed, count) for count in (1, 2, 3, 7) for seed in range(8)]
    # Without positives, with constant predictions and with constant labels.
    pairs += [([0, 0, 0], [0, 0, 0]), ([0, 0, 0], [1, 0, 0]), ([1, 0, 0], [0, 0, 0])]
    pairs += [([0, 1, 1, 0], [1, 1, 1, 1]), ([1, 1, 1], [0, 1, 1]), ([1], [1])]
    for labels, predictions in map(np.asarray, pairs):
        if max(*labels, *predictions) < 2:
            expected = sklearn.metrics.f1_score(labels, predictions)
            assert classification.f1(labels, predictions) == pytest.approx(expected, abs=1e-12)
        expected = sklearn.metrics.accuracy_score(labels, predictions)
        assert classification.accuracy(labels, predictions) == pytest.approx(expected, abs=1e-12)
        labels, predictions = 3 * labels - 2, 3 * predictions - 2  # classes need not be 0, 1, ...
        for name in ("macro", "micro"):
            expected = sklearn.metrics.f1_score(labels, predictions, average=name)
            score = classification.SCORES[f"{name}_f1"](labels, predictions)
            assert score == pytest.approx(expected, abs=1e-12)
        expected = sklearn.metrics.matthews_corrcoef(labels, predictions)
        correlation = classification.matthews_corrcoef(labels, predictions)
        assert correlation == pytest.approx(expected, abs=1e-12)


def test_matthews_of_many_examples_does_not_overflow():
    labels = np.repeat([0, 1, 0, 1], [60_000, 90_000, 10_000, 20_000])
    predictions = np.repeat([0, 1, 1, 0], [60_000, 90_000, 10_000, 20_000])
    expected = (600 * 900 - 100 * 200) / np.sqrt(1000 * 800 * 700 * 1100)  # TP TN - FP FN
    assert classification.matthews_corrcoef(labels, predictions) == pytest.approx(expected)


def test_correlations_without_value_are_nan_and_no_warning():
    for labels, predictions in (
        ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),  # 0.1 - mean is not 0 in floating point
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [1.0, NAN, 3.0]),
    ):
        assert np.isnan(classification.pearson(labels, predictions))
        assert np.isnan(classification.spearman(labels, predictions))
    labels, predictions = [1.0, 2.0, 3.0], [1.0, 5.0, float("inf")]
    assert np.isnan(classification.pearson(labels, predictions))
    assert classification.spearman(labels, predictions) == pytest.approx(1.0)


def test_small_goldens():
    """Values worked out by hand."""
    labels, predictions = [0, 1, 1, 1, 0, 2], [0, 1, 0, 1, 1, 2]
    assert classification.accuracy(labels, predictions) == pytest.approx(4 / 6)
    assert classification.macro_f1(labels, predictions) == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    assert classification.f1([1, 1, 1, 0, 0], [1, 1, 0, 1, 0]) == pytest.approx(2 / 3)
    # Ranks 1 2.5 2.5 4 and 1 2 3.5 3.5.
    assert classification.spearman([0, 5, 5, 9], [2, 3, 7, 7]) == pytest.approx(3.75 / 4.5)
    assert classification.pearson([1, 2, 3], [1, 2, 9]) == pytest.approx(8 / np.sqrt(2 * 38))
    glue = {"accuracy", "f1", "matthews_correlation", "pearson", "spearman"}
    assert glue <= set(classification.SCORES)
    for score in classification.SCORES.values():
        assert score([0, 1, 1, 0], [0, 1, 1, 0]) == pytest.approx(1.0)


def test_examples_that_do_not_fit_together_are_refused():
    for labels, predictions, message in (
        ([0, 1, 1], [0, 1], r"\(3,\) and predictions \(2,\)"),
        ([[0, 1]], [[0, 1]], r"must be \[examples\]"),
        ([], [], "no examples"),
    ):
        for score in classification.SCORES.values():
            with pytest.raises(ValueError, match=message):
                score(labels, predictions)
    with pytest.raises(ValueError, match="class of f1 is -1; it must be 0 or 1.*macro_f1"):
        classification.f1([0, 1, 2], [0, 1, -1])
    for score in (classification.pearson, classification.spearman):
        with pytest.raises(ValueError, match="examples is 1; it must be at least 2"):
            score([1.0], [1.0])
