import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from data_pipelines.building import row_packing


def slow_best_fit(lengths, capacity, most):
    """By the definition: of the open rows the one with the least room, the last made of equal ones.

    Rows of equal room are taken in the order of a stack: the row that got it last.
    """
    rows = []
    longest_first = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    for order, number in enumerate(longest_first):
        fitting = [
            row for row in rows if row["room"] >= lengths[number] and len(row["examples"]) < most
        ]
        if fitting:
            row = min(fitting, key=lambda row: (row["room"], -row["since"]))
        else:
            row = {"room": capacity, "examples": [], "since": 0}
            rows.append(row)
        row["examples"].append(number)
        row["room"] -= lengths[number]
        row["since"] = order
    return [row["examples"] for row in rows]


@hypothesis.settings(deadline=None, derandomize=True, max_examples=60)
@hypothesis.given(
    strategies.lists(strategies.integers(3, 40), max_size=60), strategies.integers(2, 6)
)
def test_rows_are_those_of_best_fit_decreasing(lengths, most):
    lengths = np.array(lengths, np.int64)
    found = row_packing.best_fit(lengths, 40, most)
    assert found == slow_best_fit(lengths.tolist(), 40, most)
    assert sorted(number for row in found for number in row) == list(range(len(lengths)))
    assert all(lengths[row].sum() <= 40 and 1 <= len(row) <= most for row in found)


def test_windows_are_packed_one_by_one_in_an_order_of_the_seed(monkeypatch):
    monkeypatch.setattr(row_packing, "WINDOW", 50)
    lengths = np.random.default_rng(0).integers(3, 30, 120)

    def rows(seed):
        return list(row_packing.rows(lengths, 32, 8, np.random.default_rng(seed)))

    found = rows(1)
    assert sorted(number for row in found for number in row) == list(range(120))
    assert all(len({number // 50 for number in row}) == 1 for row in found)
    assert rows(1) == found != rows(2)
    assert sorted(map(tuple, rows(2))) == sorted(map(tuple, found))


def test_an_example_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="an example has 33 tokens; a row holds 32"):
        row_packing.best_fit(np.array([5, 33]), 32, 4)
