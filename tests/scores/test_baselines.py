"""Claims about what a score is compared with, and when nothing was learnt."""

import numpy as np
import pytest

from bertjax.scores import baselines

WINE = {"replaced_loss": 0.6692, "always_no_loss": 0.6653}
WINE |= {"replaced_accuracy": 0.6143, "always_no_accuracy": 0.6176}
SERIES = {"value_loss": 0.3, "mean_loss": 0.9, "last_value_loss": 0.4, "interpolation_loss": 0.2}


@pytest.mark.parametrize(
    ("scores", "worse"),
    [
        (WINE, ["replaced_loss"]),
        (WINE | {"replaced_loss": 0.64}, []),  # the loss says more than the accuracy
        (WINE | {"replaced_loss": np.nan}, ["replaced_loss"]),
        (SERIES, ["value_loss"]),  # the line is the best of the baselines
        (SERIES | {"interpolation_loss": np.nan}, []),
        (SERIES | {"category_loss": 1.0, "frequencies_loss": 1.0}, ["value_loss", "category_loss"]),
        ({"mlm_loss": 6.3, "unigram_loss": 6.3}, ["mlm_loss"]),
        ({"mlm_loss": 6.3}, []),
        ({"discriminator_loss": 0.32, "share_loss": 0.325}, ["discriminator_loss"]),
        ({"discriminator_loss": 0.31, "share_loss": 0.325}, []),
        ({"accuracy": 0.5, "majority_accuracy": 0.6}, ["accuracy"]),
        ({"accuracy": 1.0, "majority_accuracy": 1.0}, []),  # one class: nothing is better
        ({"mse": 0.5, "naive_mse": 0.6, "mae": 0.5, "naive_mae": 0.5}, []),
        ({"rmse": 3.0, "mean_rmse": 2.0, "mae": 2.0, "mean_mae": 2.0}, ["rmse", "mae"]),
        ({"mae_in_units/a": 3.0, "naive_mae_in_units/a": 2.0}, ["mae_in_units/a"]),
        ({"mae_in_units/a": 1.0, "naive_mae_in_units/a": 2.0, "naive_mae_in_units/b": 0.5}, []),
    ],
)
def test_a_score_that_is_no_better_than_the_best_of_its_baselines_is_named(scores, worse):
    sentences = baselines.not_better({"loss": 9.0} | scores)
    assert [*sentences] == worse
    for name, sentence in sentences.items():
        baseline = baselines.best(scores)[name]
        assert f"{baseline}, {scores[baseline]:.4f}" in sentence
