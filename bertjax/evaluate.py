"""Scores a model on held-out records: every example exactly once, on any number of devices."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from bertjax import command_line, jobs
from bertjax.data import masking, records
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.tasks import base, metrics
from bertjax.workdirs import checkpoint, reader

EvalStep = Callable[[parameters.Params, base.Batch], base.Means]
AnswerStep = Callable[[parameters.Params, base.Batch], tuple[base.Means, Mapping[str, Any]]]
PredictStep = Callable[[parameters.Params, base.Batch], Mapping[str, Any]]
Outputs = dict[str, np.ndarray]


def evaluate(
    eval_step: EvalStep,
    params: parameters.Params,
    batches: jobs.Batches,
    *,
    mesh: Mesh,
    global_batch_size: int,
    max_batches: int = 0,
) -> dict[str, float]:
    """Returns the task's metrics over `batches`, at most `max_batches` of them (0: all).

    `batches` yields this process's rows; `eval_step` is jitted. Sums are added on the host in
    float64, so the result does not depend on the batch size beyond float32 rounding in a batch.
    """
    total: base.Means = {}
    for batch in itertools.islice(batches, max_batches or None):
        means = eval_step(params, sharding.to_devices(batch, mesh, global_batch_size))
        as_float64 = jax.tree.map(np.float64, jax.device_get(means))
        total = metrics.merge(total, as_float64)
    return with_perplexity(metrics.values(total))


def evaluate_with_answers(
    answer_step: AnswerStep,
    params: parameters.Params,
    batches: jobs.Batches,
    *,
    mesh: Mesh,
    global_batch_size: int,
    max_batches: int = 0,
) -> tuple[dict[str, float], Outputs]:
    """Returns the metrics as `evaluate` does, and the task's answers as `in_order` does."""
    total, parts = {}, []
    for batch in itertools.islice(batches, max_batches or None):
        on_devices = sharding.to_devices(batch, mesh, global_batch_size, with_places=True)
        means, answers = jax.device_get(answer_step(params, on_devices))
        total = metrics.merge(total, jax.tree.map(np.float64, means))
        parts.append(answers)
    return with_perplexity(metrics.values(total)), in_order(parts)


def predict(
    predict_step: PredictStep,
    params: parameters.Params,
    batches: jobs.Batches,
    *,
    mesh: Mesh,
    global_batch_size: int,
) -> Outputs:
    """Returns the task's answers to batches that need no labels, as `in_order` does."""
    parts = [
        jax.device_get(
            predict_step(
                params, sharding.to_devices(batch, mesh, global_batch_size, with_places=True)
            )
        )
        for batch in batches
    ]
    return in_order(parts)


def in_order(parts: Sequence[Mapping[str, np.ndarray]]) -> Outputs:
    """Returns the answers to all batches, one row for each example, in the examples' order.

    `record_positions` says which example a row belongs to, -1 none. Where batches have different
    lengths, the shorter rows are padded: with -1, or with the lowest number of a float type.
    """
    if not parts or "record_positions" not in parts[0]:
        return {}
    positions = np.concatenate([part["record_positions"] for part in parts])
    order = np.argsort(positions, kind="stable")[np.count_nonzero(positions < 0) :]
    names = parts[0].keys() - {"record_positions"}
    return {name: _joined([part[name] for part in parts])[order] for name in sorted(names)}


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    is_float = np.issubdtype(arrays[0].dtype, np.floating)
    padding = np.finfo(arrays[0].dtype).min if is_float else -1
    longest = max(array.shape[1] for array in arrays)
    rest = [(0, 0)] * (arrays[0].ndim - 2)
    return np.concatenate(
        [
            np.pad(array, [(0, 0), (0, longest - array.shape[1]), *rest], constant_values=padding)
            for array in arrays
        ]
    )


def with_perplexity(values: dict[str, float]) -> dict[str, float]:
    """Adds mlm_perplexity, exp of the mean loss over masked tokens, where there is a mlm_loss."""
    if "mlm_loss" in values:
        values["mlm_perplexity"] = math.exp(min(values["mlm_loss"], 700.0))
    return values


def chance_levels(record_set: records.RecordSet, batches: jobs.Batches) -> dict[str, float]:
    """Returns what answering without reading scores on the masked tokens of `batches`.

    `unigram_entropy` (nats) is the loss of always answering their frequencies,
    `most_frequent_token_accuracy` the accuracy of always answering the most frequent one.
    """
    counts = np.zeros(record_set.manifest.tokenizer["vocab_size"], np.int64)
    for batch in batches:
        masked_ids = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        counts += np.bincount(masked_ids, minlength=len(counts))
    entropy, share = masking.unigram_baseline(counts)
    return {"unigram_entropy": entropy, "most_frequent_token_accuracy": share}


def evaluate_checkpoint(
    workdir: str, data: str, *, batch_size: int, chance: bool = False
) -> dict[str, Any]:
    """Returns the newest checkpoint's metrics on all records of a directory.

    Raises:
      FileNotFoundError: if there is no checkpoint or no manifest.
      ValueError: if the records were made with another vocabulary, or are too long for the model,
        or the checkpoint is of another task.
    """
    params, meta, step = checkpoint.load_params(workdir)
    config = reader.config_of(meta)
    if config.task != "pretraining":
        raise ValueError(
            f"{workdir} holds a model of task {config.task!r}, which cannot be scored on records: "
            "its scores are in its metrics.jsonl, and `python -m bertjax.predict` answers new rows"
        )
    task = jobs.JOBS[config.task].task(config)
    record_set = records.open(
        data,
        tokenizer_sha256=meta["identity"]["tokenizer_sha256"],
        pair_objective=config.pretraining.pair_loss,
    )
    mesh = sharding.make_mesh(jax.devices(), data=-1)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    rows = sharding.local_rows(mesh, batch_size)

    def batches() -> jobs.Batches:
        return jobs.record_batches(record_set, config.pretraining, batch_size=batch_size, rows=rows)

    graphdef, _ = base.abstract_model(task)
    with jax.set_mesh(mesh):
        eval_step = jax.jit(lambda p, b: task.evaluate(parameters.merge(graphdef, p), b))
        scores = evaluate(eval_step, params, batches(), mesh=mesh, global_batch_size=batch_size)
    scores = {"step": step, "examples": record_set.manifest.num_examples} | scores
    return scores | chance_levels(record_set, batches()) if chance else scores


def _define_flags() -> None:
    flags.DEFINE_string("checkpoint", None, "Workdir of a training run.", required=True)
    flags.DEFINE_string("data", None, "Record directory to evaluate on.", required=True)
    flags.DEFINE_integer("batch_size", 64, "Sequences at a time, over all devices.", lower_bound=1)
    flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")


def main(argv: list[str]) -> None:
    """Prints a checkpoint's scores, and on one host what chance would score."""
    del argv
    scores = evaluate_checkpoint(
        flags.FLAGS.checkpoint,
        flags.FLAGS.data,
        batch_size=flags.FLAGS.batch_size,
        chance=jax.process_count() == 1,
    )
    if flags.FLAGS.json:
        print(json.dumps(scores))
        return
    for name, value in scores.items():
        print(f"{name:30} {value:,.4f}" if isinstance(value, float) else f"{name:30} {value:,}")


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
