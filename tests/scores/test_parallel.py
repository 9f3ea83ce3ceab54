import numpy as np

from bertjax.scores import parallel


def by_hand(source, target):
    """P@1 of cosine and of margin from source to target, text by text."""

    def cosine(one, other):
        return one @ other / np.sqrt((one @ one) * (other @ other))

    table = np.array([[cosine(one, other) for other in target] for one in source])
    near = [np.mean(sorted(row)[-parallel.NEIGHBOURS :]) for row in table]
    near_back = [np.mean(sorted(row)[-parallel.NEIGHBOURS :]) for row in table.T]
    right = {"cosine": 0, "margin": 0}
    for place, row in enumerate(table):
        margins = [row[at] / ((near[place] + near_back[at]) / 2) for at in range(len(row))]
        right["cosine"] += max(range(len(row)), key=lambda at: row[at]) == place
        right["margin"] += max(range(len(row)), key=lambda at: margins[at]) == place
    return {name: count / len(source) for name, count in right.items()}


def test_retrieval_is_that_of_the_definitions(monkeypatch):
    rng = np.random.default_rng(0)
    hubs = rng.normal(size=8)  # near to all, which the margin counts less
    source = rng.normal(size=(60, 8)) + hubs
    target = (source + rng.normal(scale=1.2, size=source.shape)) * rng.uniform(0.1, 9, (60, 1))
    there, back = by_hand(source, target), by_hand(target, source)
    assert 0.1 < there["cosine"] != there["margin"] < 0.95
    for rows in (4096, 7):
        monkeypatch.setattr(parallel, "ROWS_AT_ONCE", rows)
        found = parallel.retrieval(source, target)
        assert found == {name: (there[name], back[name]) for name in ("cosine", "margin")}


def test_fewer_texts_than_neighbours_and_equal_vectors_have_a_score():
    assert parallel.retrieval(np.eye(2), np.eye(2)) == dict.fromkeys(
        ("cosine", "margin"), (1.0, 1.0)
    )
    assert parallel.retrieval(np.ones((5, 3)), np.ones((5, 3)))["cosine"] == (0.2, 0.2)
