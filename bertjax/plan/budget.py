"""The tokens that a time on some devices gives each recipe, and the largest that sees enough.

Rates of training belong to `rates`. Nothing here prints or knows flags.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.jobs import automatic, pretraining
from bertjax.models import parameters
from bertjax.plan import assumptions, estimates, planner, rates
from bertjax.tasks import base as tasks
from bertjax.training import program

# Families of one language, from text alone. Left out by default are those of the same sizes and
# speed (RoBERTa, SpanBERT, left_to_right_base; modernbert is ettin:150m and 400m), of shared layers
# (ALBERT), of several languages, of given texts (babylm) or records (own), with a teacher, and
# demonstrations.
DEFAULT_RECIPES = (
    *("bert_tiny", "bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large"),
    *("modern_mini", "ettin", "electra"),
)
# Models larger than one that sees less than this share of what is asked for are not planned.
LEAST_SHARE = 0.25
HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0}  # of a unit of --budget
TABLES = re.compile(r".*embeddings\.\w+\.embedding")  # of words, positions, segments, languages


@dataclasses.dataclass(frozen=True)
class Entry:
    """A recipe in a budget; `without_embeddings` are the parameters outside of embedding tables.

    `tokens` are all positions of the rows that are read in the budget; None where it cannot run.
    """

    recipe: str
    parameters: int
    without_embeddings: int
    rate: rates.Rate
    tokens: float | None

    @property
    def tokens_per_parameter(self) -> float | None:
        """Tokens of the budget for each parameter outside of embedding tables."""
        return None if self.tokens is None else self.tokens / self.without_embeddings


@dataclasses.dataclass(frozen=True)
class Budget:
    """Recipes in a budget, smallest first; `enough` is the tokens that a parameter should see."""

    date: str
    hours: float
    target: estimates.Target
    enough: float
    entries: tuple[Entry, ...]
    prices: dict[str, estimates.Figure]
    assumptions: tuple[str, ...]
    versions: dict[str, str]

    @property
    def largest(self) -> Entry | None:
        """The entry with the most parameters of those that see enough tokens, None without one."""
        fitting = [it for it in self.entries if (it.tokens_per_parameter or 0.0) >= self.enough]
        return max(fitting, key=_size, default=None)


def parse_hours(text: str) -> float:
    """Returns the hours of a time such as 24h, 90m or 2d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip().lower())
    hours = float(match[1]) * HOURS[match[2]] if match else 0.0
    if not hours:
        raise ValueError(
            f"--budget is {text!r}; it must be a number above 0 with m, h or d after it (minutes, "
            "hours, days): 90m, 24h, 2d"
        )
    return hours


def candidates(
    names: Iterable[str], options: Mapping[str, Any], *, vocab_size: int
) -> tuple[dict[str, ml_collections.ConfigDict], list[str]]:
    """Returns the configs of recipes and of all sizes of families, and what they assume.

    `options` are those of every config, by their dotted names. All devices share each batch, and
    batches do not grow.
    """
    sizes = dict.fromkeys(size for name in names for size in recipes.of_family(name))
    configs, assumed = {}, {}
    for name in sizes:
        config = recipes.load(name).copy_and_resolve_references()
        config.mesh.data = -1
        config.update_from_flattened_dict(options)
        config = automatic.decided(config, None)
        if config.task != "pretraining":
            raise ValueError(
                f"--budget plans pretraining, but config.task of {name} is {config.task!r}: plan "
                "it without --budget"
            )
        config, assumptions_of_it = assumptions.with_vocabulary(
            _of_full_batches(config), vocab_size
        )
        configs[name] = config
        for assumption in assumptions_of_it:
            assumed.setdefault(assumption, []).append(name)
    return configs, [f"{it} ({', '.join(names)})" for it, names in assumed.items()]


def _of_full_batches(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns the config without batch ramps and without passes over records that do not exist."""
    names = config_lib.phase_names(config)
    for name in names:
        config.phases[name].update(ramp_from=0, ramp_tokens=0)
    passes = [name for name in names if config.phases[name].num_epochs]
    if passes and len(names) > 1:
        raise ValueError(
            f"config.phases.{passes[0]}.num_epochs is {config.phases[passes[0]].num_epochs}, and "
            "how long each phase is follows from its records: give num_steps or num_tokens instead"
        )
    # The share of the only phase is all, so any number of steps does.
    return automatic.with_steps(
        config, {name: 1_000 + config.schedule.warmup_steps for name in passes}
    )


def fill(
    configs: Mapping[str, ml_collections.ConfigDict],
    on_target: planner.Planner,
    *,
    hours: float,
    enough: float,
    with_all: bool,
) -> Iterator[Entry]:
    """Yields the entry of each config, smallest first, as soon as it is known.

    Unless `with_all`, models are not planned that are larger than one that sees far too little.
    """
    stopped = ""
    for size, name in sorted((count(config), name) for name, config in configs.items()):
        rate = rates.Rate(None, "", stopped) if stopped else _rate(configs[name], on_target)
        tokens = None if rate.tokens_per_second is None else rate.tokens_per_second * hours * 3600
        entry = Entry(name, size[1], size[0], rate, tokens)
        seen = entry.tokens_per_parameter
        if not with_all and seen is not None and seen < LEAST_SHARE * enough:
            stopped = f"not planned: {name}, a smaller one, sees {seen:,.1f} a parameter"
        yield entry


def _rate(config: ml_collections.ConfigDict, on_target: planner.Planner) -> rates.Rate:
    try:
        return rates.RATES[on_target.target.platform](config, on_target)
    except ValueError as error:  # of this config on these devices; others may run
        return rates.Rate(None, "", "not possible: " + " ".join(str(error).split()))


def count(config: ml_collections.ConfigDict) -> tuple[int, int]:
    """Returns the parameters that a config trains: outside of embedding tables, and all."""
    task = pretraining.pretraining_task(program.resolve(config, "cpu"))
    _, params = tasks.abstract_model(task)
    sizes = {name: math.prod(leaf.shape) for name, leaf in parameters.flat(params).items()}
    tables = sum(size for name, size in sizes.items() if TABLES.fullmatch(name))
    return sum(sizes.values()) - tables, sum(sizes.values())


def _size(entry: Entry) -> tuple[int, float]:
    return entry.without_embeddings, entry.tokens or 0.0
