"""Recall, MRR and nDCG of rankings; tests/interop compares them with trec_eval."""

import numpy as np
import pytest

from bertjax.scores import retrieval

RANKED = [f"d{number}" for number in range(20)]


def of(ranking, relevances):
    return retrieval.scores({"q": ranking}, {"q": relevances})


def test_a_perfect_ranking_scores_1_and_one_without_an_answer_0():
    found = of(RANKED, {"d0": 2, "d1": 1, "d9": 0})
    assert found["ndcg_at_10"] == found["mrr_at_10"] == found["recall_at_10"] == 1
    assert found["recall_at_1"] == 0.5
    assert set(of(RANKED, {"other": 1}).values()) == {0.0}


def test_values_by_hand():
    found = of(RANKED, {"d1": 3, "d3": 1, "d15": 2})
    assert found["mrr_at_10"] == 0.5
    gained, best = 3 / np.log2(3) + 1 / np.log2(5), 3 + 2 / np.log2(3) + 1 / 2
    assert found["ndcg_at_10"] == pytest.approx(gained / best)
    assert found["recall_at_10"] == pytest.approx(2 / 3) and found["recall_at_100"] == 1
    assert of(RANKED, {"d10": 1})["mrr_at_10"] == 0  # one too late


def test_queries_without_a_relevant_document_are_left_out_and_those_without_a_ranking_score_0():
    relevances = {"a": {"d0": 1}, "b": {"d0": 0}, "c": {"d0": 1}, "d": {}}
    assert retrieval.scores({"a": RANKED, "b": RANKED}, relevances)["mrr_at_10"] == 0.5
    with pytest.raises(ValueError, match="no query has a relevant document"):
        retrieval.scores({"b": RANKED}, {"b": {"d0": 0}})


def test_the_nearest_are_those_of_a_full_sort_whatever_is_held_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(7, 3)), rng.integers(-1, 2, (40, 3)).astype(float)
    names = [f"d{number}" for number in rng.permutation(40)]  # many have the same vector
    lengths = np.maximum(np.linalg.norm(documents, axis=1), 1e-9)
    expected = []
    for query in queries:
        cosines = np.round(documents @ query / lengths / np.linalg.norm(query), 6)
        by_name = sorted(range(40), key=lambda place: (cosines[place], names[place]), reverse=True)
        expected.append([names[place] for place in by_name])
    for cells, count in ((1 << 23, 11), (1, 11), (40, 99)):
        monkeypatch.setattr(retrieval, "_CELLS", cells)
        rankings = retrieval.nearest(queries, documents, names, count=count)
        assert rankings == [ranking[:count] for ranking in expected]
