"""Plans every recipe for a slice that fits it: the table of docs/scaling.md, a line in each recipe.

    python -m benchmarks.plan_recipes [--recipes=bert_tiny,albert:xlarge] [--write]

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. Nothing here is measured on a device: bytes
and FLOPs are counted, step times, hours and prices are the compiler's cycle estimates. The first
plan of a large recipe takes minutes; later ones come from the user's cache. --write replaces the
rows of the recipes that were planned, and the lines "Planned:" of their docstrings.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging

from benchmarks import report
from bertjax import recipes
from bertjax.plan import assumptions as assumptions_lib
from bertjax.plan import cache, estimates, planner, targets

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "scaling.md"


@dataclasses.dataclass(frozen=True)
class Setting:
    """The slice that a recipe is planned for, and what differs from the recipe.

    `note` is printed after the slice. The length of a finetuning follows from `num_examples`.
    """

    topology: str
    num_examples: int = 0
    note: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def accumulated(topology: str, steps: int) -> Setting:
    """Returns the setting of a recipe whose batch fits the slice in `steps` micro-batches."""
    option = {"gradient_accumulation_steps": steps}
    return Setting(topology, 0, f"in {steps} micro-batches", option)


def without_ramp(topology: str, steps: int) -> Setting:
    """Returns `accumulated` with full batches from the first step on, and as many tokens."""
    plain = accumulated(topology, steps)
    constant = {"phases.phase1.ramp_from": 0, "phases.phase1.ramp_tokens": 0}
    return dataclasses.replace(plain, options={**plain.options, **constant})


def examples(count: int, noun: str = "examples") -> Setting:
    """Returns the setting of a finetuning on one device, with `count` examples."""
    return Setting("v5e-1", count, f"BERT-base, {count:,} {noun}")


def passes(topology: str, rows: int, entries: int) -> Setting:
    """Returns the setting of a recipe that makes passes over `rows`, with `entries`."""
    return Setting(topology, rows, f"{rows:,} rows", {"model.vocab_size": entries})


def of_values(
    topology: str, rows: int, noun: str, options: Mapping[str, Any], length: int = 0
) -> Setting:
    """Returns the setting of a recipe on `rows` of values, with what records would say of them."""
    names = ("phases.phase1.max_seq_length", "model.max_position_embeddings")
    lengths = dict.fromkeys(names, length) if length else {}
    return Setting(topology, rows, f"{rows:,} rows of {noun}", {**options, **lengths})


HOUSING = {"model.columns": (0,) * 9}  # [CLS] and eight numbers
# An encoder as that of patchtst:base.
PATCHES = {
    **recipes.sizes(layers=3, hidden=128, heads=16, intermediate=512),
    **{"model.embeddings": "patches", "model.value_width": 12, "model.type_vocab_size": 0},
    **{"model.max_position_embeddings": 42, "finetuning.max_seq_length": 42},
}
OF_RECORDS = ("own",)  # recipes whose sizes the records decide

# The number of devices of the published run where it is known, else a slice that fits the batch.
SETTINGS = {
    "bert_tiny": Setting("v5e-1"),
    "bert_mini": Setting("v5e-1"),
    "bert_small": Setting("v5e-1"),
    "bert_medium": Setting("v5e-4"),
    "bert_base": Setting("v5e-4"),
    "bert_large": Setting("v5e-16"),
    "mbert": Setting("v5e-16"),
    "bert_chinese_wwm": accumulated("v5e-16", 2),
    "roberta:base": Setting("v5e-128"),
    "roberta:large": accumulated("v5e-256", 2),
    "xlm_r:base": accumulated("v5e-256", 2),
    "xlm_r:large": accumulated("v5e-256", 4),
    "camembert": Setting("v5e-128"),
    "albert:base": Setting("v5e-64"),
    "albert:large": Setting("v5e-256"),
    "albert:xlarge": accumulated("v5e-256", 2),
    "albert:xxlarge": accumulated("v5e-256", 2),
    "electra:small": Setting("v5e-4"),
    "electra:base": Setting("v5e-16"),
    "electra:large": accumulated("v5e-16", 8),
    "deberta_v3:xsmall": Setting("v5e-4"),
    "deberta_v3:small": Setting("v5e-16"),
    "deberta_v3:base": Setting("v5e-16"),
    "deberta_v3:large": accumulated("v5e-16", 2),
    "deberta_v3:mini": Setting("v5e-1", options={"model.vocab_size": 8_192}),
    "spanbert:base": Setting("v5e-16"),
    "spanbert:large": Setting("v5e-16"),
    "distilbert_base": Setting("v5e-16", 8_000_000, "8,000,000 examples"),
    "left_to_right_base": Setting("v5e-4"),
    "mass:base": accumulated("v5e-64", 2),
    "mass:mini": Setting("v5e-1"),
    "modern_mini": Setting("v5e-1"),
    "babylm:strict_small": passes("v5e-1", 110_000, 8_192),
    "babylm:strict": passes("v5e-4", 1_100_000, 16_384),
    "babylm:mini": passes("v5e-1", 110_000, 8_192),
    "modernbert:base": without_ramp("v5e-64", 3),
    "modernbert:large": without_ramp("v5e-64", 9),
    "mmbert:base": without_ramp("v5e-256", 9),
    "mmbert:small": without_ramp("v5e-256", 9),
    "ettin:17m": without_ramp("v5e-16", 3),
    "ettin:32m": without_ramp("v5e-16", 3),
    "ettin:68m": without_ramp("v5e-64", 3),
    "ettin:150m": without_ramp("v5e-64", 3),
    "ettin:400m": without_ramp("v5e-64", 9),
    "ettin:1b": without_ramp("v5e-64", 9),
    "esm2:8m": accumulated("v5e-16", 16),
    "esm2:35m": accumulated("v5e-16", 32),
    "esm2:150m": Setting("v5e-64"),
    "esm2:650m": Setting("v5e-256"),
    "esm2:3b": accumulated("v5e-256", 4),
    "esm2:mini": Setting("v5e-1"),
    "patchtst:base": of_values("v5e-1", 56_903, "ETTh1", {"model.value_width": 12}),
    "patchtst:mini": of_values("v5e-1", 56_903, "ETTh1", {"model.value_width": 12}, length=42),
    "tables:replaced": of_values("v5e-1", 13_209, "California", HOUSING, length=9),
    "tables:values": of_values("v5e-1", 13_209, "California", HOUSING, length=9),
    "tables:mini": of_values("v5e-1", 13_209, "California", HOUSING, length=9),
    "mae:base": of_values("v5e-64", 1_281_167, "ImageNet", {"model.value_width": 768}),
    "mae:mini": of_values("v5e-1", 6_800, "digits", {"model.value_width": 16}, length=50),
    "values": of_values("v5e-1", 10_000, "PatchTST", PATCHES),
    "classification": examples(10_000),
    "glue": examples(2_490, "of RTE"),
    "squad": examples(88_641, "windows of v1.1"),
    "conll": examples(14_041, "sentences"),
    "swag": examples(73_546),
    "bert2bert": examples(100_000, "pairs"),
    "embeddings": examples(100_000, "pairs"),
    "quickstart": Setting("v5e-1"),
    "smoke": Setting("v5e-1"),
}
HEADER = (
    "| recipe | slice | phases | fits | GiB per device of 16 | ms per step | utilization "
    "| tokens/s | time | on demand | spot | planned |"
)


def plan_recipe(name: str) -> planner.Plan:
    """Returns the plan of a recipe with its setting."""
    setting = SETTINGS[name]
    config = recipes.load(name).copy_and_resolve_references()
    config.update_from_flattened_dict(setting.options)
    config, _ = assumptions_lib.with_length(config, setting.num_examples)
    config, assumptions = assumptions_lib.with_vocabulary(config, 0)
    target = targets.make_target(setting.topology, config)
    return planner.plan(
        config, targets.make_planner(target, cache.default_directory()), assumptions=assumptions
    )


def row(name: str, planned: planner.Plan) -> str:
    """Returns a recipe's row of the table; the figures of its phases have slashes between them."""
    prices = planner.price_totals(planned, only_spot=False, price_per_chip_hour=None)
    note = SETTINGS[name].note
    phases = [
        (
            f"{phase.global_batch_size} x {phase.max_seq_length}",
            f"{phase.memory['total'].value / 2**30:.2f}" if phase.fits else "",
            _shown(phase.speed.get("step_seconds"), 1e3, "{:.2f}"),
            _shown(phase.speed.get("model_flop_utilization"), 100, "{:.0f}%"),
            _shown(phase.speed.get("tokens_per_second"), 1, "{:,.0f}"),
            duration(phase.speed.get("hours")),
        )
        for phase in planned.phases
    ]
    shape, *figures = (" / ".join(values) for values in zip(*phases, strict=True))
    fits = "yes" if all(phase.fits for phase in planned.phases) else "no"
    total = [dollars(prices.get("price on demand")), dollars(prices.get("spot price"))]
    target = f"{planned.target.name}{f', {note}' if note else ''}"
    return f"| {' | '.join([f'`{name}`', target, shape, fits, *figures, *total, planned.date])} |"


def rows_by_name(table_text: str) -> dict[str, str]:
    """Returns the rows of a table by recipe, in the order of SETTINGS."""
    rows = {line.split("`")[1]: line for line in table_text.splitlines() if line[:3] == "| `"}
    return {name: rows[name] for name in SETTINGS if name in rows}


def table(previous: str, plans: Mapping[str, planner.Plan]) -> str:
    """Returns the table with the rows of these plans, and the previous ones of other recipes."""
    merged = rows_by_name(previous) | {name: row(name, it) for name, it in plans.items()}
    newest = list(plans.values())[-1]
    versions = ", ".join(f"{name} {version}" for name, version in newest.versions.items())
    lines = [f"The newest rows are by {versions}.", "", HEADER, "|---" * HEADER.count(" |") + "|"]
    return "\n".join([*lines, *(merged[name] for name in SETTINGS if name in merged)])


def summary(table_row: str) -> str:
    """Returns time and price of a recipe from its row of the table."""
    cells = [cell.strip() for cell in table_row[2:-2].split(" | ")]
    topology, fits, times, on_demand, spot, date = (cells[at] for at in (1, 3, 8, 9, 10, 11))
    if fits != "yes":
        return f"does not fit {topology} ({date})"
    return f"{times.replace(' / ', ' + ')} on {topology}: {on_demand}, spot {spot} ({date})"


def planned_lines(file: str, table_text: str) -> str:
    """Returns the lines "Planned:" of the recipe in `file`: one summary, or one for each size."""
    summaries = {
        name.partition(":")[2]: summary(table_row)
        for name, table_row in rows_by_name(table_text).items()
        if name.partition(":")[0] == file
    }
    paragraphs = [f"{size}: {it}" if size else f"{it}." for size, it in summaries.items()]
    filled = [textwrap.fill(it, 89, subsequent_indent="  ") for it in paragraphs]
    return "Planned:   " + textwrap.indent("\n".join(filled), " " * 11).lstrip() + "\n"


def with_planned_lines(source: str, lines: str) -> str:
    """Returns a recipe's source with the lines "Planned:" before the line "Time:"."""
    without = re.sub(r"^Planned:.*\n(?: {11}.*\n)*", "", source, count=1, flags=re.M)
    return re.sub(r"^Time:", f"{lines}Time:", without, count=1, flags=re.M)


def duration(hours: estimates.Figure | None) -> str:
    """Returns hours in words: in minutes or seconds where they are few."""
    if hours is None:
        return ""
    for scale, unit in ((1, "h"), (60, "min"), (3600, "s")):
        if hours.value * scale >= 1 or unit == "s":
            return f"{hours.value * scale:,.{0 if hours.value * scale >= 100 else 1}f} {unit}"
    raise AssertionError


def dollars(price: estimates.Figure | None) -> str:
    """Returns a price, with cents where it is small; nothing for none."""
    if price is None:
        return ""
    if price.value < 0.01:
        return "under $0.01"
    return f"${price.value:,.{0 if price.value >= 10 else 2}f}"


def _shown(figure: estimates.Figure | None, scale: float, form: str) -> str:
    return form.format(figure.value * scale) if figure else ""


def write(plans: Mapping[str, planner.Plan]) -> None:
    """Writes the rows of the plans into the page, and into each recipe what follows from them."""
    text = table(report.read_marked(PAGE, "plan_recipes"), plans)
    report.write_marked(PAGE, "plan_recipes", text)
    for file in {name.partition(":")[0] for name in plans}:
        path = recipes.directory() / f"{file}.py"
        source = path.read_text(encoding="utf-8")
        path.write_text(with_planned_lines(source, planned_lines(file, text)), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Plans and prints."""
    parser = argparse.ArgumentParser(description="Plans the recipes for slices that fit them.")
    parser.add_argument(
        "--recipes", default=",".join(SETTINGS), help="their names, with commas between"
    )
    parser.add_argument("--write", action="store_true", help=f"into {PAGE} and configs/")
    options = parser.parse_args(argv)
    names = options.recipes.split(",")
    if unknown := set(names) - set(SETTINGS):
        parser.error(f"--recipes: {', '.join(sorted(unknown))}; known are {', '.join(SETTINGS)}")
    jax.config.update("jax_platforms", "cpu")
    logging.set_verbosity(logging.INFO)  # a line per compilation
    plans = {}
    for name in names:
        plans[name] = plan_recipe(name)
        print(row(name, plans[name]), flush=True)
        if options.write:  # what was planned stays if a later one is stopped
            write({name: plans[name]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
