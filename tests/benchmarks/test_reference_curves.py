"""A reference curve is made of finished runs that differ in their seeds alone."""

import pytest

from benchmarks import reference_curves
from tests import small_runs


def write(directory, name, seed, steps=100, **options):
    config = small_runs.config_of(directory, seed=seed, **options)
    config.phases.phase1.num_steps = steps
    small_runs.write(directory / name, config, losses=lambda step: 6 - step / 50 + seed / 10)
    return directory / name


def test_the_curve_has_the_mean_of_the_runs_and_their_seeds(tmp_path):
    made = reference_curves.of_runs("own", [write(tmp_path, f"run_{it}", it) for it in (4, 6)])
    assert (made.name, made.seeds) == ("own", (4, 6))
    curve = made.curves["train/mlm_loss"]
    assert curve.bands()[0].tolist() == pytest.approx(
        [6 - step / 50 + 0.5 for step in small_runs.STEPS]
    )


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"seed": 1, "steps": 200}, "is at step 100: give finished runs"),
        ({"seed": 1, "optimizer.weight_decay": 0.1}, "other data or options than one"),
        ({"seed": 1, "model.hidden_size": 96}, "other data or options than one"),
        ({"seed": 0}, "a spread needs two seeds"),
    ],
)
def test_runs_that_are_not_of_one_recipe_are_refused(tmp_path, second, reason):
    runs = [write(tmp_path, "one", 0), write(tmp_path, "two", **second)]
    with pytest.raises(ValueError, match=reason):
        reference_curves.of_runs("own", runs)
