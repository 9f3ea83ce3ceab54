"""Files that embeddings are trained on and scored by: pairs, triplets, scored and labelled texts.

The columns of a file decide what its rows are, one of `ROWS`. Plain text (.txt) holds one text a
line; a directory in BEIR's layout is a corpus with queries. An evaluation set lists the texts whose
vectors it needs, every one once, and makes scores of the vectors; the formulas of scores belong to
`bertjax.scores`, rows of texts to `embeddings`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float

from bertjax.files import tables
from bertjax.finetuning import example_files
from bertjax.scores import probe, retrieval, similarity

# The class in NLI of a pair on which the judges did not agree; such pairs are left out.
NO_LABEL = "-"
# A row by column.
_Fields = Mapping[str, Any]
QUERY, DOCUMENT = "query", "document"  # roles of texts; each has a prompt of its own
_TEXT_SUFFIX = ".txt"
_NEGATIVES = "negatives"  # a list, in JSON and Parquet
_NEGATIVE = re.compile(r"negative(_[0-9]+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """The texts of a row; `value` is their score from 0 to 1 or the name of their class, or None.

    With `roles` the first is an anchor, the second its positive, others are negatives. Without, the
    texts are of equal standing, and all of them QUERY. `source` is "file:line".
    """

    texts: tuple[str, ...]
    value: float | str | None
    source: str
    roles: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.roles:
            object.__setattr__(self, "roles", (QUERY,) * len(self.texts))


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the training set, and how often each of its rows is seen in an epoch."""

    path: str
    weight: float = 1.0


def files(value: str) -> list[File]:
    """Returns the files of an option: FILE or FILE=WEIGHT, with commas between them."""
    named = []
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        # A path may have "=" in it: what follows the last one must be a number.
        weighted = re.fullmatch(r"(.+)=(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)", part)
        if not weighted:
            named.append(File(part))
            continue
        weight = example_files.number(weighted[2])
        if not 0 < weight < math.inf:
            raise ValueError(f"{part!r} has the weight {weighted[2]}; it must be above 0")
        named.append(File(weighted[1], weight))
    paths = [file.path for file in named]
    if repeated := sorted({path for path in paths if paths.count(path) > 1}):
        raise ValueError(
            f"{repeated[0]} is named {paths.count(repeated[0])} times; to see its rows more often "
            f"give it a weight, {repeated[0]}=2"
        )
    return named


@dataclasses.dataclass(frozen=True)
class Layout:
    """A way in which a file holds rows: its columns, and what makes an example of a row.

    `columns` are those that must be there, each by one of several names. `example` returns None
    for a row that is left out.
    """

    columns: tuple[tuple[str, ...], ...]
    example: Callable[[_Fields, str], Example | None]

    def fits(self, names: Sequence[str]) -> bool:
        """Returns whether all columns are there."""
        return all(any(name in names for name in alternatives) for alternatives in self.columns)

    @property
    def description(self) -> str:
        """Its columns, for messages."""
        return ", ".join(" or ".join(alternatives) for alternatives in self.columns)


def read(
    path: epath.PathLike, rows: str, *, score_range: tuple[float, float] = (0.0, 5.0)
) -> list[Example]:
    """Returns the examples of a file, in its order; `rows` is a key of ROWS.

    Scores lie in `score_range`, lowest and highest, and become numbers from 0 to 1.
    """
    path = epath.Path(path)
    if path.suffix.lower() == _TEXT_SUFFIX:
        return _lines(path, rows)
    layouts = ROWS[rows](score_range)
    layout = _layout(path, layouts)
    faults, examples, skipped = example_files.Faults(), [], 0

    def names_fault(names: Sequence[str]) -> str | None:
        if layout.fits(names):
            return example_files.missing_columns(names, ())
        columns = ", ".join(map(repr, names)) or "none"
        return f"the columns are {columns}; needed are {layout.description}"

    rules = tables.Rules(names_fault=names_fault)
    has_commas = _SCORE in layout.columns and tables.decimal_mark(path, rules) == ","
    for source, row in example_files.rows(path, faults, rules):
        if has_commas and math.isfinite(score := example_files.number(row["score"], ",")):
            row = {**row, "score": score}
        try:
            example = layout.example(row, source)
        except ValueError as error:
            faults.add(source, str(error))
            continue
        if example is None:
            skipped += 1
        else:
            examples.append(example)
    for example in examples:
        if len(example.texts) != len(examples[0].texts):
            faults.add(
                example.source,
                f"it has {len(example.texts)} texts with its negatives, the first row, "
                f"{examples[0].source}, has {len(examples[0].texts)}: all must be alike",
            )
    faults.check()
    if skipped:
        logging.info("%s: %d rows without a class (%r) are left out", path, skipped, NO_LABEL)
    if not examples:
        raise ValueError(f"{path} has no rows; it must have at least one")
    logging.info("%s: %d examples of %d texts", path, len(examples), len(examples[0].texts))
    return _triplets(examples, path) if layout.example is _nli else examples


def holds(path: epath.PathLike) -> str:
    """Returns which of ROWS a file holds by its columns, the most specific one."""
    if epath.Path(path).suffix.lower() == _TEXT_SUFFIX:
        return "texts"
    layouts = [layout for rows in _BY_CONTENT for layout in ROWS[rows]((0.0, 1.0))]
    names = _column_names(path, layouts)
    for rows in _BY_CONTENT:
        if any(it.fits(names) for it in ROWS[rows]((0.0, 1.0)) if it.example is not _nli):
            return rows
    raise ValueError(
        f"{path}: the columns are {', '.join(map(repr, names)) or 'none'}; known are "
        f"{described(_BY_CONTENT)}"
    )


def described(several: Iterable[str]) -> str:
    """Returns the columns of some of ROWS, for messages."""
    layouts = (layout for rows in several for layout in ROWS[rows]((0.0, 1.0)))
    return "; ".join(layout.description for layout in layouts)


def check_alike(by_file: Sequence[Sequence[Example]]) -> None:
    """Raises a ValueError if the examples of several files differ in their number of texts."""
    first = by_file[0][0]
    for example, *_ in by_file[1:]:
        if len(example.texts) != len(first.texts):
            raise ValueError(
                f"{example.source} has {len(example.texts)} texts with its negatives, "
                f"{first.source} has {len(first.texts)}: mixed files must have the same number"
            )


def _layout(path: epath.Path, layouts: Sequence[Layout]) -> Layout:
    """Returns the layout that the file's columns fit; the first if the file is empty."""
    names = _column_names(path, layouts)
    fitting = [layout for layout in layouts if layout.fits(names)]
    if not fitting and names:
        raise ValueError(
            f"{path}:1: the columns are {', '.join(map(repr, names))}; needed are "
            + "; or ".join(layout.description for layout in layouts)
        )
    return (fitting or layouts)[0]


def _column_names(path: epath.PathLike, layouts: Sequence[Layout]) -> tuple[str, ...]:
    """Returns the columns of a file, separated so that they fit one of the layouts if any do."""

    def names_fault(names: Sequence[str]) -> str | None:
        return None if any(layout.fits(names) for layout in layouts) else "they fit no layout"

    return tables.column_names(path, tables.Rules(names_fault=names_fault))


def _lines(path: epath.Path, rows: str) -> list[Example]:
    """Returns the lines of a plain text that are not blank."""
    if rows != "texts":
        raise ValueError(
            f"{path} is plain text, of one text a line; needed is a table with the columns "
            f"{described([rows])}"
        )
    numbered = enumerate(example_files.lines(path), start=1)
    examples = [Example((line,), None, f"{path}:{n}") for n, line in numbered if line.strip()]
    if not examples:
        raise ValueError(f"{path} has no text; it must have at least one line")
    logging.info("%s: %d texts", path, len(examples))
    return examples


def _texts(row: _Fields, *names: str) -> tuple[str, ...]:
    return tuple(example_files.text(row[name], name) for name in names)


def _with_negatives(row: _Fields, source: str) -> Example:
    numbered = {n: int(n.partition("_")[2] or 0) for n in row if _NEGATIVE.fullmatch(n)}
    names = sorted(numbered, key=numbered.__getitem__)
    negatives = []
    for name in [*names, *([_NEGATIVES] if _NEGATIVES in row else [])]:
        values = row[name] if isinstance(row[name], list | tuple) else [row[name]]
        negatives += [example_files.text(value, name) for value in values]
    return ranked((*_texts(row, "anchor", "positive"), *negatives), source)


def ranked(texts: tuple[str, ...], source: str) -> Example:
    """Returns the example of an anchor, its positive and any negatives."""
    return Example(texts, None, source, (QUERY, *(DOCUMENT,) * (len(texts) - 1)))


def _scored(score_range: tuple[float, float]) -> Callable[[_Fields, str], Example]:
    low, high = score_range

    def example(row: _Fields, source: str) -> Example:
        value = row["score"]
        score = example_files.number(value)
        if not low <= score <= high:
            raise ValueError(
                f"'score' is {_shown(value)}; it must be a number from {low:g} to {high:g}, "
                f"config.finetuning.score_range{example_files.number_hint(value)}"
            )
        return Example(_texts(row, *_PAIR), (score - low) / (high - low), source)

    return example


def _labelled(*text_names: str) -> Callable[[_Fields, str], Example | None]:
    def example(row: _Fields, source: str) -> Example | None:
        label = _class(row)
        return None if label == NO_LABEL else Example(_texts(row, *text_names), label, source)

    return example


def _nli(row: _Fields, source: str) -> Example | None:
    """The pair with its class, of which `_triplets` are made."""
    label = _class(row)
    if label not in (*_NLI, NO_LABEL):
        raise ValueError(
            f"the class is {label!r}; triplets are made of pairs of the classes {', '.join(_NLI)}"
        )
    return None if label == NO_LABEL else Example(_texts(row, *_PAIR), label, source)


def _triplets(pairs: Sequence[Example], path: epath.Path) -> list[Example]:
    """Returns (premise, what follows from it, what contradicts it), for each that follows.

    A premise with fewer contradictions than entailments has them again from the first.
    Source: Gao et al. 2021 (SimCSE), section 4, which takes one of each.
    """
    by_premise: dict[str, dict[str, list[Example]]] = {}
    for pair in pairs:
        of_premise = by_premise.setdefault(pair.texts[0], {name: [] for name in _NLI})
        of_premise[str(pair.value)].append(pair)
    triplets = []
    for premise, by_class in by_premise.items():
        contradictions = by_class["contradiction"]
        if contradictions:
            for place, pair in enumerate(by_class["entailment"]):
                negative = contradictions[place % len(contradictions)].texts[1]
                triplets.append(ranked((premise, pair.texts[1], negative), pair.source))
    if not triplets:
        raise ValueError(
            f"{path}: no sentence1 has both an entailment and a contradiction, of which triplets "
            "are made"
        )
    logging.info("%s: %d triplets of %d pairs", path, len(triplets), len(pairs))
    return triplets


def _class(row: _Fields) -> str:
    name = next(name for name in _LABEL if name in row)
    return example_files.class_name(row[name], name)


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


_PAIR = ("sentence1", "sentence2")
_LABEL = ("label", "gold_label")
_SCORE = ("score",)
_NLI = ("entailment", "neutral", "contradiction")
_PAIR_COLUMNS = tuple((name,) for name in _PAIR)

# Use of a file -> the layouts that serve it, by the range of scores.
ROWS: Mapping[str, Callable[[tuple[float, float]], tuple[Layout, ...]]] = {
    "pairs": lambda _: (
        Layout((("anchor",), ("positive",)), _with_negatives),
        Layout((*_PAIR_COLUMNS, _LABEL), _nli),
    ),
    "scored": lambda score_range: (Layout((*_PAIR_COLUMNS, _SCORE), _scored(score_range)),),
    "labelled": lambda _: (Layout((*_PAIR_COLUMNS, _LABEL), _labelled(*_PAIR)),),
    "classes": lambda _: (Layout((("text",), _LABEL), _labelled("text")),),
    "texts": lambda _: (
        Layout((("text",),), lambda row, source: Example(_texts(row, "text"), None, source)),
    ),
    "two_texts": lambda _: (
        Layout(_PAIR_COLUMNS, lambda row, source: Example(_texts(row, *_PAIR), None, source)),
    ),
}
# Those that say most come first.
_BY_CONTENT = ("pairs", "scored", "labelled", "classes", "two_texts", "texts")


CORPUS, QUERIES, RELEVANCES = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"


@dataclasses.dataclass(frozen=True)
class Collection:
    """Texts of documents and queries by their names; `relevances` are grades by query, document.

    The queries are those with relevances.
    """

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevances: Mapping[str, Mapping[str, int]]


def read_collection(directory: epath.PathLike) -> Collection:
    """Returns the corpus, queries and relevances of a directory in BEIR's layout.

    corpus.jsonl holds `_id`, `title`, `text`, queries.jsonl `_id`, `text`; a title is put before
    the text of its document. qrels/test.tsv has a header, then query, document and grade; above 0
    the document is relevant to the query.
    Source: github.com/beir-cellar/beir, beir/datasets/data_loader.py, GenericDataLoader.
    """
    directory = epath.Path(directory)
    documents = _named_texts(directory / CORPUS, may_be_empty=True)
    queries = _named_texts(directory / QUERIES, may_be_empty=False)
    relevances = _relevances(directory / RELEVANCES, documents, queries)
    unjudged = len(queries) - len(relevances)
    logging.info(
        "%s: %d documents, %d queries with relevances%s",
        directory, len(documents), len(relevances),
        f"; {unjudged} without are left out" if unjudged else "",
    )  # fmt: skip
    used = {name: queries[name] for name in relevances}
    return Collection(documents, used, relevances)


def _named_texts(path: epath.Path, *, may_be_empty: bool) -> dict[str, str]:
    """Returns the texts by name; an empty document is one that nothing is asked about."""
    faults, texts = example_files.Faults(), {}
    rules = tables.Rules(names_fault=lambda it: example_files.missing_columns(it, ("_id", "text")))
    for source, row in example_files.rows(path, faults, rules):
        name, text, title = row["_id"], row["text"], row.get("title") or ""
        if not isinstance(name, str) or not name:
            faults.add(source, f"'_id' is {name!r:.60}; it must be a name")
        elif name in texts:
            faults.add(source, f"'_id' is {name!r}, as in a line before; names must be unique")
        elif not isinstance(text, str) or not isinstance(title, str):
            faults.add(source, f"'text' is {text!r:.60}; it and 'title' must be texts")
        elif not may_be_empty and not text.strip():
            remedy = example_files.EMPTY_REMEDY
            faults.add(source, f"'text' is empty; it must be a text: {remedy}")
        else:
            texts[name] = f"{title} {text}".strip()
    faults.check()
    return texts


def _relevances(
    path: epath.Path, documents: Mapping[str, str], queries: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    faults = example_files.Faults()
    relevances: dict[str, dict[str, int]] = {}
    columns = ("query-id", "corpus-id", "score")
    rules = tables.Rules(names_fault=lambda it: example_files.missing_columns(it, columns))
    for source, row in example_files.rows(path, faults, rules):
        query, document, grade = (row[name].strip() for name in columns)
        if query not in queries:
            faults.add(source, f"there is no query {query!r} in {QUERIES}")
        elif document not in documents:
            faults.add(source, f"there is no document {document!r} in {CORPUS}")
        elif not re.fullmatch(r"-?[0-9]+", grade):
            faults.add(source, f"'score' is {grade!r}; it must be a whole number")
        elif document in relevances.get(query, {}):
            faults.add(source, f"query {query!r} and document {document!r} stood in a line before")
        else:
            relevances.setdefault(query, {})[document] = int(grade)
    faults.check()
    if not any(grade > 0 for of_query in relevances.values() for grade in of_query.values()):
        raise ValueError(f"{path}: no document is relevant to any query")
    return relevances


cosines = similarity.cosines
_Vectors = Float[np.ndarray, "texts hidden"]


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in its role, which decides the prompt before it."""

    text: str
    role: str


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """`texts` are embedded, then `scores` computes scores from their vectors, in that order.

    `examples` are scored: pairs, triplets, texts, or the names of queries. `best_score` is
    the score that decides.
    """

    best_score: str
    examples: Sequence[Any]
    texts: Sequence[Text]
    scores: Callable[[_Vectors], dict[str, float]]


def _set_of(
    examples: Sequence[Example], best_score: str, score: Callable[..., dict[str, float]]
) -> EvaluationSet:
    """Returns a set of examples that all have the same number of texts.

    `score` gets the values of the examples, and the vectors [examples, hidden] of each text.
    """
    places: dict[Text, int] = {}
    numbers = [
        places.setdefault(Text(text, role), len(places))
        for example in examples
        for text, role in zip(example.texts, example.roles, strict=True)
    ]
    columns = np.array(numbers).reshape(len(examples), -1).T
    values = [example.value for example in examples]

    def scores(vectors: _Vectors) -> dict[str, float]:
        return score(values, *(vectors[column] for column in columns))

    return EvaluationSet(best_score, examples, list(places), scores)


def _triplet_accuracy(
    _: Sequence[Any], anchors: _Vectors, positives: _Vectors, *negatives: _Vectors
) -> dict[str, float]:
    """Returns the share of anchors that are nearer to their positive than to any negative."""
    stacked = np.stack(negatives, axis=1)
    return {"accuracy": similarity.triplet_accuracy(anchors, positives, stacked)}


def _classes(values: Sequence[Any], vectors: _Vectors) -> dict[str, float]:
    return probe.cross_validated(vectors, [str(value) for value in values])


def _classes_of_pairs(values: Sequence[Any], first: _Vectors, second: _Vectors) -> dict[str, float]:
    """Returns the scores of a linear probe that reads |u - v| and u * v.

    The classifier that the loss `softmax` trains is not used: it is not exported, and models of
    other losses have none.
    Source: Conneau and Kiela 2018 (SentEval), section 3.1, of entailment and paraphrases.
    """
    return _classes(values, np.concatenate([np.abs(first - second), first * second], axis=1))


def _retrieval(collection: Collection) -> EvaluationSet:
    """Returns the set in which queries find their documents in a corpus."""
    queries, documents = list(collection.queries), list(collection.documents)
    texts = [Text(text, QUERY) for text in collection.queries.values()]
    texts += [Text(text, DOCUMENT) for text in collection.documents.values()]
    both = len(collection.queries.keys() & collection.documents.keys())
    if both:
        logging.info(
            "%d of %d queries have the name of a document: it is left out of their rankings, as "
            "BEIR does", both, len(queries),
        )  # fmt: skip

    def scores(vectors: _Vectors) -> dict[str, float]:
        of_queries, of_documents = vectors[: len(queries)], vectors[len(queries) :]
        count = retrieval.DEEPEST + bool(both)
        nearest = retrieval.nearest(of_queries, of_documents, documents, count=count)
        rankings = {
            query: [name for name in names if name != query][: retrieval.DEEPEST]
            for query, names in zip(queries, nearest, strict=True)
        }
        return retrieval.scores(rankings, collection.relevances)

    return EvaluationSet("ndcg_at_10", queries, texts, scores)


def _of_pairs(examples: Sequence[Example]) -> EvaluationSet:
    """Returns triplets, or of pairs a corpus of the positives, in which anchors find their own."""
    if len(examples[0].texts) > 2:
        return _set_of(examples, "accuracy", _triplet_accuracy)
    documents = {text: f"d{n}" for n, text in enumerate({it.texts[1]: None for it in examples})}
    queries = {text: f"q{n}" for n, text in enumerate({it.texts[0]: None for it in examples})}
    relevances: dict[str, dict[str, int]] = {name: {} for name in queries.values()}
    for query, document in (example.texts for example in examples):
        relevances[queries[query]][documents[document]] = 1
    texts = [{name: text for text, name in each.items()} for each in (documents, queries)]
    return _retrieval(Collection(texts[0], texts[1], relevances))


# Layout of a file -> its evaluation set; the others of ROWS have no scores.
SETS: Mapping[str, Callable[[Sequence[Example]], EvaluationSet]] = {
    "scored": lambda examples: _set_of(
        examples,
        "spearman",
        lambda scores, u, v: similarity.correlations(u, v, np.array(scores, np.float64)),
    ),
    "pairs": _of_pairs,
    "labelled": lambda examples: _set_of(examples, "accuracy", _classes_of_pairs),
    "classes": lambda examples: _set_of(examples, "accuracy", _classes),
}


def read_set(path: epath.PathLike, score_range: tuple[float, float]) -> EvaluationSet:
    """Returns the evaluation set of a file, or of a directory in BEIR's layout."""
    if epath.Path(path).is_dir():
        return _retrieval(read_collection(path))
    rows = holds(path)
    if rows not in SETS:
        raise ValueError(
            f"{path} holds {rows}, of which vectors have no score; embeddings are evaluated on "
            f"{described(SETS)}; or on a directory in BEIR's layout"
        )
    return SETS[rows](read(path, rows, score_range=score_range))


def unlabelled(path: epath.PathLike) -> str:
    """Returns how a file to predict on is read, a key of ROWS: "texts" or "two_texts"."""
    return "texts" if holds(path) in ("texts", "classes") else "two_texts"
