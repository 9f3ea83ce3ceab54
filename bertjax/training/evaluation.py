"""The one way to evaluate: a task's metrics and predictions over batches, in a run or afterwards.

Every example counts exactly once, on any number of devices. During a run `score` and
`write_predictions` do it for all of a job's sets; `bertjax.evaluate` does it for a saved model.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.scores import baselines
from bertjax.tasks import base, metrics, prediction
from bertjax.training import program, writers

PREDICTIONS_DIRECTORY = "predictions"
TOKEN_LOSSES = ("mlm_loss", "lm_loss")
PREDICTIONS_DRAFT = ".predictions.bertjax_draft"  # in the workdir, until all are written

# Jitted: the means and the answers of a batch, the answers with the places of their examples.
EvaluateStep = Callable[[parameters.Params, base.Batch], tuple[base.Means, Mapping[str, Any]]]


class Stopped(Exception):
    """An evaluation stopped before its end, because the run has to stop."""


def _never() -> bool:
    return False


def _batches(
    job: jobs.Job, name: str, mesh: Mesh, batch_size: int, must_stop: Callable[[], bool]
) -> jobs.Batches:
    rows = sharding.local_rows(mesh, batch_size)
    batches = job.data.evaluation_batches(name, batch_size=batch_size, rows=rows)
    return _until_stopped(batches, must_stop)


def _until_stopped(batches: jobs.Batches, must_stop: Callable[[], bool]) -> jobs.Batches:
    """Yields the batches; raises Stopped if `must_stop`, called before each, returns True."""
    for batch in batches:
        if must_stop():
            raise Stopped
        yield batch


def evaluate(
    step: EvaluateStep,
    params: parameters.Params,
    batches: jobs.Batches,
    *,
    mesh: Mesh,
    global_batch_size: int,
    max_batches: int = 0,
) -> tuple[dict[str, float], prediction.Outputs]:
    """Returns the task's metrics over at most `max_batches` (0: all), and its answers in order.

    `batches` yields this process's rows. Sums are added on the host in float64, so the result does
    not depend on the batch size beyond float32 rounding in a batch.
    """
    total: base.Means = {}
    parts = []
    for batch in itertools.islice(batches, max_batches or None):
        on_devices = sharding.to_devices(batch, mesh, global_batch_size, with_places=True)
        means, answers = jax.device_get(step(params, on_devices))
        total = metrics.merge(total, jax.tree.map(np.float64, means))
        parts.append(answers)
    return with_perplexity(metrics.values(total)), prediction.in_order(parts)


def evaluate_set(
    job: jobs.Job,
    name: str,
    step: EvaluateStep,
    params: parameters.Params,
    *,
    mesh: Mesh,
    batch_size: int,
    must_stop: Callable[[], bool] = _never,
    tuned: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Returns the task's metrics of one of the job's evaluation sets, and its scores.

    `tuned` are the thresholds of the first set, if this is another one. Scores are NaN if a
    prediction is not finite; argmax would still name a class.
    """
    batches = _batches(job, name, mesh, batch_size, must_stop)
    values, outputs = evaluate(
        step,
        params,
        batches,
        mesh=mesh,
        global_batch_size=batch_size,
        max_batches=job.evaluation.max_batches,
    )
    scorer = job.evaluation.scorer
    values |= bits_per_byte(values, job.evaluation.tokens_per_byte.get(name))
    values |= {**job.evaluation.chance.get(name, {}), **job.chance(values)}
    if scorer is None:
        return values
    numbers = {key: np.nan_to_num(answers) for key, answers in outputs.items()}
    scores = scorer.scores_with(name, numbers, tuned) if tuned else scorer.scores(name, numbers)
    if not all(np.isfinite(answers).all() for answers in outputs.values()):
        logging.error("The answers to set %s hold NaN or infinite numbers: it has no scores", name)
        # Tuned scores are saved even then; SQuAD v1.1 tunes none.
        return dict.fromkeys(values | scores, math.nan) | thresholds(job, scores)
    if (answer := scorer.only_answer(name, outputs, scores)) is not None:
        labels = [*job.config.finetuning.labels]
        number = labels.index(answer) if answer in labels else -1
        scores[baselines.ONLY_CLASS] = float(number)
    _, of_majority = scorer.majority(name) or ("", {})
    return values | scores | {f"majority_{metric}": it for metric, it in of_majority.items()}


def thresholds(job: jobs.Job, scores: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores of a set that are thresholds for predicting."""
    return {key: scores[key] for key in job.evaluation.tunes if key in scores}


def with_mean(
    job: jobs.Job, scores: Mapping[str, Mapping[str, float]]
) -> dict[str, Mapping[str, float]]:
    """Returns the scores by set; with `averaged` sets also their means, under "mean".

    The mean is over all these sets, the first included, of the scores that every one has.
    """
    sets = [scores[name] for name in job.evaluation.averaged]
    if len(sets) < 2:
        return dict(scores)
    shared = [it for it in sets[0] if all(it in each for each in sets)]
    means = {
        metric: statistics.fmean(each[metric] for each in sets)
        for metric in shared
        if metric not in job.evaluation.tunes
    }
    return {**scores, jobs.MEAN: means}


def table(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a row of text for each set, a column for each score."""
    metrics = dict.fromkeys(metric for values in scores.values() for metric in values)
    rows = [["", *metrics]]
    for name, values in scores.items():
        rows.append([name, *(_number(values[it]) if it in values else "-" for it in metrics)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def score_answers(
    job: jobs.Job,
    name: str,
    step: prediction.PredictStep,
    params: parameters.Params,
    *,
    mesh: Mesh,
    batch_size: int,
    must_stop: Callable[[], bool] = _never,
) -> dict[str, float]:
    """Returns the scores of an evaluation set without losses, NaN if a prediction is not finite."""
    batches = _batches(job, name, mesh, batch_size, must_stop)
    outputs = prediction.predict(step, params, batches, mesh=mesh, global_batch_size=batch_size)
    scores = job.evaluation.answered[name].scores(outputs)
    if all(np.isfinite(answers).all() for answers in outputs.values()):
        return scores
    logging.error("The answers to set %s hold NaN or infinite numbers: it has no scores", name)
    return dict.fromkeys(scores, math.nan)


def majority_baseline(job: jobs.Job, name: str) -> str:
    """Returns the most frequent answer to a set in words, "" if there is none."""
    baseline = job.evaluation.scorer.majority(name) if job.evaluation.scorer else None
    return f"; majority: always {baseline[0]!r}" if baseline else ""


def _shown(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())


def score(
    run: program.Program,
    params: parameters.Params,
    writer: writers.RunWriter,
    step: int,
    must_stop: Callable[[], bool] = _never,
) -> dict[str, float]:
    """Evaluates on every evaluation set, writes the scores and redraws the curves.

    Returns those that decide which checkpoint is best.
    """
    batch_size = run.config.evaluation.global_batch_size
    scores: dict[str, Mapping[str, float]] = {}
    for name in run.job.evaluation.sets:
        shared: Any = {"mesh": run.mesh, "batch_size": batch_size, "must_stop": must_stop}
        tuned = thresholds(run.job, next(iter(scores.values()), {}))
        scores[name] = (
            score_answers(run.job, name, run.predict_step, params, **shared)
            if name in run.job.evaluation.answered
            else evaluate_set(run.job, name, run.evaluate_step, params, **shared, tuned=tuned)
        )
        logging.info(
            "Evaluation on %s at step %d: %s%s",
            name, step, _shown(scores[name]), majority_baseline(run.job, name),
        )  # fmt: skip
    evaluated = run.job.evaluation
    scores = with_mean(run.job, scores)
    if evaluated.averaged:
        logging.info("Evaluation at step %d by set:\n%s", step, table(scores))
    pairs = [(name, *pair) for name, values in scores.items() for pair in values.items()]
    writer.scalars(step, {f"eval/{name}/{metric}": value for name, metric, value in pairs})
    writer.curves()
    return dict(scores[evaluated.best_set or evaluated.sets[0]])


def write_predictions(
    run: program.Program,
    params: parameters.Params,
    workdir: epath.Path,
    tuned: Mapping[str, float],
    must_stop: Callable[[], bool] = _never,
    *,
    is_new: bool,
) -> None:
    """Writes the predictions for all of the job's test sets, unless they are there already."""
    directory, draft = workdir / PREDICTIONS_DIRECTORY, workdir / PREDICTIONS_DRAFT
    sets, scorer = run.job.evaluation.test_sets, run.job.evaluation.scorer
    if not sets or scorer is None:
        return
    if directory.exists() and not draft.exists() and not is_new:
        logging.info("Predictions are in %s already; for others remove it", directory)
        return
    is_writer = jax.process_index() == 0
    if is_writer:
        if draft.exists():
            draft.rmtree()  # of a process that was killed
        draft.mkdir(parents=True)
    batch_size = run.config.evaluation.global_batch_size
    for name in sets:
        batches = _batches(run.job, name, run.mesh, batch_size, must_stop)
        outputs = prediction.predict(
            run.predict_step, params, batches, mesh=run.mesh, global_batch_size=batch_size
        )
        if is_writer:
            scorer.write_predictions(name, outputs, draft, tuned)
    if is_writer:
        # File by file: what others have put there stays.
        directory.mkdir(exist_ok=True)
        for path in draft.iterdir():
            path.replace(directory / path.name)
        draft.rmdir()
        logging.info("Predictions for %s are in %s", ", ".join(sets), directory)


def with_perplexity(values: dict[str, float]) -> dict[str, float]:
    """Adds mlm_perplexity and lm_perplexity, exp of the mean loss over tokens, if it is there."""
    for name in TOKEN_LOSSES:
        if (loss := values.get(name)) is not None:
            values[name.replace("loss", "perplexity")] = math.exp(min(loss, 700.0))
    return values


def bits_per_byte(values: Mapping[str, float], tokens_per_byte: float | None) -> dict[str, float]:
    """Returns `bits_per_byte`, {} without a mean loss over tokens or without bytes of the text.

    It is the mean loss of a predicted token (nats) times the tokens per byte of the text, in bits,
    and so compares vocabularies and languages: a larger vocabulary has fewer tokens, each harder.
    """
    losses = [values[name] for name in TOKEN_LOSSES if name in values]
    if not (losses and tokens_per_byte):
        return {}
    return {"bits_per_byte": losses[0] * tokens_per_byte / math.log(2)}
