"""A finetuned model answers JSON lines: one object per line of standard input, one per line out.

python -m bertjax.predict --checkpoint=WORKDIR < input.jsonl > output.jsonl
python -m bertjax.predict --checkpoint=WORKDIR --input=proteins.fasta > output.jsonl

A sequence of FASTA or FASTQ is a text, or a word for each letter, with its name as "id". With
`--delimiter=auto` the input is CSV with a header. A line holds what the finetuned task reads:
the columns of texts (GLUE, tables), "question" and "context" (SQuAD), "words" or "sentences"
(tags), "context" and "endings" (SWAG), "values" (a list for each position; or with `--records` the
rows of records are the input). An "id" is handed through. A line that cannot be used is
answered with its "error"; then the exit code is 1.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Predict, __doc__)

import csv
import dataclasses
import functools
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import padding, text_lines, value_masking, value_rows
from bertjax.data import records as records_lib
from bertjax.files import atomic, delimiters, json_text, opening, tables, text_encodings
from bertjax.finetuning import base as kinds
from bertjax.finetuning import batches, example_files, feature_sets, values
from bertjax.options import faults
from bertjax.tasks import prediction
from bertjax.tokenization import unknown_tokens

# The number of batches that are read ahead and sorted by length, so that few tokens are padding.
# Memory does not depend on the length of the input.
BATCHES_READ = 16

ERROR = "error"  # key of the output for a line that cannot be used

_predict_step = jax.jit(prediction.predict_step, static_argnums=(0, 1))


@dataclasses.dataclass(frozen=True)
class BadLine:
    """Stands for the record of a line that cannot be read."""

    fault: str


def predict(
    model: inference.FinetunedModel,
    records: Iterable[Any],
    *,
    batch_size: int = 32,
    strict: bool = True,
) -> Iterator[kinds.Prediction]:
    """Yields the prediction for each record in turn, reading only BATCHES_READ batches ahead.

    `records` are decoded JSON; the prediction has the record's "id", if it has one, and with
    "unknown_rate" the share of [UNK] among the tokens of its texts. A record that
    the model cannot use is an error, or without `strict` gets {"error": why}. `batch_size` counts
    rows of the model over all devices, and is rounded up to a multiple of them.

    Raises:
      ValueError: if the model's outputs are not finite; and with `strict` if the model cannot use a
        record, naming the first ten of those read together.
    """
    scorer, mesh = model.kind.open(model.options, model.own_vocabulary), model.mesh
    batch_size = -(-batch_size // mesh.size) * mesh.size
    step = functools.partial(_predict_step, model.task, model.graphdef)
    buckets = (model.options.max_seq_length,)
    if model.options.length_buckets:
        buckets = padding.default_buckets(model.options.max_seq_length)
    numbered = enumerate(records, start=1)
    counted = None
    if model.own_vocabulary is not None:
        counted = unknown_tokens.UnknownTokens(model.own_vocabulary.unk_id)
    while chunk := list(itertools.islice(numbered, BATCHES_READ * batch_size)):
        examples, features = _prepared(scorer.reader, chunk)
        if strict:
            _check(chunk, examples)
        answers: Iterator[kinds.Prediction] = iter(())
        if features is not None:
            rows = batches.evaluation_batches(features, batch_size=batch_size, buckets=buckets)
            shared = {"mesh": mesh, "global_batch_size": batch_size}
            with jax.set_mesh(mesh):
                outputs = prediction.predict(step, model.params, rows, **shared)
            inference.check_numbers(outputs, f"the lines from {chunk[0][0]} to {chunk[-1][0]}")
            good = [example for example in examples if not isinstance(example, BadLine)]
            predicted = kinds.Predicted(good, features, outputs, model.tuned)
            answers = iter(scorer.predictions(predicted))
        for (number, record), example in zip(chunk, examples, strict=True):
            if isinstance(example, BadLine):
                answer = {ERROR: f"line {number}: {example.fault}"}
            else:
                answer = next(answers)
                if counted is not None:
                    ids, _ = model.vocabulary.encode_flat(scorer.reader.texts(example))
                    share = counted.add(ids, f"line {number}")
                    answer = answer | {unknown_tokens.KEY: share}
            has_id = isinstance(record, Mapping) and "id" in record
            yield ({"id": record["id"]} if has_id else {}) | answer
    if counted is not None:
        counted.warn()


def _prepared(
    data: kinds.Reader, chunk: Sequence[tuple[int, Any]]
) -> tuple[list[Any], feature_sets.FeatureSet | None]:
    """Returns the example of each record, or a BadLine, and the rows of those that are good."""
    examples = [_example(data, number, record) for number, record in chunk]
    while good := [place for place, it in enumerate(examples) if not isinstance(it, BadLine)]:
        try:
            return examples, data.rows([examples[place] for place in good])
        except ValueError:
            for place, fault in _faults_of_rows(data, examples, good).items():
                examples[place] = BadLine(fault)
    return examples, None


def _example(data: kinds.Reader, number: int, record: Any) -> Any:
    if isinstance(record, BadLine):
        return record
    if not isinstance(record, Mapping):
        return BadLine(f"it is {record!r:.60}; it must be an object")
    try:
        return data.example(record, f"line {number}")
    except ValueError as error:
        return BadLine(str(error))


def _faults_of_rows(
    data: kinds.Reader, examples: Sequence[Any], places: Sequence[int]
) -> dict[int, str]:
    """Returns why some of the examples at `places` make no rows, by halves until one is alone."""
    try:
        data.rows([examples[place] for place in places])
    except ValueError as error:
        if len(places) == 1:
            return {places[0]: str(error)}
        middle = len(places) // 2
        halves = places[:middle], places[middle:]
        faults = [_faults_of_rows(data, examples, half) for half in halves]
        # Each half may do without the other: then the last of them is what does not fit.
        return faults[0] | faults[1] or {places[-1]: str(error)}
    return {}


def _check(chunk: Sequence[tuple[int, Any]], examples: Sequence[Any]) -> None:
    """Raises an error that tells the bad lines together."""
    faults = example_files.Faults()
    for (number, _), example in zip(chunk, examples, strict=True):
        if isinstance(example, BadLine):
            faults.add(f"line {number}", example.fault)
    faults.check()


def read_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yields the JSON value of each line, a BadLine for one that is none.

    The first line that is not UTF-8 has a guess of its encoding, which takes a while.
    """
    is_guessed = False
    for line in lines:
        try:
            yield json_text.loads(line)
        except UnicodeDecodeError as error:
            advice = "" if is_guessed else f"; {text_encodings.advice(line, '--encoding')}"
            is_guessed = True
            yield BadLine(f"it is not UTF-8 ({error.reason} at byte {error.start}){advice}")
        except ValueError as error:
            yield BadLine(
                f"it is not JSON ({error}); each line must be an object, or give --delimiter=auto "
                "for CSV with a header"
            )


def read_rows(
    file: opening.File, rules: tables.Rules, path: str = text_lines.STANDARD_INPUT
) -> Iterator[Any]:
    """Yields the rows of CSV with a header, a BadLine for one that is faulty.

    Raises:
      ValueError: if there is no header, or a line is not in the encoding of the rules.
    """
    for row in tables.rows_of(file, path, ".csv", rules):
        yield BadLine(row.fault.message) if row.fault else row.values


def read_sequences(
    lines: Iterable[text_lines.Line], model: inference.FinetunedModel
) -> Iterator[Any]:
    """Yields what a model reads of sequences: a text, or its letters as words."""
    reader = model.kind.open(model.options, model.own_vocabulary).reader
    key = next(iter(reader.text_keys), "text")
    outcome = "each is read as an empty text"
    for line in text_lines.with_remark(lines, outcome, model.own_vocabulary):
        yield {"id": line.id, key: line.text, "text": line.text, "words": [*line.text]}


def _records(options: programs.Predict, model: inference.FinetunedModel) -> Iterator[Any]:
    """Yields the records of --input, or of standard input."""
    for path in text_lines.paths(options.input or [text_lines.STANDARD_INPUT]):
        with text_lines.opened(path, options.encoding) as file:
            if options.delimiter:
                rules = tables.Rules(
                    delimiter=options.delimiter,
                    encoding=options.encoding,
                    encoding_option="--encoding",
                )
                yield from read_rows(file, rules, path)
            elif text_lines.is_fasta(path, file):
                lines = text_lines.sequences(file, path, model.vocabulary.letters)
                yield from read_sequences(lines, model)
            else:
                yield from read_lines(file)


def text(answer: kinds.Prediction) -> str:
    """Returns the line of an answer; what UTF-8 cannot hold (half a surrogate pair) is escaped."""
    written = json.dumps(answer, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(answer)
    return written


def main(options: programs.Predict) -> None:
    """Answers standard input on standard output."""
    if options.delimiter and (fault := delimiters.fault(options.delimiter)):
        raise ValueError(f"--delimiter {fault}")
    if fault := text_encodings.fault(options.encoding):
        raise ValueError(f"--encoding {fault}")
    chosen = {"step": options.step, "language": options.language}
    model = inference.load_finetuned(options.checkpoint, **chosen)
    if options.null_threshold is not None:
        model = _with_threshold(model, options.null_threshold)
    lines = _records(options, model)
    if options.records is not None:
        record_set = records_lib.open(options.records)
        value_masking.check(model.value_meaning, record_set)
        if values.is_forecast(model.options):
            return _write_forecasts(model, value_rows.ForecastRows.of(record_set), options)
        for name in ("output", "all_windows"):
            if value := getattr(options, name):
                why = f"the model in {options.checkpoint} does not forecast"
                raise faults.unread(f"--{name}", value, why, type(value)())
        lines = ({"values": it} for it in value_rows.as_arrays(record_set))
    count = errors = 0
    for answer in predict(model, lines, batch_size=options.batch_size, strict=options.strict):
        print(text(answer))
        count, errors = count + 1, errors + (ERROR in answer)
    if errors:
        sys.stdout.flush()
        sys.exit(
            f"bertjax: {errors} of {count} lines could not be used; the answer to each has an "
            f"{ERROR!r} that says why"
        )


def forecasts(
    model: inference.FinetunedModel,
    rows: value_rows.ForecastRows,
    *,
    all_windows: bool = False,
    batch_size: int = 32,
) -> Iterator[kinds.Prediction]:
    """Yields a prediction for each step of the last window of each series and channel.

    It has the series, the channel, the time and the value in the units of the input. With
    `all_windows` it is of each window of the records, and has the time of its last step as origin.
    """
    chosen = range(len(rows.values)) if all_windows else rows.last.tolist()
    lines = ({"values": rows.values[row]} for row in chosen)
    answers = predict(model, lines, batch_size=batch_size)
    for row, answer in zip(chosen, answers, strict=True):
        forecast = np.array(answer["numbers"])
        yield from rows.described(row, forecast, has_origin=all_windows)


def _write_forecasts(
    model: inference.FinetunedModel, rows: value_rows.ForecastRows, options: programs.Predict
) -> None:
    shared = {"all_windows": options.all_windows, "batch_size": options.batch_size}
    answers = forecasts(model, rows, **shared)
    if not options.output:
        for answer in answers:
            print(text(answer))
        return
    with atomic.writing(epath.Path(options.output)) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = None
        for answer in answers:
            if writer is None:
                writer = csv.DictWriter(lines, [*answer])
                writer.writeheader()
            writer.writerow(answer)
        lines.detach()


def _with_threshold(model: inference.FinetunedModel, threshold: float) -> inference.FinetunedModel:
    """Returns the model with a no-answer threshold; one of others answers as SQuAD v2.0 with it."""
    answers_spans = "null_threshold" in model.kind.scorer.tunes
    if model.is_imported and answers_spans:
        model.options.name = "v2"
    if not answers_spans or model.options.name != "v2":
        data_set = f"{model.options.dataset} {model.options.name}".strip()
        raise ValueError(
            f"--null_threshold={threshold:g} is for models of SQuAD v2.0, which may not answer; "
            f"this one was finetuned for {data_set}: leave it out"
        )
    return dataclasses.replace(model, tuned={**model.tuned, "null_threshold": threshold})


if __name__ == "__main__":
    command_line.run(main)
