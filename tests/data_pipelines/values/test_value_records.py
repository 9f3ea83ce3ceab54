"""Rows of the user's own, which `write` checks before it writes them."""

import numpy as np
import pytest

from bertjax.data import records, value_rows
from data_pipelines.values import value_records

NUMBERS = {"kind": "numbers", "names": ["y"], "means": [0.0], "deviations": [1.0]}
CLASSES = {"kind": "classes", "names": ["a", "b"]}
CELLS = np.random.default_rng(0).normal(size=(1500, 3, 2))
# Case -> labels of the rows, what they are said to be, and what the message has.
FAULTS = {
    "numbers without outputs": (CELLS[:, 0, 0], NUMBERS, r"\(1024,\) of float32.*\[rows, 1\]"),
    "whole numbers": (np.zeros((1500, 1), int), NUMBERS, "of int64.*of floats"),
    "no number": (np.full((1500, 1), np.nan), NUMBERS, "row 0 has a label that is not a number"),
    "classes from 1": (1 + np.arange(1500) % 2, CLASSES, "row 1 has a label .* from 0 to 1"),
    "a class below 0": (np.arange(1500) // 1400 - 1, CLASSES, "row 0 has a label"),
    "beyond int32": (2**32 + np.arange(1500) % 2, CLASSES, "row 0 has a label"),
    "classes as a column": (np.zeros((1500, 1), int), CLASSES, r"\(1024, 1\).*\[rows\]"),
    "classes as floats": (np.zeros(1500), CLASSES, "of float32.*whole numbers"),
    "a step too few": (CELLS[:, 0], {"kind": "forecast", "horizon": 3, "season": 0}, r"rows, 3\]"),
}


def write(directory, labels=None, described=None, cells=CELLS):
    statistics = {"labels": described} if described else {}
    arrays = value_records.Arrays(cells, labels)
    return value_records.write(directory, arrays, seed=0, statistics=statistics)


@pytest.mark.parametrize("case", FAULTS)
def test_labels_of_another_kind_are_refused_and_nothing_is_left(tmp_path, case):
    labels, described, message = FAULTS[case]
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "out", labels, described)
    assert not [*tmp_path.iterdir()]


def test_rows_that_hold_nothing_or_too_much_are_refused(tmp_path):
    for value, message in (
        (np.nan, "row 1100 has no observed value"),
        (1e39, "row 1100 .*float32"),
    ):
        cells = CELLS.copy()
        cells[1100] = value
        with pytest.raises(ValueError, match=message):
            write(tmp_path / "out", cells=cells)
    with pytest.raises(ValueError, match=r"values is \(1500, 3\).*\[rows, positions"):
        write(tmp_path / "out", cells=CELLS[:, :, 0])
    with pytest.raises(ValueError, match="labels is 1501; it must be 1,500"):
        write(tmp_path / "out", np.zeros(1501, int), CLASSES)


def test_labels_that_fit_are_stored(tmp_path):
    for name, labels, described in (
        ("classes", np.arange(1500, dtype=np.uint8) % 2, CLASSES),
        ("numbers", CELLS[:, 0, :1], NUMBERS),
    ):
        write(tmp_path / name, labels, described)
        stored = value_rows.columns(records.open(tmp_path / name))["labels"]
        assert sorted(stored.ravel()) == pytest.approx(sorted(labels.ravel()))
