"""A finetuned model answers JSON lines: one object per line of standard input, one per line out.

python -m bertjax.predict --checkpoint=WORKDIR < input.jsonl > output.jsonl

What a line must hold depends on what was finetuned: the columns of texts (GLUE, tables), "question"
and "context" (SQuAD), "words" (tags), "context" and "endings" (SWAG). An "id" is handed through.
Both the lines and the answers of a kind belong to its module in `bertjax.finetuning`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import flags

from bertjax import command_line, finetuning, inference
from bertjax.finetuning import base as kinds
from bertjax.finetuning import batches, example_files
from bertjax.training import evaluation, state

# Lines that are read ahead, in batches: their rows are sorted by length, so that few tokens are
# padding. What is in memory does not depend on the length of the input.
BATCHES_READ = 16

_predict_step = jax.jit(state.predict_step, static_argnums=(0, 1))


def predict(
    model: inference.FinetunedModel, records: Iterable[Any], *, batch_size: int = 32
) -> Iterator[kinds.Answer]:
    """Yields the answer to each record in turn, reading only BATCHES_READ batches of them ahead.

    `records` are decoded JSON; the answer has the record's "id", if it has one. `batch_size` counts
    rows of the model over all devices, and is rounded up to a multiple of them.

    Raises:
      ValueError: if a record is not what the model needs; the first ten of those read together.
    """
    kind = finetuning.KINDS[model.options.dataset](model.options, model.vocabulary)
    mesh = model.mesh
    batch_size = -(-batch_size // mesh.size) * mesh.size
    step = functools.partial(_predict_step, model.task, model.graphdef)
    buckets = (model.options.max_seq_length,)
    if model.options.length_buckets:
        buckets = batches.default_buckets(model.options.max_seq_length)
    numbered = enumerate(records, start=1)
    while chunk := list(itertools.islice(numbered, BATCHES_READ * batch_size)):
        features, decode = kind.rows(_examples(kind, chunk))
        with jax.set_mesh(mesh):
            outputs = evaluation.predict(
                step,
                model.params,
                batches.evaluation_batches(features, batch_size=batch_size, buckets=buckets),
                mesh=mesh,
                global_batch_size=batch_size,
            )
        inference.check_numbers(outputs, f"the lines from {chunk[0][0]} to {chunk[-1][0]}")
        for (_, record), answer in zip(chunk, decode(outputs, model.tuned), strict=True):
            yield ({"id": record["id"]} if "id" in record else {}) | answer


def _examples(kind: kinds.Kind, chunk: Sequence[tuple[int, Any]]) -> list[Any]:
    examples, faults = [], example_files.Faults()
    for number, record in chunk:
        source = f"line {number}"
        if not isinstance(record, Mapping):
            faults.add(source, f"it is {record!r:.60}; it must be an object")
            continue
        try:
            examples.append(kind.example(record, source))
        except ValueError as error:
            faults.add(source, str(error))
    faults.check()
    return examples


def read_lines(lines: Iterable[str]) -> Iterator[Any]:
    """Yields the JSON value of each line.

    Raises:
      ValueError: naming the first line that is none.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"line {number}: it is not JSON ({error}); each line must be an object"
            ) from error


def _define_flags() -> None:
    inference.define_flags("Workdir of a finetuning run.")
    flags.DEFINE_integer("batch_size", 32, "Rows at a time, over all devices.", lower_bound=1)
    flags.DEFINE_float(
        "null_threshold", None, "SQuAD v2.0: no answer above it; without it the tuned one."
    )


def main(argv: list[str]) -> None:
    """Answers standard input on standard output."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is no flag; give the lines on standard input: < FILE")
    options = flags.FLAGS
    model = inference.load_finetuned(options.checkpoint, step=options.step)
    if options.null_threshold is not None:
        model = dataclasses.replace(
            model, tuned={**model.tuned, "null_threshold": options.null_threshold}
        )
    lines = read_lines(sys.stdin)
    for answer in predict(model, lines, batch_size=options.batch_size):
        print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
