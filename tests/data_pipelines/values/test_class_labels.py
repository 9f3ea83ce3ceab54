"""Classes of rows, in the ways in which arrays and columns hold them."""

import numpy as np
import pytest

from data_pipelines.values import class_labels


def read(cells, kept=None):
    kept = range(len(cells)) if kept is None else kept
    return class_labels.read(cells, "'y' of a.npz", kept, "a.npz[{}]".format)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (np.array([2, 0, 1]), [2, 0, 1]),
        (np.array([[2], [0], [1]], np.uint8), [2, 0, 1]),
        (np.array([2.0, 0.0, 1.0]), [2, 0, 1]),
        (np.eye(3, dtype=np.float32)[[2, 0, 1]], [2, 0, 1]),
        (np.eye(3, dtype=bool)[[2, 0, 1]], [2, 0, 1]),
        ([[0, 0, 1], [1, 0, 0], [0, 1, 0]], [2, 0, 1]),
        (np.array([b"K\xc3\xb6ln", b"Bern"]), ["Köln", "Bern"]),
        ([b"K\xc3\xb6ln", "Bern"], ["Köln", "Bern"]),
    ],
)
def test_a_class_is_a_number_or_a_text(cells, classes):
    assert read(cells) == classes


def test_a_row_without_a_class_is_refused_unless_it_is_left_out():
    labels = np.array([1.0, np.nan, 0.0, np.inf])
    for cells in (labels, [1, None, 0, ""]):
        with pytest.raises(ValueError, match=r"2 of 4 rows have no label in 'y' .* a.npz\[1\]"):
            read(cells)
        assert read(cells, [2, 0]) == [0, 1]


@pytest.mark.parametrize(
    "cells",
    [
        np.zeros((2, 2)), np.ones((2, 2)), np.full((2, 2), 0.5), np.zeros((2, 1, 1)),
        np.array([1j, 2j]), [{"a": 1}, {"a": 2}], [[1, 2], [3]], [b"\xff", b"a"], [[1], None],
    ],
)  # fmt: skip
def test_what_is_not_a_class_is_refused(cells):
    with pytest.raises(ValueError, match="a.npz"):
        read(cells)
