"""Each check speaks of the run that has its fault, with the figures, and is silent otherwise."""

import dataclasses
import math

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax.checks import references, runs, table

STEPS = np.arange(10, 1001, 10)
UNIGRAM, HELD_OUT = 6.4, "eval/heldout/mlm_loss"


def healthy(seed=0):
    """Returns the scalars of a run that learns, by name: values at STEPS."""
    rng = np.random.default_rng(seed)
    loss = 3 + 5 * np.exp(-STEPS / 150) + rng.normal(0, 0.04, len(STEPS))
    return {
        "train/mlm_loss": loss,
        "train/mlm_accuracy": np.linspace(0.02, 0.5, len(STEPS)),
        "train/learning_rate": np.minimum(STEPS / 100, (1000 - STEPS) / 900) * 1e-3,
        "train/grad_norm": 1.5 + rng.normal(0, 0.1, len(STEPS)),
        "train/skipped_steps": np.zeros(len(STEPS)),
        "perf/tokens_per_second": 4000 + rng.normal(0, 300, len(STEPS)),
        "perf/step_seconds": np.full(len(STEPS), 0.5),
    }


def options_of():
    config = config_lib.default_config()
    config.phases.phase1.num_steps = 1000
    config.schedule.peak_learning_rate = 1e-3
    config.schedule.warmup_steps = 100
    config.plateau.check_step = 500
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    return dict(config_lib.flatten(config))


OPTIONS = options_of()


def run_of(series, options=None, *, held_out=None, step=1000, **facts):
    """Returns a run of these series; `held_out` are losses at multiples of 200 steps."""
    lines = [
        {"step": int(at), "tokens": 1e3 * at, **{name: float(it[i]) for name, it in series.items()}}
        for i, at in enumerate(STEPS) if at <= step
    ]  # fmt: skip
    held_out = series["train/mlm_loss"][19::20] + 0.1 if held_out is None else held_out
    for i, loss in enumerate(held_out):
        at = {"step": 200 * (i + 1), "tokens": 2e5 * (i + 1)}
        lines.append({**at, HELD_OUT: loss, "eval/heldout/unigram_loss": UNIGRAM})
    lines.sort(key=lambda line: line["step"])
    return runs.Run("run", lines, OPTIONS | (options or {}), phase_ends=(1000,), **facts)


def names(run):
    return [name for name, _ in table.faults(run)]


def with_values(name, change):
    """Returns healthy scalars, one of which is a function of (step, value)."""
    series = healthy()
    return series | {name: np.array([*map(change, STEPS, series[name])])}


def reference(name="own", **options):
    seeds = {seed: run_of(healthy(seed), options).lines for seed in (1, 2, 3)}
    return references.make(name, "key", seeds, run_of(healthy(), options).options)


GOOD = healthy()
FAULTY = {
    "unigram plateau": (lambda: run_of(with_values("train/mlm_loss", lambda s, v: 6.3)), "6.40 is"),
    "trivial targets": (
        lambda: run_of(with_values("train/mlm_accuracy", lambda s, v: 0.99)), "99.0% of the"),
    "no warm-up": (lambda: run_of(GOOD, {"schedule.warmup_steps": 0}), "0.0001 at step 10"),
    "loss spikes": (
        lambda: run_of(with_values("train/mlm_loss", lambda s, v: v + (s == 510)), resumed=(500,)),
        "right after the resume at step 500"),
    "loss rises": (
        lambda: run_of(with_values("train/mlm_loss", lambda s, v: v + max(0, s - 500) / 1000)),
        "It diverges"),
    "leak": (lambda: run_of(GOOD, held_out=[6, 5, 4, 3, 2.5]), "0.49 nats below the training"),
    "held-out gap": (lambda: run_of(GOOD, held_out=[8, 7, 6, 5, 4.9]), "above the training"),
    "overfitted": (lambda: run_of(GOOD, held_out=[5, 4, 3.3, 3.5, 3.8]), "best at step 600"),
    "frozen at random": (
        lambda: run_of(GOOD, {"optimizer.frozen": ("embeddings.*",)}), "keeps embeddings"),
    "pairs at chance": (
        lambda: run_of(GOOD | {"train/nsp_loss": np.full(len(STEPS), 0.694)}), "a coin gets 0.693"),
    "passes over the text": (
        lambda: run_of(GOOD, data=runs.DataFacts(passes=0.2)), "80% of the records"),
    "missing documents": (
        lambda: run_of(GOOD, data=runs.DataFacts(
            documents=950, held_out_documents=200, held_out_fraction=0.1)), "47% of the training"),
    "reference curve": (
        lambda: run_of(with_values("train/mlm_loss", lambda s, v: v + 0.2), held_out=(),
                       options={"optimizer.weight_decay": 0.1}, references=(reference(),)),
        "optimizer.weight_decay is 0.1, not 0.01"),
    "no better than a baseline": (
        lambda: run_of(GOOD, held_out=[8, 7, 6.7, 6.6, 6.5]),
        "heldout: mlm_loss is 6.5000, no better than unigram_loss, 6.4000"),
    "warm-up too long": (
        lambda: run_of(with_values("train/learning_rate", lambda s, v: s * 1e-7),
                       {"schedule.warmup_steps": 10_000}), "10,000 steps is longer than the run"),
    "learning rate ends early": (
        lambda: run_of(with_values("train/learning_rate", lambda s, v: v * (s < 600))),
        "last 40% of the steps"),
    "learning rate never falls": (
        lambda: run_of(with_values("train/learning_rate", lambda s, v: 1e-3)), "100% of its peak"),
    "throughput falls": (
        lambda: run_of(with_values("perf/tokens_per_second", lambda s, v: v * (1 - s / 1200))),
        "tokens per second"),
    "skipped updates": (
        lambda: run_of(with_values("train/skipped_steps", lambda s, v: s // 100)), "10 of 1,000"),
    "steps without targets": (
        lambda: run_of(GOOD | {"train/steps_without_targets": STEPS / 10}), "100 of 1,000"),
    "gradients grow": (
        lambda: run_of(with_values("train/grad_norm", lambda s, v: v * (1 + (s / 150) ** 2))),
        "grows from"),
    "gradients not clipped": (
        lambda: run_of(with_values("train/grad_norm", lambda s, v: 40.0 if s == 700 else v),
                       {"optimizer.clip_norm": 0.0}), "norm is 40 at step 700"),
}  # fmt: skip


CLASSES = ("no", "yes")


def finetuned(loss=lambda s: 0.7 * np.exp(-s / 40), step=60, options=None, scores=None, **facts):
    """Returns a run of two classes that learns, with a line at each step."""
    lines = [{"step": s, "train/loss": float(loss(s)), "train/learning_rate": 1e-3 * (1 - s / step)}
             for s in range(1, step + 1)]  # fmt: skip
    learnt = {"accuracy": 0.9, "majority_accuracy": 0.55, "loss": 0.3}
    of_dev = {f"eval/dev/{name}": value for name, value in (learnt | (scores or {})).items()}
    changes = {"task": "finetuning", "init_from": "RUN", "finetuning.labels": CLASSES,
               "schedule.warmup_steps": 0, "model.hidden_size": 64}  # fmt: skip
    options = OPTIONS | changes | (options or {})
    return runs.Run("run", [*lines, {"step": step, **of_dev}], options, (), (step,), **facts)


FINETUNED = {
    "one class for all": (
        lambda: finetuned(scores={"only_class": 1.0}), "Every prediction for dev is 'yes'"),
    "training loss does not fall": (  # as with a learning rate 100 times too high
        lambda: finetuned(lambda s: 0.8, options={"schedule.peak_learning_rate": 1e-1}),
        "Likely causes: too high a learning rate (0.1, where 0.001 suits a width of 64)"),
    "few updates": (lambda: finetuned(step=7), "The run has 7 updates"),
    "evaluated on training examples": (
        lambda: finetuned(data=runs.DataFacts(overlap=1.0)), "100% of the lines"),
    "no better than a baseline": (  # as with shuffled labels
        lambda: finetuned(scores={"accuracy": 0.6, "loss": 1.4}), "above 0.6931 of equal shares"),
    "frozen at random": (
        lambda: finetuned(options={"optimizer.frozen": ("classifier.*",)}), "the head is new"),
}  # fmt: skip


def test_letters_have_less_to_learn_than_words():
    """An encoder of proteins that learns is 0.26 nats below the unigram loss after 1,000 steps."""
    data = runs.DataFacts(unigram_entropy=2.86)
    for loss, is_named in ((2.60, False), (2.80, True)):
        run = run_of(with_values("train/mlm_loss", lambda s, v, loss=loss: loss), data=data)
        assert ("unigram plateau" in dict(table.faults(run))) == is_named


def test_the_end_of_a_cosine_is_no_early_end():
    falling = with_values("train/learning_rate", lambda s, v: 5e-4 * (1 + np.cos(np.pi * s / 1000)))
    assert "learning rate ends early" not in dict(table.faults(run_of(falling)))


def test_labels_are_the_likeliest_fault_of_a_run_that_learns_its_rows_and_nothing_else():
    def first_cause(loss):
        run = finetuned(loss, scores={"accuracy": 0.6, "loss": 1.4})
        return dict(table.faults(run))["no better than a baseline"].split("Likely causes: ")[1]

    assert first_cause(lambda s: 0.7 * np.exp(-s / 10)).startswith("labels that do not follow")
    assert first_cause(lambda s: 0.7 * np.exp(-s / 100)).startswith("too few steps")


def test_every_check_has_a_case():
    assert {*FAULTY} == {*table.OF_PRETRAINING, *table.OF_ALL}
    assert {*FINETUNED} == {*table.OF_FINETUNING, *table.OF_ALL} & {*FINETUNED}
    assert {*table.OF_FINETUNING} <= {*FINETUNED}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_named_with_its_figures(name):
    make, figures = FAULTY[name]
    assert figures in dict(table.faults(make()))[name]


@pytest.mark.parametrize("name", FINETUNED)
def test_a_fault_of_a_finetuning_is_named_with_its_figures(name):
    make, figures = FINETUNED[name]
    assert figures in dict(table.faults(make()))[name]


@pytest.mark.parametrize(
    ("scores", "is_learnt"),
    [
        ({"accuracy": 0.55}, False),
        ({"pearson": -0.02}, False),
        ({"accuracy": 0.5, "loss": 0.71, "macro_f1": 0.5, "majority_macro_f1": 0.3}, False),
        ({"accuracy": 0.6, "loss": 0.6}, True),
        ({"accuracy": 0.8, "loss": 1.4}, True),  # sure of itself, and mostly right
        ({"rmse": 2.0, "mean_rmse": 2.0, "accuracy": math.nan}, False),  # the mean of a column
    ],
)
def test_a_finetuning_is_compared_with_what_knows_nothing(scores, is_learnt):
    assert (names(finetuned(scores=scores)) == []) == is_learnt
    goes_on = dataclasses.replace(finetuned(scores=scores), phase_ends=(90,))
    assert names(goes_on) == []


def test_the_encoder_may_be_frozen():
    assert names(finetuned(options={"optimizer.frozen": ("encoder.*",)})) == []


def test_causes_that_a_run_points_to_come_first():
    def causes(options, step=5000, loss=6.35):
        series = with_values("train/mlm_loss", lambda s, v: loss)
        run = run_of(series, {"model.hidden_size": 128} | options)
        lines = [line | {"step": line["step"] * step // 1000} for line in run.lines]
        run = dataclasses.replace(run, lines=lines, phase_ends=(step,))
        return dict(table.faults(run))["unigram plateau"].partition("Likely causes: ")[2]

    cut = {"budget.hours": 0.1, "budget.decisions": ((0, 90_000),)}
    assert causes(cut).startswith("too few steps (5,000 of 90,000, as config.budget.hours=0.1")
    assert causes({}, step=200).startswith("too few steps (200)")
    assert causes({}, loss=7.0).startswith("too high a learning rate (0.001);")
    assert causes({"schedule.peak_learning_rate": 1e-5}).startswith("too low a learning rate")
    assert causes({"optimizer.frozen": ("encoder.*",)}).startswith("config.optimizer.frozen keeps")


def test_a_discriminator_is_compared_with_the_share_that_it_saw():
    """Without an evaluation, training scores are."""
    share = {"train/replaced_share": np.full(len(STEPS), 0.1)}
    for loss, count in ((0.325, 1), (0.2, 0)):
        series = GOOD | share | {"train/discriminator_loss": np.full(len(STEPS), loss)}
        options = {"pretraining.objective": "replaced_tokens"}
        run = run_of(series, options, held_out=())
        assert names(run) == ["no better than a baseline"] * count
        assert [*table.faults(run, table.BEFORE)] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_is_silent_beside_its_reference_curve_and_while_it_goes_on(seed):
    assert names(run_of(healthy(seed + 10), references=(reference(),))) == []
    for step in (10, 60):
        assert names(run_of(healthy(seed + 10), held_out=(), step=step)) == []


@pytest.mark.parametrize(
    ("options", "explained"),
    [
        ({}, False),
        ({"model.hidden_dropout_prob": 0.1}, True),
        ({"evaluation.masked_lm_prob": 0.15, "pretraining.masked_lm_prob": 0.3}, True),
        ({"evaluation.masked_lm_prob": 0.3, "pretraining.masked_lm_prob": 0.15}, False),
    ],
)
def test_dropout_and_masks_explain_a_held_out_loss_that_is_lower(options, explained):
    held_out = GOOD["train/mlm_loss"][19::20] - 0.4
    assert ("leak" not in names(run_of(GOOD, options, held_out=held_out))) == explained


def test_even_gradients_need_no_clipping():
    assert names(run_of(GOOD, {"optimizer.clip_norm": 0.0})) == []


def test_a_noisy_training_loss_explains_a_held_out_loss_that_is_lower():
    noise = np.random.default_rng(0).normal(0, 0.3, len(STEPS))
    noisy = GOOD | {"train/mlm_loss": GOOD["train/mlm_loss"] + noise}
    for series, is_leak in ((GOOD, True), (noisy, False)):
        held_out = GOOD["train/mlm_loss"][19::20] - 0.3
        assert ("leak" in names(run_of(series, held_out=held_out))) == is_leak


def test_documents_that_are_trained_on_are_a_leak_whatever_the_losses():
    sentence = dict(table.faults(run_of(GOOD, data=runs.DataFacts(overlap=0.04))))["leak"]
    assert sentence.startswith("4% of the held-out documents")


def test_a_reference_names_options_that_differ_even_where_the_loss_does_not():
    run = run_of(GOOD, {"optimizer.weight_decay": 0.1}, references=(reference(),))
    sentence = dict(table.faults(run))["reference curve"]
    assert "and its loss does not" in sentence and "optimizer.weight_decay" in sentence


def test_a_loss_below_the_reference_curve_is_as_odd_as_one_above():
    low = with_values("train/mlm_loss", lambda step, value: value - 0.5)
    run = run_of(low, held_out=(), references=(reference(),))
    assert "nats below the reference curve own" in dict(table.faults(run))["reference curve"]
    assert "Its options are the same" in dict(table.faults(run))["reference curve"]


def test_a_short_run_is_judged_by_its_options():
    """Its only line is the mean of 60 steps, in which the rate has risen and fallen."""
    line = {"step": 60, "train/mlm_loss": 6.3, "train/learning_rate": 3.7e-5}
    options = OPTIONS | {"schedule.warmup_steps": 6, "plateau.check_step": 20}
    run = runs.Run("run", [line], options, phase_ends=(60,))
    assert names(run) == []
    by_share = options | {"schedule.warmup_steps": 10_000, "schedule.warmup_share": 0.1}
    assert names(dataclasses.replace(run, options=by_share)) == []
    too_long = dataclasses.replace(run, options=options | {"schedule.warmup_steps": 10_000})
    assert names(too_long) == ["warm-up too long"]


def test_rows_of_values_need_no_warm_up_and_are_read_many_times():
    series = {"train/value_loss": np.linspace(1, 0.2, len(STEPS)),
              "train/learning_rate": np.full(len(STEPS), 1e-3)}  # fmt: skip
    options = {"pretraining.objective": "masked_values", "model.embeddings": "columns",
               "schedule.name": "constant", "schedule.warmup_steps": 0}  # fmt: skip
    run = run_of(series, options, held_out=(), data=runs.DataFacts(passes=300))
    assert names(run) == []


def test_finetuning_and_a_run_without_evaluation_are_read():
    run = run_of({"train/loss": np.linspace(1, 0.2, len(STEPS))}, held_out=())
    assert names(run) == []
    finetuning = dataclasses.replace(run, options=run.options | {"task": "finetuning"})
    assert names(finetuning) == []
