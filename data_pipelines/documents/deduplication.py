"""Copies are left out while the corpus is read: the first of equal documents, or lines, stays.

Texts are equal if their Unicode form NFC is, with one space for each run of white space. Only a
64-bit hash of each is kept, 8 bytes of memory for a text. Among 10^8 texts there are two different
ones with one hash in 3 of 10,000 corpora.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, UInt64

from data_pipelines.documents import sources
from data_pipelines.reports import distinct, statistics

KEEP_ALL = "none"
# Texts that are looked up together.
BATCH_CHARACTERS = 1_000_000


class Seen:
    """The hashes of all texts so far, in ascending runs, each at most half as long as the last."""

    def __init__(self):
        self._runs: list[UInt64[np.ndarray, " run"]] = []

    def add(self, hashes: UInt64[np.ndarray, " texts"]) -> Bool[np.ndarray, " texts"]:
        """Adds hashes and returns which of them are the first of their kind."""
        different, places = np.unique(hashes, return_index=True)
        is_new = np.ones(len(different), bool)
        for run in self._runs:
            found = np.minimum(np.searchsorted(run, different), len(run) - 1)
            is_new &= run[found] != different
        is_first = np.zeros(len(hashes), bool)
        is_first[places[is_new]] = True
        if is_new.any():
            self._runs.append(different[is_new])
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) > len(self._runs[-2]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
        return is_first


def without_copied_documents(
    documents: Sequence[sources.Document], seen: Seen, log: sources.Log
) -> Iterator[sources.Document]:
    """Yields the documents whose text is new."""
    is_first = seen.add(_hashes(document.text for document in documents))
    log.removed["documents"] = log.removed.get("documents", 0) + int((~is_first).sum())
    yield from (one for one, is_new in zip(documents, is_first, strict=True) if is_new)


def without_copied_lines(
    documents: Sequence[sources.Document], seen: Seen, log: sources.Log
) -> Iterator[sources.Document]:
    """Yields the documents without long lines that came before, and without those left empty.

    Shorter lines stay, such as "Yes." and "Chapter II".
    """
    split = [document.text.split("\n") for document in documents]
    is_long = [[len(line) >= statistics.MIN_LINE_CHARACTERS for line in lines] for lines in split]
    lines = [
        line
        for lines, long in zip(split, is_long, strict=True)
        for line, is_one in zip(lines, long, strict=True)
        if is_one
    ]
    is_first = iter(seen.add(_hashes(lines)).tolist())
    emptied = removed = 0
    for document, lines, long in zip(documents, split, is_long, strict=True):
        kept = [
            line for line, is_one in zip(lines, long, strict=True) if not is_one or next(is_first)
        ]
        removed += len(lines) - len(kept)
        if kept:
            is_whole = len(kept) == len(lines)
            text = document.text if is_whole else "\n".join(kept)
            yield dataclasses.replace(document, text=text)
        else:
            emptied += 1
    log.removed["lines"] = log.removed.get("lines", 0) + removed
    log.removed["emptied documents"] = log.removed.get("emptied documents", 0) + emptied


def _hashes(texts: Iterable[str]) -> UInt64[np.ndarray, " texts"]:
    return distinct.hashes_of(" ".join(unicodedata.normalize("NFC", one).split()) for one in texts)


Filter = Callable[[Iterable[sources.Document]], Iterator[sources.Document]]
_Rule = Callable[[Sequence[sources.Document], Seen, sources.Log], Iterator[sources.Document]]
# The value of an option -> what becomes of a batch of documents.
RULES: dict[str, _Rule] = {
    "documents": without_copied_documents,
    "lines": without_copied_lines,
}


def filter_for(option: str, log: sources.Log) -> Filter:
    """Returns what leaves out the copies in documents; it knows all those that it was given before.

    `log.removed` counts the copies.
    """
    if option == KEEP_ALL:
        return iter
    seen, rule = Seen(), RULES[option]

    def filtered(documents: Iterable[sources.Document]) -> Iterator[sources.Document]:
        batch: list[sources.Document] = []
        characters = 0
        for document in documents:
            batch.append(document)
            characters += len(document.text)
            if characters >= BATCH_CHARACTERS:
                yield from rule(batch, seen, log)
                batch, characters = [], 0
        yield from rule(batch, seen, log)

    return filtered


def fault(option: str, units: Sequence[sources.Unit]) -> str | None:
    """Returns why an option does not fit an input, None if it does."""
    marked_up = [unit.location for unit in units if sources.FORMATS[unit.format].prose]
    if option != "lines" or not marked_up:
        return None
    return (
        f"deduplicate is 'lines', but the lines of {marked_up[0]} are markup, of which none may be "
        "missing: use --deduplicate=documents"
    )
