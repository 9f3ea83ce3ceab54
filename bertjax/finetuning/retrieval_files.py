"""A corpus, queries and which documents answer them, in BEIR's layout.

A directory holds corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`) and
qrels/test.tsv, whose lines are query, document and grade under a header; a grade above 0 says that
the document answers the query.
Source: github.com/beir-cellar/beir, beir/datasets/data_loader.py, GenericDataLoader.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from absl import logging
from etils import epath

from bertjax.data import tables
from bertjax.finetuning import example_files

CORPUS, QUERIES, RELEVANCES = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"
_COLUMNS = ("query-id", "corpus-id", "score")


@dataclasses.dataclass(frozen=True)
class Collection:
    """Texts of documents and queries by their names; `relevances` are grades by query, document.

    The queries are those with relevances.
    """

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevances: Mapping[str, Mapping[str, int]]


def is_collection(path: epath.PathLike) -> bool:
    """Returns whether this is a directory, as of BEIR's layout; reading it tells what it lacks."""
    return epath.Path(path).is_dir()


def read(directory: epath.PathLike) -> Collection:
    """Returns what a directory holds; a title stands before the text of its document.

    Raises:
      FileNotFoundError: if one of the three files is missing.
      ValueError: if a line is not as it must be, or names a query or a document that is not there:
        the first ten faults with their lines.
    """
    directory = epath.Path(directory)
    documents = _texts(directory / CORPUS, may_be_empty=True)
    queries = _texts(directory / QUERIES, may_be_empty=False)
    relevances = _relevances(directory / RELEVANCES, documents, queries)
    unjudged = len(queries) - len(relevances)
    logging.info(
        "%s: %d documents, %d queries with relevances%s",
        directory, len(documents), len(relevances),
        f"; {unjudged} without are left out" if unjudged else "",
    )  # fmt: skip
    used = {name: queries[name] for name in relevances}
    return Collection(documents, used, relevances)


def _texts(path: epath.Path, *, may_be_empty: bool) -> dict[str, str]:
    """Returns the texts by name; an empty document is one that nothing is asked about."""
    faults, found = example_files.Faults(), {}

    def names_fault(names: Sequence[str]) -> str | None:
        return example_files.missing_columns(names, ("_id", "text"))

    for source, row in example_files.rows(path, faults, tables.Rules(names_fault=names_fault)):
        name, text, title = row["_id"], row["text"], row.get("title") or ""
        if not isinstance(name, str) or not name:
            faults.add(source, f"'_id' is {name!r:.60}; it must be a name")
        elif name in found:
            faults.add(source, f"'_id' is {name!r}, as in a line before; names must be unique")
        elif not isinstance(text, str) or not isinstance(title, str):
            faults.add(source, f"'text' is {text!r:.60}; it and 'title' must be texts")
        elif not may_be_empty and not text.strip():
            faults.add(source, "'text' is empty; it must be a text")
        else:
            found[name] = f"{title} {text}".strip()
    faults.check()
    return found


def _relevances(
    path: epath.Path, documents: Mapping[str, str], queries: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    faults = example_files.Faults()
    found: dict[str, dict[str, int]] = {}
    rules = tables.Rules(names_fault=lambda names: example_files.missing_columns(names, _COLUMNS))
    for source, row in example_files.rows(path, faults, rules):
        query, document, grade = (row[name].strip() for name in _COLUMNS)
        if query not in queries:
            faults.add(source, f"there is no query {query!r} in {QUERIES}")
        elif document not in documents:
            faults.add(source, f"there is no document {document!r} in {CORPUS}")
        elif not re.fullmatch(r"-?[0-9]+", grade):
            faults.add(source, f"'score' is {grade!r}; it must be a whole number")
        elif document in found.get(query, {}):
            faults.add(source, f"query {query!r} and document {document!r} stood in a line before")
        else:
            found.setdefault(query, {})[document] = int(grade)
    faults.check()
    if not any(grade > 0 for of_query in found.values() for grade in of_query.values()):
        raise example_files.FaultyFile(f"{path}: no document is relevant to any query")
    return found
