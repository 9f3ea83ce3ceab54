"""Models with a head that was finetuned elsewhere: their kind, and its options.

Converted weights describe their head and the names of their classes, but not the data. The options
that a kind would take from its training data are set here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertjax.files import delimiters, tables
from bertjax.finetuning import (
    base,
    choices,
    conll_files,
    example_files,
    feature_sets,
    sequences,
    spans,
    squad_files,
    table_files,
    tag_schemes,
    tags,
    texts,
)
from bertjax.models import generation

TEXT, PAIR = "text", "text_pair"  # as pipelines of transformers call them


class TextReader(texts.TableReader):
    """Reads a "text", or a "text" and a "text_pair", whichever a line has.

    The columns of a labelled file have these names; its labels are in `label_column`.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        names = self._names_in(next(iter(self.evaluation_paths.values())))
        return (TEXT, PAIR) if PAIR in names else (TEXT,)

    def _names_in(self, path: str) -> tuple[str, ...]:
        return tuple(delimiters.column_names(tables.column_names(path, self._rules)))

    def _columns_of(self, name: str) -> table_files.Columns:
        """Returns the columns; if all labels are columns, these hold the labels."""
        names = self._names_in(self.file(name))
        if self.options.is_multi_label and set(self.labels) <= set(names):
            return table_files.Columns(self.columns, flags=self.labels)
        return super()._columns_of(name)

    def _examples(self, name: str) -> Sequence[feature_sets.TextExample]:
        """Returns the examples of a file, which may give the classes by their numbers."""
        path, columns = self.file(name), self._columns_of(name)
        if fault := example_files.missing_columns(self._names_in(path), columns.required):
            raise ValueError(
                f"{path}: {fault}. An imported model does not know the names of its columns: call "
                f"them {TEXT}, {PAIR} (if there are two) and {self.options.label_column}"
            )
        try:
            return super()._examples(name)
        except ValueError as error:
            numbers = [str(number) for number in range(len(self.labels))]
            try:
                examples = table_files.read_table(
                    path, columns, labels=numbers, rules=self._rules
                ).examples
            except ValueError:
                raise error from None
        meanings = ", ".join(f"{number} is {label!r}" for number, label in enumerate(self.labels))
        logging.warning("%s has the numbers of the model's classes: %s", path, meanings)
        return examples

    def example(self, fields: base.Fields, source: str) -> feature_sets.TextExample:
        columns = (TEXT, PAIR) if fields.get(PAIR) is not None else (TEXT,)
        texts = tuple(example_files.json_text(fields, column) for column in columns)
        return feature_sets.TextExample(texts, None, source)

    def rows(self, examples: Sequence[feature_sets.TextExample]) -> feature_sets.FeatureSet:
        """Returns the rows of texts and of pairs, in the order of the examples."""
        if len({len(example.texts) for example in examples}) == 1:
            return super().rows(examples)
        groups = [
            [place for place, example in enumerate(examples) if len(example.texts) == count]
            for count in (1, 2)
        ]
        parts = [super(TextReader, self).rows([examples[it] for it in group]) for group in groups]
        places = np.argsort([place for group in groups for place in group]).tolist()
        tokens = {}
        for name in parts[0].tokens:
            rows = [row for part in parts for row in part.tokens[name]]
            tokens[name] = [rows[place] for place in places]
        return feature_sets.FeatureSet(tokens, {}, pad_id=self.tokenizer.pad_id)


class TagReader(tags.TagReader):
    """Reads tags as the model's labels spell them, whatever the scheme of a labelled file."""

    def _features(self, name: str) -> conll_files.TaggedRows:
        return self._tagged_rows([self._learnt(sentence) for sentence in self.examples(name)])

    def _learnt(self, sentence: conll_files.Sentence) -> conll_files.Sentence:
        if self.is_plain:
            return sentence
        spelt = tag_schemes.convert(sentence.tags, self.options.tag_scheme)
        # Where no B is among the labels, I begins every entity.
        insides = ["-".join(("I", tag_schemes.split(tag)[1])) for tag in spelt]
        learnt = (
            tag if tag in self.labels or inside not in self.labels else inside
            for tag, inside in zip(spelt, insides, strict=True)
        )
        return dataclasses.replace(sentence, tags=tuple(learnt))


class SpanReader(spans.SpanReader):
    """Reads SQuAD v1.1, or v2.0 where a labelled file is of that version."""

    @functools.cached_property
    def is_version_2(self) -> bool:
        paths = self.evaluation_paths.values()
        return super().is_version_2 or any(map(squad_files.is_version_2, paths))


def _text_options(head: Mapping[str, Any]) -> Mapping[str, Any]:
    flags = {name: head.get(name, False) for name in ("is_regression", "is_multi_label")}
    return {"dataset": "table", "pooling": head.get("pooling", "cls"), **flags}


def _tag_options(head: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = head["labels"].values()
    if any(tag_schemes.tag_fault(label) for label in labels):
        logging.info("The labels are no tags of entities: words get them, without entities")
        return {"dataset": "conll", "name": tag_schemes.PLAIN, "tag_scheme": ""}
    return {"dataset": "conll", "name": "", "tag_scheme": tag_schemes.of_labels(labels)}


def _sequence_options(head: Mapping[str, Any]) -> Mapping[str, Any]:
    if head.get("end_id") is None:
        raise ValueError(
            "the weights do not say which id ends a target (eos_token_id in config.json), so no "
            "text can be generated: write it there, and convert them again"
        )
    specials = (head["start_id"], head["end_id"], head["pad_id"])
    options = {"dataset": "sequences", "shares": head["shares"], "target_specials": specials}
    return options | head.get("search", {})


# Head -> its kind, and the options that its description decides.
HEADS: dict[str, tuple[base.FinetuningKind, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "sequence_classification": (dataclasses.replace(texts.TABLE, reader=TextReader), _text_options),
    "token_classification": (dataclasses.replace(tags.CONLL, reader=TagReader), _tag_options),
    "question_answering": (
        dataclasses.replace(spans.SQUAD, reader=SpanReader),
        lambda head: {"dataset": "squad", "name": "v1"},
    ),
    "multiple_choice": (choices.SWAG, lambda head: {"dataset": "swag"}),
    "sequence_to_sequence": (sequences.SEQUENCES, _sequence_options),
}


def kind_of(
    head: Mapping[str, Any], longest: int
) -> tuple[base.FinetuningKind, dict[str, Any]] | None:
    """Returns the kind and the options of converted weights, None if their head predicts nothing.

    `head` is its description in a workdir: `head`, `labels` by number, `is_regression`,
    `is_multi_label`, `pooling`; of sequences `start_id`, `end_id`, `pad_id`, `shares` and the
    options of its `search`. `longest` is the number of positions that the model reads; a window of
    SQuAD takes at most the 384 of the paper.
    """
    name = head.get("head")
    if name not in HEADS:
        return None
    kind, options_of = HEADS[name]
    named = head.get("labels", {}).items()
    names = {int(number): example_files.normalized(label) for number, label in named}
    labels = () if head.get("is_regression") else tuple(names[it] for it in sorted(names))
    length = min(longest, 384) if name == "question_answering" else longest
    options = {
        "labels": labels,
        "max_seq_length": length,
        "text_column": TEXT,
        "max_target_length": generation.Search.max_length,
        "doc_stride": max(min(128, length // 4), 1),
        "max_query_length": max(min(64, length // 4), 1),
    }
    options |= options_of(head)
    options["max_target_length"] = min(options["max_target_length"], longest)
    return kind, options
