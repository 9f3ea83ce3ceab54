"""What embeddings are scored on: scored or labelled pairs, triplets, labelled texts, a corpus.

What a file or directory holds is told by its columns. Each set lists the texts whose vectors it
wants, every one once, and makes scores of the vectors; the formulas belong to `bertjax.scores`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath
from jaxtyping import Float

from bertjax.finetuning import embedding_files, retrieval_files
from bertjax.finetuning.embedding_files import DOCUMENT, QUERY, Example
from bertjax.scores import probe, retrieval, similarity

cosines = similarity.cosines
_Vectors = Float[np.ndarray, "texts hidden"]


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in its role, which decides the prompt before it."""

    text: str
    role: str


class EvaluationSet(abc.ABC):
    """`texts` are embedded, then `scores` are made of their vectors, in that order.

    `examples` are what is scored: pairs, triplets, texts, or the names of queries.
    """

    best_score: ClassVar[str]

    @property
    @abc.abstractmethod
    def examples(self) -> Sequence[Any]: ...

    @property
    @abc.abstractmethod
    def texts(self) -> Sequence[Text]: ...

    @abc.abstractmethod
    def scores(self, vectors: _Vectors) -> dict[str, float]: ...


class _OfExamples(EvaluationSet):
    """A set of examples that all have as many texts."""

    def __init__(self, examples: Sequence[Example]):
        self._examples = examples
        flat = [
            Text(text, role)
            for example in examples
            for text, role in zip(example.texts, example.roles, strict=True)
        ]
        places: dict[Text, int] = {}
        numbers = [places.setdefault(text, len(places)) for text in flat]
        self._distinct = list(places)
        self._places = np.array(numbers).reshape(len(examples), -1)

    @property
    def examples(self) -> Sequence[Example]:
        return self._examples

    @property
    def texts(self) -> Sequence[Text]:
        return self._distinct

    def column(self, vectors: _Vectors, place: int) -> Float[np.ndarray, "examples hidden"]:
        """Returns the vectors of a column of texts, one for each example."""
        return vectors[self._places[:, place]]


class Similarity(_OfExamples):
    """Pairs with a score, such as STS-B."""

    best_score = "spearman"

    def scores(self, vectors: _Vectors) -> dict[str, float]:
        right = np.array([example.value for example in self.examples], np.float64)
        return similarity.correlations(self.column(vectors, 0), self.column(vectors, 1), right)


class Triplets(_OfExamples):
    """Anchors that are nearer to their positive than to any of their negatives."""

    best_score = "accuracy"

    def scores(self, vectors: _Vectors) -> dict[str, float]:
        negatives = vectors[self._places[:, 2:]]
        anchors, positives = self.column(vectors, 0), self.column(vectors, 1)
        return {"accuracy": similarity.triplet_accuracy(anchors, positives, negatives)}


class Classes(_OfExamples):
    """Texts with classes, told apart by a linear probe."""

    best_score = "accuracy"

    def scores(self, vectors: _Vectors) -> dict[str, float]:
        labels = [str(example.value) for example in self.examples]
        return probe.cross_validated(self.column(vectors, 0), labels)


class ClassesOfPairs(_OfExamples):
    """Pairs with classes, such as NLI, told apart by a linear probe.

    It reads |u - v| and u * v, and not the classifier that the loss `softmax` trains: that one is
    no part of what is exported, and models of other losses have none.
    Source: Conneau and Kiela 2018 (SentEval), section 3.1, of entailment and paraphrases.
    """

    best_score = "accuracy"

    def scores(self, vectors: _Vectors) -> dict[str, float]:
        labels = [str(example.value) for example in self.examples]
        first, second = self.column(vectors, 0), self.column(vectors, 1)
        features = np.concatenate([np.abs(first - second), first * second], axis=1)
        return probe.cross_validated(features, labels)


class Retrieval(EvaluationSet):
    """Queries whose answers are to be found among the documents of a corpus."""

    best_score = "ndcg_at_10"

    def __init__(self, collection: retrieval_files.Collection):
        self.collection = collection

    @property
    def examples(self) -> Sequence[str]:
        return list(self.collection.queries)

    @property
    def texts(self) -> Sequence[Text]:
        queries = [Text(text, QUERY) for text in self.collection.queries.values()]
        return [*queries, *(Text(text, DOCUMENT) for text in self.collection.documents.values())]

    def scores(self, vectors: _Vectors) -> dict[str, float]:
        queries, documents = self.collection.queries, self.collection.documents
        found = retrieval.nearest(vectors[: len(queries)], vectors[len(queries) :], list(documents))
        rankings = dict(zip(queries, found, strict=True))
        return retrieval.scores(rankings, self.collection.relevances)


def _of_pairs(examples: Sequence[Example]) -> EvaluationSet:
    """Returns triplets, or of pairs a corpus of the positives, in which anchors find their own."""
    if len(examples[0].texts) > 2:
        return Triplets(examples)
    documents = {text: f"d{n}" for n, text in enumerate({it.texts[1]: None for it in examples})}
    queries = {text: f"q{n}" for n, text in enumerate({it.texts[0]: None for it in examples})}
    relevances: dict[str, dict[str, int]] = {name: {} for name in queries.values()}
    for query, document in (example.texts for example in examples):
        relevances[queries[query]][documents[document]] = 1
    return Retrieval(
        retrieval_files.Collection(
            {name: text for text, name in documents.items()},
            {name: text for text, name in queries.items()},
            relevances,
        )
    )


# What a file holds -> the set that it is; the others of embedding_files.ROWS have no scores.
SETS: Mapping[str, Callable[[Sequence[Example]], EvaluationSet]] = {
    "scored": Similarity,
    "pairs": _of_pairs,
    "labelled": ClassesOfPairs,
    "classes": Classes,
}


def read(path: epath.PathLike, score_range: tuple[float, float]) -> EvaluationSet:
    """Returns what is scored on a file, or a directory in BEIR's layout.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is not as it must be, or has nothing to score.
    """
    if retrieval_files.is_collection(path):
        return Retrieval(retrieval_files.read(path))
    rows = embedding_files.holds(path)
    if rows not in SETS:
        raise embedding_files.FaultyFile(
            f"{path} holds {rows}, of which vectors have no score; embeddings are evaluated on "
            f"{embedding_files.told(SETS)}; or on a directory in BEIR's layout"
        )
    return SETS[rows](embedding_files.read(path, rows, score_range=score_range))


def unlabelled(path: epath.PathLike) -> str:
    """Returns what is read of a file whose vectors or cosines are wanted: texts, or two of them."""
    return "texts" if embedding_files.holds(path) in ("texts", "classes") else "two_texts"


def named(paths: Sequence[str], alone: str) -> dict[str, str]:
    """Returns the paths by the names of their sets: `alone` of one, else what tells them apart.

    Those are the names of files without suffix, with the directory before them where they repeat.
    """
    if len(paths) == 1:
        return {alone: paths[0]}
    stems = [epath.Path(path).stem for path in paths]
    names = [
        stem if stems.count(stem) == 1 else f"{epath.Path(path).parent.name}_{stem}"
        for stem, path in zip(stems, paths, strict=True)
    ]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"config.finetuning.eval_file has several sets that would be called {repeated[0]!r}; "
            "rename a file or its directory"
        )
    return dict(zip(names, paths, strict=True))
