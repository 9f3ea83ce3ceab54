"""Plans every recipe for the mesh it is made for, and prints the table of docs/scaling.md.

    python benchmarks/plan_recipes.py [--recipes=bert_tiny,bert_mini] [--write]

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. Nothing here is measured on a device: bytes
and FLOPs are counted, step times, hours and prices are the compiler's cycle estimates. The first
plan of a large recipe takes minutes; later ones come from the user's cache.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence

import jax
import marked_tables
from absl import logging

from bertjax import plan, recipes
from bertjax.planning import cache, estimates, planner

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "scaling.md"
# Recipe -> the slice that its mesh fills; those that take any number of devices, on the smallest.
SLICES = {
    "bert_tiny": "v5e-1",
    "bert_mini": "v5e-1",
    "bert_small": "v5e-1",
    "bert_medium": "v5e-4",
    "bert_base": "v5e-4",
    "bert_large": "v5e-16",
}
HEADER = (
    "| recipe | slice | phase | fits | GiB per device of 16 | ms per step | utilization | tokens/s "
    "| hours | on demand | spot |"
)


def plan_recipe(name: str, topology: str) -> planner.Plan:
    """Returns the plan of a recipe for a slice."""
    config = recipes.load(name)
    config, assumptions = plan.with_vocabulary(config, 0)
    target = plan.make_target(topology, config)
    return planner.plan(
        config, plan.make_planner(target, cache.default_directory()), assumptions=assumptions
    )


def rows(name: str, made: planner.Plan) -> Iterator[str]:
    """Yields a table row per phase, the run's hours and price in the last."""
    totals = plan.price_totals(made, only_spot=False, price_per_chip_hour=None)
    for phase in made.phases:
        is_last = phase is made.phases[-1]
        cells = [
            f"`{name}`",
            made.target.name,
            f"{phase.global_batch_size} x {phase.max_seq_length}",
            "yes" if phase.fits else "no",
            f"{phase.memory['total'].value / 2**30:.2f}" if phase.fits else "",
            _shown(phase.speed.get("step_seconds"), 1e3, "{:.2f}"),
            _shown(phase.speed.get("model_flop_utilization"), 100, "{:.0f}%"),
            _shown(phase.speed.get("tokens_per_second"), 1, "{:,.0f}"),
            _shown(phase.speed.get("hours"), 1, "{:,.1f}"),
            _shown(totals.get("price on demand"), 1, "${:,.0f}") if is_last else "",
            _shown(totals.get("spot price"), 1, "${:,.0f}") if is_last else "",
        ]
        yield f"| {' | '.join(cells)} |"


def table(plans: dict[str, planner.Plan]) -> str:
    """Returns the table with its date and versions; prices are of all phases of a run."""
    newest = next(reversed(plans.values()))
    versions = ", ".join(f"{name} {version}" for name, version in newest.versions.items())
    lines = [f"Planned on {newest.date}: {versions}.", "", HEADER, "|---" * 11 + "|"]
    for name, made in plans.items():
        lines += rows(name, made)
    return "\n".join(lines)


def _shown(figure: estimates.Figure | None, scale: float, form: str) -> str:
    return form.format(figure.value * scale) if figure else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Plans and prints."""
    parser = argparse.ArgumentParser(description="Plans of the recipes for their own meshes.")
    parser.add_argument("--recipes", default=",".join(SLICES), help="names of configs, by commas")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE}")
    options = parser.parse_args(argv)
    names = options.recipes.split(",")
    if unknown := set(names) - set(SLICES):
        parser.error(f"--recipes: {', '.join(sorted(unknown))}; known are {', '.join(SLICES)}")
    jax.config.update("jax_platforms", "cpu")
    logging.set_verbosity(logging.INFO)  # a line per compilation
    text = table({name: plan_recipe(name, SLICES[name]) for name in names})
    print(text)
    if options.write:
        marked_tables.write(PAGE, "plan_recipes", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
