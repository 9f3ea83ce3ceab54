"""A reference curve has mean and spread of its seeds, and speaks for its own data alone."""

import json

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax.checks import references

IDENTITY = {"manifests": {"phase1": "abc"}, "tokenizer_sha256": "def"}


def options_of(**changes):
    config = config_lib.default_config()
    config.update_from_flattened_dict({name.replace("__", "."): it for name, it in changes.items()})
    return dict(config_lib.flatten(config))


def lines(offset=0.0, steps=range(10, 101, 10)):
    return [
        {"step": it, "tokens": 100.0 * it, "train/mlm_loss": 6 - it / 50 + offset} for it in steps
    ]


def test_means_and_spreads_are_those_of_the_seeds():
    made = references.make("own", "key", {0: lines(-0.1), 1: lines(), 2: lines(0.1)}, options_of())
    curve = made.curves["train/mlm_loss"]
    np.testing.assert_allclose(curve.tokens, np.arange(1000, 10_001, 1000))
    np.testing.assert_allclose(curve.bands()[0], 6 - np.arange(10, 101, 10) / 50)
    np.testing.assert_allclose(curve.bands()[1], 0.1)
    assert made.seeds == (0, 1, 2)


def test_a_long_run_is_a_few_kilobytes_from_its_first_point_to_its_last(tmp_path):
    seeds = {seed: lines(seed / 100, range(10, 100_001, 10)) for seed in range(3)}
    path = references.save(references.make("own", "key", seeds, options_of()), tmp_path)
    assert path.stat().length < 8_000
    (read,) = references.load_all(tmp_path)
    curve = read.curves["train/mlm_loss"]
    assert (len(curve.tokens), curve.tokens[-1]) == (30, 1e7)
    # A point is the mean of all lines since the one before it.
    assert curve.values[0][0] == pytest.approx(6 - np.arange(10, 3341, 10).mean() / 50, abs=1e-3)


def test_a_file_comes_back_as_it_was(tmp_path):
    made = references.make("own", "key", {0: lines(), 1: lines(0.1)}, options_of())
    references.save(made, tmp_path)
    assert references.load_all(tmp_path) == (made,)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ({0: lines()}, "needs two seeds"),
        ({0: lines(), 1: lines(steps=range(5, 50, 5))}, "other steps"),
    ],
)
def test_runs_that_give_no_spread_are_refused(runs, reason):
    with pytest.raises(ValueError, match=reason):
        references.make("own", "key", runs, options_of())


@pytest.mark.parametrize("content", ["[]", "{}", '{"name": "own", "curves": {"train/loss": 3}}'])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(ValueError, match=r"odd\.json"):
        references.load_all(tmp_path)


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"optimizer__weight_decay": 0.1, "schedule__peak_learning_rate": 1.0}, True),
        ({"seed": 7, "data__train_dir": "elsewhere", "log_every_steps": 7}, True),
        ({"model__dtype": "bfloat16", "model__hidden_dropout_prob": 0.0}, True),
        ({"global_batch_size": 128, "phases__phase1__num_steps": 2_000_000}, True),
        ({"model__hidden_size": 128}, False),
        ({"pretraining__masked_lm_prob": 0.3}, False),
        ({"phases__phase1__num_steps": 2_000_000}, False),
    ],
)
def test_a_key_is_of_data_model_objective_and_tokens_not_of_the_training(changes, is_same):
    own = references.key_of(options_of(), IDENTITY)
    assert (references.key_of(options_of(**changes), IDENTITY) == own) == is_same


def test_an_option_that_is_added_changes_no_key_at_its_default():
    before = {name: value for name, value in options_of().items() if name != "model.window"}
    assert references.key_of(before, IDENTITY) == references.key_of(options_of(), IDENTITY)


@pytest.mark.parametrize("name", IDENTITY)
def test_other_data_or_another_vocabulary_has_another_key(name):
    other = IDENTITY | {name: "other"}
    assert references.key_of(options_of(), other) != references.key_of(options_of(), IDENTITY)


def test_options_that_differ_are_those_that_change_what_is_learnt():
    made = references.make("own", "key", {0: lines(), 1: lines()}, options_of())
    changed = options_of(seed=3, optimizer__weight_decay=0.1, evaluation__max_batches=3,
                         mesh__data=1)  # fmt: skip
    assert references.differences(made, options_of(seed=3)) == []
    assert references.differences(made, changed) == ["optimizer.weight_decay is 0.1, not 0.01"]
    assert json.loads(json.dumps(made.options)) == made.options


def test_the_curves_of_the_package_are_of_three_seeds_that_fell_alike():
    names = [it.name for it in references.load_all()]
    assert names == [
        f"babylm_{it}" for it in ("bert", "electra", "hybrid", "left_to_right", "masked")
    ]
    for reference in references.load_all():
        assert len(reference.seeds) == 3
        for curve in reference.curves.values():
            mean, deviation = curve.bands()
            assert curve.tokens[-1] == 3662 * 32 * 128
            assert mean[-1] <= mean[0] and deviation[-1] < 0.05
