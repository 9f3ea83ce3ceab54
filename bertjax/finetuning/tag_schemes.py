"""Entity tags: the schemes IOB1, IOB2 and IOBES, which one a file uses, and from one to another.

A tag is "O" or a prefix and a type ("B-PER"). IOB2 begins every entity with B. IOB1 begins it with
I, and with B only directly after another of its type. IOBES also marks the last word (E) and an
entity of one word (S). Which words are an entity is one rule for all schemes, `scores.entities`.
Source: Tjong Kim Sang and Veenstra 1999, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bertjax.scores import entities

OUTSIDE = entities.OUTSIDE
SCHEMES = {"iob1": "BI", "iob2": "BI", "iobes": "BIES"}  # scheme -> its prefixes
PLAIN = "plain"  # Tags that name no entities, parts of speech for one: any string, taken as it is.

NO_TAG = "_"
NO_TAG_HINT = (
    ": CoNLL-U has it where there is no tag, as at ranges (3-4) and empty nodes (8.1); leave these "
    "lines out, or give the whole file, whose first column numbers the words"
)

Tags = Sequence[str]


def split(tag: str) -> tuple[str, str]:
    """Returns prefix and type; the type begins after the first hyphen and is "" for "O"."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def tag_fault(tag: str, scheme: str | None = None) -> str | None:
    """Returns the fault of a tag by itself; a `scheme` of None allows the tags of any scheme."""
    prefixes = SCHEMES[scheme] if scheme else "BIES"
    prefix, kind = split(tag)
    if tag == OUTSIDE or (len(prefix) == 1 and prefix in prefixes and kind):
        return None
    allowed = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
    hint = ": what BILOU calls L and U are E and S here" if prefix in ("L", "U") and kind else ""
    if not kind:
        hint = "; give the scheme plain if tags name no entities, as parts of speech"
    hint = NO_TAG_HINT if tag == NO_TAG else hint
    return f"the tag is {tag!r}; it must be {OUTSIDE} or one of {allowed}{hint}"


def faults(tags: Tags, scheme: str) -> Iterator[tuple[int, str]]:
    """Yields where two tags of a sentence, or a tag and its border, cannot meet, and why.

    The place is the second one's, or the last word's.
    """
    before = OUTSIDE
    for place, tag in enumerate([*tags, OUTSIDE]):
        if reason := _fault_between(before, tag, scheme):
            yield min(place, len(tags) - 1), reason
        before = tag


def recognize(sentences: Sequence[Tags]) -> str | None:
    """Returns the scheme that every sentence follows, None if there is none.

    Tags without an entity follow all of them and are called IOB2.
    """
    prefixes = {split(tag)[0] for tags in sentences for tag in tags}
    candidates = ("iobes",) if prefixes & {"E", "S"} else ("iob2", "iob1")
    fitting = (it for it in candidates if not any(any(faults(tags, it)) for tags in sentences))
    return next(fitting, None)


def of_labels(labels: Iterable[str]) -> str:
    """Returns the scheme of a model that knows these tags; where it may be IOB1 or IOB2, IOB2."""
    pairs = [split(label) for label in labels if label != OUTSIDE]
    if {prefix for prefix, _ in pairs} & {"E", "S"}:
        return "iobes"
    begun = {kind for prefix, kind in pairs if prefix == "B"}
    return "iob2" if all(kind in begun for _, kind in pairs) else "iob1"


def convert(tags: Tags, scheme: str) -> tuple[str, ...]:
    """Returns the tags of the same entities in `scheme`, whatever the scheme of `tags`."""
    converted = [OUTSIDE] * len(tags)
    before = (-1, "")
    for entity in entities.extract(tags):
        start, end, kind = entity.start, entity.end, entity.type
        first = "I" if scheme == "iob1" and before != (start, kind) else "B"
        prefixes = first + "I" * (end - start - 1)
        if scheme == "iobes":
            prefixes = prefixes[:-1] + "E" if end - start > 1 else "S"
        converted[start:end] = [f"{prefix}-{kind}" for prefix in prefixes]
        before = end, kind
    return tuple(converted)


def labels(types: Sequence[str], scheme: str) -> tuple[str, ...]:
    """Returns all tags of a scheme for the entity types: "O", then by type."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(types) for prefix in SCHEMES[scheme]))


def _fault_between(before: str, tag: str, scheme: str) -> str | None:
    """Returns why `tag` cannot follow `before`; the border of a sentence is "O"."""
    prefix, kind = split(tag)
    prefix_before, kind_before = split(before)
    if scheme == "iob1":
        is_same = prefix_before in "BI" and kind_before == kind
        if prefix == "B" and not is_same:
            return f"{tag} comes after {before}; in IOB1 it comes after an entity of its type alone"
        return None
    is_open, goes_on = prefix_before in "BI", prefix in "IE"
    if goes_on and not (is_open and kind == kind_before):
        return f"{tag} comes after {before}; in {scheme.upper()} an entity begins with B"
    if scheme == "iobes" and is_open and not goes_on:
        return f"{before} comes before {tag}; in IOBES the last word of an entity has E or S"
    return None
