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

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Plan, __doc__, logs=True)

import datetime
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
import ml_collections
from absl import logging
from etils import epath

from bertjax.cli import command_line, programs, recipe_flag
from bertjax.jobs import automatic
from bertjax.plan import assumptions as assumptions_lib
from bertjax.plan import budget, cache, planner, targets, text
from bertjax.training import config_faults, planned


def main(options: programs.Plan) -> None:
    """Plans as the options say, and prints."""
    if options.topology != "gpu":
        # libtpu would look for TPUs to run on; the plan only compiles for them.
        jax.config.update("jax_platforms", "cpu")
    directory = pathlib.Path(options.cache_dir) if options.cache_dir else cache.default_directory()
    if options.budget:
        _print_budget(options, options.budget, directory)
    elif options.config is not None:
        _print_plan(options, options.config, directory)


def _print_plan(
    options: programs.Plan, config: ml_collections.ConfigDict, directory: pathlib.Path
) -> None:
    config = automatic.decided(config, None)
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


def _print_budget(options: programs.Plan, given: str, directory: pathlib.Path) -> None:
    hours, names = budget.parse_hours(given), recipe_flag.names()
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
        logging.info("%s", budget.summary(entry))
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
    _print(options, budget.to_json(made), budget.lines(made))


def _print(options: programs.Plan, fields: dict[str, Any], lines: Iterable[str]) -> None:
    print(json.dumps(fields) if options.json else "\n".join(lines))


if __name__ == "__main__":
    command_line.run(main, choices=config_faults.CHOICES)
