"""A finetuned model answers JSON lines: one object per line of standard input, one per line out.

python -m bertjax.predict --checkpoint=WORKDIR < input.jsonl > output.jsonl

What a line must hold depends on what was finetuned: the columns of texts (GLUE, tables), "question"
and "context" (SQuAD), "words" (tags), "context" and "endings" (SWAG). An "id" is handed through.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from absl import flags, logging
from jaxtyping import Float

from bertjax import command_line, evaluate, inference
from bertjax.devices import sharding
from bertjax.finetuning import (
    batches,
    conll,
    glue,
    multiple_choice,
    squad,
    squad_answers,
    tag_schemes,
    texts,
)
from bertjax.finetuning import features as feature_sets
from bertjax.models import parameters
from bertjax.scores import entities

Answer = dict[str, Any]
Fields = Mapping[str, Any]
# The answers to examples, from what the model says of their rows, in the order of the rows.
Decode = Callable[[Mapping[str, np.ndarray]], list[Answer]]

# Lines that are read ahead, in batches: their rows are sorted by length, so that few tokens are
# padding. What is in memory does not depend on the length of the input.
BATCHES_READ = 16


class _Reader(Protocol):
    """How the lines of a kind of data set become rows, and the model's outputs answers."""

    def example(self, fields: Fields, source: str) -> Any:
        """Returns the example of a line; ValueError if there is none in it."""
        ...

    def rows(self, examples: Sequence[Any]) -> tuple[feature_sets.FeatureSet, Decode]: ...


def predict(
    model: inference.FinetunedModel, records: Iterable[Any], *, batch_size: int = 32
) -> Iterator[Answer]:
    """Yields the answer to each record in turn, reading only BATCHES_READ batches of them ahead.

    `records` are decoded JSON; the answer has the record's "id", if it has one. `batch_size` counts
    rows of the model over all devices, and is rounded up to a multiple of them.

    Raises:
      ValueError: if a record is not what the model needs; the first ten of those read together.
    """
    reader = READERS[model.options.dataset](model)
    mesh = sharding.make_mesh(jax.devices(), data=-1)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    step = functools.partial(_answers, task=model.task, graphdef=model.graphdef)
    replicated = jax.sharding.NamedSharding(mesh, sharding.P())
    params = jax.device_put(model.params, replicated)
    buckets = (model.options.max_seq_length,)
    if model.options.length_buckets:
        buckets = batches.default_buckets(model.options.max_seq_length)
    numbered = enumerate(records, start=1)
    while chunk := list(itertools.islice(numbered, BATCHES_READ * batch_size)):
        features, decode = reader.rows(_examples(reader, chunk))
        with jax.set_mesh(mesh):
            outputs = evaluate.predict(
                step,
                params,
                batches.evaluation_batches(features, batch_size=batch_size, buckets=buckets),
                mesh=mesh,
                global_batch_size=batch_size,
            )
        for (_, record), answer in zip(chunk, decode(outputs), strict=True):
            yield ({"id": record["id"]} if "id" in record else {}) | answer


@functools.partial(jax.jit, static_argnames=("task", "graphdef"))
def _answers(
    params: parameters.Params, batch: Mapping[str, Any], *, task: Any, graphdef: Any
) -> dict[str, Any]:
    answers = task.predict(parameters.merge(graphdef, params), batch)
    return {**answers, "record_positions": batch["record_positions"]}


def _examples(reader: _Reader, chunk: Sequence[tuple[int, Any]]) -> list[Any]:
    examples, faults = [], texts.Faults()
    for number, record in chunk:
        source = f"line {number}"
        if not isinstance(record, Mapping):
            faults.add(source, f"it is {record!r:.60}; it must be an object")
            continue
        try:
            examples.append(reader.example(record, source))
        except ValueError as error:
            faults.add(source, str(error))
    faults.check()
    return examples


class _Texts:
    """One or two texts under the names of their columns; a class, or a number, for them."""

    def __init__(self, model: inference.FinetunedModel):
        self.model = model
        options = model.options
        if options.dataset == "glue":
            task = glue.task_named(options.name)
            # MRPC's own names are "#1 String" and "#2 String".
            self.columns = task.tfds_texts or task.texts
        else:
            names = (options.text_column, options.second_text_column)
            self.columns = tuple(name for name in names if name)

    def example(self, fields: Fields, source: str) -> texts.Example:
        found = tuple(_text(fields, column) for column in self.columns)
        return texts.Example(found, None, source)

    def rows(self, examples: Sequence[texts.Example]) -> tuple[feature_sets.FeatureSet, Decode]:
        length = self.model.options.max_seq_length
        return texts.features(examples, self.model.vocabulary, max_seq_length=length), self._decode

    def _decode(self, outputs: Mapping[str, np.ndarray]) -> list[Answer]:
        labels = self.model.options.labels
        if self.model.options.is_regression:
            return [{"prediction": value} for value in outputs["predictions"].tolist()]
        return [
            {"label": labels[place], "probabilities": dict(zip(labels, row, strict=True))}
            for place, row in zip(
                outputs["predictions"].tolist(), _probabilities(outputs["logits"]), strict=True
            )
        ]


class _Spans:
    """A "question" on a "context"; the answer is a piece of it, or "" for none (v2.0)."""

    def __init__(self, model: inference.FinetunedModel):
        self.model = model

    def example(self, fields: Fields, source: str) -> squad.Question:
        # The source is unique, an id of the user's need not be.
        return squad.Question(source, _text(fields, "question"), _text(fields, "context"))

    def rows(self, examples: Sequence[squad.Question]) -> tuple[feature_sets.FeatureSet, Decode]:
        options, vocabulary = self.model.options, self.model.vocabulary
        windows = squad.windows(
            examples,
            vocabulary,
            max_seq_length=options.max_seq_length,
            doc_stride=options.doc_stride,
            max_query_length=options.max_query_length,
        )
        features = squad.features(examples, windows, vocabulary, labelled=False)
        return features, functools.partial(self._decode, examples, windows)

    def _decode(
        self,
        questions: Sequence[squad.Question],
        windows: Sequence[squad.Window],
        outputs: Mapping[str, np.ndarray],
    ) -> list[Answer]:
        options = self.model.options
        found = squad_answers.predict(
            questions,
            windows,
            list(outputs["start_logits"]),
            list(outputs["end_logits"]),
            version_2=options.name == "v2",
            n_best_size=options.n_best_size,
            max_answer_length=options.max_answer_length,
        )
        answers = found.answers(null_score_diff_threshold=options.null_threshold)
        return [_span(found, question.id, answers[question.id]) for question in questions]


class _Tags:
    """A list of "words"; a tag for each, and the entities that the tags name."""

    def __init__(self, model: inference.FinetunedModel):
        self.model = model

    def example(self, fields: Fields, source: str) -> conll.Sentence:
        words = _texts(fields, "words")
        return conll.Sentence(words, (), (), 0, source, 1)

    def rows(self, examples: Sequence[conll.Sentence]) -> tuple[feature_sets.FeatureSet, Decode]:
        rows = conll.features(
            examples,
            self.model.vocabulary,
            labels=self.model.options.labels,
            max_seq_length=self.model.options.max_seq_length,
        )
        return rows.features, functools.partial(self._decode, examples, rows)

    def _decode(
        self,
        sentences: Sequence[conll.Sentence],
        rows: conll.TaggedRows,
        outputs: Mapping[str, np.ndarray],
    ) -> list[Answer]:
        options = self.model.options
        tags = rows.tags(list(outputs["predictions"]), options.labels)
        if options.name == tag_schemes.PLAIN:
            return [{"tags": list(found)} for found in tags]
        return [
            {"tags": list(found), "entities": _entities(sentence.words, found)}
            for sentence, found in zip(sentences, tags, strict=True)
        ]


class _Choices:
    """A "context" and the four "endings" of which one goes on; the answer is its place, from 0."""

    def __init__(self, model: inference.FinetunedModel):
        self.model = model

    def example(self, fields: Fields, source: str) -> multiple_choice.Example:
        endings = _texts(fields, "endings")
        if len(endings) != multiple_choice.CHOICES:
            raise ValueError(
                f"'endings' has {len(endings)} texts; it must have {multiple_choice.CHOICES}"
            )
        return multiple_choice.Example(_text(fields, "context"), endings, None, source)

    def rows(
        self, examples: Sequence[multiple_choice.Example]
    ) -> tuple[feature_sets.FeatureSet, Decode]:
        features = multiple_choice.features(
            examples,
            self.model.vocabulary,
            max_seq_length=self.model.options.max_seq_length,
        )
        return features, self._decode

    def _decode(self, outputs: Mapping[str, np.ndarray]) -> list[Answer]:
        places = outputs["predictions"].tolist()
        return [
            {"choice": place, "probabilities": row}
            for place, row in zip(places, _probabilities(outputs["logits"]), strict=True)
        ]


READERS: dict[str, Callable[[inference.FinetunedModel], _Reader]] = {
    "glue": _Texts,
    "table": _Texts,
    "squad": _Spans,
    "conll": _Tags,
    "swag": _Choices,
}


def _text(fields: Fields, key: str) -> str:
    value = _field(fields, key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} is {value!r:.60}; it must be a text")
    return value


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    value = _field(fields, key)
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(
            f"{key!r} is {value!r:.60}; it must be a list of texts, none of them empty"
        )
    return tuple(value)


def _field(fields: Fields, key: str) -> Any:
    if key not in fields:
        known = ", ".join(map(repr, fields)) or "none"
        raise ValueError(f"the key {key!r} is missing; its keys are {known}")
    return fields[key]


def _probabilities(logits: Float[np.ndarray, "examples classes"]) -> list[list[float]]:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    shares = weights / weights.sum(axis=-1, keepdims=True)
    return shares.astype(np.float32).tolist()


def _span(found: squad_answers.Predictions, question: str, answer: str) -> Answer:
    """Returns an answer, its probability among the n best and, for v2.0, how much "" is above."""
    candidates = found.nbest[question]
    probability = next(it.probability for it in candidates if it.text == answer)
    differences = found.score_differences
    no_answer = {} if differences is None else {"score_difference": differences[question]}
    return {"answer": answer, "probability": probability} | no_answer


def _entities(words: Sequence[str], tags: Sequence[str]) -> list[Answer]:
    return [
        {
            "type": entity.type,
            "start": entity.start,
            "end": entity.end,
            "text": " ".join(words[entity.start : entity.end]),
        }
        for entity in entities.extract(tags)
    ]


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
        model.options.null_threshold = options.null_threshold
    logging.info("Answers of dataset %s %s", model.options.dataset, model.options.name)
    for answer in predict(model, read_lines(sys.stdin), batch_size=options.batch_size):
        print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
