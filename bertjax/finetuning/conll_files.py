"""Tagged words in columns: CoNLL-2003, CoNLL-U and files like them, to rows of tokens and back.

A line has a word and its tag, and perhaps more, between tabs or spaces; an empty line ends a
sentence; -DOCSTART- begins a document. Where the words are numbered, as in CoNLL-U, ranges (3-4)
and empty nodes (8.1) are passed over, and so are comments everywhere. The first token of a word is
scored, the others are not. Long sentences are read in overlapping pieces; each word is scored where
it has most context.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int

from bertjax.finetuning import batches, example_files, feature_sets, tag_schemes
from bertjax.tokenization import tokenizer as tokenizers

DOCUMENT_START = "-DOCSTART-"
# Unit of context -> the key that the numbered sentences of a row (or of its pieces) share.
_UNIT_KEYS: dict[str, Callable[[tuple[int, Sentence]], Any]] = {
    "sentence": lambda numbered: numbered[0],
    "document": lambda numbered: (numbered[1].path, numbered[1].document),
}
_NO_PART_OF_SPEECH = "_"
# In CoNLL-U a comment in front of a document.
_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")
# A line like a comment, and a comment with as many columns as a word has ("#" has fewer).
_COMMENT = re.compile(r"#(\s|\S+\s*=)")
_WIDE_COMMENT = re.compile(r"# +(\S+ *=( |$)|(newdoc|newpar|id|sent_id)\b)")
_NUMBER = re.compile(r"[0-9]+")
_RANGE_OR_EMPTY = re.compile(r"[0-9]+[-.][0-9]+")
# Columns of CoNLL-U, and of its form, universal and other part of speech.
_CONLLU_WIDTH, _FORM, _UPOS, _XPOS = 10, 1, 3, 4
_SPECIALS = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, with a tag each or no tags at all.

    `document` counts the file's -DOCSTART- up to here. The words stand in `path`, in `lines` or, if
    those are not given, from `line` on.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    parts_of_speech: tuple[str, ...]
    document: int
    path: str
    line: int
    lines: tuple[int, ...] = ()

    def source(self, word: int = 0) -> str:
        """Returns the "file:line" of a word."""
        return f"{self.path}:{self.lines[word] if self.lines else self.line + word}"


@dataclasses.dataclass(frozen=True)
class _Line:
    """A line with a word; lines of one `sentence` have no empty line between them."""

    number: int
    cells: tuple[str, ...]
    sentence: int
    document: int


def read_sentences(path: epath.PathLike, *, scheme: str | None = None) -> list[Sentence]:
    """Returns the sentences of a file; tags of entities are in IOB2 whatever the file has.

    The first column has the words, or the second one if the first numbers them; the last one has
    the tags, in CoNLL-U the universal part of speech unless the last one has tags of entities. Tags
    are in Unicode's form NFC. `scheme` is a key of `tag_schemes.SCHEMES` or "plain"; None
    recognizes it. Given "iob1", a B is allowed everywhere, so that tags of no pure scheme are read
    as conlleval reads them.
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
    lines = _without_numbers(path, lines)
    groups = itertools.groupby(lines, key=lambda line: line.sentence)
    sentences = [_sentence(path, list(group)) for _, group in groups]
    if scheme == tag_schemes.PLAIN:
        _check_plain(sentences)
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
    lines = example_files.lines(path)
    first = next((it for it in lines if not (it.startswith("#") or _is_border(it))), "#\t")
    separator = "\t" if "\t" in first else " "
    width, sentence, document, comments = len(_cells(first, separator)), 0, 0, 0
    for number, line in enumerate(lines, start=1):
        if _is_border(line):
            sentence, document = sentence + 1, document + _is_document_start(line)
            continue
        cells = _cells(line, separator)
        begins = not word_lines or word_lines[-1].sentence < sentence
        if begins and _is_comment(line, separator, is_torn=len(cells) != width):
            comments += 1
            document += _NEW_DOCUMENT.match(line) is not None
            continue
        word_lines.append(_Line(number, cells, sentence, document))
    if comments:
        logging.info("%s: %d comment lines are passed over", path, comments)
    return word_lines


def _is_document_start(line: str) -> bool:
    return re.match(rf"{DOCUMENT_START}(\s|$)", line) is not None


def _is_border(line: str) -> bool:
    """Returns whether a line is between sentences."""
    return not line.strip(" \t") or _is_document_start(line)


def _cells(line: str, separator: str) -> tuple[str, ...]:
    if separator == " ":
        # Not str.split: a word may hold a space of another kind.
        line = re.sub(" +", " ", line.strip(" "))
    return tuple(line.split(separator))


def _is_comment(line: str, separator: str, *, is_torn: bool) -> bool:
    """Returns whether a line in front of a sentence is a comment, not the word "#" and its tag."""
    if is_torn:
        return line.strip() != "#" and _COMMENT.match(line) is not None
    return separator == " " and _WIDE_COMMENT.match(line) is not None


def _without_numbers(path: epath.PathLike, lines: Sequence[_Line]) -> Sequence[_Line]:
    """Returns the lines of words, where these are numbered, without their numbers.

    CoNLL-U becomes the word, its part of speech and its tag.
    Source: universaldependencies.org/format.html.
    """
    if len(lines[0].cells) < 3 or not _are_numbered(lines):
        return lines
    words = [line for line in lines if _NUMBER.fullmatch(line.cells[0])]
    cells = [line.cells[1:] for line in words]
    if len(lines[0].cells) == _CONLLU_WIDTH:
        has_entities = not any(tag_schemes.tag_fault(line.cells[-1]) for line in words)
        tag = -1 if has_entities else _UPOS
        cells = [(it.cells[_FORM], it.cells[_XPOS], it.cells[tag]) for it in words]
        name = "the last one, MISC" if has_entities else "UPOS"
        logging.info("%s is CoNLL-U: the tags are in the column %s", path, name)
    if len(words) < len(lines):
        passed = len(lines) - len(words)
        logging.info("%s: %d ranges and empty nodes are passed over", path, passed)
    return [dataclasses.replace(line, cells=each) for line, each in zip(words, cells, strict=True)]


def _are_numbered(lines: Sequence[_Line]) -> bool:
    """Returns whether the first column counts the words of every sentence from 1."""
    for _, group in itertools.groupby(lines, key=lambda line: line.sentence):
        numbers = [line.cells[0] for line in group]
        numbers = [it for it in numbers if not _RANGE_OR_EMPTY.fullmatch(it)]
        if numbers != [str(number) for number in range(1, len(numbers) + 1)]:
            return False
    return True


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
    tags = tuple(map(example_files.normalized, columns[-1]))
    numbers = tuple(line.number for line in lines)
    place = (lines[0].document, str(path), numbers[0], numbers)
    return Sentence(columns[0], tags, parts_of_speech, *place)


def _check_plain(sentences: Sequence[Sentence]) -> None:
    faults = example_files.Faults()
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if tag == tag_schemes.NO_TAG:
                faults.add(sentence.source(place), f"the tag is {tag!r}{tag_schemes.NO_TAG_HINT}")
    faults.check()


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
    unknown = example_files.UnknownLabels()
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if tag not in numbers:
                unknown.add(sentence.source(place), [tag])
        label_ids += [numbers.get(tag, batches.NOT_SCORED) for tag in sentence.tags]
        label_ids += [batches.NOT_SCORED] * (len(sentence.words) - len(sentence.tags))
    unknown.report(faults, "the tag", labels)
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
