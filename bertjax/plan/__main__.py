"""Know before you pay: the training step compiled for TPUs that this machine does not have.

python -m bertjax.plan --config=configs/bert_large.py --topology=v5e-16 [--search] [--json]

Memory by kind, whether it fits, estimated step time, hours and price of every phase. Needs libtpu
(`pip install 'bertjax[plan]'`) and no TPU, no data and no TensorFlow. Where the length of the run
follows from the data (finetuning, num_epochs), give the data or --num_examples=N.
"""

from __future__ import annotations

import json
import pathlib

import jax
from absl import flags, logging
from etils import epath

from bertjax.cli import command_line, program_flags, recipe_flag
from bertjax.jobs import automatic
from bertjax.plan import assumptions as assumptions_lib
from bertjax.plan import cache, planner, targets, text
from bertjax.training import config_faults, planned


def define_flags() -> None:
    """Defines the flags of `main`."""
    recipe_flag.define()
    flags.DEFINE_string("topology", None, "v5e-16, v4-8, ..., a shape (v5e:4x4), cpu or gpu.")
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
    flags.mark_flags_as_required(["config", "topology"])


def main(argv: list[str]) -> None:
    """Plans as the flags say, and prints."""
    del argv
    options = flags.FLAGS
    config = automatic.settle(options.config, None)
    config, assumptions = assumptions_lib.with_length(config, options.num_examples)
    config, more = assumptions_lib.with_vocabulary(config, options.vocab_size)
    assumptions += more
    target = targets.make_target(options.topology, config, num_slices=options.num_slices)
    if target.tpu_slice is None:
        jax.config.update("jax_num_cpu_devices", target.num_devices)
    if target.platform != "gpu":
        # libtpu would look for TPUs to run on; the plan only compiles for them.
        jax.config.update("jax_platforms", "cpu")
    directory = pathlib.Path(options.cache_dir) if options.cache_dir else cache.default_directory()
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
    if options.json:
        print(json.dumps(fields))
        return
    print("\n".join(text.lines(plan, totals)))


if __name__ == "__main__":
    logging.set_verbosity(logging.INFO)
    define_flags()
    command_line.run(main, choices=config_faults.CHOICES)
