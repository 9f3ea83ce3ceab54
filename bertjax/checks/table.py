"""The faults that a run may have, a row each: a name, and a function of the run.

The log, `compare` and the page of `start` speak of a run by these rows alone. A check returns a
sentence with its figures, or None where nothing is off or its series is missing. Thresholds are
wide: three healthy seeds were silent, and twelve of thirteen faults that users make were named
(small runs, 2026-11-27).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from bertjax.checks import references, runs
from bertjax.jobs import automatic, finetuning_rates
from bertjax.scores import baselines

Steps = Float[np.ndarray, " lines"]
Values = Float[np.ndarray, " lines"]

LAST_SHARE = 0.1  # of the lines, over which the loss at the end is averaged
SPIKE_NATS = 0.4  # above the level before it
RISE_NATS = 0.25  # from the best stretch to the end
GROWTH = 3.0  # of the gradient norm, from the second quarter to the last
HEAVY_TAIL = 5.0  # the largest gradient norm after the warm-up, by the median
SLOW = 0.6  # of the tokens per second at the start
LEAST_HOURS = 0.05  # of a run whose speed is judged
LEAK_NATS = 0.15  # that a mean over few held-out batches may be lower by
NATS_PER_DROPOUT = 3.0  # of training loss, for a dropout of 1; 0.3 nats at 0.1
NATS_PER_MASK_RATE = 5.0  # of loss, from a mask rate of 0 to 1
NEAR, ERRORS = 5, 3.0  # lines around an evaluation, and standard errors of their mean
GAP_NATS = 1.0  # from the training loss up to the held-out loss
OVERFITTED_NATS = 0.1  # from the best held-out loss to the last
TRIVIAL_ACCURACY = 0.97
PAIR_CHANCE = math.log(2)
LEAST_PASSES, MOST_PASSES = 0.25, 100.0
MISSING_RATIO, MISSING_DEVIATIONS = 1.5, 5.0
# The share of the steps before which the rate should not be gone: a cosine has 1% of it at 93.6%.
ENDED_SHARE = 0.9
WORDS_NATS = 6.0  # of the unigram loss of a text in words; letters have less to learn
SHORT, SHORT_MARGIN = 1000, 0.1  # steps, and nats below the unigram loss that they should reach
# The first parts of the paths of heads that no pretraining has.
HEADS = ("classifier", "span_head")
FEW_UPDATES, MANY_UPDATES = 20, 100  # of a finetuning
SHARED = 0.1  # of the lines of an evaluation file
UNTAUGHT, RISEN = 0.97, 1.1  # of the training loss at the start, or more at the end
NEAR_MAJORITY, LEAST_CORRELATION = 0.1, 0.1  # of accuracy, of numbers
MEMORIZED = 0.1  # of the evaluation loss; a training loss below it
UNUSUAL = 8.0  # times the usual learning rate, or a share of it
OFF_SPREADS, OFF_NATS = 5.0, 0.2  # from a reference curve, whichever is more


def _plateau(run: runs.Run) -> str | None:
    if _is_young(run):
        return None
    level = run.last(f"{runs.HELD_OUT}unigram_loss")
    if run.data.unigram_entropy is not None:
        level = run.data.unigram_entropy
    loss = _at_end(run, f"train/{run.main_loss}")
    margin = run.options["plateau.margin"] * min(1.0, level / WORDS_NATS)
    if run.step < SHORT:
        margin = min(margin, SHORT_MARGIN)
    if not loss > level - margin:
        return None
    return (
        f"The training loss ends at {loss:.2f} nats; {level:.2f} is the unigram plateau, reached "
        f"without the context, and a model that learns gets {margin:.2g} below it. "
        f"{_causes(run, is_high=loss > level + margin)}"
    )


def _at_baseline(run: runs.Run) -> str | None:
    if _is_young(run):
        return None
    is_said = _plateau(run) is not None
    sentences = [
        f"{of_set}: {sentence}"
        for of_set, scores in _judged(run).items()
        for name, sentence in baselines.not_better(scores).items()
        if not (is_said and name == run.main_loss) and baselines.ONLY_CLASS not in scores
    ]
    sentences += filter(None, (_guessed(run, *pair) for pair in run.scores.items()))
    if not sentences:
        return None
    return f"{'; '.join(sentences)}: a model that learnt nothing scores as well. {_causes(run)}"


def _judged(run: runs.Run) -> dict[str, dict[str, float]]:
    """Returns the scores of the last evaluation, without one the averages of the last line."""
    lines = [line for line in run.lines if "train/learning_rate" in line]
    if run.scores or len(lines) < 2:  # a single line has the first steps in its mean
        return run.scores
    averages = {
        name.removeprefix("train/"): float(value)
        for name, value in lines[-1].items()
        if name.startswith("train/") and value is not None
    }
    return {"training": {**averages, **run.chance(averages)}}


def _guessed(run: runs.Run, of_set: str, scores: Mapping[str, float]) -> str | None:
    """Returns a sentence on labels that a finetuning guesses, as after they were shuffled."""
    if (correlation := scores.get("pearson", 1.0)) < LEAST_CORRELATION:
        return f"{of_set}: pearson is {correlation:.4f}, where numbers at random have 0"
    labels = len(run.options["finetuning.labels"])
    accuracy, majority = (scores.get(it, math.nan) for it in ("accuracy", "majority_accuracy"))
    loss = scores.get("loss", math.nan)
    if run.is_pretraining or labels < 2 or not loss > math.log(labels):
        return None
    if baselines.ONLY_CLASS in scores or not accuracy < majority + NEAR_MAJORITY:
        return None
    return (
        f"{of_set}: loss is {loss:.4f}, above {math.log(labels):.4f} of equal shares of the "
        f"{labels} classes, and accuracy is {accuracy:.4f}, majority_accuracy {majority:.4f}"
    )


def one_class(of_set: str, number: float, labels: Sequence[str]) -> str:
    """Returns the sentence on an evaluation set all of whose predictions are one class."""
    label = repr(labels[int(number)]) if 0 <= number < len(labels) else "the same"
    return f"Every prediction for {of_set} is {label}: the model tells nothing apart there"


def _one_class(run: runs.Run) -> str | None:
    numbers = {name: scores.get(baselines.ONLY_CLASS) for name, scores in run.scores.items()}
    sentences = [
        one_class(name, number, run.options["finetuning.labels"])
        for name, number in numbers.items()
        if number is not None and math.isfinite(number)
    ]
    return f"{'. '.join(sentences)}. {_causes(run)}" if sentences else None


def _is_young(run: runs.Run) -> bool:
    """Whether a run may still be at its baseline."""
    check_step = run.options["plateau.check_step"] if run.is_pretraining else 0
    return not run.is_finished and not 0 < check_step <= run.step


def _causes(run: runs.Run, *, is_high: bool = False) -> str:
    """Returns what may keep a run from learning, the likeliest first.

    `is_high` says that its loss is above the level of a model that knows nothing.
    """
    options, rate = run.options, run.options["schedule.peak_learning_rate"]
    width, usual = options["model.hidden_size"], _usual_rate(run)
    hours, frozen = options["budget.hours"], options["optimizer.frozen"]
    planned = sum(it for decision in options["budget.decisions"][:1] for it in decision[1:])
    is_cut = run.is_finished and run.step < planned
    is_short = run.step < (SHORT if run.is_pretraining else MANY_UPDATES) or 2 * run.step < planned
    is_usual = usual / UNUSUAL <= rate <= UNUSUAL * usual
    suits = f"{rate:g}" if is_usual else f"{rate:g}, where {usual:g} suits a width of {width}"
    bounded = f" of {planned:,}, as config.budget.hours={hours:g} allowed" if is_cut else ""
    likelihoods = {
        f"too few steps ({run.step:,}{bounded})": int(is_short),
        f"too high a learning rate ({suits})": 2 * (rate > UNUSUAL * usual) or int(is_high),
        f"too low a learning rate ({suits})": 2 * (rate < usual / UNUSUAL),
        _FAULTS_OF_DATA[_reads(run)]: 3 * _is_memorized(run),
    }
    if frozen:
        likelihoods[f"config.optimizer.frozen keeps {', '.join(frozen)} as they were"] = 3
    ordered = sorted(likelihoods, key=likelihoods.__getitem__, reverse=True)
    return f"Likely causes: {'; '.join(ordered)}"


def _is_memorized(run: runs.Run) -> bool:
    """Whether a finetuning has learnt its training rows, and nothing that holds for others."""
    losses = [scores.get("loss", math.nan) for scores in run.scores.values()]
    return not run.is_pretraining and any(run.last("train/loss") < MEMORIZED * it for it in losses)


def _usual_rate(run: runs.Run) -> float:
    """Returns the peak learning rate that suits the width of a run, by the tables of recipes."""
    width = run.options["model.hidden_size"]
    if not run.is_pretraining:
        return finetuning_rates.by_table(width, rows=0)["schedule.peak_learning_rate"]
    sizes = automatic.SIZES.values()
    fitting = (it.peak_learning_rate for it in sizes if width >= it.hidden_size)
    return next(fitting, automatic.SIZES["tiny"].peak_learning_rate)


_FAULTS_OF_DATA = {
    "labels": "labels that do not follow from the inputs (shuffled or shifted), or too few rows",
    "values": "values that hold nothing to learn",
    "tokens": "labels that do not belong to their positions, texts that repeat the same lines, or "
    "another vocabulary than the one of the records",
}


def _reads(run: runs.Run) -> str:
    if not run.is_pretraining:
        return "labels"
    return "values" if run.reads_values else "tokens"


def _trivial(run: runs.Run) -> str | None:
    accuracy = _at_end(run, f"train/{run.main_loss.replace('loss', 'accuracy')}")
    if run.reads_values or not accuracy > TRIVIAL_ACCURACY:
        return None
    return (
        f"{accuracy:.1%} of the predicted tokens are right, more than text allows: the labels are "
        "visible in the input, or they are padding"
    )


def _warm_up(run: runs.Run) -> str | None:
    options = run.options
    if run.reads_values:
        return None
    given = ("schedule.warmup_steps", "schedule.warmup_share", "schedule.warmup_tokens")
    steps, rate = run.series("train/learning_rate")
    if any(options[name] for name in given) or options["init_from"] or not len(rate):
        return None
    return (
        f"There is no warm-up: the learning rate is {rate[0]:.2g} at step {int(steps[0]):,}. The "
        "first updates are as large as any, when Adam has seen next to no gradient; set "
        "config.schedule.warmup_share=0.1"
    )


def _rate_never_peaks(run: runs.Run) -> str | None:
    peak = run.options["schedule.peak_learning_rate"]
    if not run.phase_ends or run.warmup_steps <= run.phase_ends[-1]:
        return None
    return (
        f"The warm-up of {run.warmup_steps:,} steps is longer than the run of "
        f"{run.phase_ends[-1]:,}: the learning rate never reaches its peak of {peak:g}"
    )


def _rate_ends_early(run: runs.Run) -> str | None:
    steps, rate = run.series("train/learning_rate")
    if not len(rate) or not rate.max() > 0:
        return None
    gone = steps[steps > steps[rate > 0.01 * rate.max()][-1]]
    if not len(gone) or gone[0] >= ENDED_SHARE * run.step:
        return None
    return (
        f"The learning rate is below 1% of its peak from step {int(gone[0]):,} of {run.step:,} on: "
        f"the last {1 - gone[0] / run.step:.0%} of the steps teach next to nothing"
    )


def _rate_never_falls(run: runs.Run) -> str | None:
    rate = run.series("train/learning_rate")[1]
    # The peak of a short run may lie between two lines.
    peak = max(run.options["schedule.peak_learning_rate"], rate.max(initial=0))
    if not run.is_finished or run.reads_values or len(rate) < 2 or rate[-1] < 0.9 * peak:
        return None
    if run.warmup_steps >= run.phase_ends[-1]:
        return None  # it still rises
    return (
        f"The learning rate is {rate[-1]:.2g} at the end, {rate[-1] / peak:.0%} of its peak: "
        "a run without a decay ends above the loss that it could have"
    )


def _spikes(run: runs.Run) -> str | None:
    steps, loss = _after_warm_up(run, f"train/{run.main_loss}")
    places = [i for i in range(3, len(loss)) if _is_spike(loss, i)]
    if not places:
        return None
    i = max(places, key=lambda i: loss[i])
    resumed = [step for step in run.resumed if any(steps[p - 1] <= step < steps[p] for p in places)]
    after = f", right after the resume at step {resumed[0]:,}" if resumed else ""
    return (
        f"The loss jumps {len(places)} time{'s' * (len(places) > 1)} by more than {SPIKE_NATS:g} "
        f"nats, to {loss[i]:.2f} at step {int(steps[i]):,}{after}. "
        + ("The optimizer's state or the data differ from those before the stop" if resumed else
           "Likely causes: too high a learning rate, no clipping, or damaged records")
    )  # fmt: skip


def _rises(run: runs.Run) -> str | None:
    steps, loss = _after_warm_up(run, f"train/{run.main_loss}")
    width = max(3, round(LAST_SHARE * len(loss)))
    if len(loss) < 3 * width or _changes_task(run):
        return None
    means = np.convolve(loss, np.full(width, 1 / width), "valid")
    best = int(np.nanargmin(means))
    if not means[-1] - means[best] > RISE_NATS:
        return None
    return (
        f"The training loss rises: from {means[best]:.2f} nats around step "
        f"{int(steps[best + width // 2]):,} to {means[-1]:.2f} at the end. It diverges; "
        "a third of the learning rate may help"
    )


def _throughput(run: runs.Run) -> str | None:
    steps, speed = run.series("perf/tokens_per_second")
    begin = run.phase_ends[-2] if len(run.phase_ends) > 1 else 0
    in_last = speed[steps > begin]  # a phase of longer rows is slower
    quarter = len(in_last) // 4
    if quarter < 3 or run.last("hours") < LEAST_HOURS:
        return None
    # The fast lines of the end against the slow ones of the start: other jobs disturb for a while.
    first, last = np.nanpercentile(in_last[:quarter], 20), np.nanpercentile(in_last[-quarter:], 80)
    if not last < SLOW * first:
        return None
    return (
        f"The speed falls from {first:,.0f} to {last:,.0f} tokens per second: another job on the "
        "machine, a hot device, or a disk that cannot keep up"
    )


def _leak(run: runs.Run) -> str | None:
    if run.data.overlap:
        return (
            f"{run.data.overlap:.0%} of the held-out documents are trained on, word for word: the "
            "held-out scores say nothing of text that the model has not seen"
        )
    gap, error = _gap(run)
    allowed = LEAK_NATS + ERRORS * error + _explained(run)
    if not gap < -allowed:
        return None
    return (
        f"The held-out loss is {-gap:.2f} nats below the training loss, more than dropout, "
        f"masks and noise explain ({allowed:.2f}): the held-out text is trained on, or is easier"
    )


def _held_out_gap(run: runs.Run) -> str | None:
    gap, error = _gap(run)
    if not gap > GAP_NATS + ERRORS * error:
        return None
    return (
        f"The held-out loss is {gap:.2f} nats above the training loss: the held-out text is of "
        "another kind, training batches are not what the evaluation reads, or the run is overfitted"
    )


def _overfitted(run: runs.Run) -> str | None:
    steps, loss = run.series(f"{runs.HELD_OUT}{run.main_loss}")
    if len(loss) < 3 or not np.isfinite(loss).any():
        return None
    best = int(np.nanargmin(loss))
    if not loss[-1] - loss[best] > OVERFITTED_NATS:
        return None
    return (
        f"The held-out loss was best at step {int(steps[best]):,}, {loss[best]:.2f} nats, and ends "
        f"at {loss[-1]:.2f}: fewer steps, more text, or dropout; --step=best reads the best one"
    )


def _skipped(run: runs.Run) -> str | None:
    count = run.last("train/skipped_steps")
    if not count > max(2, 0.001 * run.step):
        return None
    return (
        f"{int(count):,} of {run.step:,} updates were skipped for a non-finite loss or gradient: a "
        "smaller learning rate, or a longer warm-up"
    )


def _untaught(run: runs.Run) -> str | None:
    count = run.last("train/steps_without_targets")
    if not count > 0.01 * run.step:
        return None
    return f"{int(count):,} of {run.step:,} steps had nothing to predict for one of the losses"


def _gradients_grow(run: runs.Run) -> str | None:
    _, norms = _after_warm_up(run, "train/grad_norm")
    quarter = len(norms) // 4
    if quarter < 3:
        return None
    before, after = np.nanmedian(norms[quarter : 2 * quarter]), np.nanmedian(norms[-quarter:])
    if not after > GROWTH * before:
        return None
    return (
        f"The gradient norm grows from {before:.2g} to {after:.2g} (medians of the second and the "
        "last quarter of the run): the run becomes unstable"
    )


def _unclipped(run: runs.Run) -> str | None:
    steps, norms = _after_warm_up(run, "train/grad_norm")
    if run.options["optimizer.clip_norm"] or not len(norms) or not np.isfinite(norms).any():
        return None
    largest, median = int(np.nanargmax(norms)), float(np.nanmedian(norms))
    if not norms[largest] > HEAVY_TAIL * median:
        return None
    return (
        f"Gradients are not clipped; their norm is {norms[largest]:.2g} at step "
        f"{int(steps[largest]):,}, {norms[largest] / median:.1f} times the median. One bad batch "
        "may undo many steps: config.optimizer.clip_norm=1"
    )


def _frozen(run: runs.Run) -> str | None:
    patterns = run.options["optimizer.frozen"]
    if run.options["init_from"]:  # the parts of a finetuning's head are new
        patterns = () if run.is_pretraining else [it for it in patterns if _is_of_head(it)]
    if not patterns:
        return None
    return (
        f"config.optimizer.frozen keeps {', '.join(patterns)} at random initial values: "
        + ("without config.init_from, nothing was learnt there" if run.is_pretraining else
           "the head is new, and must be trained")
    )  # fmt: skip


def _is_of_head(pattern: str) -> bool:
    return any(re.fullmatch(pattern, f"{part}.kernel") for part in HEADS)


def _untaught_labels(run: runs.Run) -> str | None:
    before, after = _ends(run)
    if not run.is_finished or _one_class(run) or not after > UNTAUGHT * before:
        return None
    return (
        f"The training loss does not fall: {before:.3f} at the start, {after:.3f} at the end. "
        f"{_causes(run, is_high=after > RISEN * before)}"
    )


def _ends(run: runs.Run) -> tuple[float, float]:
    """Returns the training loss of the first lines and of the last ones, NaN without enough."""
    loss = run.series("train/loss")[1]
    if len(loss) < NEAR:
        return math.nan, math.nan
    count = max(1, round(LAST_SHARE * len(loss)))
    return float(np.nanmean(loss[:count])), _at_end(run, "train/loss")


def _few_updates(run: runs.Run) -> str | None:
    before, after = _ends(run)
    if not run.is_finished or run.step >= FEW_UPDATES or not after > before / 2:
        return None
    return (
        f"The run has {run.step} updates, and the training loss goes from {before:.3f} to "
        f"{after:.3f}: weights hardly move in so few. More passes over the examples "
        f"(config.finetuning.num_epochs is {run.options['finetuning.num_epochs']:g}), or a smaller "
        "batch"
    )


def _shared_examples(run: runs.Run) -> str | None:
    if not run.data.overlap or run.data.overlap < SHARED:
        return None
    return (
        f"{run.data.overlap:.0%} of the lines of the evaluation file are in the training file, "
        "word for word: the scores say nothing of examples that the model has not seen"
    )


def _pairs(run: runs.Run) -> str | None:
    name = f"train/{run.options['pretraining.pair_loss']}_loss"
    loss = _at_end(run, name)
    if not run.is_finished or run.step < SHORT or not loss > PAIR_CHANCE - 0.005:
        return None
    return f"{name} ends at {loss:.3f} nats; a coin gets {PAIR_CHANCE:.3f}: pairs are not learnt"


def _passes(run: runs.Run) -> str | None:
    count = run.data.passes
    if run.reads_values or count is None or LEAST_PASSES <= count <= MOST_PASSES:
        return None
    if count > MOST_PASSES:
        return f"The text is read {count:.0f} times: more text teaches more than more passes"
    return (
        f"The run reads {count:.2f} passes of its text, so {1 - count:.0%} of the records are "
        "never read: more steps, or config.phases.phase1.num_epochs=1"
    )


def _missing_documents(run: runs.Run) -> str | None:
    held, share, documents = (
        run.data.held_out_documents,
        run.data.held_out_fraction,
        run.data.documents,
    )
    if not held or not share or not documents:
        return None
    if run.data.overlap:  # the held-out records are not the rest of that text
        return None
    expected = documents * share / (1 - share)
    is_chance = held - expected < MISSING_DEVIATIONS * math.sqrt(expected)
    if held < MISSING_RATIO * expected or is_chance:
        return None
    return (
        f"The training records hold {documents:,} documents; {held:,} held-out ones at a "
        f"fraction of {share:g} belong to {held / share:,.0f}: {1 - expected / held:.0%} of the "
        "training text is missing"
    )


def _reference(run: runs.Run) -> str | None:
    sentences = [it for one in run.references if (it := _against(run, one))]
    return " ".join(sentences) or None


def _against(run: runs.Run, one: references.Reference) -> str | None:
    differs = "; ".join(references.differences(one, run.options))
    for name, curve in one.curves.items():
        off, allowed, tokens = _distance(run, name, curve)
        if abs(off) > allowed:
            return (
                f"{name} is {abs(off):.2f} nats {'above' if off > 0 else 'below'} the reference "
                f"curve {one.name} up to {tokens:,.0f} tokens; its seeds allow {allowed:.2f}. "
                + (f"Its options differ: {differs}" if differs else
                   "Its options are the same, so the batches or the code are not")
            )  # fmt: skip
    if differs:
        return f"Options differ from the reference {one.name}, and its loss does not: {differs}"
    return None


def _distance(run: runs.Run, name: str, curve: references.Curve) -> tuple[float, float, float]:
    """Returns the distance from the mean of the seeds, the most that is allowed, and the tokens.

    Both are averaged over the last third of the points that the run has reached.
    """
    places = [(line["tokens"], line[name]) for line in run.lines if line.get(name) is not None]
    tokens, values = np.array(places, float).reshape(-1, 2).T
    points = np.array(curve.tokens)
    reached = np.flatnonzero(points <= tokens.max(initial=0))
    if len(reached) < 3:
        return 0.0, 0.0, 0.0
    chosen = reached[-math.ceil(len(reached) / 3) :]
    begin, end = points[chosen[0] - 1], points[chosen[-1]]
    there = values[(tokens > begin) & (tokens <= end)]
    if not len(there):
        return 0.0, 0.0, 0.0
    seeds = np.array(curve.values)[:, chosen].mean(axis=1)
    distance = there.mean() - seeds.mean()
    allowed = max(OFF_NATS, OFF_SPREADS * float(seeds.std(ddof=1)))
    return float(distance), allowed, float(end)


def _at_end(run: runs.Run, name: str) -> float:
    """Returns the mean of a scalar over the last lines, NaN without them.

    A single line is the mean of all steps, and says nothing of the end.
    """
    values = run.series(name)[1]
    if len(values) < 2:
        return math.nan
    count = max(1, round(LAST_SHARE * len(values)))
    return float(np.nanmean(values[-count:])) if np.isfinite(values[-count:]).any() else math.nan


def _after_warm_up(run: runs.Run, name: str) -> tuple[Steps, Values]:
    steps, values = run.series(name)
    rate_steps, rate = run.series("train/learning_rate")
    begin = rate_steps[int(np.argmax(rate))] if len(rate) else 0
    begin = max(min(begin, 0.2 * run.step), 0.05 * run.step)
    return steps[steps > begin], values[steps > begin]


def _is_spike(loss: Values, i: int) -> bool:
    before = loss[max(0, i - 5) : i]
    return bool(loss[i] - np.nanmedian(before) > SPIKE_NATS)


def _changes_task(run: runs.Run) -> bool:
    """Whether a loss may rise because the rows or the masks of a later phase are harder."""
    return len(run.phase_ends) > 1 or any(
        run.options[name] for name in run.options if name.endswith(".final_masked_lm_prob")
    )


def _gap(run: runs.Run) -> tuple[float, float]:
    """Returns the last held-out loss less the training loss around it, and its standard error.

    NaN without them.
    """
    eval_steps, held_out = run.series(f"{runs.HELD_OUT}{run.main_loss}")
    steps, loss = run.series(f"train/{run.main_loss}")
    if not len(held_out) or len(loss) < NEAR:
        return math.nan, math.nan
    near = loss[np.argsort(np.abs(steps - eval_steps[-1]), kind="stable")[:NEAR]]
    error = float(np.nanstd(near, ddof=1)) / math.sqrt(NEAR)
    return float(held_out[-1] - np.nanmean(near)), error


def _explained(run: runs.Run) -> float:
    """Returns the nats by which dropout and masks may lower a held-out loss."""
    options = run.options
    dropout = max(
        options["model.hidden_dropout_prob"], options["model.attention_probs_dropout_prob"]
    )
    rates = [options["pretraining.masked_lm_prob"] or 0.0]
    rates += [options[it] for it in options if it.endswith(".masked_lm_prob") and "phases" in it]
    evaluated = options["evaluation.masked_lm_prob"] or max(rates)
    return NATS_PER_DROPOUT * dropout + NATS_PER_MASK_RATE * max(0.0, max(rates) - evaluated)


Checks = dict[str, Callable[[runs.Run], str | None]]

# Name -> the fault, or None. The checks of pretraining read its losses and its records.
OF_PRETRAINING: Checks = {
    "unigram plateau": _plateau,
    "trivial targets": _trivial,
    "no warm-up": _warm_up,
    "loss spikes": _spikes,
    "loss rises": _rises,
    "leak": _leak,
    "held-out gap": _held_out_gap,
    "overfitted": _overfitted,
    "pairs at chance": _pairs,
    "passes over the text": _passes,
    "missing documents": _missing_documents,
    "reference curve": _reference,
}
OF_FINETUNING: Checks = {
    "one class for all": _one_class,
    "training loss does not fall": _untaught_labels,
    "few updates": _few_updates,
    "evaluated on training examples": _shared_examples,
}
OF_ALL: Checks = {
    "no better than a baseline": _at_baseline,
    "frozen at random": _frozen,
    "warm-up too long": _rate_never_peaks,
    "learning rate ends early": _rate_ends_early,
    "learning rate never falls": _rate_never_falls,
    "throughput falls": _throughput,
    "skipped updates": _skipped,
    "steps without targets": _untaught,
    "gradients grow": _gradients_grow,
    "gradients not clipped": _unclipped,
}
# These read the options alone: the log has them before the first step.
BEFORE = ("frozen at random", "warm-up too long")
# The log has these while the run goes on, and all others at its end.
MEANWHILE = ("unigram plateau", "one class for all", "no better than a baseline")


def faults(run: runs.Run, names: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yields the name of each check that speaks of a run, with its sentence.

    `names` are the checks to make, all by default.
    """
    chosen = {**(OF_PRETRAINING if run.is_pretraining else OF_FINETUNING), **OF_ALL}
    for name, check in chosen.items():
        if (not names or name in names) and (sentence := check(run)):
            yield name, sentence
