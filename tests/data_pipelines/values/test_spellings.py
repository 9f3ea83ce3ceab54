"""The forms in which tables spell numbers and times: proved by cells, or refused."""

import datetime

import numpy as np
import pyarrow
import pytest

from data_pipelines.values import spellings


def decided(cells, mark=".", decimal="auto"):
    texts = pyarrow.array(cells)
    return spellings.decide(texts, np.ones(len(cells), int), file_mark=mark, decimal=decimal), texts


@pytest.mark.parametrize(
    ("cells", "form", "values"),
    [
        (["1", "-2.5", "+.5", "1e3", "7."], "1234.5", [1, -2.5, 0.5, 1000, 7]),
        (["7,76", "0,123"], "1234,5", [7.76, 0.123]),
        (["1.234,50", "3"], "1.234,5", [1234.5, 3]),
        (["1.234.567", "12"], "1.234,5", [1234567, 12]),
        (["1,234.5", "1,000"], "1,234.5", [1234.5, 1000]),
        (["1 234,5", "1\u202f000", "2\u00a0000"], "1 234,5", [1234.5, 1000, 2000]),
        (["1'234.50", "7"], "1'234.5", [1234.5, 7]),
        (["12:30", "7:05:01.5"], "12:30", [45000, 25501.5]),
        (["007", "115"], "", None),
        (["yes", "no"], "", None),
        (["NaN"], "", None),
    ],
)
def test_the_form_of_a_column_is_the_one_that_its_cells_prove(cells, form, values):
    found, texts = decided(cells)
    assert found == form
    if form:
        assert spellings.parse(texts, form).tolist() == values


@pytest.mark.parametrize(
    "cells",
    [
        ["2026-01-31", "2026-01-03 04:05", "2026-01-31T12:00:01,25"],
        ["31.01.2026", "3.1.2026 4:05", "31.01.2026 12:00:01.25"],
        ["31/01/2026", "3/1/2026 4:05", "31/01/2026 12:00:01.25"],
        ["01/31/2026", "1/3/2026 4:05", "01/31/2026 12:00:01.2500009"],
        ["2026-01-31T00:00Z", "2026-01-03 06:05+02:00", "2026-01-31 07:00:01.25-0500"],
    ],
)
def test_times_of_all_forms_are_seconds_since_1970(cells):
    form, texts = decided(cells)
    utc = datetime.UTC
    expected = [
        datetime.datetime(2026, 1, 31, tzinfo=utc).timestamp(),
        datetime.datetime(2026, 1, 3, 4, 5, tzinfo=utc).timestamp(),
        datetime.datetime(2026, 1, 31, 12, 0, 1, 250000, tzinfo=utc).timestamp(),
    ]
    assert spellings.parse(texts, form).tolist() == expected


@pytest.mark.parametrize(
    ("cells", "mark", "named"),
    [
        (["1,234", "2,500"], ".", "'1,234'"),
        (["1.234", "2.500"], ",", "'1.234'"),
        (["12,5", "1.234"], ",", "'1.234'"),
        (["1.5", "2,5"], ".", "'1.5' and as '2,5'"),
        (["1 234", "1'234"], ".", "'1 234' and as \"1'234\""),
        (["01/02/2026", "03/04/2026"], ".", "'01/02/2026'"),
    ],
)
def test_cells_that_may_mean_two_values_are_refused_by_name(cells, mark, named):
    with pytest.raises(ValueError, match=named):
        decided(cells, mark)


def test_an_option_or_the_delimiter_decides_where_cells_do_not():
    assert decided(["1,234", "2,500"], decimal=",")[0] == "1234,5"
    assert decided(["1,234", "2,500"], decimal=".")[0] == "1,234.5"
    assert decided(["12,5", "1.234"], ",", ",")[0] == "1.234,5"
    assert decided(["1,234", "2,500"], ",")[0] == "1234,5"  # between semicolons
    assert decided(["1.234", "2.500"])[0] == "1234.5"


def test_a_day_that_no_calendar_has_is_no_time():
    form, texts = decided(["2026-02-28", "2026-02-31"])
    assert np.isnan(spellings.parse(texts, form)).tolist() == [False, True]


def test_only_the_training_part_decides():
    texts = pyarrow.array(["1", "2", "x", "y"])
    given = {"file_mark": ".", "decimal": "auto"}
    assert spellings.decide(texts, np.array([30, 30, 1, 0]), **given) == "1234.5"
    assert spellings.decide(texts, np.array([3, 3, 1, 0]), **given) == ""
