"""Schemes of entity tags: what each allows, and that the entities survive every conversion."""

import hypothesis
from hypothesis import strategies

from bertjax.finetuning import tag_schemes
from bertjax.scores import entities

# One sentence with an entity of one word, two that touch, and one at the end, in each scheme.
SAME = {
    "iob1": "O I-PER O I-LOC I-LOC B-LOC I-ORG O I-PER I-PER I-PER",
    "iob2": "O B-PER O B-LOC I-LOC B-LOC B-ORG O B-PER I-PER I-PER",
    "iobes": "O S-PER O B-LOC E-LOC S-LOC S-ORG O B-PER I-PER E-PER",
}
ENTITIES = [(1, 2, "PER"), (3, 5, "LOC"), (5, 6, "LOC"), (6, 7, "ORG"), (8, 11, "PER")]


@strategies.composite
def any_entities(draw, length=12):
    """Entities of two types, some of them adjacent."""
    borders = sorted(draw(strategies.sets(strategies.integers(0, length), max_size=6)))
    types = [draw(strategies.sampled_from(["X", "Y", None])) for _ in borders[1:]]
    spans = zip(borders[:-1], borders[1:], types, strict=True)
    return [(start, end, kind) for start, end, kind in spans if kind]


def written(entities, scheme, length=12):
    """The tags of `entities` by the definition of the scheme, word by word."""
    tags = ["O"] * length
    for start, end, kind in entities:
        for place in range(start, end):
            first, last = place == start, place == end - 1
            touches = any(b == start and other == kind for _, b, other in entities)
            prefix = {
                "iob1": "B" if first and touches else "I",
                "iob2": "B" if first else "I",
                "iobes": "S" if first and last else "B" if first else "E" if last else "I",
            }[scheme]
            tags[place] = f"{prefix}-{kind}"
    return tuple(tags)


def places(tags):
    """Start, end and type of each entity, as the score finds them."""
    return [(entity.start, entity.end, entity.type) for entity in entities.extract(tags)]


def test_a_hand_made_sentence_is_the_same_in_all_schemes():
    for scheme in tag_schemes.SCHEMES:
        tags = SAME[scheme].split()
        assert places(tags) == ENTITIES
        assert tag_schemes.recognize([tags]) == scheme
        for other in SAME:
            assert " ".join(tag_schemes.convert(tags, other)) == SAME[other]


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(true=any_entities())
def test_conversion_keeps_the_entities_and_the_rules_of_the_scheme(true):
    in_schemes = {scheme: written(true, scheme) for scheme in tag_schemes.SCHEMES}
    for scheme, tags in in_schemes.items():
        assert places(tags) == true
        assert not list(tag_schemes.faults(tags, scheme))
        for other in in_schemes.values():
            assert tag_schemes.convert(other, scheme) == tags


def test_a_rule_that_is_broken_is_found_where_it_is_broken():
    broken = ["O", "I-X", "O", "B-X", "I-Y"]
    assert [place for place, _ in tag_schemes.faults(broken, "iob2")] == [1, 4]
    assert [place for place, _ in tag_schemes.faults(["B-X", "I-X", "B-X"], "iob1")] == [0]
    broken = ["B-X", "O", "S-X", "E-X", "B-X", "I-X"]
    assert [place for place, _ in tag_schemes.faults(broken, "iobes")] == [1, 3, 5]


def test_the_scheme_of_sentences_is_recognized_and_a_mixture_is_none():
    assert tag_schemes.recognize([["B-X", "O"], ["O", "I-X"]]) is None
    assert tag_schemes.recognize([["S-X", "O"], ["O", "I-X"]]) is None
    assert tag_schemes.recognize([("O", "O")]) == "iob2"
    assert tag_schemes.recognize([("B-X", "E-X")]) == "iobes"
    # Tags of no scheme are read as conlleval reads them.
    assert places(["O", "I-X", "I-Y", "B-Y", "O", "E-X", "I-X"]) == [
        (1, 2, "X"), (2, 3, "Y"), (3, 4, "Y"), (5, 6, "X"), (6, 7, "X"),
    ]  # fmt: skip


def test_what_is_not_a_tag_is_named_and_bilou_is_told_how_its_tags_are_written_here():
    for tag in ("", "B-", "-X", "U-X", "BI-X", "b-X"):
        assert repr(tag) in tag_schemes.tag_fault(tag)
    assert "what BILOU calls L and U are E and S here" in tag_schemes.tag_fault("U-X")
    assert "BILOU" not in tag_schemes.tag_fault("X-X") + tag_schemes.tag_fault("U")
    # A type may hold hyphens, and E belongs to IOBES alone.
    assert tag_schemes.tag_fault("I-creative-work") is None
    assert tag_schemes.split("I-creative-work") == ("I", "creative-work")
    assert tag_schemes.tag_fault("E-X", "iobes") is None
    assert "B-TYPE, I-TYPE" in tag_schemes.tag_fault("E-X", "iob2")
    assert tag_schemes.labels(["Y", "X"], "iob2") == ("O", "B-X", "I-X", "B-Y", "I-Y")
    assert len(tag_schemes.labels(["Y", "X"], "iobes")) == 9
