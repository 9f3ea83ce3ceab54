"""Scores of rankings: recall@k, MRR@10 and nDCG@10, as trec_eval computes them.

A run is a ranking of documents for each query. Relevances are whole numbers; above 0 a document
answers the query. Queries without a relevant document are left out. Documents with the same score
are ranked by name, the greatest first, as in trec_eval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from bertjax.scores import similarity

Relevances = Mapping[str, Mapping[str, int]]
Rankings = Mapping[str, Sequence[str]]

RECALL_DEPTHS = (1, 10, 100)
DEPTH = 10  # of MRR and nDCG
DEEPEST = max(*RECALL_DEPTHS, DEPTH)

# The number of cosines in memory: 64 MiB in float64.
_CELLS = 1 << 23


def scores(rankings: Rankings, relevances: Relevances) -> dict[str, float]:
    """Returns the means over all queries with a relevant document.

    Such a query without a ranking scores 0.

    Raises:
      ValueError: if no query has a relevant document.
    """
    judged = {
        query: of_query
        for query, of_query in relevances.items()
        if any(grade > 0 for grade in of_query.values())
    }
    if not judged:
        raise ValueError("no query has a relevant document; there is nothing to score")
    scores = [_of_query(rankings.get(query, ()), of_query) for query, of_query in judged.items()]
    return {name: float(np.mean([each[name] for each in scores])) for name in scores[0]}


def _of_query(ranking: Sequence[str], relevances: Mapping[str, int]) -> dict[str, float]:
    grades = np.array([max(relevances.get(document, 0), 0) for document in ranking], np.float64)
    relevant = sum(grade > 0 for grade in relevances.values())
    recalls = {f"recall_at_{k}": float((grades[:k] > 0).sum() / relevant) for k in RECALL_DEPTHS}
    first = np.flatnonzero(grades[:DEPTH] > 0)
    best = np.array(sorted(relevances.values(), reverse=True), np.float64)
    return {
        f"ndcg_at_{DEPTH}": _gain(grades[:DEPTH]) / _gain(np.maximum(best[:DEPTH], 0)),
        f"mrr_at_{DEPTH}": 1.0 / (int(first[0]) + 1) if len(first) else 0.0,
        **recalls,
    }


def _gain(grades: Float[np.ndarray, " ranks"]) -> float:
    """Returns the discounted cumulative gain.

    Source: Järvelin and Kekäläinen 2002, equation 2, with the logarithm of rank + 1 and grades as
    gains, as in trec_eval's ndcg_cut.
    """
    return float((grades / np.log2(np.arange(2, len(grades) + 2))).sum())


def nearest(
    queries: Float[np.ndarray, "queries hidden"],
    documents: Float[np.ndarray, "documents hidden"],
    names: Sequence[str],
    *,
    count: int = DEEPEST,
) -> list[list[str]]:
    """Returns the names of the documents nearest to each query by cosine, the nearest first.

    Among equal cosines the greatest name comes first. Cosines are rounded to float32, so that equal
    texts have equal ones.
    """
    # Documents from the greatest name to the least: a stable sort then gives trec_eval's order.
    order = sorted(range(len(names)), key=names.__getitem__, reverse=True)
    units, depth = similarity.unit(documents)[order], min(count, len(names))
    step = max(_CELLS // max(len(names), 1), 1)
    rankings = []
    for start in range(0, len(queries), step):
        cosines = (similarity.unit(queries[start : start + step]) @ units.T).astype(np.float32)
        for row in _highest(cosines, depth):
            rankings.append([names[order[place]] for place in row])
    return rankings


def _highest(
    values: Float[np.ndarray, "rows columns"], count: int
) -> Int[np.ndarray, "rows count"]:
    """Returns the places of the highest values of each row; equal values keep their order."""
    lowest = np.partition(values, -count, axis=1)[:, -count, None]
    rows = []
    for row, limit in zip(values, lowest[:, 0], strict=True):
        # Includes all values that equal the last one taken; their places decide.
        places = np.flatnonzero(row >= limit)
        rows.append(places[np.argsort(-row[places], kind="stable")][:count])
    return np.array(rows).reshape(len(values), count)
