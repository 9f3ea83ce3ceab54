"""Claims about scores of retrieval: they are trec_eval's, with ties and queries that lack much."""

import numpy as np
import pytest

from bertjax.scores import retrieval

pytrec_eval = pytest.importorskip("pytrec_eval")

# Ours -> trec_eval's. Its reciprocal rank has no depth: those beyond ours are 0.
MEASURES = {
    "ndcg_at_10": "ndcg_cut_10",
    "recall_at_1": "recall_1",
    "recall_at_10": "recall_10",
    "recall_at_100": "recall_100",
}


def random_case(seed):
    """Returns vectors of queries and documents of which many are equal, and relevances.

    Some queries are not judged, some have no relevant document.
    """
    rng = np.random.default_rng(seed)
    queries, documents = rng.integers(-2, 3, (9, 3)), rng.integers(-2, 3, (150, 3))
    names = [f"d{number}" for number in range(150)]
    relevances = {}
    for query in range(8):
        judged = rng.choice(150, rng.integers(1, 60), replace=False)
        grades = rng.integers(-1, 4, len(judged)) if query else np.zeros(len(judged), int)
        pairs = zip(judged, grades, strict=True)
        relevances[f"q{query}"] = {names[place]: int(grade) for place, grade in pairs}
    return queries.astype(float), documents.astype(float), names, relevances


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_random_cases_are_trec_evals(seed):
    queries, documents, names, relevances = random_case(seed)
    found = retrieval.nearest(queries, documents, names)
    rankings = {f"q{number}": ranking for number, ranking in enumerate(found)}
    ours = retrieval.scores(rankings, relevances)

    lengths = np.maximum(np.linalg.norm(documents, axis=1), 1e-9)
    run = {}
    for number, query in enumerate(queries):
        cosines = documents @ query / lengths / max(np.linalg.norm(query), 1e-9)
        # Equal vectors of different lengths have the same cosine but for rounding.
        run[f"q{number}"] = dict(zip(names, np.round(cosines, 6).tolist(), strict=True))
    wanted = {"ndcg_cut.10", "recall.1,10,100", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(relevances, wanted).evaluate(run)
    judged = [name for name, grades in relevances.items() if max(grades.values()) > 0]
    assert 0 < len(judged) < len(queries)
    for own, name in MEASURES.items():
        assert ours[own] == pytest.approx(np.mean([theirs[query][name] for query in judged])), own
    ranks = [theirs[query]["recip_rank"] for query in judged]
    assert ours["mrr_at_10"] == pytest.approx(np.mean([rank * (rank >= 0.1) for rank in ranks]))
    # With -c it averages over all judged queries; ours does that always, as BEIR does.
    assert set(retrieval.scores({}, relevances).values()) == {0.0}
