"""SQuAD v1.1 and v2.0: the official JSON files to questions, windows and features.

What logits predict belongs to `spans`, scores to `bertjax.scores`.

Source: google-research/bert, run_squad.py, for every rule without a source of its own. Its tokens
lie on words between spaces; here they lie on characters, so an answer is a piece of the context.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Bool, Int

from bertjax.files import json_text, opening
from bertjax.finetuning import feature_sets
from bertjax.tokenization import tokenizer as tokenizers

MAX_FAULTS_SHOWN = 10
# A misplaced answer is looked for in this number of characters before and after its offset. Those
# of COVID-QA, made with other line ends, stand 1 to 3 characters from it.
NEARBY = 10
_KINDS = {str: "a string", int: "a whole number", bool: "true or false", list: "a list"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """A piece of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """A question on a context; without answers if it has none there, or they are unknown.

    `source` is the file and the id, for messages.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...] = ()
    source: str = ""


@dataclasses.dataclass(frozen=True)
class TokenizedContext:
    """The tokens of a context, which all its questions share, and the characters of each."""

    ids: Int[np.ndarray, " tokens"]
    starts: Int[np.ndarray, " tokens"]
    ends: Int[np.ndarray, " tokens"]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first and the last token that hold characters of [start, end), if any do.

        So it is the tightest span of tokens that covers them.
        """
        starts, ends = self.starts, self.ends
        places = np.flatnonzero((starts < end) & (ends > start) & (starts < ends))
        return (int(places[0]), int(places[-1])) if len(places) else None


@dataclasses.dataclass(frozen=True)
class Window:
    """One row: [CLS] question [SEP] tokens [begin, end) of the context [SEP].

    `question` is its place in the list of questions and `context_position` the place in the row of
    the window's first context token. `has_max_context` marks the context tokens that have in no
    other window of the question more context around them; only there may an answer begin.
    """

    question: int
    input_ids: Int[np.ndarray, " length"]
    context: TokenizedContext
    begin: int
    end: int
    context_position: int
    has_max_context: Bool[np.ndarray, " tokens"]

    def positions(self, answer: Answer) -> tuple[int, int]:
        """Returns the row positions of an answer's first and last token; (0, 0), [CLS], without.

        An answer that is not wholly in the window is none.
        """
        span = self.context.span(answer.start, answer.start + len(answer.text))
        if span is None or span[0] < self.begin or span[1] >= self.end:
            return 0, 0
        shift = self.context_position - self.begin
        return span[0] + shift, span[1] + shift


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowRows(feature_sets.FeatureSet):
    """The rows of windows, which know their questions."""

    questions: Sequence[Question]
    windows: Sequence[Window]


class _MisplacedAnswerError(ValueError):
    """An answer is not in its context at its offset."""


def read_questions(
    path: epath.PathLike,
    *,
    version_2: bool = False,
    labelled: bool = True,
    repairs_answers: bool = False,
) -> list[Question]:
    """Returns the questions of an official JSON file (or such a file packed by gzip).

    With `version_2` questions may be marked "is_impossible". With `labelled=False` answers are
    neither needed nor read. With `repairs_answers` an answer that is not at its offset is moved if
    it stands once near it; other misplaced answers, and questions that have no others, are left
    out. The log counts both.
    """
    path = epath.Path(path)
    faults: list[str] = []
    questions: dict[str, Question] = {}
    repaired: collections.Counter[str] = collections.Counter()
    for context, record, place in _records(path, faults):
        try:
            if repairs_answers and labelled and isinstance(record, dict):
                record = _repaired(record, context, repaired)
            if record is None:
                continue
            question = _question(
                record, context, path, place, version_2=version_2, labelled=labelled
            )
            if question.id in questions:
                raise ValueError(f"{question.source}: the id stands twice; ids must be unique")
            questions[question.id] = question
        except ValueError as fault:
            faults.append(str(fault))
    if repaired:
        logging.warning(
            "%s: %d answers near their offset were moved, %d that do not stand near it were left "
            "out, and with them %d questions",
            path, repaired["moved"], repaired["left out"], repaired["questions"],
        )  # fmt: skip
    if not questions and not faults:
        faults.append(f"{path}: it holds no questions; give a file of SQuAD's format")
    if faults:
        more = len(faults) - MAX_FAULTS_SHOWN
        rest = [f"... and {more} more"] if more > 0 else []
        raise ValueError("\n".join([*faults[:MAX_FAULTS_SHOWN], *rest]))
    return list(questions.values())


def is_version_2(path: epath.PathLike) -> bool:
    """Returns whether the questions of a file are marked as in v2.0."""
    return any("is_impossible" in record for _, record, _ in _records(epath.Path(path), []))


def windows(
    questions: Sequence[Question],
    tokenizer: tokenizers.Tokenizer,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
) -> list[Window]:
    """Returns the windows of every question in turn: as many as its context needs, at least one.

    A question keeps its first `max_query_length` tokens, and each window begins `doc_stride` tokens
    after the one before.
    """
    specials = feature_sets.pair_specials(tokenizer)
    if (least := max_query_length + specials + 1) > max_seq_length:
        raise ValueError(
            f"max_seq_length is {max_seq_length}; it must be at least {least}, for a question of "
            f"max_query_length {max_query_length}, {specials} special tokens and one of the "
            "context: raise it or lower max_query_length"
        )
    contexts: dict[str, TokenizedContext] = {}
    windows: list[Window] = []
    queries = tokenizer.encode_batch([question.text for question in questions])
    for place, (question, query) in enumerate(zip(questions, queries, strict=True)):
        if question.context not in contexts:
            tokens = tokenizer.encode_with_offsets(question.context)
            contexts[question.context] = TokenizedContext(*tokens)
        context, query = contexts[question.context], query[:max_query_length]
        room = max_seq_length - len(query) - specials
        between = [tokenizer.sep_id] * tokenizer.pair_separators
        head = np.array([tokenizer.cls_id, *query, *between], np.int32)
        tail = np.array([tokenizer.sep_id], np.int32)
        for begin, end, has_max_context in _ranges(len(context.ids), room, doc_stride):
            row = np.concatenate([head, context.ids[begin:end], tail])
            windows.append(Window(place, row, context, begin, end, len(head), has_max_context))
    return windows


def window_rows(
    questions: Sequence[Question],
    windows: Sequence[Window],
    tokenizer: tokenizers.Tokenizer,
    *,
    labelled: bool = True,
) -> WindowRows:
    """Returns the rows of the windows and, if labelled, where the first answer starts and ends.

    `start_positions` and `end_positions` are 0, [CLS], for a window without the whole answer.
    """
    columns: dict[str, np.ndarray] = {}
    if labelled:
        positions = [
            window.positions(answers[0])
            if (answers := questions[window.question].answers)
            else (0, 0)
            for window in windows
        ]
        starts, ends = np.array(positions, np.int32).reshape(-1, 2).T
        columns = {"start_positions": starts, "end_positions": ends}
    tokens = {
        "input_ids": [window.input_ids for window in windows],
        "segment_ids": [
            (np.arange(len(window.input_ids)) >= window.context_position).astype(np.int32)
            for window in windows
        ],
    }
    source = {"questions": questions, "windows": windows}
    return WindowRows(tokens, columns, pad_id=tokenizer.pad_id, **source)


@functools.lru_cache(maxsize=4096)  # Most contexts fit one window; the others repeat their lengths.
def _ranges(
    num_tokens: int, room: int, doc_stride: int
) -> list[tuple[int, int, Bool[np.ndarray, " tokens"]]]:
    """Returns begin, end and `has_max_context` of each window of a context."""
    step = min(room, doc_stride)
    begins = np.arange(0, max(num_tokens - room, 0) + step, step)
    ends = np.minimum(begins + room, num_tokens)
    tokens = np.arange(num_tokens)
    left, right = tokens - begins[:, None], ends[:, None] - 1 - tokens
    # The longer window wins where both sides are equal.
    context = np.minimum(left, right) + 0.01 * (ends - begins)[:, None]
    best = np.argmax(np.where((left >= 0) & (right >= 0), context, -1.0), axis=0)
    return [
        (int(begin), int(end), best[begin:end] == place)
        for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def _records(path: epath.Path, faults: list[str]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yields context, record and place of every question; faults around them go to `faults`."""
    try:
        dataset = _json(path)
    except ValueError as fault:
        faults.append(str(fault))
        return
    for article, article_place in _items(dataset, "data", str(path), faults, ": "):
        for paragraph, place in _items(article, "paragraphs", article_place, faults):
            try:
                context = _text(paragraph, "context", place)
            except ValueError as fault:
                faults.append(str(fault))
                continue
            for record, record_place in _items(paragraph, "qas", place, faults):
                yield context, record, record_place


def _items(
    record: Any, key: str, place: str, faults: list[str], separator: str = "."
) -> Iterator[tuple[Any, str]]:
    """Yields the items of the list under a key, and their places."""
    try:
        items = _field(record, key, list, place)
    except ValueError as fault:
        faults.append(str(fault))
        return
    for number, item in enumerate(items):
        yield item, f"{place}{separator}{key}[{number}]"


def _json(path: epath.Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give an official JSON file of SQuAD")
    with opening.opened(path) as file:
        content = file.read()
    try:
        return json_text.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}:{error.lineno}: it is not JSON: {error.msg}; give a file in SQuAD's format"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: it cannot be read: {error}") from error


def _repaired(
    record: Mapping[str, Any], context: str, counts: collections.Counter[str]
) -> Mapping[str, Any] | None:
    """Returns a question with its misplaced answers moved or left out, None if it loses all."""
    answers = record.get("answers")
    if not isinstance(answers, list):
        return record
    kept = []
    for answer in answers:
        try:
            _answer(answer, context, "")
        except _MisplacedAnswerError:
            text, start = answer["text"], answer["answer_start"]
            first = max(start - NEARBY, 0)
            nearby = context[first : max(start, 0) + NEARBY + len(text)]
            place = nearby.find(text)
            if place < 0 or nearby.find(text, place + 1) >= 0:
                counts["left out"] += 1
                continue
            counts["moved"] += 1
            answer = {**answer, "answer_start": first + place}
        except ValueError:
            pass  # Reported when the question is read.
        kept.append(answer)
    if answers and not kept:
        counts["questions"] += 1
        return None
    return {**record, "answers": kept}


def _question(
    record: Any, context: str, path: epath.Path, place: str, *, version_2: bool, labelled: bool
) -> Question:
    # Whole numbers may be ids; official files have texts.
    is_number = isinstance(record, dict) and type(record.get("id")) is int
    question_id = str(record["id"]) if is_number else _field(record, "id", str, place)
    source = f"{path}: question {question_id!r}"
    text = _text(record, "question", source)
    if not labelled:
        return Question(question_id, text, context, (), source)
    records = _field(record, "answers", list, source)
    answers = tuple(_answer(answer, context, source) for answer in records)
    is_impossible = version_2 and _field(record, "is_impossible", bool, source)
    if is_impossible and answers:
        raise ValueError(f"{source}: is_impossible is true, but it has answers; it must be false")
    if not is_impossible and not answers:
        of_v1 = "only v2.0 has such: version_2, configs/squad.py:v2"
        hint = "is_impossible is false" if version_2 else of_v1
        raise ValueError(f"{source}: it has no answer; it must have one ({hint})")
    return Question(question_id, text, context, answers, source)


def _answer(record: Any, context: str, source: str) -> Answer:
    text = _text(record, "text", source)
    start = _field(record, "answer_start", int, source)
    if start < 0 or not context.startswith(text, start):
        elsewhere = context.find(text)
        hint = "it is nowhere in it" if elsewhere < 0 else f"it is first found at {elsewhere}"
        raise _MisplacedAnswerError(
            f"{source}: the answer {text!r} is not in its context at answer_start {start}, where "
            f"stands {context[max(start, 0) :][: len(text)]!r}; {hint} "
            "(--config.finetuning.repair_answers=True moves such answers, or leaves them out)"
        )
    return Answer(text, start)


def _text(record: Any, key: str, place: str) -> str:
    text = _field(record, key, str, place)
    if not text.strip():
        raise ValueError(f"{place}: {key!r} is empty; it must hold text")
    return text


def _field(record: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(record, dict):
        raise ValueError(
            f"{place}: it is {record!r:.60}; it must be an object with the key {key!r}"
        )
    if key not in record:
        keys = ", ".join(map(repr, record)) or "none"
        raise ValueError(f"{place}: the key {key!r} is missing; its keys are {keys}")
    value = record[key]
    # bool is a subclass of int: true is not a number here.
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{place}: {key!r} is {value!r:.60}; it must be {_KINDS[kind]}")
    return value
