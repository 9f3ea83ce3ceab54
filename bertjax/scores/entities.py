"""Entities in tagged words, and their precision, recall and F1 in percent, as conlleval scores.

A tag is "O", or one of B, I, E, S, alone or with a type after a hyphen ("B-PER"). One rule reads
IOB1, IOB2 and IOBES, so that any prediction has a meaning. An entity begins
- at B and at S;
- at I and E if the word before is outside, has another type, or is E or S;
and it ends before the next "O", the next beginning, or the end of the sentence. It is correct if
first word, last word and type are the same.

Source: conlleval of the CoNLL shared tasks (version 2004-01-26). It does not know S, and knows E
only in schemes without B, so there B directly after E of its type does not begin an entity; here it
does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from bertjax.options import faults

OUTSIDE = "O"
_BEGINS, _ENDS, _PREFIXES = ("B", "S"), ("E", "S"), ("B", "I", "E", "S")
_MAX_FAULTS = 10  # that an error lists


@dataclasses.dataclass(frozen=True, order=True)
class Entity:
    """The words [start, end) of a sentence, and their type ("" without types)."""

    start: int
    end: int
    type: str


@dataclasses.dataclass(frozen=True)
class Counts:
    """The numbers of true, predicted and correctly predicted entities."""

    gold: int
    found: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of predicted entities that are correct, in percent; 0 without predictions."""
        return 100 * self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of true entities that were predicted, in percent; 0 without true ones."""
        return 100 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent; 0 if both are 0."""
        precision, recall = self.precision, self.recall
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclasses.dataclass(frozen=True)
class Scores:
    """The figures of conlleval; `overall` is over all entities of any type."""

    tokens: int
    correct_tokens: int
    overall: Counts
    by_type: dict[str, Counts]  # sorted by name

    @property
    def accuracy(self) -> float:
        """The share of words with the right tag, "O" included, in percent."""
        return 100 * self.correct_tokens / self.tokens if self.tokens else 0.0


def extract(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of one sentence in the order of their words.

    Raises:
      ValueError: if a tag is not one of the schemes'.
    """
    parts = [(prefix, kind) for prefix, _, kind in (tag.partition("-") for tag in tags)]
    if unknown := [
        f"{tag!r} (word {at})"
        for at, (tag, (prefix, _)) in enumerate(zip(tags, parts, strict=True))
        if tag != OUTSIDE and prefix not in _PREFIXES
    ]:
        more = f" and {len(unknown) - _MAX_FAULTS} more" if len(unknown) > _MAX_FAULTS else ""
        raise ValueError(
            f"unknown tags {', '.join(unknown[:_MAX_FAULTS])}{more}; a tag must be O, or B, I, E "
            "or S with a type, such as B-PER"
        )
    entities, start = [], None
    for position, (prefix, kind) in enumerate(parts):
        before = parts[position - 1] if position else (OUTSIDE, "")
        begins = _begins(before, (prefix, kind))
        if start is not None and (begins or prefix == OUTSIDE):
            entities.append(Entity(start, position, before[1]))
            start = None
        start = position if begins else start
    if start is not None:
        entities.append(Entity(start, len(parts), parts[-1][1]))
    return entities


def score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Returns the scores of predicted tags, a sequence per sentence, against the true ones.

    Raises:
      ValueError: if the numbers of sentences or words differ, or a tag is unknown; it names the
        sentence, counted from 0.
    """
    if len(gold) != len(predicted):
        must = f"{len(gold)}, as of gold tags"
        raise faults.wrong("the number of sentences with predicted tags", len(predicted), must)
    counters = collections.Counter(), collections.Counter(), collections.Counter()
    tokens = correct_tokens = 0
    for number, (true_tags, tags) in enumerate(zip(gold, predicted, strict=True)):
        true, found = _entities_of_both(number, true_tags, tags)
        for counter, entities in zip(counters, (true, found, true & found), strict=True):
            counter.update(entity.type for entity in entities)
        tokens += len(tags)
        correct_tokens += sum(map(str.__eq__, true_tags, tags))
    in_gold, found, correct = counters
    types = sorted({*in_gold, *found})
    by_type = {name: Counts(in_gold[name], found[name], correct[name]) for name in types}
    overall = Counts(in_gold.total(), found.total(), correct.total())
    return Scores(tokens, correct_tokens, overall, by_type)


def _entities_of_both(
    number: int, true_tags: Sequence[str], tags: Sequence[str]
) -> tuple[set[Entity], set[Entity]]:
    if len(true_tags) != len(tags):
        raise ValueError(
            f"sentence {number} has {len(true_tags)} gold and {len(tags)} predicted tags; every "
            "word needs one of each"
        )
    try:
        return set(extract(true_tags)), set(extract(tags))
    except ValueError as error:
        raise ValueError(f"sentence {number}: {error}") from error


def _begins(before: tuple[str, str], word: tuple[str, str]) -> bool:
    prefix, kind = word
    if prefix == OUTSIDE:
        return False
    if prefix in _BEGINS:
        return True
    return before[0] == OUTSIDE or before[0] in _ENDS or before[1] != kind
