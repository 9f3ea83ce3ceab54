"""Know before you pay: the training step compiled for TPUs that this machine does not have.

python -m bertjax.plan --config=configs/bert_large.py --topology=v5e-16 [--search] [--json]

Memory by kind, whether it fits, estimated step time, hours and price of every phase. Needs libtpu
(`pip install 'bertjax[plan]'`) and no TPU, no data and no TensorFlow. Where the length of the run
follows from the data (finetuning, num_epochs), give the data or --num_examples=N.

python -m bertjax.plan --budget=24h --topology=v5e-1 [--config=ettin,bert_base]

The tokens that 24 hours give each recipe, and the largest that sees enough of them. CPUs and GPUs
are measured by a few steps on this machine.
"""

from __future__ import annotations

import datetime
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
from absl import flags, logging
from etils import epath

from bertjax.cli import command_line, program_flags, recipe_flag
from bertjax.jobs import automatic
from bertjax.plan import assumptions as assumptions_lib
from bertjax.plan import budget, budget_text, cache, planner, targets, text
from bertjax.training import config_faults, planned

# Flags of the plan of one run, which a budget has no use for.
OF_ONE_RUN = ("search", "workdir", "num_examples")


def define_flags() -> None:
    """Defines the flags of `main`."""
    several = "With --budget several, with commas between; a name alone is all sizes of a family."
    recipe_flag.define(takes_several=True, help_text=f"{recipe_flag.HELP} {several}")
    flags.DEFINE_string("topology", None, "v5e-16, v4-8, ..., a shape (v5e:4x4), cpu or gpu.")
    flags.DEFINE_string("budget", None, "24h, 90m, 2d: list the tokens that it gives each recipe.")
    flags.DEFINE_float(
        "tokens_per_parameter",
        *(100.0, "That a model should see in --budget, for each parameter outside of embeddings."),
        lower_bound=0.0,
    )
    program_flags.DEFINE_integer("num_slices", 1, "Slices of that topology.", lower_bound=1)
    flags.DEFINE_bool("search", False, "Find the largest batch that fits, and changes that help.")
    flags.DEFINE_bool("json", False, "Print one JSON object instead of text.")
    flags.DEFINE_bool("spot", False, "Price of spot chips only.")
    flags.DEFINE_float("price_per_chip_hour", None, "Dollars, instead of the table's price.")
    program_flags.DEFINE_integer("vocab_size", 0, "Where config.model.vocab_size is 0; 0: 30522.")
    program_flags.DEFINE_integer(
        "num_examples", 0, "Of finetuning, or of an epoch; 0: those of the data.", lower_bound=0
    )
    flags.DEFINE_string("cache_dir", None, "Of compiled plans; default: in the user's cache.")
    flags.DEFINE_string("workdir", None, "Write plan.json there: `train` compares with it.")
    flags.mark_flag_as_required("topology")


def main(argv: list[str]) -> None:
    """Plans as the flags say, and prints."""
    del argv
    options = flags.FLAGS
    _check_flags(options)
    if options.topology != "gpu":
        # libtpu would look for TPUs to run on; the plan only compiles for them.
        jax.config.update("jax_platforms", "cpu")
    directory = pathlib.Path(options.cache_dir) if options.cache_dir else cache.default_directory()
    if options.budget:
        _print_budget(options, directory)
    else:
        _print_plan(options, directory)


def _check_flags(options: flags.FlagValues) -> None:
    """Raises a ValueError that names the flags that do not go together."""
    if options.budget:
        if given := [f"--{name}" for name in OF_ONE_RUN if options[name].value]:
            raise ValueError(
                f"{' and '.join(given)} cannot be given with --budget, which lists recipes: plan "
                "one of them without --budget"
            )
        return
    if not options.config:
        raise ValueError("--config must be given, or --budget; --help lists the flags")
    if len(recipe_flag.names()) > 1:
        raise ValueError("--config names several recipes; only --budget takes more than one")
    if options["tokens_per_parameter"].present:
        raise ValueError("--tokens_per_parameter belongs to --budget, which is not given")


def _print_plan(options: flags.FlagValues, directory: pathlib.Path) -> None:
    config = automatic.decided(options.config, None)
    config, assumptions = assumptions_lib.with_length(config, options.num_examples)
    config, more = assumptions_lib.with_vocabulary(config, options.vocab_size)
    assumptions += more
    target = targets.make_target(options.topology, config, num_slices=options.num_slices)
    if target.tpu_slice is None:
        jax.config.update("jax_num_cpu_devices", target.num_devices)
    plan = planner.plan(
        config,
        targets.make_planner(target, directory),
        with_search=options.search,
        assumptions=assumptions,
    )
    totals = planner.price_totals(
        plan, only_spot=options.spot, price_per_chip_hour=options.price_per_chip_hour
    )
    fields = text.to_json(plan, totals)
    if options.workdir:
        planned.save(epath.Path(options.workdir), fields)
    _print(options, fields, text.lines(plan, totals))


def _print_budget(options: flags.FlagValues, directory: pathlib.Path) -> None:
    hours, names = budget.parse_hours(options.budget), recipe_flag.names()
    configs, assumptions = budget.candidates(
        names or budget.DEFAULT_RECIPES, recipe_flag.options(), vocab_size=options.vocab_size
    )
    config = next(iter(configs.values()))  # all have the same mesh
    target = targets.make_target(options.topology, config, num_slices=options.num_slices)
    if target.tpu_slice is None:
        on_target = targets.measuring_planner(target.platform)
    else:
        on_target = targets.make_planner(target, directory)
    enough, entries = options.tokens_per_parameter, []
    for entry in budget.fill(configs, on_target, hours=hours, enough=enough, with_all=bool(names)):
        logging.info("%s", budget_text.summary(entry))
        entries.append(entry)
    made = budget.Budget(
        date=datetime.date.today().isoformat(),
        hours=hours,
        target=on_target.target,
        enough=enough,
        entries=tuple(entries),
        prices=planner.prices(
            *(hours, on_target.target),
            only_spot=options.spot,
            price_per_chip_hour=options.price_per_chip_hour,
        ),
        assumptions=tuple(assumptions),
        versions=cache.versions(),
    )
    _print(options, budget_text.to_json(made), budget_text.lines(made))


def _print(options: flags.FlagValues, fields: dict[str, Any], lines: Iterable[str]) -> None:
    print(json.dumps(fields) if options.json else "\n".join(lines))


if __name__ == "__main__":
    logging.set_verbosity(logging.INFO)
    define_flags()
    command_line.run(main, choices=config_faults.CHOICES)
