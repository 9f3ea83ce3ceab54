"""What a run says of data it does not train on: scores in its curves, answers in its workdir."""

from __future__ import annotations

import jax
from absl import logging
from etils import epath

from bertjax import evaluate
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.training import program, writers

PREDICTIONS_DIRECTORY = "predictions"


def score(
    run: program.Program, params: parameters.Params, writer: writers.RunWriter, step: int
) -> dict[str, float]:
    """Evaluates on every evaluation set, writes the scores and redraws the curves.

    Returns those of the first set, which decide what is best.
    """
    options, found = run.config.evaluation, {}
    batch_size = options.global_batch_size
    rows = sharding.local_rows(run.mesh, batch_size)
    for name in run.job.evaluation_sets:
        values, outputs = evaluate.evaluate_with_answers(
            run.eval_step,
            params,
            run.job.evaluation_batches(name, batch_size=batch_size, rows=rows),
            mesh=run.mesh,
            global_batch_size=batch_size,
            # The scores of a finetuning job are of whole sets.
            max_batches=options.max_batches if run.job.best_score is None else 0,
        )
        found[name] = values | run.job.scores(name, outputs)
        shown = ", ".join(f"{metric} {value:.4f}" for metric, value in found[name].items())
        logging.info("Evaluation on %s at step %d: %s", name, step, shown)
    writer.scalars(
        step,
        {f"eval/{name}/{metric}": value for name in found for metric, value in found[name].items()},
    )
    writer.curves()
    return found[run.job.evaluation_sets[0]]


def write_predictions(
    run: program.Program, params: parameters.Params, workdir: epath.Path, *, is_new: bool
) -> None:
    """Writes what the model says of the job's test sets, all or none, unless it was done before."""
    directory, draft = (workdir / f"{PREDICTIONS_DIRECTORY}{end}" for end in ("", "_draft"))
    if not run.job.test_sets:
        return
    if directory.exists() and not is_new:
        logging.info("Predictions are in %s already; for others remove it", directory)
        return
    if jax.process_index() == 0 and draft.exists():
        draft.rmtree()  # of a process that was killed
    batch_size = run.config.evaluation.global_batch_size
    rows = sharding.local_rows(run.mesh, batch_size)
    for name in run.job.test_sets:
        batches = run.job.evaluation_batches(name, batch_size=batch_size, rows=rows)
        outputs = evaluate.predict(
            run.predict_step,
            params,
            batches,
            mesh=run.mesh,
            global_batch_size=batch_size,
        )
        if jax.process_index() == 0:
            run.job.write_predictions(name, outputs, draft)
    if jax.process_index() == 0:
        if directory.exists():
            directory.rmtree()
        draft.rename(directory)
        logging.info("Predictions for %s are in %s", ", ".join(run.job.test_sets), directory)
