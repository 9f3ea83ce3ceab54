"""Models with a head that others finetuned: which kind answers for them, and with which options.

Weights that were converted tell their head and the names of their classes, and nothing of the data.
What a kind would know of that from its training is set here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from bertjax.data import tables
from bertjax.finetuning import (
    base,
    choices,
    conll_files,
    example_files,
    feature_sets,
    json_fields,
    spans,
    squad_files,
    table_files,
    tag_schemes,
    tags,
    text_examples,
    texts,
)

TEXT, PAIR = "text", "text_pair"  # as pipelines of transformers call them


class Texts(texts.Table):
    """A class or a number for a "text", or for a "text" and a "text_pair", whichever a line has.

    Of a labelled file those are the columns, and the one of `label_column`.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        names = tables.column_names(self.options.eval_file)
        return (TEXT, PAIR) if PAIR in names else (TEXT,)

    def _columns_of(self, name: str) -> table_files.Columns:
        """Returns the columns; those of the labels if all of them are columns themselves."""
        names = tables.column_names(self.file(name))
        if self.options.is_multi_label and set(self.labels) <= set(names):
            return table_files.Columns(self.columns, flags=self.labels)
        return super()._columns_of(name)

    def _examples(self, name: str) -> Sequence[text_examples.Example]:
        """Returns the examples of a file, which may give the classes by their numbers."""
        path, columns = self.file(name), self._columns_of(name)
        if fault := example_files.missing_columns(tables.column_names(path), columns.wanted):
            raise example_files.FaultyFile(
                f"{path}: {fault}. Nothing tells which columns a model of others reads: call them "
                f"{TEXT}, {PAIR} (if there are two) and {self.options.label_column}"
            )
        try:
            return super()._examples(name)
        except example_files.FaultyFile as error:
            numbers = [str(number) for number in range(len(self.labels))]
            try:
                found = table_files.read_table(path, columns, labels=numbers).examples
            except example_files.FaultyFile:
                raise error from None
        meant = ", ".join(f"{number} is {label!r}" for number, label in enumerate(self.labels))
        logging.warning("%s has the numbers of the model's classes: %s", path, meant)
        return found

    def example(self, fields: base.Fields, source: str) -> text_examples.Example:
        columns = (TEXT, PAIR) if fields.get(PAIR) is not None else (TEXT,)
        found = tuple(json_fields.text(fields, column) for column in columns)
        return text_examples.Example(found, None, source)

    def rows(
        self, examples: Sequence[text_examples.Example]
    ) -> tuple[feature_sets.FeatureSet, base.Decode]:
        """Returns the rows of texts and of pairs, in the order of the examples."""
        if len({len(example.texts) for example in examples}) == 1:
            return super().rows(examples)
        groups = [
            [place for place, example in enumerate(examples) if len(example.texts) == count]
            for count in (1, 2)
        ]
        parts = [
            super(Texts, self).rows([examples[it] for it in group]) for group in groups if group
        ]
        order = [place for group in groups for place in group]
        made: dict[str, list[Any]] = {}
        for name in parts[0][0].tokens:
            rows = [row for features, _ in parts for row in features.tokens[name]]
            by_place = dict(zip(order, rows, strict=True))
            made[name] = [by_place[place] for place in range(len(examples))]
        features = feature_sets.FeatureSet(made, {}, pad_id=self.tokenizer.pad_id)
        return features, parts[0][1]


class Tags(tags.Tags):
    """Tags as the model's labels spell them, whatever the scheme of a labelled file."""

    def _learnt(self, sentence: conll_files.Sentence) -> conll_files.Sentence:
        if self.is_plain:
            return sentence
        spelt = tag_schemes.convert(sentence.tags, self.options.tag_scheme)
        # Where no B is among the labels, I begins every entity.
        known = (
            tag if tag in self.labels or inside not in self.labels else inside
            for tag in spelt
            for inside in ("-".join(("I", tag_schemes.split(tag)[1])),)
        )
        return dataclasses.replace(sentence, tags=tuple(known))


class Spans(spans.Spans):
    """Answers as SQuAD v1.1 has them, or as v2.0 where a labelled file is of that version."""

    @functools.cached_property
    def is_version_2(self) -> bool:
        path = self.options.eval_file
        return super().is_version_2 or bool(path) and squad_files.is_version_2(path)


def _texts(told: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = {name: told.get(name, False) for name in ("is_regression", "is_multi_label")}
    return {"dataset": "table", "pooling": told.get("pooling", "cls"), **kinds}


def _tags(told: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = told["labels"].values()
    is_plain = any(tag_schemes.tag_fault(label) for label in labels)
    if is_plain:
        logging.info("The labels are no tags of entities: words get them, and no entities are told")
    return {
        "dataset": "conll",
        "name": tag_schemes.PLAIN if is_plain else "",
        "tag_scheme": "" if is_plain else tag_schemes.of_labels(labels),
    }


# Head -> its kind, and the options that what is told of the weights decides.
HEADS: dict[str, tuple[type[base.Kind], Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "sequence_classification": (Texts, _texts),
    "token_classification": (Tags, _tags),
    "question_answering": (Spans, lambda told: {"dataset": "squad", "name": "v1"}),
    "multiple_choice": (choices.Choices, lambda told: {"dataset": "swag"}),
}


def kind_of(told: Mapping[str, Any], longest: int) -> tuple[type[base.Kind], dict[str, Any]] | None:
    """Returns the kind and the options of converted weights, None if their head is no answer's.

    `told` is what the workdir keeps of them: `head`, `labels` by number, `is_regression`,
    `is_multi_label`, `pooling`. `longest` is how many positions the model reads; a window of SQuAD
    takes at most the 384 of the paper.
    """
    if told.get("head") not in HEADS:
        return None
    kind, of_head = HEADS[told["head"]]
    names = {int(number): name for number, name in told.get("labels", {}).items()}
    labels = () if told.get("is_regression") else tuple(names[it] for it in sorted(names))
    length = min(longest, 384) if kind is Spans else longest
    options = {
        "labels": labels,
        "max_seq_length": length,
        "text_column": TEXT,
        "doc_stride": max(min(128, length // 4), 1),
        "max_query_length": max(min(64, length // 4), 1),
    }
    return kind, {**options, **of_head(told)}
