import numpy as np

from data_pipelines.objectives import examples

BUDGET = 29


def released_cut(length_a, length_b, budget, rng):
    """Lengths and front losses by one token at a time, as the released code does."""
    front_a = front_b = 0
    while length_a + length_b > budget:
        front = rng.random() < 0.5
        if length_a > length_b:
            length_a, front_a = length_a - 1, front_a + front
        else:
            length_b, front_b = length_b - 1, front_b + front
    return length_a, length_b, front_a, front_b


def test_cutting_at_once_is_cutting_token_by_token():
    rng = np.random.default_rng(0)
    for length_a, length_b in [(40, 7), (7, 40), (20, 20), (30, 25), (3, 4), (60, 1)]:
        one = np.array([(100, 500, length_a, length_b, 1)], examples.SPAN)
        cut = examples.cut_to(np.repeat(one, 4000), BUDGET, rng)
        expected = np.array([released_cut(length_a, length_b, BUDGET, rng) for _ in range(4000)])
        assert (cut["length_a"] == expected[:, 0]).all()
        assert (cut["length_b"] == expected[:, 1]).all()
        assert (cut["label"] == 1).all()
        fronts = np.stack([cut["begin_a"] - 100, cut["begin_b"] - 500], axis=1)
        np.testing.assert_allclose(fronts.mean(axis=0), expected[:, 2:].mean(axis=0), atol=0.25)
        np.testing.assert_allclose(fronts.std(axis=0), expected[:, 2:].std(axis=0), atol=0.2)
