"""Which of four endings goes on a text: SWAG's official CSV files, and CODAH's TSV files.

A row of the model is one choice, [CLS] context [SEP] ending [SEP], so an example has four. SWAG's
second sentence starts in the file (`sent2`, "She"); each ending follows that start.
CODAH's files keep it with the context.

Source: Devlin et al. 2019, section 4.4; Zellers et al. 2018 (SWAG), Chen et al. 2019 (CODAH).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Int

from bertjax.files import tables
from bertjax.finetuning import base, example_files, feature_sets
from bertjax.models import classification
from bertjax.models import encoder as encoders
from bertjax.options import finetuning as options_lib
from bertjax.scores import classification as scores
from bertjax.tokenization import tokenizer as tokenizers

CHOICES = 4
_LABELS = tuple(map(str, range(CHOICES)))
_ENDINGS = tuple(f"ending{choice}" for choice in range(CHOICES))
_SENTENCES, _WHOLE_CONTEXT, _LABEL = ("sent1", "sent2"), "startphrase", "label"
# CODAH's files have no header.
_CODAH_COLUMNS = ("category", _WHOLE_CONTEXT, *_ENDINGS, _LABEL)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A text, its four endings, which is right (None in a test file), and the "file:line"."""

    context: str
    endings: tuple[str, ...]
    label: int | None
    source: str


def read_examples(path: epath.PathLike) -> list[Example]:
    """Returns the examples of a file in its order: ".csv" is SWAG's format, ".tsv" CODAH's.

    A CSV file needs the columns ending0 to ending3 and either sent1 and sent2 or startphrase; one
    without the column label is a test file.
    """
    path = epath.Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(
            f"{path} must end with .csv (SWAG's format) or .tsv (CODAH's), but ends with "
            f"{path.suffix!r}"
        )
    faults = example_files.Faults()
    examples: list[Example] = []
    for source, row in example_files.rows(path, faults, _FORMATS[path.suffix]):
        context, label = _WHOLE_CONTEXT, row.get(_LABEL)
        endings = tuple(row[name] for name in _ENDINGS)
        if set(_SENTENCES) <= set(row):
            context, begun = _SENTENCES
            endings = tuple(f"{row[begun]} {end}".strip() for end in endings)
        if empty := [name for name in (context, *_ENDINGS) if not row[name].strip()]:
            faults.add(source, f"{', '.join(empty)} is empty; each needs a text")
        elif label is not None and label not in _LABELS:
            faults.add(source, f"label {label!r} is unknown; labels are {', '.join(_LABELS)}")
        else:
            number = None if label is None else int(label)
            examples.append(Example(row[context], endings, number, source))
    faults.check()
    if not examples:
        raise ValueError(f"{path} holds no examples; a data set needs at least one")
    return examples


def choice_rows(
    examples: Sequence[Example], tokenizer: tokenizers.Tokenizer, *, max_seq_length: int
) -> feature_sets.FeatureSet:
    """Returns the four rows of each example; "labels" are int32, none where no example has one."""
    labels = [example.label for example in examples if example.label is not None]
    if labels and len(labels) < len(examples):
        raise ValueError(
            f"{len(labels)} of {len(examples)} examples have a label; all or none of a data set "
            "must have one"
        )
    input_ids, segment_ids = feature_sets.sequence_pairs(
        tokenizer,
        [example.context for example in examples for _ in example.endings],
        [ending for example in examples for ending in example.endings],
        max_seq_length=max_seq_length,
    )
    return feature_sets.FeatureSet(
        {"input_ids": input_ids, "segment_ids": segment_ids},
        {"labels": np.array(labels, np.int32)} if labels else {},
        choices=CHOICES,
        pad_id=tokenizer.pad_id,
    )


def write_choices(path: epath.PathLike, predictions: Int[np.ndarray, " examples"]) -> None:
    """Writes the chosen endings as a CSV file of the columns "" (the row, from 0) and "pred".

    Source: rowanz/swagaf, csv_predict.py.
    """
    rows = (f"{row},{choice}\n" for row, choice in enumerate(predictions.tolist()))
    epath.Path(path).write_text(",pred\n" + "".join(rows))


def _swag_names_fault(names: Sequence[str]) -> str | None:
    only_whole = _WHOLE_CONTEXT in names and not set(_SENTENCES) <= set(names)
    context = (_WHOLE_CONTEXT,) if only_whole else _SENTENCES
    label = (_LABEL,) if _LABEL in names else ()
    return example_files.missing_columns(names, (*context, *_ENDINGS, *label))


# How files are read, by their suffix; a blank line is a row with too few columns.
_FORMATS = {
    ".csv": tables.Rules(blank_lines=True, names_fault=_swag_names_fault),
    ".tsv": tables.Rules(blank_lines=True, names=_CODAH_COLUMNS, delimiter="\t"),
}


@dataclasses.dataclass(frozen=True)
class MultipleChoice(base.FinetuningTask):
    """Which of `choices` sequences is right; inputs [batch, choices, length], `labels` [batch].

    Source: Devlin et al. 2019, section 4.4.
    """

    head: ClassVar[str] = "multiple_choice"

    encoder: encoders.EncoderConfig
    choices: int = CHOICES
    bilstm_size: int = 0

    @property
    def sequences(self) -> int:
        return self.choices

    @property
    def reads_only_first(self) -> bool:
        return not self.bilstm_size

    def init(self, rngs: nnx.Rngs) -> classification.MultipleChoice:
        return classification.MultipleChoice(self.encoder, bilstm_size=self.bilstm_size, rngs=rngs)

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        rows = batch_size * self.choices
        return base.pooled_flops(self.encoder, 1, rows, length, bilstm_size=self.bilstm_size)


class ChoiceReader(base.Reader):
    """Reads a "context" and the four "endings" of which one goes on."""

    def _examples(self, name: str) -> Sequence[Example]:
        return read_examples(self.file(name))

    def example(self, fields: base.Fields, source: str) -> Example:
        endings = example_files.json_texts(fields, "endings")
        if len(endings) != CHOICES:
            raise ValueError(f"'endings' has {len(endings)} texts; it must have {CHOICES}")
        return Example(example_files.json_text(fields, "context"), endings, None, source)

    def texts(self, example: Example) -> tuple[str, ...]:
        return example.context, *example.endings

    def rows(self, examples: Sequence[Example]) -> feature_sets.FeatureSet:
        length = self.options.max_seq_length
        return choice_rows(examples, self.tokenizer, max_seq_length=length)


class ChoiceScorer(base.ClassScorer):
    """Scores the number of the chosen ending, from 0."""

    @property
    def best_score(self) -> str:
        return "accuracy"

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels = self.reader.features(name).columns["labels"]
        return {"accuracy": scores.accuracy(labels, outputs["predictions"])}

    def class_name(self, number: int) -> str:
        return f"choice {number}"

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        numbers = predicted.outputs["predictions"].tolist()
        return [
            {"choice": number, "probabilities": [*prediction["probabilities"].values()]}
            for number, prediction in zip(numbers, super().predictions(predicted), strict=True)
        ]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        write_choices(directory / f"{name}.csv", outputs["predictions"])


SWAG = base.FinetuningKind(
    ChoiceReader,
    lambda encoder, options: MultipleChoice(encoder, bilstm_size=options.bilstm_size),
    ChoiceScorer,
    options_lib.owned("bilstm_size"),
)
