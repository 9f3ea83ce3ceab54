"""The rows of a finetuning data set, and functions that make them from texts.

Files belong to the readers, order and padding to `batches`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from absl import logging
from jaxtyping import Int

from bertjax.tokenization import tokenizer as tokenizers

# Rows of a list have lengths of their own, so none of them has a name.
Rows = list[Int[np.ndarray, " _"]]

_SPECIALS_OF_ONE = 2  # [CLS] a [SEP]


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive examples of which an epoch shows `weight` times their number, at least one."""

    examples: int
    weight: float = 1.0

    @property
    def shown(self) -> int:
        return max(round(self.examples * self.weight), 1)


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """The input of a model from a data set: a row for each sequence (a window, for SQuAD).

    `tokens` holds "input_ids", "segment_ids" and, where each token has its own, "labels" (-1: not
    scored): an int32 array for each row, with the special tokens, without padding. `columns` holds
    one value for each example ("labels", "start_positions", ...). Rows [i * choices,
    (i + 1) * choices) belong to example i. `parts` are the files that the examples come from, one
    behind the other; () is one of weight 1. Examples that share a number in `apart` must not share
    a batch of training. Rows without tokens have `row_length` positions each, whose values are
    columns.
    """

    tokens: dict[str, Rows]
    columns: dict[str, np.ndarray]
    choices: int = 1
    pad_id: int = 0
    parts: tuple[Part, ...] = ()
    apart: Int[np.ndarray, "examples texts"] | None = None
    row_length: int = 0

    def __post_init__(self):
        rows = len(self.row_lengths)
        if self.choices < 1 or rows % self.choices:
            raise ValueError(
                f"choices is {self.choices}; it must be at least 1 and divide the {rows} rows"
            )
        for name, column in self.columns.items():
            if len(column) != len(self):
                raise ValueError(
                    f"columns[{name!r}] has {len(column)} values; there must be one for each of "
                    f"the {len(self)} examples"
                )

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.row_lengths) // self.choices

    @functools.cached_property
    def row_lengths(self) -> Int[np.ndarray, " rows"]:
        """The number of positions of each row."""
        if self.row_length:
            return np.full(len(next(iter(self.columns.values()))), self.row_length, np.int64)
        return np.fromiter(map(len, self.tokens["input_ids"]), np.int64)

    @property
    def epoch_size(self) -> int:
        """The number of examples that an epoch shows."""
        return sum(part.shown for part in self.parts) if self.parts else len(self)

    def lengths(self) -> Int[np.ndarray, " examples"]:
        """Returns the tokens of the longest row of each example."""
        return self.row_lengths.reshape(len(self), self.choices).max(axis=1)


def numbers(texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Returns a number for each text, the same for equal ones."""
    places: dict[str, int] = {}
    return np.array([places.setdefault(text, len(places)) for text in texts], np.int64)


def pair_specials(tokenizer: tokenizers.Tokenizer) -> int:
    """Returns the number of special tokens around two texts: 3, or 4 for RoBERTa's."""
    return _SPECIALS_OF_ONE + tokenizer.pair_separators


def sequence_pairs(
    tokenizer: tokenizers.Tokenizer,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_seq_length: int,
) -> tuple[Rows, Rows]:
    """Returns input_ids and segment_ids of every row: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

    Between two texts the tokenizer has one or more [SEP] (`pair_separators`). Tokens go
    from the end of the longer text until the row fits; the log counts such rows. The first text and
    its specials are segment 0, the second and its [SEP] segment 1.

    Source: google-research/bert, run_classifier.py, convert_single_example.
    """
    specials = _SPECIALS_OF_ONE if texts_b is None else pair_specials(tokenizer)
    least = specials + (1 if texts_b is None else 2)
    if max_seq_length < least:
        raise ValueError(
            f"max_seq_length is {max_seq_length}; it must be at least {least}, for {specials} "
            "special tokens and one of each text"
        )
    if texts_b is not None and len(texts_a) != len(texts_b):
        raise ValueError(
            f"there are {len(texts_a)} first and {len(texts_b)} second texts; each row takes one "
            "of both"
        )
    limit = max_seq_length - specials
    flat_a, lengths_a = tokenizer.encode_flat(texts_a)
    lengths_b, kept_b = np.zeros_like(lengths_a), None
    if texts_b is None:
        kept_a = np.minimum(lengths_a, limit)
        row_lengths = kept_a + specials
    else:
        flat_b, lengths_b = tokenizer.encode_flat(texts_b)
        kept_a, kept_b = kept_lengths(lengths_a, lengths_b, limit=limit)
        row_lengths = kept_a + kept_b + specials
    if cut := int((row_lengths < lengths_a + lengths_b + specials).sum()):
        logging.info(
            "%d of %d rows hold the start of their texts alone: max_seq_length is %d tokens",
            cut, len(texts_a), max_seq_length,
        )  # fmt: skip
    edges = np.concatenate([[0], np.cumsum(row_lengths, dtype=np.int64)])
    # Places outside of both texts are special tokens, nearly all of them [SEP].
    input_ids = np.full(edges[-1], tokenizer.sep_id, np.int32)
    segment_ids = np.zeros(edges[-1], np.int32)
    input_ids[edges[:-1]] = tokenizer.cls_id
    starts_a = edges[:-1] + 1
    input_ids[_ranges(starts_a, kept_a)] = flat_a[_ranges(_starts(lengths_a), kept_a)]
    if kept_b is not None:
        starts_b = starts_a + kept_a + tokenizer.pair_separators
        input_ids[_ranges(starts_b, kept_b)] = flat_b[_ranges(_starts(lengths_b), kept_b)]
        segment_ids[_ranges(starts_b, kept_b + 1)] = 1
    return _split(input_ids, edges), _split(segment_ids, edges)


@dataclasses.dataclass(frozen=True, slots=True)
class TextExample:
    """One or two texts, and their "file:line".

    `label` is the place of the class, a number (float), or None; a tuple has the places of all
    labels of a text that may have several.
    """

    texts: tuple[str, ...]
    label: int | float | tuple[int, ...] | None
    source: str


def text_rows(
    examples: Sequence[TextExample],
    tokenizer: tokenizers.Tokenizer,
    *,
    max_seq_length: int,
    num_labels: int = 0,
) -> FeatureSet:
    """Returns the rows of the examples; "labels" are int32 classes or float32 numbers, if any.

    Of examples with several labels they are float32, 1 or 0 for each of the `num_labels`.
    """
    if not examples:
        raise ValueError("there are no examples; a data set needs at least one")
    kinds = {(len(example.texts), type(example.label)) for example in examples}
    if len(kinds) > 1:
        types = ", ".join(sorted(f"{n} texts with {kind.__name__}" for n, kind in kinds))
        raise ValueError(
            f"examples of different kinds ({types}); all of a data set need as many texts and the "
            "same kind of label"
        )
    ((num_texts, label_type),) = kinds
    first, *second = ([example.texts[place] for example in examples] for place in range(num_texts))
    input_ids, segment_ids = sequence_pairs(
        tokenizer, first, second[0] if second else None, max_seq_length=max_seq_length
    )
    columns: dict[str, np.ndarray] = {}
    if label_type is tuple:
        columns["labels"] = np.zeros((len(examples), num_labels), np.float32)
        for row, example in zip(columns["labels"], examples, strict=True):
            row[list(example.label)] = 1  # pyright: ignore[reportArgumentType]  a tuple
    elif label_type is not type(None):
        dtype = np.float32 if label_type is float else np.int32
        columns["labels"] = np.array([example.label for example in examples], dtype)
    tokens = {"input_ids": input_ids, "segment_ids": segment_ids}
    return FeatureSet(tokens, columns, pad_id=tokenizer.pad_id)


def kept_lengths(
    lengths_a: Int[np.ndarray, " rows"], lengths_b: Int[np.ndarray, " rows"], *, limit: int
) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """Returns the numbers of tokens that texts keep if the longer loses its last until both fit.

    If they are equally long, the second loses first, so a text never falls below its half.

    Source: google-research/bert, run_classifier.py, _truncate_seq_pair.
    """
    kept_a = np.minimum(lengths_a, np.maximum(limit - limit // 2, limit - lengths_b))
    kept_b = np.minimum(lengths_b, np.maximum(limit // 2, limit - lengths_a))
    return kept_a, kept_b


def _starts(lengths: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _ranges(
    starts: Int[np.ndarray, " rows"], lengths: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " places"]:
    """Returns the numbers start, start + 1, ..., `length` of them, for row after row."""
    shifts = np.repeat(starts - _starts(lengths), lengths)
    return np.arange(len(shifts)) + shifts


def _split(flat: Int[np.ndarray, " tokens"], edges: Int[np.ndarray, " edges"]) -> Rows:
    places = edges.tolist()
    return [flat[begin:end] for begin, end in zip(places[:-1], places[1:], strict=True)]
