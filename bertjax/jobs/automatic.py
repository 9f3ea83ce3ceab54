"""Options that a recipe leaves open: the records decide them when a run starts, and it stores them.

An open option is None. `configs/own.py` leaves all of them open; a resumed run takes those that it
began with, whatever devices it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
from absl import logging

from bertjax import config as config_lib
from bertjax.data import records
from bertjax.jobs import finetuning_rates
from bertjax.options import faults as faults_lib


@dataclasses.dataclass(frozen=True)
class Size:
    """A model's layers and widths, and the peak learning rate that suits them."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    peak_learning_rate: float

    @property
    def layer_parameters(self) -> int:
        """The number of parameters of the kernels of all layers."""
        return 12 * self.num_hidden_layers * self.hidden_size**2


# From the largest to the smallest. Sources: sizes: Turc et al. 2019 (arXiv:1908.08962); learning
# rates: Clark et al. 2020 (ELECTRA), table 6, for small and base; those below are measured here.
SIZES = {
    "base": Size(12, 768, 12, 2e-4),
    "medium": Size(8, 512, 8, 5e-4),
    "small": Size(4, 512, 8, 5e-4),
    "mini": Size(4, 256, 4, 1e-3),
    "tiny": Size(2, 128, 2, 2e-3),
}
# Passes over the text. Source: Devlin et al. 2019, appendix A.2: "approximately 40 epochs".
EPOCHS = 40
# A batch has a power of two of sequences that leaves this many steps; 256 is the paper's.
LEAST_STEPS = 10_000
BATCH_SIZES = (32, 64, 128, 256)
EVALUATIONS = 10  # of a run
LENGTHS = ("num_steps", "num_epochs", "num_tokens")  # of a phase
PHASE = "phases.phase1"


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts of the records, and the options decided so far, by their dotted names."""

    manifest: records.Manifest
    options: dict[str, Any]

    @property
    def tokens(self) -> int:
        """The number of tokens of the text, each counted once."""
        if "tokens" not in self.manifest.statistics:
            raise ValueError(
                f"the records in {self.options['data.train_dir']} do not say how many tokens the "
                "text has; give a recipe with sizes, such as bert_mini"
            )
        return self.manifest.statistics["tokens"]

    @property
    def size(self) -> Size:
        """The largest size whose layers have at most a parameter for each token of the text."""
        sizes = SIZES.values()
        fitting = (size for size in sizes if size.layer_parameters <= self.tokens)
        return next(fitting, SIZES["tiny"])

    @property
    def passes(self) -> int:
        """The number of passes over the text in the records."""
        return self.manifest.arguments.get("dupe_factor", 1)

    @property
    def num_steps(self) -> int:
        """The number of steps of the run."""
        batch_size = self.options["global_batch_size"]
        given = self.options[f"{PHASE}.num_steps"]
        rows = self.options[f"{PHASE}.num_epochs"] * self.manifest.num_examples
        return given or max(1, -(-int(rows) // batch_size))


def _batch_size(facts: Facts) -> int:
    rows = EPOCHS * facts.manifest.num_examples / facts.passes
    fitting = [size for size in BATCH_SIZES if rows / size >= LEAST_STEPS]
    return fitting[-1] if fitting else BATCH_SIZES[0]


# Option -> its value by the records, in this order: a later one may read those before it.
CHOICES: dict[str, Callable[[Facts], Any]] = {
    f"{PHASE}.max_seq_length": lambda facts: facts.manifest.max_seq_length,
    "pretraining.pair_loss": lambda facts: facts.manifest.pair_objective,
    "pretraining.masking": lambda facts: "static" if facts.manifest.has_static_masks else "dynamic",
    **{
        f"model.{name}": lambda facts, name=name: getattr(facts.size, name)
        for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    },
    "model.intermediate_size": lambda facts: 4 * facts.options["model.hidden_size"],
    "model.max_position_embeddings": lambda facts: facts.options[f"{PHASE}.max_seq_length"],
    "global_batch_size": _batch_size,
    f"{PHASE}.num_steps": lambda facts: 0,  # num_epochs says it
    f"{PHASE}.num_epochs": lambda facts: (
        0.0 if facts.options[f"{PHASE}.num_steps"] else EPOCHS / facts.passes
    ),
    "schedule.peak_learning_rate": lambda facts: facts.size.peak_learning_rate,
    "evaluation.every_steps": lambda facts: max(1, facts.num_steps // EVALUATIONS),
    "plateau.check_step": lambda facts: facts.num_steps // 2,
}


def with_steps(
    config: ml_collections.ConfigDict, steps: Mapping[str, int]
) -> ml_collections.ConfigDict:
    """Returns a copy whose phases have these numbers of steps, whatever said them before."""
    config = config.copy_and_resolve_references()
    for name, number in steps.items():
        with config.ignore_type():
            config.phases[name].update(dict(zip(LENGTHS, (number, 0.0, 0), strict=True)))
    return config


def with_decisions(saved: Mapping[str, Any], decisions: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Returns a saved config with the steps that config.budget.hours left to its phases so far."""
    config = ml_collections.ConfigDict(saved)
    names = config_lib.phase_names(config)
    config = with_steps(config, dict(zip(names, decisions[-1][1:], strict=True)))
    with config.ignore_type():
        config.budget.decisions = tuple(decisions)
    return config_lib.completed(config.to_dict())


def decided(
    config: ml_collections.ConfigDict, saved: Mapping[str, Any] | None
) -> ml_collections.ConfigDict:
    """Returns a copy in which no option is open: as the run that is resumed has it, or the records.

    Those that `finetuning_rates` decides stay open until the rows are read.

    `saved` is the config of the run that is resumed, None for a new run. Decisions of its
    machine stay: its kind of random numbers, and what it decided for config.budget.hours.
    """
    options = dict(config_lib.flatten(config))
    if decisions := options["budget.decisions"]:
        why = "a run with config.budget.hours writes it"
        raise faults_lib.unread("config.budget.decisions", decisions, why, "()")
    later = finetuning_rates.open_options(config)
    names = [name for name, value in options.items() if value is None and name not in later]
    if unknown := set(names) - CHOICES.keys():
        raise ValueError(
            f"config.{min(unknown)} has no value; a recipe may leave to the records "
            f"{', '.join(f'config.{name}' for name in CHOICES)}"
        )
    config = config.copy_and_resolve_references()
    if saved is None:
        if config.budget.extend_to:
            why = "the workdir has no run to extend (the phases have the length of a new one)"
            raise faults_lib.unread("config.budget.extend_to", config.budget.extend_to, why, 0)
        chosen = _choose(config, options, names) if names else {}
    else:
        before = dict(config_lib.flatten(saved))
        chosen = {name: before[name] for name in names}
        if config.prng_impl == "auto":
            chosen["prng_impl"] = saved["prng_impl"]
        chosen |= _stored_lengths(config, saved)
    with config.ignore_type():
        config.update_from_flattened_dict(chosen)
    return config


def _stored_lengths(config: ml_collections.ConfigDict, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lengths of phases that a resumed run keeps, or is extended to."""
    extend_to = config.budget.extend_to or saved["budget"]["extend_to"]
    is_bounded = config.budget.hours > 0 and saved["budget"]["hours"] > 0
    if not (extend_to or is_bounded):
        return {}
    if extend_to and is_bounded:
        why = "config.budget.hours decides where the run ends: give more hours"
        raise faults_lib.unread("config.budget.extend_to", extend_to, why, 0)
    phases = {name: it for name, it in saved["phases"].items() if name in config.phases}
    lengths = {f"phases.{name}.{it}": phases[name][it] for name in phases for it in LENGTHS}
    if extend_to:
        *before, last = config_lib.phase_names(ml_collections.ConfigDict(saved))
        steps = extend_to - sum(saved["phases"][name]["num_steps"] for name in before)
        if steps < 1:
            must = f"after step {extend_to - steps}, where the last phase, {last}, starts"
            raise faults_lib.wrong("config.budget.extend_to", extend_to, must)
        values = zip(LENGTHS, (steps, 0.0, 0), strict=True)
        if last in phases:  # else another recipe was given, which is refused with all differences
            lengths |= {f"phases.{last}.{it}": value for it, value in values}
    if is_bounded:
        lengths["budget.decisions"] = saved["budget"]["decisions"]
        # Their share of the hours was decided as well.
        of_evaluations = ("every_steps", "max_batches")
        lengths |= {f"evaluation.{it}": saved["evaluation"][it] for it in of_evaluations}
    return lengths | {"budget.extend_to": extend_to}


def _choose(
    config: ml_collections.ConfigDict, options: dict[str, Any], names: list[str]
) -> dict[str, Any]:
    if not config.data.train_dir or config.data.source != "records":
        raise ValueError(
            f"config.data.train_dir is {config.data.train_dir!r} and config.data.source "
            f"{config.data.source!r}; this recipe takes its options from records: give "
            "--config.data.train_dir=DIR, which `python -m data_pipelines.build` wrote"
        )
    manifest = records.Manifest.load(config.data.train_dir)
    facts = Facts(manifest, dict(options))
    for name, choice in CHOICES.items():
        if name in names:
            facts.options[name] = choice(facts)
    chosen = {name: facts.options[name] for name in CHOICES if name in names}
    logging.info(
        "The records in %s (%s examples) decide:\n  %s",
        config.data.train_dir, f"{manifest.num_examples:,}",
        "\n  ".join(f"config.{name}={value}" for name, value in chosen.items()),
    )  # fmt: skip
    return chosen
