"""Know before you pay: the training step compiled for TPUs that this machine does not have.

python -m bertjax.plan --config=configs/bert_large.py --topology=v5e-16 [--search] [--json]

Memory by kind, whether it fits, estimated step time, hours and price of every phase. Needs libtpu
(`pip install 'bertjax[plan]'`) and no TPU, no data and no TensorFlow. Where the length of the run
follows from the data (finetuning, num_epochs), give the data or --num_examples=N.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import ml_collections
from absl import flags, logging
from etils import epath

from bertjax import command_line, jobs, program_flags, recipes
from bertjax import config as config_lib
from bertjax.jobs import finetuning, lengths, pretraining
from bertjax.planning import cache, estimates, planner, text, topologies
from bertjax.training import planned, program, trials

DEFAULT_VOCAB_SIZE = 30522  # of bert-base-uncased
LOCAL = ("cpu", "gpu")


def make_target(
    name: str, config: ml_collections.ConfigDict, *, num_slices: int = 1
) -> estimates.Target:
    """Returns the devices that a topology name stands for, without asking for them.

    `cpu` and `gpu` stand for as many devices as the config's mesh wants.

    Raises:
      ValueError: if the name is not known, or the config's mesh does not fit the slice.
    """
    asked = max(abs(config.mesh.data) * config.mesh.tensor, 1)
    if name in LOCAL:
        if num_slices != 1:
            raise ValueError(f"--num_slices is {num_slices}; {name} has no slices")
        return estimates.Target(name, name, name, asked)
    try:
        tpu_slice = topologies.parse(name, num_slices=num_slices)
    except ValueError as error:
        raise ValueError(f"--topology: {error}; or cpu, or gpu") from error
    _check_mesh(config, tpu_slice)
    return estimates.Target(name, "tpu", tpu_slice.device_kind, tpu_slice.num_devices, tpu_slice)


def make_planner(target: estimates.Target, cache_directory: pathlib.Path | None) -> planner.Planner:
    """Returns a planner with the target's devices, or with stand-ins where it cannot compile.

    Raises:
      ValueError: if the devices cannot be had, saying what to do.
    """
    if target.tpu_slice is not None:
        try:
            devices = topologies.devices(target.tpu_slice)
        except (ImportError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        return planner.Planner(target, devices, True, cache_directory)
    local = _local_devices(target.platform)
    if len(local) >= target.num_devices:
        kind = local[0].device_kind
        found = dataclasses.replace(target, device_kind=kind)
        return planner.Planner(found, local[: target.num_devices], True, cache_directory)
    stand_ins = _local_devices("cpu")
    if len(stand_ins) < target.num_devices:
        raise ValueError(
            f"config.mesh wants {target.num_devices} devices, but JAX was started with "
            f"{len(stand_ins)}: set JAX_NUM_CPU_DEVICES={target.num_devices}"
        )
    return planner.Planner(target, stand_ins[: target.num_devices], False, cache_directory)


def with_vocabulary(
    config: ml_collections.ConfigDict, vocab_size: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Returns the config with a vocabulary size, and what had to be assumed without its records."""
    config = config.copy_and_resolve_references()
    assumptions = []
    if not config.model.vocab_size:
        config.model.vocab_size = vocab_size or DEFAULT_VOCAB_SIZE
        source = "--vocab_size" if vocab_size else "bert-base-uncased's; --vocab_size changes it"
        assumptions.append(f"a vocabulary of {config.model.vocab_size:,} ({source})")
    is_static = config.data.source == "records" and config.pretraining.masking == "static"
    if config.task == "pretraining" and is_static and not pretraining.known_manifests(config):
        assumptions.append(
            "as many masked tokens as config.pretraining says; records may hold another number"
        )
    if config.task == "pretraining" and config.data.length_buckets:
        assumptions.append("every batch as long as its phase; length buckets make many shorter")
    return config, assumptions


def with_length(
    config: ml_collections.ConfigDict, num_examples: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Returns the config with the steps that follow from examples, and what that assumes.

    `num_examples` stands in for the data, which is read where it is 0 and the config names it.

    Raises:
      ValueError: if steps follow from examples and neither data nor their number is given.
      FileNotFoundError, ValueError: as opening the job.
    """
    if config.task == "finetuning":
        return _finetuning_with_length(config, num_examples)
    names = [name for name in config_lib.phase_names(config) if config.phases[name].num_epochs]
    if not names:
        return config, []
    if not num_examples and not config.data.train_dir:
        raise ValueError(
            f"config.phases.{names[0]}.num_epochs is {config.phases[names[0]].num_epochs}; how "
            "many steps that is follows from the records: give --config.data.train_dir=DIR or "
            "--num_examples=N"
        )
    config = config.copy_and_resolve_references()
    if num_examples:
        lengths.set_steps(config, dict.fromkeys(names, num_examples))
    else:
        opened = _opened(config)
        for name in names:
            config.phases[name].num_steps = opened.config.phases[name].num_steps
    for name in names:
        config.phases[name].num_epochs = 0.0  # the outline has no records
    source = "--num_examples" if num_examples else "the manifests"
    shown = ", ".join(f"{name} of {config.phases[name].num_steps:,} steps" for name in names)
    return config, [f"{shown}, by the number of examples ({source})"]


def _finetuning_with_length(
    config: ml_collections.ConfigDict, num_examples: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    options = config.finetuning
    has_data = bool(config.init_from and (options.train_file or options.data_dir))
    if not num_examples and not has_data:
        raise ValueError(
            "how long finetuning takes follows from its examples: give --num_examples=N, or the "
            "weights and the files as for training (--config.init_from=PATH and "
            "--config.finetuning.train_file=FILE or --config.finetuning.data_dir=DIR)"
        )
    assumptions = []
    if num_examples:
        config = config.copy_and_resolve_references()
        config.phases.phase1.num_steps = finetuning.num_steps(config, num_examples)
        source = "--num_examples"
        model = config.model
        assumptions.append(
            f"a model of {model.num_hidden_layers} layers, {model.hidden_size} wide (config.model; "
            "config.init_from is not read)"
        )
    else:
        opened = _opened(config)
        dtype, prng_impl = config.model.dtype, config.prng_impl
        config = opened.config
        config.model.dtype, config.prng_impl = dtype, prng_impl  # those of the target
        num_examples = opened.data.num_train_examples(opened.phases[0]) or 0
        source = "its files"
    told = f"{num_examples:,} examples ({source}), {config.finetuning.num_epochs:g} epochs of them"
    assumptions.insert(0, told)
    if config.finetuning.length_buckets:
        length = config.finetuning.max_seq_length
        assumptions.append(f"every batch {length} tokens long; length buckets make most shorter")
    if trials.are_wanted(config):
        assumptions.append(
            f"one of {len(trials.list_trials(config))} trainings: seeds and settings"
        )
    return config, assumptions


def _opened(config: ml_collections.ConfigDict) -> jobs.Job:
    return jobs.JOBS[config.task].open(program.resolve(config, "cpu"))


def price_totals(
    plan: planner.Plan, *, only_spot: bool, price_per_chip_hour: float | None
) -> dict[str, estimates.Figure]:
    """Returns the plan's totals with the price of its hours, on demand and spot."""
    totals = dict(plan.totals)
    if "hours" not in totals:
        return totals
    hours = totals["hours"].value
    if price_per_chip_hour is not None:
        names = {"price": False}
    else:
        names = (
            {"spot price": True} if only_spot else {"price on demand": False, "spot price": True}
        )
    for name, spot in names.items():
        price = estimates.dollars(
            hours, plan.target, spot=spot, price_per_chip_hour=price_per_chip_hour
        )
        if price is not None:
            totals[name] = price
    return totals


def _check_mesh(config: ml_collections.ConfigDict, tpu_slice: topologies.Slice) -> None:
    mesh, there = config.mesh, tpu_slice.num_devices
    if mesh.tensor < 1:
        return  # sharding.make_mesh tells it
    wanted = mesh.data * mesh.tensor if mesh.data != -1 else there // mesh.tensor * mesh.tensor
    if wanted == there:
        return
    fitting = [
        name
        for name in topologies.known()[tpu_slice.generation]
        if topologies.parse(name).num_devices * tpu_slice.num_slices == wanted
    ]
    instead = f", or plan for --topology={fitting[0]}" if fitting else ""
    raise ValueError(
        f"config.mesh is data={mesh.data} x tensor={mesh.tensor}, but {tpu_slice.name} has {there} "
        f"devices: set --config.mesh.data=-1 to use all of them{instead}"
    )


def _local_devices(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:  # JAX has no such backend here
        return []


def define_flags() -> None:
    """Defines the flags of `main`."""
    recipes.define_flag()
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
    config, assumptions = with_length(options.config, options.num_examples)
    config, more = with_vocabulary(config, options.vocab_size)
    assumptions += more
    target = make_target(options.topology, config, num_slices=options.num_slices)
    if target.tpu_slice is None:
        jax.config.update("jax_num_cpu_devices", target.num_devices)
    if target.platform != "gpu":
        # libtpu would look for TPUs to run on; the plan only compiles for them.
        jax.config.update("jax_platforms", "cpu")
    directory = pathlib.Path(options.cache_dir) if options.cache_dir else cache.default_directory()
    made = planner.plan(
        config,
        make_planner(target, directory),
        with_search=options.search,
        assumptions=assumptions,
    )
    totals = price_totals(
        made, only_spot=options.spot, price_per_chip_hour=options.price_per_chip_hour
    )
    fields = text.to_json(made, totals)
    if options.workdir:
        planned.save(epath.Path(options.workdir), fields)
    if options.json:
        print(json.dumps(fields))
        return
    print("\n".join(text.lines(made, totals)))


if __name__ == "__main__":
    logging.set_verbosity(logging.INFO)
    define_flags()
    command_line.run(main)
