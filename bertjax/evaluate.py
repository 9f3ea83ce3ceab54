"""Scores a saved model on data with right answers: every example once, on any number of devices.

python -m bertjax.evaluate --checkpoint=WORKDIR --data=RECORDS
python -m bertjax.evaluate --checkpoint=FINETUNED_WORKDIR --data=FILE

A pretrained model is scored on a record directory, a finetuned one on files like those it was
finetuned on, by whomever that was. How a run scores itself, and the loop over batches, is
`training.evaluation`.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np
from absl import flags, logging
from etils import epath

from bertjax import command_line, inference, jobs, whole_numbers
from bertjax.data import contents, masking, records
from bertjax.jobs import held_out
from bertjax.tasks import base as tasks
from bertjax.training import evaluation, state
from bertjax.workdirs import reader


def chance_levels(
    record_set: records.RecordSet, batches: jobs.Batches, trained: contents.Contents | None
) -> dict[str, float]:
    """Returns what answering without reading scores on the masked tokens of `batches`.

    Where it is known what was trained on, the answers are the frequencies of tokens there:
    `unigram_loss` (nats) and `most_frequent_token_accuracy`. Where it is not, they are those of the
    very tokens asked for, whose entropy, `unigram_entropy`, nobody could reach without knowing
    them: on few tokens it is far too low.
    """
    counts = np.zeros(record_set.manifest.tokenizer["vocab_size"], np.int64)
    for batch in batches:
        masked_ids = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        counts += np.bincount(masked_ids, minlength=len(counts))
    if trained is not None:
        return held_out.unigram_scores(trained, counts)
    logging.warning(
        "The frequencies of the text that was trained on are not known (an older run, or converted "
        "weights): unigram_entropy is that of the %s scored tokens themselves, which is lower than "
        "what those frequencies would score on them", f"{counts.sum():,}",
    )  # fmt: skip
    entropy, share = masking.unigram_baseline(counts)
    return {"unigram_entropy": entropy, "most_frequent_token_accuracy": share}


def evaluate_checkpoint(
    workdir: epath.PathLike,
    data: str,
    *,
    batch_size: int,
    step: str | int = "newest",
    chance: bool = False,
) -> dict[str, Any]:
    """Returns the scores of a checkpoint's model on `data`, the step and the number of examples.

    Where there are several evaluation sets, as MNLI's two, a score is "set/score". `chance` adds
    what answering without reading scores on records.

    Raises:
      FileNotFoundError: if there is no checkpoint, no manifest or no file.
      ValueError: if the data does not fit the model, or its losses are no numbers.
    """
    mesh = inference.all_devices()
    found = reader.read(workdir, step=step, mesh=mesh)
    found.config.finetuning.lora_rank = 0  # merged
    job = jobs.evaluating(found, data)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    graphdef, shapes = tasks.abstract_model(job.task)
    # Converted weights may have more than the task, such as the pooler of TensorFlow's.
    params = {part: found.params[part] for part in shapes}
    with jax.set_mesh(mesh):
        evaluate_step = jax.jit(functools.partial(state.evaluate_step, job.task, graphdef))
        scores = {
            name: evaluation.evaluate_set(
                job, name, evaluate_step, params, mesh=mesh, batch_size=batch_size
            )
            for name in job.evaluation.sets
        }
    examples = {name: job.data.num_examples(name) for name in scores}
    told = {"step": found.step, **_flat({name: {"examples": n} for name, n in examples.items()})}
    told |= _flat(scores)
    losses = {name: value for name, value in told.items() if name.endswith("loss")}
    inference.check_numbers(losses, f"{data} (loss {losses})")
    reads_records = job.evaluation.scorer is None
    if chance and reads_records and not job.evaluation.chance:
        (name,) = scores
        batches = job.data.evaluation_batches(name, batch_size=batch_size, rows=None)
        told |= chance_levels(records.open(data), batches, held_out.training_contents(found))
    return told


def _flat(by_set: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the values by their names, with their sets before them where there are several."""
    return {
        (name if len(by_set) == 1 else f"{each}/{name}"): value
        for each, values in by_set.items()
        for name, value in values.items()
    }


def _define_flags() -> None:
    inference.define_flags("Workdir of a training run.")
    flags.DEFINE_string(
        "data", None, "Record directory, or labelled file as finetuning reads it.", required=True
    )
    whole_numbers.DEFINE_integer(
        "batch_size", 64, "Sequences at a time, over all devices.", lower_bound=1
    )
    flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")


def main(argv: list[str]) -> None:
    """Prints a checkpoint's scores, and on one host what chance would score."""
    del argv
    scores = evaluate_checkpoint(
        flags.FLAGS.checkpoint,
        flags.FLAGS.data,
        batch_size=flags.FLAGS.batch_size,
        step=flags.FLAGS.step,
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
