"""Entities and scores equal those of conlleval's rules, written slowly, and its own output."""

import itertools
import random

import pytest

from bertjax.scores import entities

Entity = entities.Entity
TYPES = ("PER", "ORG", "creative-work")

# Word, gold tag, predicted tag.
HAND = """\
a B-X B-X
b I-X I-X
c O I-X

d B-X I-X
e I-X I-X
f O O

g B-X B-X
h I-Y I-X
i O O

j I-X B-X
k I-X I-X
l B-X I-X

m B-X B-X

n I-X I-X
"""
# conlleval's tables: between which two prefixes of one type an entity ends, and begins.
ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}
BEGINS = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}


def slow_extract(tags):
    """Returns every span of words that conlleval's tables make an entity."""

    def split(position):
        tag = tags[position] if 0 <= position < len(tags) else "O"
        return tag[0], tag[2:]

    def changes(position, table, side):
        """Returns whether the table cuts before this word, whose own or last word's tag counts."""
        before, after = split(position - 1), split(position)
        outside = (before, after)[side][0] == "O"
        return before[0] + after[0] in table or (not outside and before[1] != after[1])

    found = []
    for start, end in itertools.combinations(range(len(tags) + 1), 2):
        cuts = [at for at in range(start + 1, end + 1) if changes(at, ENDS, 0)]
        if changes(start, BEGINS, 1) and cuts == [end]:
            found.append(Entity(start, end, split(start)[1]))
    return sorted(found)


def random_tags(rng, prefixes):
    """Returns up to nine tags, valid or not; B is never right after E (see the module)."""
    tags = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in TYPES[:2])]
    while True:
        drawn = rng.choices(tags, k=rng.randrange(10))
        pairs = {before[0] + after[0] for before, after in itertools.pairwise(drawn)}
        if "EB" not in pairs:
            return drawn


def sentences(text):
    """Returns the gold and the predicted tags of each sentence of conlleval's input."""
    rows = [[line.split() for line in block.splitlines()] for block in text.split("\n\n")]
    return [[row[1] for row in block] for block in rows], [[row[2] for row in b] for b in rows]


def test_the_figures_are_conllevals():
    """As conlleval (2004-01-26) prints them."""
    scores = entities.score(*sentences(HAND))
    assert (scores.tokens, round(scores.accuracy, 2)) == (14, 64.29)
    assert scores.overall == entities.Counts(gold=8, found=6, correct=3)
    rates = scores.overall.precision, scores.overall.recall, round(scores.overall.f1, 2)
    assert rates == (50.0, 37.5, 42.86)
    assert list(scores.by_type) == ["X", "Y"]
    assert scores.by_type["X"] == entities.Counts(gold=7, found=6, correct=3)
    assert scores.by_type["Y"] == entities.Counts(gold=1, found=0, correct=0)


def test_any_tags_are_read_by_conllevals_tables():
    for prefixes, seed in itertools.product(("BI", "I", "BIE"), range(100)):
        tags = random_tags(random.Random(seed), prefixes)
        assert entities.extract(tags) == slow_extract(tags), tags


def test_single_cases():
    for tags, spans in (
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),  # entities of one token
        ("S-PER S-PER I-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER")]),
        ("B-PER S-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("B-PER E-PER B-PER E-PER", [(0, 2, "PER"), (2, 4, "PER")]),
        ("B-PER I-PER O E-PER", [(0, 2, "PER"), (3, 4, "PER")]),
        ("B-a-b I-a-c", [(0, 1, "a-b"), (1, 2, "a-c")]),  # the first hyphen ends the prefix
        ("B I O I", [(0, 2, ""), (3, 4, "")]),  # tags without types
    ):
        assert entities.extract(tags.split()) == [Entity(*span) for span in spans], tags


def test_accuracy_asks_for_the_whole_tag_and_sentences_are_apart():
    """The entity is right, yet conlleval counts its first tag as wrong."""
    scores = entities.score([["B-X", "O", "O"], ["I-X"]], [["I-X", "O", "O"], ["I-X"]])
    assert scores.overall == entities.Counts(2, 2, 2) and scores.overall.f1 == 100.0
    assert scores.accuracy == 75.0


def test_a_type_that_is_only_predicted_is_counted_and_nothing_scores_zero():
    scores = entities.score([["O", "B-X"]], [["B-Y", "O"]])
    assert scores.by_type == {"X": entities.Counts(1, 0, 0), "Y": entities.Counts(0, 1, 0)}
    nothing = entities.score([], [])
    assert (nothing.accuracy, nothing.overall.f1, nothing.by_type) == (0.0, 0.0, {})


def test_tags_of_no_scheme_and_other_numbers_of_sentences_or_words_are_refused():
    for gold, predicted, fault in (
        ([["O"] * 4], [["B-X", "PER", "o", "O-X"]], r"'PER' \(word 1\), 'o' .*, 'O-X' \(word 3\);"),
        ([["O"] * 12], [["x"] * 12], r"'x' \(word 9\) and 2 more"),
        ([["O"], ["O"]], [["O"], [""]], "sentence 1: unknown tags ''"),
        ([["O"], ["O"]], [["O"]], "predicted tags is 1; it must be 2"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "sentence 1 has 2 gold and 1 predicted"),
    ):
        with pytest.raises(ValueError, match=fault):
            entities.score(gold, predicted)
