"""Claims about the recipes' plans: each has one, and its docstring says what the table says."""

import ast

import pytest

from benchmarks import marked_tables, plan_recipes
from bertjax import recipes
from bertjax.planning import estimates

PLANNED = marked_tables.read(plan_recipes.PAGE, "plan_recipes").splitlines()
SOURCE = '''r"""A recipe.

Hardware:  any.
Planned:   2.0 h on v5e-1: $5, spot $1 (2026-11-21,
           docs/scaling.md).
Time:      not yet measured.
"""
'''


def test_every_recipe_has_a_setting():
    assert list(recipes.names()) == sorted(plan_recipes.SETTINGS)


def rows_of(name):
    return [row for row in PLANNED if f"| `{name}` |" in row]


@pytest.mark.parametrize("name", plan_recipes.SETTINGS)
def test_every_recipe_has_a_row_for_each_phase(name):
    trained = [phase for phase in recipes.load(name).phases.values() if phase.num_steps]
    assert len(rows_of(name)) == max(1, len(trained))  # finetuning's steps follow from its data


@pytest.mark.parametrize("name", plan_recipes.SETTINGS)
def test_a_recipe_says_what_the_table_says_of_it(name):
    rows = rows_of(name)
    source = (recipes.directory() / f"{name}.py").read_text("utf-8")
    said = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    assert f"Planned: {plan_recipes.sentence(rows)} Time:" in said
    assert plan_recipes.with_sentence(source, plan_recipes.sentence(rows)) == source


def test_a_new_plan_takes_the_place_of_the_one_before():
    made = plan_recipes.with_sentence(SOURCE, "3.0 h on v5e-4: $7, spot $2.")
    kept = [line for line in SOURCE.splitlines() if "2026" not in line and "scaling" not in line]
    assert [line for line in made.splitlines() if "v5e-4" not in line] == kept
    assert "any.\nPlanned:   3.0 h on v5e-4: $7, spot $2.\nTime:" in made


def test_a_recipe_that_does_not_fit_has_neither_time_nor_price():
    row = "| `r` | v5e-1 | 8 x 8 | {} | 1 | 1 | 1% | 1 | 2.0 h | $5 | $1 | 2026-11-21 |"
    rows = [row.format("yes"), row.format("no")]
    assert plan_recipes.sentence(rows) == "does not fit v5e-1 (2026-11-21, docs/scaling.md)."
    assert plan_recipes.sentence(rows[:1]).startswith("2.0 h on v5e-1: $5, spot $1 ")


@pytest.mark.parametrize(
    ("hours", "shown"), [(2.04, "2.0 h"), (1234.5, "1,234 h"), (0.5, "30.0 min"), (0.001, "3.6 s")]
)
def test_short_times_are_in_minutes_or_seconds(hours, shown):
    assert plan_recipes.duration(estimates.Figure(hours, "hours", "estimated")) == shown
