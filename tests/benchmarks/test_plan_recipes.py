"""Claims about the recipes' plans: each size has one, and docstrings agree with the table."""

import importlib

import pytest

from benchmarks import plan_recipes, report
from bertjax import recipes
from bertjax.plan import estimates

TABLE = report.read_marked(plan_recipes.PAGE, "plan_recipes")
ROW = (
    "| `{name}` | v5e-1 | 8 x 8 | {fits} | 1 | 1 | 1% | 1 | 2.0 h / 1.0 h | $5 | $1 | 2026-11-21 |"
)
SOURCE = '''r"""A recipe.

Hardware:  any.
Planned:   2.0 h on v5e-1: $5, spot $1
             (2026-11-21)
Time:      not yet measured.
"""
'''


def test_every_recipe_has_a_plan_of_every_size():
    names = []
    for name in recipes.names():
        sizes = getattr(importlib.import_module(f"configs.{name}"), "SIZES", None)
        names += [f"{name}:{size}" for size in sizes] if sizes else [name]
    assert sorted(names) == sorted((*plan_recipes.SETTINGS, *plan_recipes.OF_RECORDS))


def test_a_row_of_the_table_has_every_phase_of_a_recipe():
    rows = plan_recipes.rows_by_name(TABLE)
    assert list(rows) == list(plan_recipes.SETTINGS)
    for name, row in rows.items():
        trained = [phase for phase in recipes.load(name).phases.values() if phase.num_steps]
        shapes = row.split(" | ")[2].split(" / ")
        assert len(shapes) == max(1, len(trained)), name  # finetuning's steps follow from its data


def test_a_docstring_says_what_the_table_says():
    for name in {*recipes.names()} - {*plan_recipes.OF_RECORDS}:
        source = (recipes.directory() / f"{name}.py").read_text("utf-8")
        lines = plan_recipes.planned_lines(name, TABLE)
        assert lines in source and plan_recipes.with_planned_lines(source, lines) == source, name


def test_new_lines_take_the_place_of_those_before():
    lines = "Planned:   base: 3.0 h on v5e-4\n           large: 9.0 h on v5e-4\n"
    replaced = plan_recipes.with_planned_lines(SOURCE, lines)
    before = SOURCE[: SOURCE.index("Planned:")]
    assert replaced == before + lines + SOURCE[SOURCE.index("Time:") :]


def test_sizes_are_listed_and_what_does_not_fit_has_neither_time_nor_price():
    cells = [("albert:base", "yes"), ("albert:large", "no")]
    table = "\n".join(ROW.format(name=name, fits=fits) for name, fits in cells)
    assert plan_recipes.planned_lines("albert", table).splitlines() == [
        "Planned:   base: 2.0 h + 1.0 h on v5e-1: $5, spot $1 (2026-11-21)",
        "           large: does not fit v5e-1 (2026-11-21)",
    ]


@pytest.mark.parametrize(
    ("hours", "shown"), [(2.04, "2.0 h"), (1234.5, "1,234 h"), (0.5, "30.0 min"), (0.001, "3.6 s")]
)
def test_short_times_are_in_minutes_or_seconds(hours, shown):
    assert plan_recipes.duration(estimates.Figure(hours, "hours", "estimated")) == shown
