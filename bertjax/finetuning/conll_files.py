"""Tagged words in columns: CoNLL-2003 and every file like it, to rows of tokens and back.

A line has a word and its tag, and perhaps more, between tabs or spaces; an empty line ends a
sentence; -DOCSTART- begins a document. The first token of a word is scored, the others are not.
Long sentences are read in overlapping pieces; each word is scored where it has most context.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import batches, example_files, feature_sets, tag_schemes

DOCUMENT_START = "-DOCSTART-"
# Unit of context -> the key that the numbered sentences of a row (or of its pieces) share.
_UNIT_KEYS: dict[str, Callable[[tuple[int, Sentence]], Any]] = {
    "sentence": lambda numbered: numbered[0],
    "document": lambda numbered: (numbered[1].path, numbered[1].document),
}
_NO_PART_OF_SPEECH = "_"
_SPECIALS = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, with a tag each or no tags at all.

    `document` counts the file's -DOCSTART- up to here. The words stand in the lines of `path` from
    `line` on.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    parts_of_speech: tuple[str, ...]
    document: int
    path: str
    line: int

    def source(self, word: int = 0) -> str:
        """Returns the "file:line" of a word."""
        return f"{self.path}:{self.line + word}"


@dataclasses.dataclass(frozen=True)
class _Line:
    """A line with a word; lines of one `sentence` have no empty line between them."""

    number: int
    cells: tuple[str, ...]
    sentence: int
    document: int


def read_sentences(path: epath.PathLike, *, scheme: str | None = None) -> list[Sentence]:
    """Returns the sentences of a file; tags of entities are in IOB2 whatever the file has.

    The first column has the words, the last one the tags. `scheme` is a key of
    `tag_schemes.SCHEMES` or "plain"; None recognizes it. Given "iob1", a B is allowed everywhere,
    so that tags of no pure scheme are read as conlleval reads them.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming file and line, if it is not UTF-8, a line has not as many columns as the
        others, a word is empty, or a tag is invalid in itself or where it stands.
    """
    lines = _lines(path)
    if not lines:
        raise ValueError(f"{path} has no words; give a file with a word and its tag in each line")
    if len(lines[0].cells) == 1:
        raise ValueError(
            f"{path}:{lines[0].number}: word and tag are both column 0 of 1; they must be two, "
            "with tabs or spaces between them"
        )
    _check_cells(path, lines)
    groups = itertools.groupby(lines, key=lambda line: line.sentence)
    sentences = [_sentence(path, list(group)) for _, group in groups]
    if scheme == tag_schemes.PLAIN:
        return sentences
    _check_tags(sentences, scheme)
    return [
        dataclasses.replace(sentence, tags=tag_schemes.convert(sentence.tags, "iob2"))
        for sentence in sentences
    ]


def labels(sentences: Iterable[Sentence], *, scheme: str = "iob2") -> tuple[str, ...]:
    """Returns the tags that a model of these sentences can give, by number.

    For entities: "O", and every tag of the scheme for every type. Plain tags: those that occur.
    """
    tags = {tag for sentence in sentences for tag in sentence.tags}
    if scheme == tag_schemes.PLAIN:
        return tuple(sorted(tags))
    types = {tag_schemes.split(tag)[1] for tag in tags - {tag_schemes.OUTSIDE}}
    return tag_schemes.labels(sorted(types), scheme)


def write_predictions(
    path: epath.PathLike, sentences: Sequence[Sentence], predictions: Sequence[Sequence[str]]
) -> None:
    """Writes conlleval's columns: word, part of speech, right tag, predicted tag."""
    written = []
    for sentence, predicted in zip(sentences, predictions, strict=True):
        columns = (sentence.words, sentence.parts_of_speech, sentence.tags, predicted)
        # conlleval counts columns, and a word of a file with tabs may hold a space.
        rows = ([re.sub(r"\s", "_", cell) for cell in row] for row in zip(*columns, strict=True))
        written += [*map(" ".join, rows), ""]
    epath.Path(path).write_text("".join(f"{line}\n" for line in written), encoding="utf-8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedRows(feature_sets.FeatureSet):
    """The rows that a model reads, and where each word is scored.

    `rows` and `positions` have an entry for every word of all sentences, one after the other;
    `num_words` has one for every sentence.
    """

    rows: Int[np.ndarray, " words"]
    positions: Int[np.ndarray, " words"]
    num_words: Int[np.ndarray, " sentences"]

    def tags(
        self, predictions: Sequence[Int[np.ndarray, " _"]], labels: Sequence[str]
    ) -> list[tuple[str, ...]]:
        """Returns the tags of each sentence's words.

        `predictions` has the numbers of the tags at all positions of each row, in the order of the
        rows; what it has at padding is not looked at.
        """
        places = zip(self.rows.tolist(), self.positions.tolist(), strict=True)
        tags = (labels[int(predictions[row][position])] for row, position in places)
        return [tuple(itertools.islice(tags, count)) for count in self.num_words.tolist()]


def tagged_rows(
    sentences: Sequence[Sentence],
    tokenizer: tokenizers.Tokenizer,
    *,
    labels: Sequence[str],
    max_seq_length: int,
    context: str = "sentence",
) -> TaggedRows:
    """Returns [CLS] words [SEP] of every sentence, or of every document with `context` "document".

    "labels" are the numbers of the tags in `labels` at the first tokens of words, and -1 elsewhere
    and without tags. A document that is too long becomes pieces that overlap by about a half. A
    word of no tokens is [UNK], one longer than a piece is cut.
    Source: Devlin et al. 2019, section 5.3, which reads as much of the document as fits.

    Raises:
      ValueError: if there are no sentences, a tag is not among `labels`, or a number is out of its
        range.
    """
    capacity = max_seq_length - _SPECIALS
    stride = max(capacity // 2, 1)
    _check_options(sentences, capacity, context)
    label_ids = _label_ids(sentences, labels)
    words = [word for sentence in sentences for word in sentence.words]
    texts = [f" {word}" for word in words] if tokenizer.keeps_blanks else words
    word_ids = [ids[:capacity] or [tokenizer.unk_id] for ids in tokenizer.encode_batch(texts)]
    lengths = np.fromiter(map(len, word_ids), np.int64, len(words))
    parts = [
        (slice(start + first, start + end), start + scored)
        for start, count in _units(sentences, context)
        for first, end, scored in pieces(lengths[start : start + count], capacity, stride)
    ]
    rows, positions = np.full((2, len(words)), -1)
    tokens: dict[str, list[np.ndarray]] = {"input_ids": [], "segment_ids": [], "labels": []}
    for row, (piece, scored) in enumerate(parts):
        flat = itertools.chain.from_iterable(word_ids[piece])
        input_ids = np.array([tokenizer.cls_id, *flat, tokenizer.sep_id], np.int32)
        before = np.cumsum(lengths[piece]) - lengths[piece]
        rows[scored], positions[scored] = row, 1 + before[scored - piece.start]
        row_labels = np.full(len(input_ids), batches.NOT_SCORED, np.int32)
        row_labels[positions[scored]] = label_ids[scored]
        tokens["input_ids"].append(input_ids)
        tokens["segment_ids"].append(np.zeros(len(input_ids), np.int32))
        tokens["labels"].append(row_labels)
    num_words = np.array([len(sentence.words) for sentence in sentences])
    return TaggedRows(
        tokens, {}, pad_id=tokenizer.pad_id, rows=rows, positions=positions, num_words=num_words
    )


def _lines(path: epath.PathLike) -> list[_Line]:
    """Returns the lines that hold words, cut at tabs if the first one has a tab, else at spaces."""
    word_lines: list[_Line] = []
    separator, sentence, document = "", 0, 0
    for number, line in enumerate(example_files.lines(path), start=1):
        is_document_start = re.match(rf"{DOCUMENT_START}(\s|$)", line) is not None
        if is_document_start or not line.strip(" \t"):
            sentence, document = sentence + 1, document + is_document_start
            continue
        separator = separator or ("\t" if "\t" in line else " ")
        if separator == " ":
            # Not str.split: a word may hold a space of another kind.
            line = re.sub(" +", " ", line.strip(" "))
        word_lines.append(_Line(number, tuple(line.split(separator)), sentence, document))
    return word_lines


def _check_cells(path: epath.PathLike, lines: Sequence[_Line]) -> None:
    faults, width = example_files.Faults(), len(lines[0].cells)
    for line in lines:
        source = f"{path}:{line.number}"
        if (columns := len(line.cells)) != width:
            fault = f"the line has {columns} columns; it must have {width}, as the first"
            faults.add(source, fault)
        elif not line.cells[0].strip():
            faults.add(source, "the word is empty; column 0 must have one")
    faults.check()


def _sentence(path: epath.PathLike, lines: Sequence[_Line]) -> Sentence:
    columns = list(zip(*(line.cells for line in lines), strict=True))
    # CoNLL's second column; with fewer than three there is none.
    parts_of_speech = columns[1] if len(columns) > 2 else (_NO_PART_OF_SPEECH,) * len(lines)
    place = (lines[0].document, str(path), lines[0].number)
    return Sentence(columns[0], columns[-1], parts_of_speech, *place)


def _check_tags(sentences: Sequence[Sentence], scheme: str | None) -> None:
    """Checks each tag in itself, and then where it stands."""
    faults = example_files.Faults()
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if reason := tag_schemes.tag_fault(tag, scheme):
                faults.add(sentence.source(place), reason)
    faults.check()
    tags = [sentence.tags for sentence in sentences]
    if scheme == "iob1" or (scheme is None and tag_schemes.recognize(tags)):
        return
    has_ends = any(tag[0] in "ES" for sentence_tags in tags for tag in sentence_tags)
    expected = scheme or ("iobes" if has_ends else "iob2")
    advice = "" if expected == "iobes" else "; give the scheme iob1 to read tags as conlleval does"
    for sentence in sentences:
        for place, reason in tag_schemes.faults(sentence.tags, expected):
            faults.add(sentence.source(place), reason + advice)
    faults.check()


def _check_options(sentences: Sequence[Sentence], capacity: int, context: str) -> None:
    if not sentences:
        raise ValueError("there are no sentences; a data set needs at least one")
    if capacity < 1:
        raise ValueError(
            f"max_seq_length is {capacity + _SPECIALS}; it must be at least {1 + _SPECIALS}, for "
            f"{_SPECIALS} special tokens and a word"
        )
    if context == "document" and not any(sentence.document for sentence in sentences):
        raise ValueError(
            f"{sentences[0].path} has no {DOCUMENT_START}, so its documents are not known; give "
            "the context 'sentence'"
        )


def _label_ids(sentences: Sequence[Sentence], labels: Sequence[str]) -> Int[np.ndarray, " words"]:
    """Returns the number of every word's tag, NOT_SCORED where there are no tags."""
    numbers = {label: number for number, label in enumerate(labels)}
    faults = example_files.Faults()
    label_ids: list[int] = []
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if tag not in numbers:
                fault = f"the tag is {tag!r} as the model has it; known are {', '.join(labels)}"
                faults.add(sentence.source(place), fault)
        label_ids += [numbers.get(tag, batches.NOT_SCORED) for tag in sentence.tags]
        label_ids += [batches.NOT_SCORED] * (len(sentence.words) - len(sentence.tags))
    faults.check()
    return np.array(label_ids, np.int32)


def _units(sentences: Sequence[Sentence], context: str) -> Iterator[tuple[int, int]]:
    """Yields the first word of each sentence or document, and its number of words."""
    start = 0
    for _, group in itertools.groupby(enumerate(sentences), key=_UNIT_KEYS[context]):
        count = sum(len(sentence.words) for _, sentence in group)
        yield start, count
        start += count


def pieces(
    lengths: Int[np.ndarray, " words"], capacity: int, stride: int
) -> list[tuple[int, int, Int[np.ndarray, " scored"]]]:
    """Returns pieces of at most `capacity` tokens: first word, word after the last, words scored.

    `lengths` are the words' tokens, 1 to `capacity` each. Every word is scored in one piece: where
    the smaller of the numbers of tokens before and after it is largest, the first of several such.
    Source: google-research/bert, run_squad.py, _check_is_max_context, without its preference for
    longer pieces among equals.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    spans = _spans(starts, ends, capacity, stride)
    best, chosen = np.full((2, len(lengths)), -1)
    for number, (first, end) in enumerate(spans):
        before = starts[first:end] - starts[first]
        after = ends[end - 1] - ends[first:end]
        context = np.minimum(before, after)
        is_better = context > best[first:end]
        best[first:end][is_better] = context[is_better]
        chosen[first:end][is_better] = number
    return [
        (first, end, first + np.flatnonzero(chosen[first:end] == number))
        for number, (first, end) in enumerate(spans)
    ]


def _spans(
    starts: Int[np.ndarray, " words"], ends: Int[np.ndarray, " words"], capacity: int, stride: int
) -> list[tuple[int, int]]:
    spans, first = [], 0
    while ends[-1] - starts[first] > capacity:
        end = int(np.searchsorted(ends, starts[first] + capacity, side="right"))
        spans.append((first, end))
        first = min(int(np.searchsorted(starts, starts[first] + stride)), end)
    # The last piece reaches back as far as there is room.
    first = int(np.searchsorted(starts, ends[-1] - capacity))
    return [*spans, (first, len(starts))]
